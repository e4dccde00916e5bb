"""The official suite's scenarios for the tasks extension, before a server that has it: without and with the gateway."""

import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from tests.conformance import suite, through

Way = Callable[[Sequence[str]], AbstractContextManager[str]]

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


@pytest.mark.parametrize("way", through.WAYS)
def test_every_check_about_tasks_succeeds(way: Way, npm: Path) -> None:
    with way(_FOREMAN) as url:
        # Each mostly waits for tasks to come to their end.
        with ThreadPoolExecutor(4) as pool:
            running = {name: pool.submit(suite.run_extension_scenario, npm, name, url) for name in SCENARIOS}
            found = {name: checks.result() for name, checks in running.items()}
    assert not suite.shortcomings(found)
    assert {scenario: len(checks) for scenario, checks in found.items()} == SCENARIOS
