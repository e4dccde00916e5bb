"""With the gateway in between, the conformance suite finds what it finds without it: of servers, and of our client.

The combinations that tell most; `python -m tests.conformance.through` runs all of them.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

from tests.conformance import suite, through

# One test runs the suite several times, each of which the suite's own deadline bounds.
pytestmark = pytest.mark.timeout(len(suite.SERVER_SCENARIOS) * suite.PROMPTLY)

TELLING: Final[dict[str, Sequence[str]]] = {
    "both-stdio": list(suite.SERVER_SCENARIOS),
    "both-http": ["2025-11-25", "2026-07-28"],
    "session-stdio": ["2026-07-28"],
    "session-http": ["2025-11-25", "2026-07-28"],
    "modern-stdio": ["2025-06-18", "2025-11-25"],
    "modern-http": ["2025-11-25"],
}


@pytest.mark.parametrize("server", TELLING)
def test_a_server_behind_the_gateway_loses_no_other_check(server: str, npm: Path) -> None:
    wires = TELLING[server]
    known = through.known()["server"][server]
    assert through.run_servers(npm, server, wires) == {wire: known[wire] for wire in wires}


@pytest.mark.parametrize(
    ("era", "wire"), [("session", "2025-11-25"), ("session", "2026-07-28"), ("modern", "2026-07-28")]
)
def test_our_client_behind_the_gateway_loses_no_other_check(era: str, wire: str, npm: Path) -> None:
    assert through.run_clients(npm, era, [wire]) == {wire: through.known()["client"][era][wire]}


def test_every_lost_check_has_a_reason_and_every_reason_a_lost_check() -> None:
    known = through.known()
    assert known["server"].keys() == through.SERVERS.keys()
    assert list(known["client"]) == list(through.ERAS)
    clients = {wire: checks for found in known["client"].values() for wire, checks in found.items()}
    for who, found in {**known["server"], "client": clients}.items():
        assert list(found) == list(suite.SERVER_SCENARIOS)
        lost = [check for checks in found.values() for check in checks]
        assert not through.unreasoned(who, lost)
        assert {check.partition(":")[0] for check in lost} == through.REASONS[who].keys()
