"""The official suite's scenarios for the skills extension, before a server that has it: without and with the gateway.

Nothing in the gateway knows this extension; it is an example of any.
"""

import sys
from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final

import pytest

from tests.conformance import suite, through

pytestmark = pytest.mark.timeout(3 * suite.PROMPTLY)

SCENARIOS: Final = {"sep-2640-skills-directory": 7, "sep-2640-skills-enumeration": 32, "sep-2640-skills-manifest": 6}
"""How many checks each has."""

_LIBRARIAN: Final = ["env", f"PYTHONPATH={suite.ROOT}", sys.executable, "-m", "tests.conformance.skills_server"]


@contextmanager
def alone() -> Generator[str]:
    with through.program([*_LIBRARIAN, "--http"]) as url:
        yield url


@contextmanager
def behind_a_pipe() -> Generator[str]:
    with through.gateway({"command": _LIBRARIAN[0], "args": _LIBRARIAN[1:]}) as url:
        yield url


@contextmanager
def by_http() -> Generator[str]:
    with alone() as server, through.gateway({"url": server}) as url:
        yield url


@pytest.mark.parametrize("way", [alone, behind_a_pipe, by_http])
def test_every_check_about_skills_succeeds(way: Callable[[], AbstractContextManager[str]], npm: Path) -> None:
    with way() as url:
        found = {name: suite.run_extension_scenario(npm, name, url) for name in SCENARIOS}
    assert not suite.shortcomings(found)
    assert {scenario: len(checks) for scenario, checks in found.items()} == SCENARIOS
