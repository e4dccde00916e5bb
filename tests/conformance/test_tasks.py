"""The official suite's scenarios for the tasks extension, before a server that has it: without and with the gateway."""

import sys
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.conformance import suite, through

pytestmark = pytest.mark.timeout(3 * suite.PROMPTLY)

SCENARIOS: Final = {
    "tasks-capability-negotiation": 5,
    "tasks-dispatch-and-envelope": 9,
    "tasks-lifecycle": 9,
    "tasks-mrtr-composition": 2,
    "tasks-mrtr-input": 4,
    "tasks-request-headers": 5,
    "tasks-request-state-removal": 3,
    "tasks-required-task-error": 3,
    "tasks-wire-fields": 4,
}
"""How many checks each has. The suite has another, about notices, in which it skips its only check."""

_FOREMAN: Final = ["env", f"PYTHONPATH={suite.ROOT}", sys.executable, "-m", "tests.hub.foreman"]


@contextmanager
def alone() -> Generator[str]:
    with through.program([*_FOREMAN, "--http"]) as url:
        yield url


@contextmanager
def behind_a_pipe() -> Generator[str]:
    with through.gateway({"command": _FOREMAN[0], "args": _FOREMAN[1:]}) as url:
        yield url


@contextmanager
def by_http() -> Generator[str]:
    with alone() as server, through.gateway({"url": server}) as url:
        yield url


@pytest.mark.parametrize("way", [alone, behind_a_pipe, by_http])
def test_every_check_about_tasks_succeeds(way: Callable[[], AbstractContextManager[str]], npm: Path) -> None:
    with way() as url:
        # Each mostly waits for tasks to come to their end.
        with ThreadPoolExecutor(4) as pool:
            running = {name: pool.submit(suite.run_extension_scenario, npm, name, url) for name in SCENARIOS}
            found = {name: checks.result() for name, checks in running.items()}
    assert not suite.shortcomings(found)
    assert {scenario: len(checks) for scenario, checks in found.items()} == SCENARIOS
