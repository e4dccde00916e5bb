"""Our server passes the official conformance suite, for every revision that it knows."""

from collections.abc import Generator
from pathlib import Path

import pytest

from tests.conformance import suite


@pytest.fixture(scope="module")
def url(npm: Path) -> Generator[str]:
    """The address of the everything-server, which all tests here share."""
    with suite.everything_server() as url:
        yield url


@pytest.mark.parametrize("wire", suite.SERVER_SCENARIOS)
def test_every_check_that_succeeded_still_does(wire: str, npm: Path, url: str) -> None:
    suite.assert_no_less(suite.run_server_scenarios(npm, wire, url), suite.baseline(suite.SERVER_BASELINE)[wire])


@pytest.mark.parametrize("wire", suite.SERVER_SCENARIOS)
def test_the_list_of_checks_that_succeed_names_every_scenario(wire: str) -> None:
    known = suite.baseline(suite.SERVER_BASELINE)[wire]
    assert len(known) == suite.SERVER_SCENARIOS[wire]
    assert not suite.only_says_nothing(known)
