"""A server at a URL that may speak both eras: each caller's tools are called in the era of that caller.

What a server can do often hangs on the era that it is spoken to in: tools that ask in the middle of a call, responses
that are let go of, subscriptions. So one that is spoken to in 2026-07-28 is asked for a session as well, once somebody
of the session era calls a tool of it. Whether it gives one is seen by asking: not all that do say so of themselves.

Everything else is asked in 2026-07-28, the lists above all: there is one catalog for everybody. A tool that the session
does not have is called without it. On a pipe there is nothing of this: there the first message decides.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec

from sluicegate.concurrency import TaskScope, Turns
from sluicegate.errors import RemoteProtocolError, SluicegateError, UpstreamError
from sluicegate.exchange import NOBODY, Connection, Exchange
from sluicegate.protocol.discovery import Discovery
from sluicegate.protocol.gathering import MOST_ENTRIES, MOST_PAGES
from sluicegate.protocol.message import Params, Reply, Result, as_object
from sluicegate.protocol.modern import complete
from sluicegate.protocol.pages import entries_of, own_name, page_of, value_of
from sluicegate.upstream.http_session import SessionHttp

log = logging.getLogger("sluicegate")

WAITS_FOR_SESSION: Final = 3.0
"""Seconds that a call waits to be made in its caller's era; then it is made in the other one."""

OPENS_WITHIN: Final = 20.0
"""Seconds that the server has to give a session and to say which tools are in it."""

ASKS_AGAIN: Final = 30.0
"""Seconds after which a server that did not say whether it has a session is asked again."""

_NULL: Final = msgspec.Raw(b"null")

Open = Callable[[], Awaitable[SessionHttp | None]]
"""Gives a session with the server; None if that has none to give."""


class BothEras:
    """A `Connection` in 2026-07-28, and the session that the same server may have beside it."""

    def __init__(self, name: str, transport: str, modern: Connection, open_session: Open, tasks: TaskScope) -> None:
        self.transport = transport
        self.wait_closed = modern.wait_closed
        self.is_decided = False
        """Whether there is no use in waiting for `decide`."""
        self._name = name
        self._modern = modern
        self._open_session = open_session
        self._tasks = tasks
        self._session: SessionHttp | None = None
        self._tools: frozenset[str] = frozenset()
        """Those of the session."""
        self._deciding: asyncio.Event | None = None
        self._doubts = 0
        self._asking_again: asyncio.TimerHandle | None = None
        self._level: object = None

    @property
    def discovery(self) -> Discovery:
        """What the server said of itself in 2026-07-28."""
        return self._modern.discovery

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        """The server's reply to an exchange; in 2026-07-28, but for what only the session has."""
        method = exchange.method
        if method == "tools/call":  # as nearly always; those of the session come by `session_for`
            return self._modern(exchange)
        if method == "tools/list" and self._session is not None and "cursor" not in exchange.params:
            self._doubt()  # They may have changed, in the session too.
        elif method == "logging/setLevel":
            return self._keep_level(exchange)
        elif method == "subscriptions/listen" and self._lacks_updates(exchange.params):
            return self._listen(exchange)
        return self._modern(exchange)

    async def aclose(self) -> None:
        """End the session."""
        self._tasks.cancel(self)
        if self._asking_again is not None:
            self._asking_again.cancel()
        session, self._session = self._session, None
        if session is not None:
            await session.aclose()

    # ----------------------------------------------------------------------------------------------- the session

    @property
    def session_version(self) -> str:
        """The revision that is spoken in the session; empty if there is none."""
        return "" if self._session is None else self._session.discovery.version

    def session_for(self, tool: object) -> Connection | None:
        """The session, if there is one that has this tool."""
        return self._session if tool in self._tools else None

    def do_without(self, session: Connection) -> None:
        """Learn that the session is of no use; after a while another is asked for."""
        if self._session is not None and self._session is session:
            with suppress(RuntimeError):  # The connection is about to end, and ends it then.
                self._tasks.start(self._session.aclose())
                self._session, self._tools = None, frozenset()
                self._doubt_later()

    async def decide(self) -> None:
        """Find out whether there is a session, and which tools it has; whoever asks does not wait for long."""
        if self._deciding is None:
            deciding = asyncio.Event()
            try:
                self._tasks.start(self._decide(deciding), key=self)
            except RuntimeError:
                return  # The connection is about to end.
            self._deciding = deciding
        try:
            async with asyncio.timeout(WAITS_FOR_SESSION):
                await self._deciding.wait()
        except TimeoutError:
            self.is_decided = True  # Nobody else waits; if it answers after all, there is a session.

    async def _decide(self, decided: asyncio.Event) -> None:
        doubts = self._doubts
        try:
            async with asyncio.timeout(OPENS_WITHIN):
                if self._session is None and (session := await self._open_session()) is not None:
                    self._session = session
                    self._tasks.start(self._outlive(session))
                    if self._level is not None:
                        await self._set_level(session)
                if self._session is not None:
                    self._tools = await _tools_of(self._session)
        except (TimeoutError, SluicegateError) as problem:
            log.debug("%s does not say whether it has a session: %r", self._name, problem)
            self._doubt_later()
        finally:
            self.is_decided = self._doubts == doubts  # Else something has changed meanwhile.
            self._deciding = None
            decided.set()

    async def _outlive(self, session: SessionHttp) -> None:
        """Do without a session when it is over: then the server is not the one that gave it."""
        await session.wait_closed()
        if self._session is session:
            self._session, self._tools = None, frozenset()
            self._doubt()

    def _doubt(self) -> None:
        self._doubts += 1
        self.is_decided = False

    def _doubt_later(self) -> None:
        self._asking_again = asyncio.get_running_loop().call_later(ASKS_AGAIN, self._doubt)

    # -------------------------------------------------------------------------------------- what only it may have

    def _lacks_updates(self, params: Params) -> bool:
        """Whether resources are to be listened to that cannot be, in 2026-07-28."""
        wanted = as_object(params.get("notifications")) or {}
        resources = as_object(self.discovery.capabilities.get("resources")) or {}
        return "resourceSubscriptions" in wanted and resources.get("subscribe") is not True

    async def _listen(self, exchange: Exchange) -> Reply:
        if not self.is_decided:
            await self.decide()
        return await (self._session or self._modern)(exchange)

    async def _keep_level(self, exchange: Exchange) -> Reply:
        """Let the session log so much, now or once there is one: in 2026-07-28 each call says it for itself."""
        self._level = exchange.params.get("level")
        if self._session is not None:
            await self._set_level(self._session)
        return Result(complete({}))

    async def _set_level(self, session: SessionHttp) -> None:
        if "logging" in session.discovery.capabilities:
            with suppress(UpstreamError):
                await session(Exchange("logging/setLevel", {"level": self._level}, NOBODY))


async def _tools_of(session: SessionHttp) -> frozenset[str]:
    """The names of the tools of a session that can just be called; of a list that cannot be read, those up to there.

    Raises:
        UpstreamError: it cannot be asked.
    """
    names = set[str]()
    turns = Turns()
    turns.begin()
    cursor: object = None
    for _ in range(MOST_PAGES):
        reply = await session(Exchange("tools/list", {} if cursor is None else {"cursor": cursor}, NOBODY))
        try:
            page = page_of(reply) if isinstance(reply, Result) else None
            await turns.share()
            for tool in entries_of((page or {}).get("tools")) or []:
                if len(names) >= MOST_ENTRIES:
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
    """Whether a tool of 2025-11-25 can be called as a task only, of which the catalog, of 2026-07-28, says nothing."""
    if b"taskSupport" not in bytes(tool):
        return False
    execution = as_object((as_object(value_of(tool)) or {}).get("execution")) or {}
    return execution.get("taskSupport") == "required"
