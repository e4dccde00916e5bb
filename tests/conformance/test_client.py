"""Our client passes the official conformance suite, for every revision that it knows, but for OAuth."""

from pathlib import Path

import pytest

from tests.conformance import suite


@pytest.mark.parametrize("wire", suite.CLIENT_SCENARIOS)
def test_every_check_that_succeeded_still_does(wire: str, npm: Path) -> None:
    results = suite.run_client_scenarios(npm, wire)
    # Whoever adds a scenario, or learns to pass one, is told here to say so there.
    assert {name for name in results if name.startswith("auth/")} == suite.NOT_YET[wire]
    assert len(results) == suite.CLIENT_SCENARIOS[wire]
    ours = {name: checks for name, checks in results.items() if name not in suite.NOT_YET[wire]}
    suite.assert_no_less(ours, suite.baseline(suite.CLIENT_BASELINE)[wire])


@pytest.mark.parametrize("wire", suite.CLIENT_SCENARIOS)
def test_the_list_of_successful_checks_names_every_scenario_except_known_failures(wire: str) -> None:
    known = suite.baseline(suite.CLIENT_BASELINE)[wire]
    assert not known.keys() & suite.NOT_YET[wire]
    assert len(known) + len(suite.NOT_YET[wire]) == suite.CLIENT_SCENARIOS[wire]
    assert not suite.only_says_nothing(known)
