"""The official conformance suite, run against our everything-server.

What counts is checks that succeeded: a scenario passes with checks that were skipped, too. server_checks.json holds
those that succeed; after a change for the better, `python -m tests.conformance.suite` shows them and writes it anew.
"""

import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final, TypedDict, cast

ROOT: Final = Path(__file__).parents[2]
BASELINE: Final = Path(__file__).with_name("server_checks.json")
NPM: Final = ROOT / ".strangers" / "npm"
PROGRAM: Final = Path("node_modules", "@modelcontextprotocol", "conformance", "dist", "index.js")

SCENARIOS: Final = {"2025-03-26": 1, "2025-06-18": 27, "2025-11-25": 33, "2026-07-28": 40}
"""How many scenarios for servers there are for each revision."""

PROMPTLY: Final = 50  # seconds for all scenarios of a revision, which take three

_RESULT: Final = re.compile(r"server-(.+)-\d{4}-\d\d-\d\dT[0-9-]+Z")

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
    """What the suite finds when it speaks to a server as a client of one revision does."""
    with tempfile.TemporaryDirectory() as directory:
        arguments = ["server", "--url", url, "--suite", "all", "--spec-version", wire, "--output-dir", directory]
        # Its status tells of failures only; what it wrote tells all.
        subprocess.run(
            [npm / "node", npm / PROGRAM, *arguments],
            cwd=directory,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            timeout=PROMPTLY,
            check=False,
        )
        return {
            found[1]: cast(list[Check], json.loads((result / "checks.json").read_text()))
            for result in Path(directory).iterdir()
            if (found := _RESULT.fullmatch(result.name)) and (result / "checks.json").exists()
        }


def succeeded(results: Results) -> Succeeded:
    """The checks that succeeded."""
    return {scenario: _named(checks, "SUCCESS") for scenario, checks in sorted(results.items())}


def shortcomings(results: Results) -> list[str]:
    """The checks that found something wrong, or could not look at it."""
    return [
        f"{scenario}: {json.dumps(check)}"
        for scenario, checks in sorted(results.items())
        for check in checks
        if check["status"] not in ("SUCCESS", "INFO")
    ]


def baseline() -> dict[str, Succeeded]:
    """The checks that are known to succeed, for each revision."""
    return cast(dict[str, Succeeded], json.loads(BASELINE.read_text()))


def _named(checks: list[Check], status: str) -> dict[str, int]:
    # One check often looks at several cases, under one id and one name.
    names = Counter(f"{check['id']} {check['name']}" for check in checks if check["status"] == status)
    return dict(sorted(names.items()))


def main() -> None:
    """Write the baseline anew, and show what is in it."""
    known: dict[str, Succeeded] = {}
    with everything_server() as url:
        for wire in SCENARIOS:
            results = run_server_scenarios(NPM, wire, url)
            known[wire] = succeeded(results)
            statuses = Counter(check["status"] for checks in results.values() for check in checks)
            print(f"{wire}: {len(results)} scenarios, {dict(statuses)}")
            print(*shortcomings(results), sep="\n")
    BASELINE.write_text(json.dumps(known, indent=1) + "\n")


if __name__ == "__main__":
    main()
