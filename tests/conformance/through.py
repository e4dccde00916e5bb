"""The conformance suite with the gateway in between: before servers of each era, and before the suite's own servers.

What counts is checks that succeed without the gateway and are lost with it, and checks that fail only with it.
through_checks.json names them, REASONS says why. `python -m tests.conformance.through` runs everything, shows it and
writes the list anew; with names of servers and revisions (`both-stdio 2026-07-28`) it runs and shows these only.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Final, TypedDict, cast

from tests.conformance import suite

HERE: Final = Path(__file__).parent
BASELINE: Final = HERE / "through_checks.json"
FAILS: Final = "fails only through the gateway"
ERAS: Final = ("session", "modern")

_EVERYTHING: Final = [sys.executable, str(suite.ROOT / "examples" / "everything.py")]
_ONE_ERA: Final = [sys.executable, str(HERE / "one_era.py")]

SERVERS: Final[Mapping[str, Sequence[str]]] = {
    "both-stdio": _EVERYTHING,
    "both-http": [*_EVERYTHING, "--http"],
    "session-stdio": [*_ONE_ERA, "session"],
    "session-http": [*_ONE_ERA, "session", "--http"],
    "modern-stdio": [*_ONE_ERA, "modern"],
    "modern-http": [*_ONE_ERA, "modern", "--http"],
}
"""The reference servers, by the eras that they speak and how they are reached; and how each is started."""

_NO_RESPONSE: Final = (
    "A server lets go of an HTTP response and is come back to only in the session era over HTTP; "
    "this one is on a pipe, or of 2026-07-28 only."
)
_NO_KEYS: Final = "Questions of the session era have no names of their server's choice; the scenario expects one."
_NO_ROOTS: Final = (
    "No session-era server is told of callers' roots: told once for all of them, many would take these "
    "in place of the folders that they were started with. Folders are configured instead."
)
_SESSION: Final[Mapping[str, str]] = {
    "input-required-result-basic-elicitation": _NO_KEYS,
    "input-required-result-basic-list-roots": _NO_ROOTS,
    "input-required-result-ignore-extra-params": _NO_KEYS,
    "input-required-result-multiple-input-requests": _NO_ROOTS,
}
_POLLING: Final[Mapping[str, str]] = {"server-sse-polling": _NO_RESPONSE}

REASONS: Final[Mapping[str, Mapping[str, str]]] = {
    "both-stdio": _POLLING,
    "both-http": {},
    "session-stdio": _POLLING | _SESSION,
    "session-http": _SESSION,
    "modern-stdio": _POLLING,
    "modern-http": _POLLING,
    "client": {
        "request-metadata": "The scenario asks for lists only, which the gateway has asked for on its own behalf; "
        "it has no roots itself, and those of callers travel with their calls."
    },
}
"""For each server, and for clients: the scenarios in which checks are lost, and why."""


class Lost(TypedDict):
    """The checks that are known to be lost or to fail, by server or by the client's era, then by revision."""

    server: dict[str, dict[str, list[str]]]
    client: dict[str, dict[str, list[str]]]


@contextmanager
def program(command: Sequence[str]) -> Generator[str]:
    """The address that a program says it serves at, as long as it runs."""
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        said: list[str] = []
        found = None
        try:
            while found is None and (line := process.stderr.readline()):
                said.append(line)
                found = re.search(r"serving at (http://\S+)", line)
            assert found, f"{command} did not start: {''.join(said)}"
            # What it says later is passed on, for people to read and so that it never waits for a reader.
            passing = threading.Thread(target=shutil.copyfileobj, args=(process.stderr, sys.stderr))
            passing.start()
            yield found[1]
        finally:
            process.terminate()
        passing.join(suite.PROMPTLY)


def configure(folder: str, entry: Mapping[str, object], era: str = "auto") -> None:
    """Make it the folder of a gateway in front of one server, without a prefix."""
    Path(folder, ".mcp.json").write_text(json.dumps({"mcpServers": {"behind": entry}}))
    # The suite leaves questions of 2026-07-28 unanswered, whose calls at session-era servers would delay the end.
    settings = f'[limits]\ndrain = 0.1\n[servers.behind]\nprefix = ""\nera = "{era}"\n'
    Path(folder, "sluicegate.toml").write_text(settings)


@contextmanager
def gateway(entry: Mapping[str, object], era: str = "auto") -> Generator[str]:
    """The address of a gateway in front of the server that an entry of `.mcp.json` names, without a prefix."""
    with tempfile.TemporaryDirectory() as folder:
        configure(folder, entry, era)
        with program([sys.executable, str(HERE / "front.py"), folder]) as address:
            yield address


@contextmanager
def gateway_before(server: str) -> Generator[str]:
    """The address of a gateway in front of one of the reference servers."""
    command = SERVERS[server]
    if "--http" not in command:
        with gateway({"command": command[0], "args": list(command[1:])}) as address:
            yield address
        return
    with program(command) as url, gateway({"url": url}) as address:
        yield address


def alone(command: Sequence[str]) -> AbstractContextManager[str]:
    """The address of a server, without a gateway."""
    return program([*command, "--http"])


def behind_a_pipe(command: Sequence[str]) -> AbstractContextManager[str]:
    """The address of a gateway in front of the server as a command."""
    return gateway({"command": command[0], "args": list(command[1:])})


@contextmanager
def by_http(command: Sequence[str]) -> Generator[str]:
    """The address of a gateway in front of the server at a URL."""
    with alone(command) as server, gateway({"url": server}) as address:
        yield address


WAYS: Final = (alone, behind_a_pipe, by_http)
"""The ways to a server that is started with a command."""


def client_command(era: str) -> list[str]:
    """How our client is started with a gateway between it and the suite's server, to which it speaks one era."""
    return ["env", f"PYTHONPATH={suite.ROOT}", sys.executable, "-m", "tests.conformance.through_client", era]


def lost(alone: suite.Succeeded, through: suite.Results, failed_alone: suite.Succeeded | None = None) -> list[str]:
    """The checks that succeed without the gateway and do not with it, and those that fail only with it.

    A check that looks at several cases counts for each of them. One that is lost and fails counts once.
    """
    succeeded, failed = suite.succeeded(through), suite.failed(through)
    found: list[str] = []
    for scenario, checks in alone.items():
        missing: Counter[str] = Counter(checks)
        missing.subtract(succeeded.get(scenario, {}))
        failures: Counter[str] = Counter(failed.get(scenario, {}))
        failures.subtract((failed_alone or {}).get(scenario, {}))
        failures.subtract(+missing)
        found += [f"{scenario}: {check}" for check in (+missing).elements()]
        found += [f"{scenario}: {check} ({FAILS})" for check in (+failures).elements()]
    return sorted(found)


def unreasoned(who: str, checks: Sequence[str]) -> list[str]:
    """Those of the lost checks for which there is no reason."""
    return [check for check in checks if check.partition(":")[0] not in REASONS[who]]


def known() -> Lost:
    """The checks that are known to be lost."""
    return cast(Lost, json.loads(BASELINE.read_text()))


def run_servers(npm: Path, server: str, wires: Sequence[str]) -> dict[str, list[str]]:
    """For each revision: the checks that a server loses behind the gateway."""
    alone = suite.baseline(suite.SERVER_BASELINE)
    with gateway_before(server) as url:
        return {wire: lost(alone[wire], suite.run_server_scenarios(npm, wire, url)) for wire in wires}


def run_clients(npm: Path, era: str, wires: Sequence[str]) -> dict[str, list[str]]:
    """For each revision of the suite's servers: the checks that our client loses behind the gateway."""
    alone = suite.baseline(suite.CLIENT_BASELINE)
    return {wire: lost(alone[wire], suite.run_client_scenarios(npm, wire, client_command(era))) for wire in wires}


def _show(who: str, found: Mapping[str, Sequence[str]], alone: Mapping[str, suite.Succeeded]) -> None:
    for wire, checks in found.items():
        total = sum(sum(times.values()) for times in alone[wire].values())
        print(f"{who}, {wire}: {len(checks)} of {total} lost or failing")
        print(*(f"  {check}" for check in checks), sep="\n", end="\n" if checks else "")


def main() -> None:
    """Run what the arguments name, or everything; the latter is written down."""
    named = sys.argv[1:]
    wires = [wire for wire in suite.SERVER_SCENARIOS if wire in named] or list(suite.SERVER_SCENARIOS)
    servers = [server for server in SERVERS if server in named or not named]
    found = Lost(server={}, client={})
    for server in servers:
        found["server"][server] = run_servers(suite.NPM, server, wires)
        _show(server, found["server"][server], suite.baseline(suite.SERVER_BASELINE))
    for era in [era for era in ERAS if f"client-{era}" in named or not named]:
        of_clients = [wire for wire in wires if wire in suite.CLIENT_SCENARIOS]
        found["client"][era] = run_clients(suite.NPM, era, of_clients)
        _show(f"client-{era}", found["client"][era], suite.baseline(suite.CLIENT_BASELINE))
    if not named:
        BASELINE.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
