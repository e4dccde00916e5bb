"""The sessions of older clients over Streamable HTTP: their owners, their number, their end."""

import asyncio
from collections import OrderedDict
from functools import partial
from itertools import takewhile
from typing import Final

from sluicegate.downstream.http_guard import SESSION_HEADER, Accepted, HeadFacts, HttpLimits, too_many
from sluicegate.downstream.http_post import refuse_message
from sluicegate.downstream.http_response import HttpRequest, KeepAlive, refuse
from sluicegate.downstream.http_session import UNKNOWN_SESSION, HttpSession, SessionListChanges, SharedBySessions
from sluicegate.downstream.resumable_stream import ReplayMemory
from sluicegate.downstream.session_client import Replies
from sluicegate.exchange import Caller, Handler
from sluicegate.protocol.headers import VERSION
from sluicegate.protocol.message import as_object
from sluicegate.protocol.session_era import MAX_PROFILE
from sluicegate.protocol.versions import SESSION_VERSIONS
from sluicegate.runtime.identity import Refusal
from sluicegate.runtime.quota import LOCAL_USER, Exceeded, Lease, Quota
from sluicegate.runtime.task_scope import TaskScope

RETRY_MS: Final = 1000
_EXPIRY_INTERVAL: Final = 60.0

BYTES_OF_A_SESSION: Final = 8 * 1024
BYTES_FOR_ONE: Final = 30
"""Memory that a byte of JSON may take once it is parsed."""

MISSING: Final = Refusal(400, "session_required", f"Send {SESSION_HEADER}, or initialize to get one.")
_BAD_VERSION: Final = Refusal(400, "unsupported_version", f"Send {VERSION} at most once.")
"""Headers with a revision that we do not know do not come here; repeated ones do."""


class Sessions:
    """The live sessions of one endpoint."""

    def __init__(
        self,
        handler: Handler,
        tasks: TaskScope,
        limits: HttpLimits,
        streams: Quota,
        hold: float,
        keepalive: KeepAlive,
    ) -> None:
        self._limits = limits
        self._quota = Quota(limits.sessions, limits.sessions_of_one)
        self._memory = ReplayMemory(limits.remembered)
        self._idle = IdleSessions()
        replies = Replies(handler)
        self._shared = SharedBySessions(
            replies,
            tasks,
            streams,
            self._memory,
            keepalive,
            SessionListChanges(replies, tasks),
            hold,
            RETRY_MS,
            self._idle.add,
            self._forget,
        )
        self._sessions: dict[str, HttpSession] = {}
        self._size = 0

    def post(self, request: HttpRequest, value: object, seen: HeadFacts, caller: Caller) -> None:
        """Take a parsed session-era message: `initialize` opens a session, all others need theirs."""
        session = self._of(seen.session, caller)
        if session is None:
            if _is_opening(value):
                self._open(request, value, seen.takes, caller)
            else:
                refuse_message(request, value, MISSING if seen.session is None else UNKNOWN_SESSION)
        elif not _is_supported(seen.version) and not _is_opening(value):
            refuse_message(request, value, _BAD_VERSION)
        else:
            session.post(request, value, seen.takes)

    def get(self, request: HttpRequest, seen: HeadFacts, caller: Caller) -> None:
        """Let a GET carry a session's events."""
        session = self._find(request, seen, caller)
        if session is not None:
            session.listen_on(request, request.headers.get("last-event-id"))

    def delete(self, request: HttpRequest, seen: HeadFacts, caller: Caller) -> None:
        session = self._find(request, seen, caller)
        if session is not None:
            self._end(session)
            request.respond(204)

    def _find(self, request: HttpRequest, seen: HeadFacts, caller: Caller) -> HttpSession | None:
        """The session that a request names; None if the request was refused."""
        session = self._of(seen.session, caller)
        if session is not None and _is_supported(seen.version):
            return session
        refuse(request, UNKNOWN_SESSION if session is None else _BAD_VERSION)
        return None

    def close(self) -> None:
        """End all sessions, because we are about to stop."""
        for session in list(self._sessions.values()):
            session.stop()
            self._forget(session)

    def end_listening(self) -> None:
        """End the streams that belong to no request, which would stay open for ever."""
        for session in self._sessions.values():
            session.pushes.drop_carrier()

    async def expire_idle(self) -> None:
        """End sessions that are idle for too long, until cancelled."""
        while True:
            await asyncio.sleep(_EXPIRY_INTERVAL)
            self.expire(asyncio.get_running_loop().time())
            self._shared.replies.clients.expire()

    def expire(self, now: float) -> None:
        """End the sessions that are idle for too long or too old."""
        while (idle := self._idle.oldest()) is not None and now - idle.last_used > self._limits.session_idle:
            self._end(idle)
        # The table is in the order in which they were opened.
        is_old = partial(_was_born_before, now - self._limits.session_lifetime)
        for session in list(takewhile(is_old, self._sessions.values())):
            self._end(session)

    def _open(self, request: HttpRequest, value: object, takes: Accepted, caller: Caller) -> None:
        # A session keeps what its client says about itself; if that is longer, `initialize` is refused.
        size = BYTES_OF_A_SESSION + BYTES_FOR_ONE * min(len(request.body), MAX_PROFILE)
        lease = self._lease(caller, size)
        if isinstance(lease, Exceeded):
            refuse_message(request, value, too_many(lease, "sessions in use"))
            return
        session = HttpSession(self._shared, caller, lease, size)
        self._sessions[session.id] = session
        self._size += size
        session.post(request, value, takes)

    def _lease(self, caller: Caller, size: int) -> Lease | Exceeded:
        """A place for a session. Many clients never end theirs, so those that have been idle for longest make room."""
        while self._size + size > self._limits.session_bytes:
            if not self._end_oldest(None):
                return Exceeded.TOTAL
        if caller.id == LOCAL_USER and len(self._idle) >= self._limits.sessions_idle:
            self._end_oldest(caller)
        lease = self._quota.lease(caller)
        if isinstance(lease, Exceeded) and self._end_oldest(caller if lease is Exceeded.PER_CALLER else None):
            lease = self._quota.lease(caller)
        return lease

    def _end_oldest(self, caller: Caller | None) -> bool:
        """End the session that has been idle for longest, of this caller or of all; False if all are in use."""
        idle = self._idle.oldest(caller)
        if idle is not None:
            self._end(idle)
        return idle is not None

    def _of(self, name: str | None, caller: Caller) -> HttpSession | None:
        session = None if name is None else self._sessions.get(name)
        # Another caller's session looks like one that does not exist (T10).
        return session if session is not None and session.caller == caller else None

    def _end(self, session: HttpSession) -> None:
        self._forget(session)
        session.close()

    def _forget(self, session: HttpSession) -> None:
        if self._sessions.pop(session.id, None) is not None:
            self._size -= session.size
        session.lease.release()
        self._shared.replies.clients.left(session.side)
        self._idle.discard(session)


class IdleSessions:
    """Sessions in the order in which they last became idle; some may be in use again."""

    def __init__(self) -> None:
        # Not a plain dict, which would pass over all entries that were removed before the first one left.
        self._order: OrderedDict[HttpSession, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._order)

    def add(self, session: HttpSession) -> None:
        self._order[session] = None
        self._order.move_to_end(session)

    def discard(self, session: HttpSession) -> None:
        self._order.pop(session, None)

    def oldest(self, caller: Caller | None = None) -> HttpSession | None:
        """The session that has been idle for longest, of this caller or of all; None if all are in use."""
        in_use: list[HttpSession] = []
        oldest: HttpSession | None = None
        for session in self._order:
            if not session.idle:
                in_use.append(session)
            elif caller is None or session.caller == caller:
                oldest = session
                break
        for session in in_use:
            del self._order[session]  # It comes back when it is idle again, so that each is passed over once.
        return oldest


def _is_opening(value: object) -> bool:
    message = as_object(value)
    return message is not None and message.get("method") == "initialize" and "id" in message


def _was_born_before(moment: float, session: HttpSession) -> bool:
    return session.born < moment


def _is_supported(version: str | None) -> bool:
    # Not only the negotiated one: the specification wants 400 for revisions that are invalid or not supported, and
    # clients exist that always send the same one. The session keeps the revision that was negotiated.
    return version is None or version in SESSION_VERSIONS
