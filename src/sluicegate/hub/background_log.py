"""Log lines of servers that belong to no call, and who is told them: session-era clients that said how much they want.

The one rule (threats T11): a connection is everybody's, and what a line is about nobody knows. So a line is told only
where all who ever called the server are one and the same, and to that one's clients only.
"""

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection
from typing import Final, cast

from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Notification, Reply, Result
from sluicegate.protocol.methods import LOG_LEVELS
from sluicegate.protocol.modern import ACKNOWLEDGED, Profile, complete
from sluicegate.protocol.versions import SESSION_VERSIONS

_LEVELS: Final[list[object]] = [*LOG_LEVELS]

MOST_UNTOLD: Final = 256
"""Lines that wait for one slow client; beyond that they are lost to it."""


def wants_log(profile: Profile) -> bool:
    """Whether a subscription is one to log lines. Only those that we hold for session-era clients are (§6, 60)."""
    return profile.log_level is not None and profile.version in SESSION_VERSIONS


class BackgroundLog:
    """Those who are told such lines now."""

    def __init__(self, on_level: Callable[[str | None], None]) -> None:
        """`on_level` hears how much the most curious wants to know, or None if nobody does, whenever that changes."""
        self.level: str | None = None
        self._on_level = on_level
        self._listeners: dict[_Listener, None] = {}
        self._levels: Counter[str] = Counter()

    async def hold(self, exchange: Exchange, sees: Callable[[str], bool]) -> Reply:
        """Tell a client the lines of the servers that it `sees`, until it leaves or we close."""
        listener = _Listener(exchange.caller.id, cast(str, exchange.profile.log_level), sees)
        self._listeners[listener] = None
        self._levels[listener.level] += 1
        try:
            self._find_level()
            await exchange.emit(Notification(ACKNOWLEDGED, {"notifications": {}}))
            while (line := await listener.next()) is not None:
                await exchange.emit(line)
        finally:
            del self._listeners[listener]
            self._levels[listener.level] -= 1
            self._find_level()
        return Result(complete({}))

    def tell(self, server: str, callers: Collection[str], line: Notification) -> bool:
        """Tell a server's line to whoever wants it; False if there is nobody, it may be about several callers, or is no
        line that a client could read.
        """
        if line.params.get("level") not in _LEVELS or "data" not in line.params:
            return False
        listeners = [listener for listener in self._listeners if listener.sees(server)]
        # Before anybody has called it, it speaks of itself; but who of several may hear that is not ours to say.
        owners = set(callers) or {listener.caller for listener in listeners}
        told = [listener.take(line) for listener in listeners if len(owners) == 1 and listener.caller in owners]
        return any(told)

    def close(self) -> None:
        """End all listening, in order."""
        for listener in self._listeners:
            listener.close()

    def _find_level(self) -> None:
        level = next((level for level in LOG_LEVELS if self._levels[level]), None)  # There may be thousands of them.
        if level != self.level:
            self.level = level
            self._on_level(level)


class _Listener:
    def __init__(self, caller: str, level: str, sees: Callable[[str], bool]) -> None:
        self.caller = caller
        self.level = level
        self.sees = sees
        self._lines: deque[Notification] = deque()
        self._stirred = asyncio.Event()
        self._is_closed = False

    def take(self, line: Notification) -> bool:
        """Take a line, or see that it is not wanted; False if there is no room for it."""
        if LOG_LEVELS.index(cast(str, line.params["level"])) < LOG_LEVELS.index(self.level):
            return True
        if len(self._lines) >= MOST_UNTOLD:
            return False
        self._lines.append(line)
        self._stirred.set()
        return True

    async def next(self) -> Notification | None:
        """The oldest line, as soon as there is one; None once there will be no more."""
        while not self._lines and not self._is_closed:
            self._stirred.clear()
            await self._stirred.wait()
        return self._lines.popleft() if self._lines else None

    def close(self) -> None:
        """Take no more."""
        self._is_closed = True
        self._stirred.set()
