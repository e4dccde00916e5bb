"""Our server passes the official conformance suite, for every revision that it knows."""

from collections.abc import Callable, Generator
from pathlib import Path

import pytest

from tests.conformance import suite


@pytest.fixture(scope="module")
def npm(stranger: Callable[[str], Path]) -> Path:
    """Where the suite is installed; without it, tests skip and say why."""
    npm = stranger("npm")
    if not (npm / suite.PROGRAM).exists():
        pytest.skip("the conformance suite is not installed: run ./scripts/strangers")
    return npm


@pytest.fixture(scope="module")
def url(npm: Path) -> Generator[str]:
    """The address of the everything-server, which all tests here share."""
    with suite.everything_server() as url:
        yield url


@pytest.mark.parametrize("wire", suite.SCENARIOS)
def test_every_check_that_succeeded_still_does(wire: str, npm: Path, url: str) -> None:
    results = suite.run_server_scenarios(npm, wire, url)
    found, known = suite.succeeded(results), suite.baseline()[wire]
    lost = {
        f"{scenario}: {check}"
        for scenario, checks in known.items()
        for check, times in checks.items()
        if found.get(scenario, {}).get(check, 0) < times
    }
    assert not lost, "\n".join([*sorted(lost), *suite.shortcomings(results)])
    assert not suite.shortcomings(results)
    assert found == known, "more succeeds than before: let `python -m tests.conformance.suite` write it down"


@pytest.mark.parametrize("wire", suite.SCENARIOS)
def test_the_list_of_checks_that_succeed_names_every_scenario(wire: str) -> None:
    known = suite.baseline()[wire]
    assert len(known) == suite.SCENARIOS[wire]
    # Alone it holds of an endpoint that says nothing.
    assert not [
        scenario for scenario, checks in known.items() if not checks.keys() - {"wire-schema-valid WireSchemaValid"}
    ]
