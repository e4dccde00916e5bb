"""A server that is not ours, alone and through the gateway: `python -m tests.conformance.stranger` shows what is lost.

It is `@modelcontextprotocol/server-everything`, which speaks the session era and has none of the tools that the
scenarios name. What it has is compared all the same. With `URL` or `URL ERA` it is the server at that address.
"""

import os
import socket
import subprocess
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from typing import Final

from tests.conformance import suite, through

PROGRAM: Final = suite.NPM / "node_modules/@modelcontextprotocol/server-everything/dist/index.js"


@contextmanager
def alone() -> Generator[str]:
    """The address of the server over HTTP, as long as it runs."""
    with socket.socket() as probe:  # It cannot take any port and say which.
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    command = [suite.NPM / "node", PROGRAM, "streamableHttp"]
    environment = {**os.environ, "PORT": str(port)}
    with subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stderr is not None
            said = process.stderr.readline()
            assert "listening" in said, f"it did not start: {said}"
            yield f"http://127.0.0.1:{port}/mcp"
        finally:
            process.terminate()


def compare(url: str, ways: Mapping[str, Mapping[str, object]], era: str) -> None:
    """Show what succeeds alone, at a URL, and what of it is lost in each way of reaching the server behind it."""
    found = {wire: suite.run_server_scenarios(suite.NPM, wire, url) for wire in suite.SERVER_SCENARIOS}
    known = {wire: suite.succeeded(results) for wire, results in found.items()}
    for way, entry in ways.items():
        with through.gateway(entry, era) as address:
            for wire in suite.SERVER_SCENARIOS:
                results = suite.run_server_scenarios(suite.NPM, wire, address)
                lost = through.lost(known[wire], results, suite.failed(found[wire]))
                print(f"{way}, {wire}: alone {total(known[wire])}, through {total(suite.succeeded(results))}", end="")
                print(f", lost {len(lost)}", *lost, sep="\n  ")


def main() -> None:
    """Compare the server that the arguments name, or the one that is installed."""
    if len(sys.argv) > 1:
        compare(sys.argv[1], {"HTTP": {"url": sys.argv[1]}}, sys.argv[2] if len(sys.argv) > 2 else "auto")
        return
    with alone() as url:
        command = {"command": str(suite.NPM / "node"), "args": [str(PROGRAM), "stdio"]}
        compare(url, {"HTTP": {"url": url}, "stdio": command}, "auto")


def total(checks: suite.Succeeded) -> int:
    """How many checks succeeded."""
    return sum(sum(times.values()) for times in checks.values())


if __name__ == "__main__":
    main()
