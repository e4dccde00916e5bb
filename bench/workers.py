"""Contestants that live in a process of their own, and whether the official SDK is here at all."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec

from bench.measure import Cost, DidNotFinish, Turn

ROOT = Path(__file__).resolve().parents[1]
STRANGERS = ROOT / ".strangers"
OFFICIAL_PYTHON = STRANGERS / "mcp2" / "bin" / "python"
LIMIT: Final = 60.0
"""Seconds that a contestant has for one turn, and to end; then it is killed with all that it has started."""


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

    def __init__(self, process: "subprocess.Popen[str]", limit: float = LIMIT) -> None:
        assert process.stdin and process.stdout
        self._stdin, self._stdout, self._pid = process.stdin, process.stdout, process.pid
        self.limit = limit
        self._is_killed = False
        self._read_line()

    def turn(self, case: str) -> Turn:
        """The turn of one of its cases."""

        def turn(count: int) -> Cost:
            if not self._is_killed:
                self._stdin.write(f"{case} {count}\n")
                self._stdin.flush()
            return msgspec.json.decode(self._read_line(), type=_Spent).cost()

        return turn

    def _read_line(self) -> str:
        timer = threading.Timer(self.limit, self._kill)
        timer.daemon = True
        timer.start()
        line = self._stdout.readline()
        timer.cancel()
        if self._is_killed:
            raise DidNotFinish(f"did not finish in {self.limit:g} s")
        if not line:
            raise RuntimeError("a contestant ended early; its words above say why")
        return line

    def _kill(self) -> None:
        self._is_killed = True
        kill_tree(self._pid)


def kill_tree(root: int) -> None:
    """Kill a process and all its descendants."""
    for pid in process_tree(root):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def process_tree(root: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                stat = Path(f"/proc/{entry}/stat").read_bytes()
            except OSError:
                continue  # gone meanwhile
            children.setdefault(int(stat.rpartition(b")")[2].split()[1]), []).append(int(entry))
    found = [root]
    for pid in found:  # grows while it is walked
        found += children.get(pid, ())
    return found


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
def peer_worker(python: str, module: str, arguments: str, limit: float = LIMIT) -> Generator[Worker]:
    """A module of `peers/`, run by another environment's Python."""
    with _worker(python, f"bench.peers.{module}", arguments, limit) as worker:
        yield worker


@contextmanager
def _worker(python: str, module: str, arguments: str, limit: float = LIMIT) -> Generator[Worker]:
    command = [python, "-m", module, *arguments.split()]
    process = subprocess.Popen(command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert process.stdin and process.stdout
    try:
        yield Worker(process, limit)
    finally:
        # At the end of its stdin it ends by itself.
        with suppress(BrokenPipeError):
            process.stdin.close()
        try:
            process.wait(limit)
        except subprocess.TimeoutExpired:
            kill_tree(process.pid)
            process.wait()
        process.stdout.close()
