"""The sessions of older clients over Streamable HTTP: whose they are, how many there may be, when they are over."""

import asyncio
from functools import lru_cache, partial
from itertools import takewhile
from typing import Final

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.admission import too_many
from sluicegate.downstream.answering import Answering
from sluicegate.downstream.doors import Accepted, Headers, Refusal
from sluicegate.downstream.event_stream import SESSION_HEADER
from sluicegate.downstream.http_session import UNKNOWN, HttpSession, Shared
from sluicegate.downstream.http_streams import HttpRequest, refuse
from sluicegate.downstream.journal import Memory
from sluicegate.downstream.keepalive import KeepAlive
from sluicegate.downstream.list_changes import ListChanges
from sluicegate.downstream.places import Full, HttpLimits, Places
from sluicegate.downstream.posts import refuse_message
from sluicegate.downstream.resting import Resting
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
        self,
        answering: Answering,
        tasks: TaskScope,
        limits: HttpLimits,
        streams: Places,
        hold: float,
        keepalive: KeepAlive,
    ) -> None:
        self._limits = limits
        self._places = Places(limits.sessions, limits.sessions_of_one)
        self._memory = Memory(limits.remembered)
        self._resting: Resting[HttpSession] = Resting()
        self._shared = Shared(
            answering,
            tasks,
            streams,
            self._memory,
            keepalive,
            ListChanges(answering, tasks),
            hold,
            RETRY_MS,
            self._resting,
            self._forget,
        )
        self._sessions: dict[str, HttpSession] = {}
        # A client sends few different heads, and `http1` gives the same object for the same bytes: looked at once each.
        # (Not so under ASGI, where every request has its own.)
        self._named = lru_cache(maxsize=128)(_named)

    def post(self, request: HttpRequest, value: object, takes: Accepted, caller: Caller) -> None:
        """Take a session-era message: `initialize` opens a session, all others need theirs.

        `value` is what was parsed, or the request of another method that it was found to be.
        """
        name, version = self._named(request.headers)
        session = self._of(name, caller)
        if session is None:
            if _is_opening(value):
                self._open(request, value, takes, caller)
            else:
                refuse_message(request, value, MISSING if name is None else UNKNOWN)
        elif _is_other(version, session) and not _is_opening(value):
            refuse_message(request, value, _OTHER_VERSION)
        else:
            session.post(request, value, takes)

    def get(self, request: HttpRequest, caller: Caller) -> None:
        """Let a GET carry a session's events."""
        name, version = self._named(request.headers)
        session = self._of(name, caller)
        if session is None:
            refuse(request, UNKNOWN)
        elif _is_other(version, session):
            refuse(request, _OTHER_VERSION)
        else:
            session.listen_on(request, request.headers.get("last-event-id"))

    def delete(self, request: HttpRequest, caller: Caller) -> None:
        """End a session at its client's wish."""
        name, version = self._named(request.headers)
        session = self._of(name, caller)
        if session is None:
            refuse(request, UNKNOWN)
        elif _is_other(version, session):
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
        while (idle := self._resting.first()) is not None and now - idle.last_used > self._limits.session_idle:
            self._end(idle)
        # They stand in the order in which they were opened.
        is_old = partial(_was_born_before, now - self._limits.session_lifetime)
        for session in list(takewhile(is_old, self._sessions.values())):
            self._end(session)

    def _open(self, request: HttpRequest, value: object, takes: Accepted, caller: Caller) -> None:
        place = self._places.take(caller)
        if isinstance(place, Full):
            # Many clients never say that they are done, so that sessions that nobody uses make room for new ones.
            idle = self._resting.first(caller if place is Full.FOR_ONE else None)
            if idle is not None:
                self._end(idle)
                place = self._places.take(caller)
        if isinstance(place, Full):
            refuse_message(request, value, too_many(place, "sessions in use"))
            return
        session = HttpSession(self._shared, caller, place)
        self._sessions[session.id] = session
        session.post(request, value, takes)

    def _of(self, name: str | None, caller: Caller) -> HttpSession | None:
        session = None if name is None else self._sessions.get(name)
        # Another caller's session is as unknown as one that never was (T10).
        return session if session is not None and session.caller == caller else None

    def _end(self, session: HttpSession) -> None:
        self._forget(session)
        session.close()

    def _forget(self, session: HttpSession) -> None:
        self._sessions.pop(session.id, None)
        session.place.release()
        self._resting.discard(session)


def _is_opening(value: object) -> bool:
    message = as_object(value)
    return message is not None and message.get("method") == "initialize" and "id" in message


def _was_born_before(moment: float, session: HttpSession) -> bool:
    return session.born < moment


def _is_other(version: str | None, session: HttpSession) -> bool:
    return version is not None and version != session.conversation.session.version


def _named(headers: Headers) -> tuple[str | None, str | None]:
    """The session and the revision that a request names, as far as it does."""
    # What several lines say is joined by commas, and no session and no revision is called that.
    return headers.get(SESSION_HEADER), headers.get(VERSION)
