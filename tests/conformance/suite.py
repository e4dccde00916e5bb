"""The official conformance suite, run against our everything-server and against our client.

What counts is checks that succeeded: a scenario passes with checks that were skipped, too. server_checks.json and
client_checks.json hold those that succeed; after a change for the better, `python -m tests.conformance.suite` shows
them and writes both anew.
"""

import json
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypedDict, cast

ROOT: Final = Path(__file__).parents[2]
SERVER_BASELINE: Final = Path(__file__).with_name("server_checks.json")
CLIENT_BASELINE: Final = Path(__file__).with_name("client_checks.json")
CLIENT: Final = Path(__file__).with_name("client.py")
NPM: Final = ROOT / ".strangers" / "npm"
PROGRAM: Final = Path("node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js")

RELEASED: Final = "0.1.16"
"""The last release of the suite that is no preview. It knows no revision after 2025-11-25, and stands beside those."""
_RELEASED_PROGRAM: Final = Path("node_modules", "conformance-0.1", "dist", "index.js")

SERVER_SCENARIOS: Final = {"2025-03-26": 1, "2025-06-18": 27, "2025-11-25": 33, "2026-07-28": 40, RELEASED: 32}
"""How many scenarios for servers there are for each revision, and in the released suite."""

CLIENT_SCENARIOS: Final = {"2025-03-26": 2, "2025-06-18": 5, "2025-11-25": 19, "2026-07-28": 33}
"""How many scenarios for clients there are for each revision, with those of NOT_YET."""

_OAUTH_2025_03_26: Final = frozenset(
    {"auth/2025-03-26-oauth-endpoint-fallback", "auth/2025-03-26-oauth-metadata-backcompat"}
)
_OAUTH_2025_06_18: Final = frozenset(
    {"auth/token-endpoint-auth-basic", "auth/token-endpoint-auth-none", "auth/token-endpoint-auth-post"}
)
_OAUTH_2025_11_25: Final = _OAUTH_2025_06_18 | {
    "auth/basic-cimd",
    "auth/metadata-default",
    "auth/metadata-var1",
    "auth/metadata-var2",
    "auth/metadata-var3",
    "auth/pre-registration",
    "auth/scope-from-scopes-supported",
    "auth/scope-from-www-authenticate",
    "auth/scope-omitted-when-undefined",
    "auth/scope-retry-limit",
    "auth/scope-step-up",
}
_OAUTH_2026_07_28: Final = _OAUTH_2025_11_25 | {
    "auth/authorization-server-migration",
    "auth/iss-normalized",
    "auth/iss-not-advertised",
    "auth/iss-supported",
    "auth/iss-supported-missing",
    "auth/iss-unexpected",
    "auth/iss-wrong-issuer",
    "auth/metadata-issuer-mismatch",
    "auth/offline-access-not-supported",
    "auth/offline-access-scope",
    "auth/resource-mismatch",
}
NOT_YET: Final = {
    "2025-03-26": _OAUTH_2025_03_26,
    "2025-06-18": _OAUTH_2025_06_18,
    "2025-11-25": _OAUTH_2025_11_25,
    "2026-07-28": _OAUTH_2026_07_28,
}
"""Client scenarios that we cannot pass yet: OAuth. Our client sends a token that it is given and fetches none."""

_SKIPPING_OAUTH: Final = 'test "${MCP_CONFORMANCE_SCENARIO#auth/}" != "$MCP_CONFORMANCE_SCENARIO" || exec'
"""What a shell says to start a client for other scenarios only, which is faster than to start it for nothing."""

OF_THE_HANDSHAKE: Final = frozenset(
    {"ClientMcpMethodHeader_initialize", "ClientMcpMethodHeader_notifications_initialized"}
)
"""Checks for clients of 2026-07-28 that none of them can pass, as that revision has no handshake. They are skipped."""

PROMPTLY: Final = 50  # seconds for all scenarios of a revision, which take three

_RESULT: Final = re.compile(r"(.+)-\d{4}-\d\d-\d\dT[0-9-]+Z")

Succeeded = dict[str, dict[str, int]]
"""For each scenario: its checks that succeeded, and how often."""


class Check(TypedDict):
    """What the suite says of one thing that it looked at, as far as we look at that."""

    id: str
    name: str
    status: str


Results = Mapping[str, list[Check]]
"""For each scenario: its checks."""


@contextmanager
def everything_server() -> Generator[str]:
    """The address of our everything-server, as long as it runs."""
    command = [sys.executable, str(ROOT / "examples" / "everything.py"), "--http"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            said = process.stderr.readline()
            found = re.search(r"http://\S+", said)
            assert found, f"the everything-server did not start: {said}{process.stderr.read()}"
            # What it says later is passed on, for people to read and so that it never waits for a reader.
            passing = threading.Thread(target=shutil.copyfileobj, args=(process.stderr, sys.stderr))
            passing.start()
            yield found[0]
        finally:
            process.terminate()
        passing.join(PROMPTLY)


def run_server_scenarios(npm: Path, wire: str, url: str) -> Results:
    """What the suite finds when it speaks to a server as a client of one revision does, or the released suite."""
    with tempfile.TemporaryDirectory() as directory:
        arguments = ["server", "--url", url, "--suite", "all"]
        if wire == RELEASED:
            _run(npm, directory, arguments, _RELEASED_PROGRAM)
        else:
            _run(npm, directory, [*arguments, "--spec-version", wire])
        return {name.removeprefix("server-"): _checks(result) for name, result in _results(directory).items()}


def run_extension_scenario(npm: Path, scenario: str, url: str) -> list[Check]:
    """What the suite finds in a scenario about an extension, when it speaks to a server of 2026-07-28."""
    with tempfile.TemporaryDirectory() as directory:
        # Forced, for such a scenario is of no revision.
        arguments = ["--scenario", scenario, "--spec-version", "2026-07-28", "--force"]
        _run(npm, directory, ["server", "--url", url, *arguments])
        (result,) = _results(directory).values()
        return _checks(result)


def run_client_scenarios(npm: Path, wire: str, client: Sequence[str] = (sys.executable, str(CLIENT))) -> Results:
    """What the suite finds when our client speaks to its servers of one revision. Nothing is done for NOT_YET."""
    command = f"{_SKIPPING_OAUTH} {shlex.join(client)}"
    arguments = ["--suite", "all", "--spec-version", wire, "--timeout", f"{PROMPTLY}000"]
    with tempfile.TemporaryDirectory() as directory:
        _run(npm, directory, ["client", "--command", command, *arguments])
        results = _results(directory)
        # A client may fail after its last check was made; then the suite says nothing.
        failed = [
            f"{name}: {(result / 'stderr.txt').read_text()}"
            for name, result in results.items()
            if not name.startswith("auth/") and (result / "stdout.txt").read_text() != "done\n"
        ]
        assert not failed, "\n".join(failed)
        return {name: _checks(result) for name, result in results.items()}


def succeeded(results: Results) -> Succeeded:
    """The checks that succeeded."""
    return {scenario: dict(sorted(_counted(checks).items())) for scenario, checks in sorted(results.items())}


def failed(results: Results) -> Succeeded:
    """The checks that failed, or warned."""
    return {scenario: dict(_counted(checks, "FAILURE", "WARNING")) for scenario, checks in sorted(results.items())}


def shortcomings(results: Results) -> list[str]:
    """The checks that found something wrong, or could not look at it."""
    return [
        f"{scenario}: {json.dumps(check)}"
        for scenario, checks in sorted(results.items())
        for check in checks
        if check["status"] not in ("SUCCESS", "INFO")
        and not (check["status"] == "SKIPPED" and check["name"] in OF_THE_HANDSHAKE)
    ]


def baseline(path: Path) -> dict[str, Succeeded]:
    """The checks that are known to succeed, for each revision."""
    return cast(dict[str, Succeeded], json.loads(path.read_text()))


def only_says_nothing(known: Succeeded) -> list[str]:
    """The scenarios of which no more is known than what holds of an endpoint that says nothing."""
    return [scenario for scenario, checks in known.items() if not checks.keys() - {"wire-schema-valid WireSchemaValid"}]


def assert_no_less(results: Results, known: Succeeded) -> None:
    """Every check that is known to succeed does so, no other check fails, and the list is complete."""
    found = succeeded(results)
    lost = {
        f"{scenario}: {check}"
        for scenario, checks in known.items()
        for check, times in checks.items()
        if found.get(scenario, {}).get(check, 0) < times
    }
    assert not lost, "\n".join([*sorted(lost), *shortcomings(results)])
    assert not shortcomings(results)
    assert found == known, "more succeeds than before: let `python -m tests.conformance.suite` write it down"


def _run(npm: Path, directory: str, arguments: Sequence[str], program: Path = PROGRAM) -> None:
    # Its status tells of failures only; what it wrote tells all.
    ended = subprocess.run(
        [npm / "node", npm / program, *arguments, "--output-dir", directory],
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        timeout=PROMPTLY,
        check=False,
    )
    assert any(Path(directory).iterdir()), f"the suite did not run: {ended.stderr}"


def _results(directory: str) -> dict[str, Path]:
    """For each scenario: where the suite wrote of it. Some names have a slash, and are two directories."""
    written = [file.parent for file in Path(directory).rglob("checks.json")]
    names = [_RESULT.fullmatch(str(result.relative_to(directory))) for result in written]
    return {name[1]: result for name, result in zip(names, written, strict=True) if name}


def _checks(result: Path) -> list[Check]:
    return cast(list[Check], json.loads((result / "checks.json").read_text()))


def _counted(checks: list[Check], *statuses: str) -> Counter[str]:
    # One check often looks at several cases, under one id and one name.
    wanted = statuses or ("SUCCESS",)
    return Counter(f"{check['id']} {check['name']}" for check in checks if check["status"] in wanted)


def _show(role: str, wire: str, results: Results) -> None:
    statuses = Counter(check["status"] for checks in results.values() for check in checks)
    print(f"{role}, {wire}: {len(results)} scenarios, {dict(statuses)}")
    print(*shortcomings(results), sep="\n")


def main() -> None:
    """Write the baselines anew, and show what is in them."""
    known: dict[str, Succeeded] = {}
    with everything_server() as url:
        for wire in SERVER_SCENARIOS:
            results = run_server_scenarios(NPM, wire, url)
            known[wire] = succeeded(results)
            _show("server", wire, results)
    SERVER_BASELINE.write_text(json.dumps(known, indent=1) + "\n")
    known = {}
    for wire in CLIENT_SCENARIOS:
        results = run_client_scenarios(NPM, wire)
        results = {scenario: checks for scenario, checks in results.items() if scenario not in NOT_YET[wire]}
        known[wire] = succeeded(results)
        _show("client", wire, results)
    CLIENT_BASELINE.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
