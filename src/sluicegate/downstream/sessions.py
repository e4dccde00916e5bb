"""The sessions of older clients over Streamable HTTP: whose they are, how many there may be, when they are over."""

import asyncio
from collections.abc import Sequence
from typing import Final

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.admission import too_many
from sluicegate.downstream.answering import Answering
from sluicegate.downstream.doors import Accepted, Refusal
from sluicegate.downstream.event_stream import SESSION_HEADER
from sluicegate.downstream.http_session import UNKNOWN, HttpSession
from sluicegate.downstream.http_streams import HttpRequest, refuse
from sluicegate.downstream.journal import Memory
from sluicegate.downstream.places import Full, HttpLimits, Places
from sluicegate.exchange import Caller
from sluicegate.protocol.headers import VERSION
from sluicegate.protocol.message import as_object

RETRY_MS: Final = 1000
_LOOK_EVERY: Final = 60.0

MISSING: Final = Refusal(400, "session_required", f"Send {SESSION_HEADER}, or initialize to get one.")
_OTHER_VERSION: Final = Refusal(400, "unsupported_version", "MCP-Protocol-Version is not the one that was negotiated.")


class Sessions:
    """The live sessions of one endpoint."""

    def __init__(
        self, answering: Answering, tasks: TaskScope, limits: HttpLimits, streams: Places, hold: float
    ) -> None:
        self._answering = answering
        self._tasks = tasks
        self._limits = limits
        self._places = Places(limits.sessions, limits.sessions_of_one)
        self._streams = streams
        self._memory = Memory(limits.remembered)
        self._hold = hold
        self._sessions: dict[str, HttpSession] = {}

    def post(self, request: HttpRequest, value: object, takes: Accepted, caller: Caller) -> None:
        """Take a session-era message: `initialize` opens a session, all others need theirs."""
        named = request.headers.get_all(SESSION_HEADER)
        message = as_object(value) or {}
        is_opening = message.get("method") == "initialize" and "id" in message
        session = self._of(named, caller)
        if is_opening and session is None:
            self._open(request, value, takes, caller)
        elif session is not None:
            if not is_opening and _other_version(request, session):
                refuse(request, _OTHER_VERSION)
                return
            session.touch()
            session.post(request, value, takes)
        else:
            refuse(request, UNKNOWN if named else MISSING)

    def get(self, request: HttpRequest, caller: Caller) -> None:
        """Let a GET carry a session's events."""
        session = self._of(request.headers.get_all(SESSION_HEADER), caller)
        if session is None:
            refuse(request, UNKNOWN)
        elif _other_version(request, session):
            refuse(request, _OTHER_VERSION)
        else:
            session.touch()
            session.listen_on(request, request.headers.get("last-event-id"))

    def delete(self, request: HttpRequest, caller: Caller) -> None:
        """End a session at its client's wish."""
        session = self._of(request.headers.get_all(SESSION_HEADER), caller)
        if session is None:
            refuse(request, UNKNOWN)
        elif _other_version(request, session):
            refuse(request, _OTHER_VERSION)
        else:
            self._end(session)
            request.respond(204)

    def close(self) -> None:
        """End all sessions, because we are about to stop."""
        for session in list(self._sessions.values()):
            session.stop()
            self._forget(session)

    def end_listening(self) -> None:
        """End the streams that belong to no request, which would otherwise be under way for ever."""
        for session in self._sessions.values():
            session.pushes.drop_carrier()

    async def expire_idle(self) -> None:
        """End sessions that nobody has used for long, for as long as this runs."""
        while True:
            await asyncio.sleep(_LOOK_EVERY)
            self.expire(asyncio.get_running_loop().time())

    def expire(self, now: float) -> None:
        """End the sessions whose time is over."""
        for session in list(self._sessions.values()):
            is_forgotten = session.idle and now - session.last_used > self._limits.session_idle
            if is_forgotten or now - session.born > self._limits.session_lifetime:
                self._end(session)

    def _open(self, request: HttpRequest, value: object, takes: Accepted, caller: Caller) -> None:
        place = self._places.take(caller)
        if isinstance(place, Full):
            # Many clients never say that they are done, so that sessions that nobody uses make room for new ones.
            self._end_idle_longest(caller if place is Full.FOR_ONE else None)
            place = self._places.take(caller)
        if isinstance(place, Full):
            refuse(request, too_many(place, "sessions in use"))
            return
        now = asyncio.get_running_loop().time()
        session = HttpSession(
            self._answering, self._streams, self._memory, caller, hold=self._hold, retry_ms=RETRY_MS, now=now
        )
        session.place = place
        self._sessions[session.id] = session
        self._tasks.start(self._keep(session))
        self._tasks.start(self._first(session, request, value, takes))

    async def _keep(self, session: HttpSession) -> None:
        try:
            await session.live()
        finally:
            self._forget(session)

    async def _first(self, session: HttpSession, request: HttpRequest, value: object, takes: Accepted) -> None:
        await session.alive()
        session.post(request, value, takes)

    def _end_idle_longest(self, caller: Caller | None) -> None:
        """End the session that was idle for longest, of this caller or of all; none if all are in use."""
        own = (each for each in self._sessions.values() if caller is None or each.caller.id == caller.id)
        idle = min((each for each in own if each.idle), key=lambda each: each.last_used, default=None)
        if idle is not None:
            self._end(idle)

    def _of(self, named: Sequence[str], caller: Caller) -> HttpSession | None:
        session = self._sessions.get(named[0]) if len(named) == 1 else None
        # Another caller's session is as unknown as one that never was (T10).
        return session if session is not None and session.caller == caller else None

    def _end(self, session: HttpSession) -> None:
        self._forget(session)
        session.close()

    def _forget(self, session: HttpSession) -> None:
        self._sessions.pop(session.id, None)
        session.place.release()


def _other_version(request: HttpRequest, session: HttpSession) -> bool:
    version = request.headers.get(VERSION)
    return version is not None and version != session.conversation.session.version
