"""The last lines that each server wrote, with the time of each, as `sluicegate logs` prints them."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Iterable
from itertools import count
from typing import Final

import msgspec

KEPT: Final = 1000
"""Lines that are kept of each server, and returned at once of all servers."""


class LogLine(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One line that a server wrote."""

    number: int
    at: float
    """Seconds since 1970."""
    server: str
    text: str
    is_stdout: bool = False
    """Whether it was printed to stdout, where only messages belong."""


class ServerLog:
    """The last lines of one server."""

    def __init__(self, name: str, numbers: "count[int]", on_added: Callable[[], object]) -> None:
        self.lines: deque[LogLine] = deque(maxlen=KEPT)
        self.printed = 0
        """How many lines it printed to stdout that are no messages."""
        self.last_printed = ""
        self._name = name
        self._numbers = numbers
        self._on_added = on_added

    def add(self, texts: Iterable[str]) -> None:
        """Keep lines of its stderr."""
        self._keep(texts, is_stdout=False)

    def add_printed(self, text: str) -> None:
        """Keep a line that it printed to stdout, where only messages belong."""
        self.printed += 1
        self.last_printed = text
        self._keep([text], is_stdout=True)

    def clear_printed(self) -> None:
        """Count what it prints to stdout from now on; the lines are kept."""
        self.printed, self.last_printed = 0, ""

    def _keep(self, texts: Iterable[str], *, is_stdout: bool) -> None:
        now = time.time()
        self.lines.extend(
            LogLine(number=next(self._numbers), at=now, server=self._name, text=text, is_stdout=is_stdout)
            for text in texts
        )
        self._on_added()


class ServerLogs:
    """The logs of all servers of a gateway. Lines are numbered in the order in which they came."""

    def __init__(self) -> None:
        self._logs: dict[str, ServerLog] = {}
        self._numbers = count(1)
        self._waiting: set[asyncio.Event] = set()

    def of(self, name: str) -> ServerLog:
        """The log of a server, empty at first."""
        if name not in self._logs:
            self._logs[name] = ServerLog(name, self._numbers, self._wake)
        return self._logs[name]

    def lines(self, names: Iterable[str], after: int = 0) -> list[LogLine]:
        """The last lines of these servers in their order, of those that came after the line of this number."""
        found = [line for name in names for line in self.of(name).lines if line.number > after]
        return sorted(found, key=lambda line: line.number)[-KEPT:]

    async def wait_added(self) -> None:
        """Return when any server writes a line."""
        is_added = asyncio.Event()
        self._waiting.add(is_added)
        try:
            await is_added.wait()
        finally:
            self._waiting.discard(is_added)

    def _wake(self) -> None:
        for is_added in self._waiting:
            is_added.set()
