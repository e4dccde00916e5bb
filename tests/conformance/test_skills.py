"""The official suite's scenarios for the skills extension, before a server that has it: without and with the gateway.

Nothing in the gateway knows this extension; it is an example of any.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import pytest

from tests.conformance import suite, through

Way = Callable[[Sequence[str]], AbstractContextManager[str]]

pytestmark = pytest.mark.timeout(3 * suite.PROMPTLY)

SCENARIOS: Final = {"sep-2640-skills-directory": 7, "sep-2640-skills-enumeration": 32, "sep-2640-skills-manifest": 6}
"""How many checks each has."""

_LIBRARIAN: Final = ["env", f"PYTHONPATH={suite.ROOT}", sys.executable, "-m", "tests.conformance.skills_server"]


@pytest.mark.parametrize("way", through.WAYS)
def test_every_check_about_skills_succeeds(way: Way, npm: Path) -> None:
    with way(_LIBRARIAN) as url:
        found = {name: suite.run_extension_scenario(npm, name, url) for name in SCENARIOS}
    assert not suite.shortcomings(found)
    assert {scenario: len(checks) for scenario, checks in found.items()} == SCENARIOS
