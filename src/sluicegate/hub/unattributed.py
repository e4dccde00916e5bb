"""What a server sends that belongs to no call: log lines, page visits, and questions, which are refused.

Log lines go to session-era clients that set a log level. The connection is shared by all callers, and a line does not
say which of them it is about. So a line is forwarded only if the server has had one caller, and only to that caller's
clients (threats T11). The same holds for our own records, of which a line about no server is one about all of them.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Final, cast

from sluicegate.errors import METHOD_NOT_FOUND, ErrorObject, InputRefused, UpstreamError
from sluicegate.exchange import NOBODY, Connection, Exchange
from sluicegate.hub.call_sink import roots_answer
from sluicegate.hub.calls import Calls
from sluicegate.hub.tasks.run_legacy import STATUS
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Reply, Result
from sluicegate.protocol.methods import LOG_LEVELS
from sluicegate.protocol.modern_era import ACKNOWLEDGED, ClientProfile, complete
from sluicegate.protocol.versions import SESSION_VERSIONS

SETS_LEVEL_WITHIN: Final = 10.0
"""Seconds that a server has to answer `logging/setLevel`."""
MAX_KNOWN_VISITS: Final = 1000
"""Completed visits that are remembered until a call waits for them."""


class Visits:
    """Page visits that a server reported as completed, perhaps before a call waits for them."""

    def __init__(self) -> None:
        self._changed = asyncio.Condition()
        self._ids: dict[str, None] = {}  # A dict for its order.

    async def note(self, elicitation: str) -> None:
        """Remember that a visit is completed."""
        async with self._changed:
            self._ids[elicitation] = None
            if len(self._ids) > MAX_KNOWN_VISITS:
                del self._ids[next(iter(self._ids))]
            self._changed.notify_all()

    async def completed(self, ids: set[str], seconds: float) -> None:
        """Wait until the server reports these as completed, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: ids <= self._ids.keys())
        for known in ids:
            self._ids.pop(known, None)


class Unattributed:
    """The sink of a connection itself."""

    def __init__(self, calls: Calls, visits: Visits, log: Callable[[Notification], bool]) -> None:
        """`log` takes a line of the server's log and returns whether a client gets it."""
        self._calls = calls
        self._visits = visits
        self._log = log

    async def emit(self, notification: Notification) -> None:
        """Pass it on without waiting for clients; log lines that no client gets are counted."""
        if notification.method == "notifications/elicitation/complete":
            elicitation = notification.params.get("elicitationId")
            if isinstance(elicitation, str):
                await self._visits.note(elicitation)
        elif notification.method == STATUS:
            self._calls.tasks.on_status(notification.params)
        elif notification.method == "notifications/message" and not self._log(notification):
            self._calls.lost("log messages that belong to no call")

    async def ask(self, questions: Questions) -> Answers:
        """Refuse and count it; only configured roots are known without a caller."""
        roots = self._calls.settings.roots
        if roots and all(question.method == "roots/list" for question in questions.values()):
            return dict.fromkeys(questions, roots_answer(roots))
        self._calls.lost("questions that belong to no call")
        sentence = "This question belongs to no call, so there is no client to ask."
        raise InputRefused(sentence, error=ErrorObject(METHOD_NOT_FOUND, sentence))


_LEVELS: Final[list[object]] = [*LOG_LEVELS]

MAX_LINES: Final = 256
"""Lines that wait for one slow client; further ones are dropped."""


def wants_log(profile: ClientProfile) -> bool:
    """Whether a subscription asks for log lines: only those that we hold for session-era clients do."""
    return profile.log_level is not None and profile.version in SESSION_VERSIONS


class LogForwarding:
    """The clients that get such lines."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        """`on_change` is called when a client comes or leaves, so that `level_of` may have changed."""
        self._on_change = on_change
        self._listeners: dict[str, dict[_Listener, None]] = {level: {} for level in LOG_LEVELS}

    @property
    def is_wanted(self) -> bool:
        """Whether there is any client that set a level."""
        return any(self._listeners.values())

    async def hold(self, exchange: Exchange, sees: Callable[[str], bool]) -> Reply:
        """Send a client the lines of the servers that it `sees`, until it leaves or we close.

        `sees` is asked with an empty name for lines about the gateway.
        """
        listener = _Listener(exchange.caller.id, cast(str, exchange.profile.log_level), sees)
        self._listeners[listener.level][listener] = None
        try:
            self._on_change()
            await exchange.emit(Notification(ACKNOWLEDGED, {"notifications": {}}))
            while (line := await listener.next()) is not None:
                await exchange.emit(line)
        finally:
            del self._listeners[listener.level][listener]
            self._on_change()
        return Result(complete({}))

    def forward(self, server: str, callers: Collection[str], line: Notification) -> bool:
        """Send a line to the clients that want it; whether one got it.

        None gets it if there have been several callers, or the line is malformed. An empty name is the gateway's own.
        """
        if line.params.get("level") not in _LEVELS or "data" not in line.params:
            return False
        listeners = [each for level in self._listeners.values() for each in level if each.sees(server)]
        # Before the first call a line is about the server itself, but with several listeners we cannot tell for which.
        owners = set(callers) or {listener.caller for listener in listeners}
        taken = [listener.take(line) for listener in listeners if len(owners) == 1 and listener.caller in owners]
        return any(taken)

    def close(self) -> None:
        """End all subscriptions normally."""
        for level in self._listeners.values():
            for listener in level:
                listener.close()

    def level_of(self, server: str) -> str | None:
        """The lowest level that a client wants which sees the server; None if there is no such client."""
        found = (level for level, those in self._listeners.items() if any(each.sees(server) for each in those))
        return next(found, None)


class _Listener:
    def __init__(self, caller: str, level: str, sees: Callable[[str], bool]) -> None:
        self.caller = caller
        self.level = level
        self.sees = sees
        self._lines: deque[Notification] = deque()
        self._woken = asyncio.Event()
        self._is_closed = False

    def take(self, line: Notification) -> bool:
        """Queue a line unless its level is too low; False if there is no room for it."""
        if LOG_LEVELS.index(cast(str, line.params["level"])) < LOG_LEVELS.index(self.level):
            return True
        if len(self._lines) >= MAX_LINES:
            return False
        self._lines.append(line)
        self._woken.set()
        return True

    async def next(self) -> Notification | None:
        """The oldest line, as soon as there is one; None after `close`."""
        while not self._lines and not self._is_closed:
            self._woken.clear()
            await self._woken.wait()
        return self._lines.popleft() if self._lines else None

    def close(self) -> None:
        """Let `next` return None after the last line."""
        self._is_closed = True
        self._woken.set()


async def set_level(connection: Connection, level: str | None) -> None:
    """Set the log level of a session-era server, if it answers."""
    with suppress(UpstreamError, TimeoutError):
        async with asyncio.timeout(SETS_LEVEL_WITHIN):
            await connection(Exchange("logging/setLevel", {"level": level}, NOBODY))
