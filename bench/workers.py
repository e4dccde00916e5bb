"""Contestants that live in a process of their own, and whether the official SDK is here at all."""

import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from bench.measure import Cost, Turn

ROOT = Path(__file__).resolve().parents[1]
STRANGERS = ROOT / ".strangers"
OFFICIAL_PYTHON = STRANGERS / "mcp2" / "bin" / "python"


def official_missing(sdk: str = "mcp2") -> str | None:
    """Why the official SDK cannot take part, or None if it can."""
    # scripts/strangers copies the lock last, so it is there only if all else is.
    if (STRANGERS / f"{sdk}.lock").exists():
        return None
    missing = STRANGERS / f"{sdk}.missing"
    return missing.read_text().strip() if missing.exists() else "./scripts/strangers has not installed it"


def official_version(sdk: str) -> str:
    """The SDK's version, as its environment has it."""
    found = next((STRANGERS / sdk).glob("lib/python*/site-packages/mcp-[0-9]*.dist-info"), None)
    return found.name.removeprefix("mcp-").removesuffix(".dist-info") if found else sdk.removeprefix("mcp") + ".x"


class Worker:
    """A process that takes turns (see peers/turns.py)."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdin and process.stdout
        self._stdin, self._stdout = process.stdin, process.stdout
        self._read_line()

    def turn(self, case: str) -> Turn:
        """The turn of one of its cases."""

        def turn(count: int) -> Cost:
            self._stdin.write(f"{case} {count}\n")
            self._stdin.flush()
            return msgspec.json.decode(self._read_line(), type=_Spent).cost()

        return turn

    def _read_line(self) -> str:
        line = self._stdout.readline()
        if not line:
            raise RuntimeError("a contestant ended early; its words above say why")
        return line


class _Spent(msgspec.Struct):
    cpu: int
    server: int
    wall: int

    def cost(self) -> Cost:
        return Cost(self.cpu, self.server, self.wall)


@contextmanager
def our_worker(kind: str) -> Generator[Worker]:
    """Our client and server: `memory` or `stdio`."""
    with _worker(sys.executable, "bench.peers.our_client", kind) as worker:
        yield worker


@contextmanager
def official_worker(kind: str) -> Generator[Worker]:
    """The official SDK's."""
    with _worker(str(OFFICIAL_PYTHON), "bench.peers.official_client", kind) as worker:
        yield worker


@contextmanager
def http_client(python: str, module: str, arguments: str) -> Generator[Worker]:
    """Somebody's client of an HTTP server."""
    with _worker(python, f"bench.peers.{module}", arguments) as worker:
        yield worker


@contextmanager
def _worker(python: str, module: str, arguments: str) -> Generator[Worker]:
    command = [python, "-m", module, *arguments.split()]
    # Leaving closes its stdin, at which it ends by itself, and waits for that.
    with subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        yield Worker(process)
