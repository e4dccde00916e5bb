"""What each part of governance costs a call: our gateway with it beside our gateway without any, from HTTP to HTTP.

The first line of a block has no rules, no audit log and no pinned definitions. All gateways run at the same time and
take turns, so that what the machine does besides concerns them alike.
"""

import tempfile
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from bench.gateway.load import Door
from bench.gateway.race import ECHO, HEARD, LANES, Entrant, answered, entered_all, race_between, say
from bench.gateway.stage import ours, pids_in, web_server
from bench.http import uvloop_of_its_own
from bench.load import MODERN
from bench.measure import Effort, Row

_RULE: Final = '[[permissions]]\ntool = "{}"\naction = "{}"\n'
_LAST: Final = _RULE.format("mcp__web__echo", "allow")
_MANY: Final = "".join(_RULE.format(f"mcp__web__delete_{number}_*", "deny") for number in range(999))
_GLOBS: Final = "".join(
    f'[[permissions]]\ntool = "mcp__web__*"\nargs = {{ text = "{glob}" }}\naction = "deny"\n'
    for glob in ("/etc/**", "*secret*", "{rm,dd} **")
)
_NO_AUDIT: Final = "[audit]\nenabled = false\n"
_NORMAL: Final = '[audit]\nsync = "normal"\n'
_FULL: Final = '[audit]\nsync = "full"\n'
_NO_PINS: Final = '[servers.web]\ndefinitions = "off"\n'
_PINS: Final = '[servers.web]\ndefinitions = "pin"\n'

SETTINGS: Final[Mapping[str, str]] = {
    "without governance": _NO_AUDIT + _NO_PINS,
    "1,000 rules": _NO_AUDIT + _NO_PINS + _MANY + _LAST,
    "3 argument globs": _NO_AUDIT + _NO_PINS + _GLOBS + _LAST,
    "audit log, normal": _NORMAL + _NO_PINS,
    "audit log, full": _FULL + _NO_PINS,
    "pinned definitions": _NO_AUDIT + _PINS,
    "all together": _NORMAL + _PINS + _MANY + _GLOBS + _LAST,
}


def run(effort: Effort) -> list[Row]:
    """The rows of this benchmark."""
    rows: list[Row] = []
    with uvloop_of_its_own() as loop, ExitStack() as stack:
        web = stack.enter_context(web_server())
        entrants: list[Entrant] = []
        for name, settings in SETTINGS.items():
            pids = pids_in(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            servers: dict[str, object] = {"web": {"url": f"http://127.0.0.1:{web.port}/mcp"}}
            gate = stack.enter_context(ours(servers, pids, settings))
            entrants.append(Entrant(name, gate, Door(gate.port, MODERN), "web__{}"))
        away: dict[str, str] = {}
        entrants = [entrant._replace(door=door) for entrant, door in entered_all(loop, entrants, away)]
        for lanes in LANES:
            benchmark = f"governance, a call, {lanes} in flight: the gateway"
            say(benchmark)
            turns = [
                (entrant, answered(loop, entrant, entrant.call("echo", ECHO, HEARD), lanes)) for entrant in entrants
            ]
            rows += race_between(benchmark, turns, away, effort, lanes)
    return rows
