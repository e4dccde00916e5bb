"""A server that supports both eras: a tool is called in the era of its caller.

What a server can do often depends on the era: questions during a call, ending a response early, subscriptions. So when
the first session-era client calls a tool of a server of 2026-07-28, a session is opened as well, if the server has
any. Everything else uses 2026-07-28, above all the lists, as do tools that the session does not have. On a pipe the
first message decides the era, so there the session is a second process, which is started only if that is configured.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Protocol

import msgspec

from sluicegate.errors import RemoteProtocolError, SluicegateError, UpstreamClosed, UpstreamError
from sluicegate.exchange import NOBODY, Connection, Exchange
from sluicegate.protocol.message import Params, Reply, Result, as_object
from sluicegate.protocol.modern_era import Discovery, complete
from sluicegate.protocol.pagination import MAX_ENTRIES, MAX_PAGES, entries_of, own_name, page_of, value_of
from sluicegate.protocol.translate.content import without
from sluicegate.protocol.versions import SESSION_VERSIONS
from sluicegate.runtime.task_scope import TaskScope, Turns

log = logging.getLogger("sluicegate")

WAITS_FOR_SESSION: Final = 3.0
"""Seconds that a call waits for the session; then it is made in 2026-07-28."""

OPENS_WITHIN: Final = 20.0
"""Seconds for opening a session and listing its tools."""

SESSION_RETRY: Final = 30.0
"""Seconds until a session is tried again after a failure."""

_NULL: Final = msgspec.Raw(b"null")


class ClosableSession(Connection, Protocol):
    """A connection in the session era, which can be closed by itself."""

    async def aclose(self) -> None:
        """Take no more exchanges and end the session."""
        ...


OpenSession = Callable[[], Awaitable[ClosableSession | None]]
"""Opens a session with the server; None if it has none."""


class DualEra:
    """A `Connection` in 2026-07-28, with a session of the same server beside it for session-era callers."""

    def __init__(
        self,
        name: str,
        transport: str,
        modern: Connection,
        open_session: OpenSession,
        tasks: TaskScope,
        *,
        starts_within: float | None = None,
    ) -> None:
        """`starts_within` is set if a session is a process: the seconds that it may take to start.

        Calls wait that long for a session. A session that has ended is not restarted at once: it may have crashed (R7).
        """
        self.transport = transport
        self._is_process = starts_within is not None
        self._waits = WAITS_FOR_SESSION if starts_within is None else starts_within
        self._opens_within = OPENS_WITHIN + (starts_within or 0.0)
        self.wait_closed = modern.wait_closed
        self._name = name
        self._modern = modern
        self._open_session = open_session
        self._tasks = tasks
        self._session: ClosableSession | None = None
        self._tools: frozenset[str] = frozenset()
        """The names of the session's tools, without those that can only be called as tasks."""
        self._is_decided = False
        """Whether calls need not wait: it is known whether there is a session, or finding out failed or takes long."""
        self._deciding: asyncio.Event | None = None
        self._doubts = 0
        self._asking_again: asyncio.TimerHandle | None = None
        self._level: object = None

    @property
    def discovery(self) -> Discovery:
        """The version, capabilities and instructions of the server in 2026-07-28."""
        return self._modern.discovery

    @property
    def session_version(self) -> str:
        """The revision of the session; empty if there is none."""
        return "" if self._session is None else self._session.discovery.version

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        """The server's reply to an exchange, in the era of its caller where that matters."""
        method = exchange.method
        if method == "tools/call":
            return self._call_in_session(exchange) if _may_use_session(exchange) else self._modern(exchange)
        if method == "tools/list" and self._session is not None and "cursor" not in exchange.params:
            self._doubt()  # The tools of the session may have changed, too.
        elif method == "ping":  # Only a session has it; of two processes, it is the one that may hang.
            return (self._session or self._modern)(exchange)
        elif method == "logging/setLevel":
            return self._keep_level(exchange)
        elif method == "subscriptions/listen" and self._lacks_updates(exchange.params):
            return self._listen(exchange)
        return self._modern(exchange)

    async def _call_in_session(self, exchange: Exchange) -> Reply:
        if not self._is_decided:
            await self._decide()
        session = self._session
        if session is None or exchange.params.get("name") not in self._tools:
            return await self._modern(exchange)
        try:
            # Clients do not learn that a tool can be a task, so `task` in a call is ignored.
            return await session(exchange.again(without(exchange.params, ("task",))))
        except UpstreamClosed as problem:
            if problem.delivered != "no":
                raise
            # The session has ended and there is no other, which says nothing about the server itself.
            self._do_without(session)
            return await self._modern(exchange)

    async def aclose(self) -> None:
        """End the session."""
        self._tasks.cancel(self)
        if self._asking_again is not None:
            self._asking_again.cancel()
        session, self._session = self._session, None
        if session is not None:
            await session.aclose()

    # ----------------------------------------------------------------------------------------------- the session

    def _do_without(self, session: ClosableSession) -> None:
        if self._session is session:
            with suppress(RuntimeError):  # The connection is ending, which also ends the session.
                self._tasks.start(session.aclose())
                self._session, self._tools = None, frozenset()
                self._doubt_later()

    async def _decide(self) -> None:
        """Wait briefly until it is known whether there is a session and which tools it has."""
        if self._deciding is None:
            deciding = asyncio.Event()
            try:
                self._tasks.start(self._find_session(deciding), key=self)
            except RuntimeError:
                return  # The connection is ending.
            self._deciding = deciding
        try:
            async with asyncio.timeout(self._waits):
                await self._deciding.wait()
        except TimeoutError:
            self._is_decided = True  # Other calls do not wait; the session is used if it opens later.

    async def _find_session(self, decided: asyncio.Event) -> None:
        doubts = self._doubts
        try:
            async with asyncio.timeout(self._opens_within):
                if self._session is None and (session := await self._open_session()) is not None:
                    self._session = session
                    self._tasks.start(self._outlive(session))
                    if self._level is not None:
                        await self._set_level(session)
                if self._session is not None:
                    self._tools = await _tools_of(self._session)
        except (TimeoutError, SluicegateError) as problem:
            log.debug("%s: it is unknown whether the server has sessions: %r", self._name, problem)
            self._doubt_later()
        finally:
            self._is_decided = self._doubts == doubts  # Otherwise something has changed meanwhile.
            self._deciding = None
            decided.set()

    async def _outlive(self, session: ClosableSession) -> None:
        """Drop a session when it has ended, because the server has changed."""
        await session.wait_closed()
        if self._session is session:
            self._session, self._tools = None, frozenset()
            if self._is_process:
                self._doubt_later()
            else:
                self._doubt()

    def _doubt(self) -> None:
        self._doubts += 1
        self._is_decided = False

    def _doubt_later(self) -> None:
        self._asking_again = asyncio.get_running_loop().call_later(SESSION_RETRY, self._doubt)

    # --------------------------------------------------------------------------------- features of the session only

    def _lacks_updates(self, params: Params) -> bool:
        """Whether a listen request names resources, which this server does not support in 2026-07-28."""
        wanted = as_object(params.get("notifications")) or {}
        resources = as_object(self.discovery.capabilities.get("resources")) or {}
        return "resourceSubscriptions" in wanted and resources.get("subscribe") is not True

    async def _listen(self, exchange: Exchange) -> Reply:
        if not self._is_decided:
            await self._decide()
        return await (self._session or self._modern)(exchange)

    async def _keep_level(self, exchange: Exchange) -> Reply:
        """Set the level of the session, now or when it is opened. In 2026-07-28 each call has its own level."""
        self._level = exchange.params.get("level")
        if self._session is not None:
            await self._set_level(self._session)
        return Result(complete({}))

    async def _set_level(self, session: ClosableSession) -> None:
        if "logging" in session.discovery.capabilities:
            with suppress(UpstreamError):
                await session(Exchange("logging/setLevel", {"level": self._level}, NOBODY))


def _may_use_session(exchange: Exchange) -> bool:
    """Whether a call comes from a session-era client; retries of a call that began in 2026-07-28 stay there."""
    params = exchange.params
    return exchange.profile.version in SESSION_VERSIONS and not ("requestState" in params or "inputResponses" in params)


async def _tools_of(session: ClosableSession) -> frozenset[str]:
    """The names of the tools of a session that need not be called as tasks, up to the first unreadable page.

    Raises:
        UpstreamError: the server does not answer.
    """
    names = set[str]()
    turns = Turns()
    turns.begin()
    cursor: object = None
    for _ in range(MAX_PAGES):
        reply = await session(Exchange("tools/list", {} if cursor is None else {"cursor": cursor}, NOBODY))
        try:
            page = page_of(reply) if isinstance(reply, Result) else None
            await turns.share()
            for tool in entries_of((page or {}).get("tools")) or []:
                if len(names) >= MAX_ENTRIES:
                    return frozenset(names)
                if not _has_to_be_a_task(tool):
                    names.add(own_name(tool, "name"))
                await turns.share()
            following = value_of((page or {}).get("nextCursor", _NULL))
        except RemoteProtocolError:
            break
        if not isinstance(following, str) or following == cursor:
            break
        cursor = following
    return frozenset(names)


def _has_to_be_a_task(tool: msgspec.Raw) -> bool:
    """Whether a tool of 2025-11-25 can only be called as a task, which the catalog of 2026-07-28 does not show."""
    if b"taskSupport" not in bytes(tool):
        return False
    execution = as_object((as_object(value_of(tool)) or {}).get("execution")) or {}
    return execution.get("taskSupport") == "required"
