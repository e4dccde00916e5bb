"""With the gateway in between, the conformance suite finds what it finds without it: of servers, and of our client.

Each combination is run with every revision, and compared check by check with what is known to be lost. `--soak` runs
all of them. Three show every era and every transport.
"""

from pathlib import Path
from typing import Final

import pytest

from tests.conformance import suite, through

# One test runs the suite several times, each of which the suite's own deadline bounds.
pytestmark = pytest.mark.timeout(len(suite.SERVER_SCENARIOS) * suite.PROMPTLY)

SHORT: Final = ("both-http", "session-stdio", "modern-http")


@pytest.mark.parametrize(
    "server",
    [pytest.param(server, marks=[] if server in SHORT else [pytest.mark.soak]) for server in through.SERVERS],
)
def test_a_server_behind_the_gateway_loses_no_other_check(server: str, npm: Path) -> None:
    assert through.run_servers(npm, server, list(suite.SERVER_SCENARIOS)) == through.known()["server"][server]


@pytest.mark.parametrize("era", through.ERAS)
def test_our_client_behind_the_gateway_loses_no_other_check(era: str, npm: Path) -> None:
    assert through.run_clients(npm, era, list(suite.CLIENT_SCENARIOS)) == through.known()["client"][era]


def test_every_lost_check_has_a_reason_and_every_reason_a_lost_check() -> None:
    known = through.known()
    assert known["server"].keys() == through.SERVERS.keys()
    assert list(known["client"]) == list(through.ERAS)
    clients = {wire: checks for found in known["client"].values() for wire, checks in found.items()}
    for who, found in {**known["server"], "client": clients}.items():
        assert list(found) == list(suite.CLIENT_SCENARIOS if who == "client" else suite.SERVER_SCENARIOS)
        lost = [check for checks in found.values() for check in checks]
        assert not through.unreasoned(who, lost)
        assert {check.partition(":")[0] for check in lost} == through.REASONS[who].keys()


def test_a_check_that_fails_only_through_the_gateway_counts_and_a_lost_one_counts_once() -> None:
    def check(name: str, status: str) -> suite.Check:
        return {"id": "i", "name": name, "status": status}

    alone: suite.Succeeded = {"s": {"i kept": 1, "i lost": 2}}
    results = {"s": [check("kept", "SUCCESS"), check("lost", "SUCCESS"), check("lost", "FAILURE")]}
    assert through.lost(alone, results) == ["s: i lost"]
    results["s"] += [check("new", "FAILURE"), check("kept", "WARNING"), check("new", "SKIPPED")]
    new, warned = (f"s: i {name} ({through.FAILS})" for name in ("new", "kept"))
    assert through.lost(alone, results) == [warned, "s: i lost", new]
    assert through.lost(alone, results, {"s": {"i new": 1}}) == [warned, "s: i lost"]
