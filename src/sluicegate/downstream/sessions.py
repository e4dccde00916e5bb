"""Session-era clients over Streamable HTTP: who they are, what is on its way to them, what they missed.

A session outlives its connections: its streams write into a bounded journal, and whoever comes back with the id of the
last event it saw is told the rest of that very stream. To hang up is not to cancel.
"""

import asyncio
import secrets
from collections import Counter, deque
from collections.abc import Sequence
from typing import Final

import msgspec

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.answering import Answering
from sluicegate.downstream.doors import Accepted, Fields, Refusal
from sluicegate.downstream.duplex import MESSAGES_A_TURN
from sluicegate.downstream.http_streams import (
    EVENT_FIELDS,
    KEEP_ALIVE,
    STOPPED,
    HttpRequest,
    fields_for,
    refuse,
    status_of,
)
from sluicegate.downstream.session_era import SessionSide, SessionSink
from sluicegate.errors import ErrorObject
from sluicegate.exchange import Caller, Exchange
from sluicegate.protocol.conversation import (
    Answered,
    Asked,
    Event,
    Opened,
    Opening,
    Outgoing,
    ServerConversation,
    Withdrawn,
)
from sluicegate.protocol.framing import encode_comment, encode_event
from sluicegate.protocol.handshake import Stage
from sluicegate.protocol.headers import VERSION
from sluicegate.protocol.message import Reply, RequestId, Response, as_array, as_object, encode

SESSION_HEADER: Final = "Mcp-Session-Id"
MOST_REMEMBERED: Final = 1000
MOST_REMEMBERED_BYTES: Final = 1 << 20
RETRY_MS: Final = 1000
MOST_SESSIONS: Final = 10_000
LONGEST_IDLE: Final = 30 * 60.0
LONGEST_LIFE: Final = 24 * 3600.0
_LOOK_EVERY: Final = 60.0

_UNKNOWN: Final = Refusal(404, "unknown_session", "There is no such session; send initialize to open one.")
MISSING: Final = Refusal(400, "session_required", f"Send {SESSION_HEADER}, or initialize to get one.")
_OTHER_VERSION: Final = Refusal(400, "unsupported_version", "MCP-Protocol-Version is not the one that was negotiated.")
_FORGOTTEN: Final = Refusal(400, "unknown_event", "Nothing is remembered of the stream that Last-Event-ID names.")
_FULL: Final = Refusal(503, "overloaded", "Too many sessions are open; try again later.", (("Retry-After", "1"),))


class EventStream:
    """One stream of events: it goes on while nobody reads it, and another request may take over reading."""

    def __init__(self, session: "HttpSession", number: int) -> None:
        self.number = number
        self.finished = False
        self._session = session
        self._sent = 0
        self._delivered = 0
        self._carrier: HttpRequest | None = None
        self._timer: asyncio.TimerHandle | None = None

    def carry(self, request: HttpRequest, after: int | None) -> None:
        """Let this request be the one that the events go out on, beginning behind an event it has seen already."""
        self.drop_carrier()
        fields: Fields = (*EVENT_FIELDS, (SESSION_HEADER, self._session.id))
        request.start(200, fields)
        self._carrier = request
        if self._session.conversation.session.revision.elicitation_modes and after is None:
            # Only clients of 2025-11-25 know an event without data; it lets them resume before anything was said.
            request.write(encode_event(b"", id=f"{self.number}-{self._delivered}", retry=RETRY_MS))
        seen = self._delivered if after is None else after
        for position, message in self._session.journal.of(self.number, seen):
            request.write(encode_event(message, id=f"{self.number}-{position}"))
        self._delivered = self._sent
        self._stay_alive()
        if self.finished:
            self.drop_carrier()
        else:
            request.on_disconnect(lambda: self._lost(request))

    async def send(self, message: bytes) -> None:
        """Send an event; waits while the client is slow."""
        self.send_now(message)
        if self._carrier is not None:
            await self._carrier.drain()

    def send_now(self, message: bytes) -> None:
        """Send an event without waiting; without a reader it is only remembered."""
        self._sent += 1
        self._session.remember(self.number, self._sent, message)
        if self._carrier is not None:
            self._carrier.write(encode_event(message, id=f"{self.number}-{self._sent}"))
            self._delivered = self._sent

    @property
    def carried(self) -> bool:
        """Whether somebody reads it now."""
        return self._carrier is not None

    def finish(self) -> None:
        """End the stream; what was not read can still be asked for."""
        self.finished = True
        self.drop_carrier()
        self._session.drop_forgotten(self.number)

    def drop_carrier(self) -> None:
        """End the request that carries the events, if one does."""
        carrier, self._carrier = self._carrier, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if carrier is not None:
            carrier.end()

    def _lost(self, request: HttpRequest) -> None:
        if self._carrier is request:
            # Ended all the same: a client that only hung up keeps its connection half open until we do.
            self.drop_carrier()
            self._session.touch()

    def _stay_alive(self) -> None:
        if self._carrier is not None:
            if self._timer is not None:
                self._carrier.write(encode_comment())
            self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE, self._stay_alive)


class Journal:
    """The last events of one session, for clients that lost their connection. Bounded in number and size."""

    def __init__(self) -> None:
        self._events: deque[tuple[int, int, bytes]] = deque()
        self._counts: Counter[int] = Counter()
        self._size = 0

    def __len__(self) -> int:
        return len(self._events)

    def __contains__(self, stream: int) -> bool:
        return stream in self._counts

    def add(self, stream: int, position: int, message: bytes) -> list[int]:
        """Remember an event; the oldest give way. Returns the streams of which nothing is remembered any more."""
        self._events.append((stream, position, message))
        self._counts[stream] += 1
        self._size += len(message)
        forgotten: list[int] = []
        while len(self._events) > MOST_REMEMBERED or (self._size > MOST_REMEMBERED_BYTES and len(self._events) > 1):
            older, _, gone = self._events.popleft()
            self._size -= len(gone)
            self._counts[older] -= 1
            if not self._counts[older]:
                del self._counts[older]
                forgotten.append(older)
        return forgotten

    def of(self, stream: int, after: int) -> list[tuple[int, bytes]]:
        """The events of a stream behind a position, as far as they are remembered."""
        return [(place, message) for number, place, message in self._events if number == stream and place > after]


class Post:
    """One POST: its requests, their answers, and whether these go out as JSON or as events."""

    def __init__(self, session: "HttpSession", request: HttpRequest, takes: Accepted, number: int) -> None:
        self._session = session
        self._request = request
        self._takes = takes
        self._number = number
        self._stream: EventStream | None = None
        self.ids: list[RequestId] = []
        """The requests in it that nobody else had under way."""
        self.done = False
        self._timer: asyncio.TimerHandle | None = None
        if takes.events:
            self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE, self._begin)

    @property
    def can_ask(self) -> bool:
        """Whether the client takes anything but the answer."""
        return self._takes.events

    async def send(self, message: bytes) -> None:
        """Send a message ahead of the answer; behind it there is no place for one."""
        stream = self._begin()
        if stream is not None and not self.done:
            await stream.send(message)

    def send_now(self, message: bytes) -> None:
        """Send a message without waiting."""
        stream = self._begin()
        if stream is not None and not self.done:
            stream.send_now(message)

    def let_go(self) -> None:
        """End the response, not the call: the client comes back with the id of the last event it saw."""
        stream = self._begin()
        if stream is not None:
            stream.drop_carrier()

    def finish(self, message: bytes | None, code: int | None = None, fields: Fields = ()) -> None:
        """Answer the POST, with a message or with nothing."""
        if self.done:
            return
        status = status_of(code, modern=False)
        if message is not None and status == 200 and not self._takes.json:
            self._begin()
        self._end()
        if self._stream is not None:
            if message is not None:
                self._stream.send_now(message)
            self._stream.finish()
        elif message is None:
            self._request.respond(202, fields)
        else:
            self._request.respond(status, (*fields_for(status), *fields), message)

    def withdraw(self, request_id: RequestId) -> None:
        """End the POST of a request that its client cancelled; no revision says how (protocol §3.7)."""
        self.finish(_cancelled(request_id) if self._stream is None else None)

    def refuse(self, refusal: Refusal) -> None:
        """End the POST without an answer."""
        if not self.done:
            self._end()
            if self._stream is not None:
                self._stream.finish()
            else:
                refuse(self._request, refusal)

    def _end(self) -> None:
        self.done = True
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> EventStream | None:
        if self._stream is None and self._takes.events and not self.done:
            self._stream = self._session.open_stream(self._number)
            self._stream.carry(self._request, None)
        return self._stream


class _PostStream:
    """The way back of one request of a POST."""

    def __init__(self, session: "HttpSession", post: Post, request_id: RequestId) -> None:
        self.id = request_id
        self.post = post
        self._session = session
        self._sent = 0

    async def send(self, message: bytes) -> None:
        await self.post.send(message)
        # A tool that never waits would otherwise never let us hear that its call was withdrawn.
        self._sent += 1
        if self._sent % MESSAGES_A_TURN == 0:
            await asyncio.sleep(0)

    def send_now(self, message: bytes) -> None:
        # A question that is taken back when its POST has ended: only the GET stream is left to say so.
        stream = self._session.pushes if self.post.done else self.post
        stream.send_now(message)

    def let_go(self) -> None:
        """End the response that carries the events; the client comes back for the rest."""
        self.post.let_go()

    async def reply(self, reply: Reply) -> None:
        self._session.respond(self, reply)


class HttpSession:
    """One session-era client over Streamable HTTP: the front of its conversation."""

    def __init__(self, answering: Answering, caller: Caller, hold: float, now: float) -> None:
        # 256 random bits: whoever knows it is taken for the client (T10).
        self.id = secrets.token_urlsafe(32)
        self.caller = caller
        self.hold = hold
        self.conversation = ServerConversation()
        self.journal = Journal()
        self.pushes = EventStream(self, 0)
        self.born = self.last_used = now
        self.tasks: TaskScope
        self.answering = answering
        self._side = SessionSide(self)
        self._posts: dict[RequestId, Post] = {}
        self._calls: dict[RequestId, _PostStream] = {}
        self._streams: dict[int, EventStream] = {0: self.pushes}
        self._numbers = 0
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._living: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def live(self) -> None:
        """Keep the tasks of the session for as long as it lasts."""
        async with TaskScope() as self.tasks:
            self._living.set_result(None)
            try:
                await self._closed
            finally:
                self.tasks.wind_up()

    async def alive(self) -> None:
        """Wait until the session can take messages."""
        await self._living

    def close(self) -> None:
        """End the session, and all that is under way in it."""
        self.conversation.session.close()
        if not self._closed.done():
            self._closed.set_result(None)
        if self._living.done():
            # At once: whoever is about to go on must not find a session that is over.
            self.tasks.cancel_all()
        self._calls.clear()
        for post in list(self._posts.values()):
            post.refuse(_UNKNOWN)
        self._posts.clear()
        for stream in list(self._streams.values()):
            stream.finish()

    def stop(self) -> None:
        """End the session because we are about to stop: whoever waits for an answer is told so (R29)."""
        for call in list(self._calls.values()):
            self.respond(call, STOPPED)
        self.close()

    def touch(self) -> None:
        """Take note that the client is there."""
        self.last_used = asyncio.get_running_loop().time()

    @property
    def idle(self) -> bool:
        """Whether nothing is under way and nobody listens."""
        return not self._posts and all(stream.finished or not stream.carried for stream in self._streams.values())

    def open_stream(self, number: int) -> EventStream:
        """The stream of a POST, from its first event on."""
        stream = self._streams[number] = EventStream(self, number)
        return stream

    def remember(self, number: int, position: int, message: bytes) -> None:
        """Keep an event for a client that may come back for it."""
        for forgotten in self.journal.add(number, position, message):
            self.drop_forgotten(forgotten)

    def drop_forgotten(self, number: int) -> None:
        """Let go of a stream that has ended and of which nothing is remembered."""
        stream = self._streams.get(number)
        if stream is not None and stream.finished and number not in self.journal:
            del self._streams[number]

    # --------------------------------------------------------------------------------------------- what comes in

    def post(self, request: HttpRequest, value: object, takes: Accepted) -> None:
        """Take the message or the batch of a POST; it is answered now or later."""
        self._numbers += 1
        post = Post(self, request, takes, self._numbers)
        if self._closed.done():
            post.refuse(_FULL)  # it gave way to others before it could begin
            return
        asked = _request_ids(value)
        post.ids = [request_id for request_id in asked if request_id not in self._posts]
        for request_id in post.ids:
            self._posts[request_id] = post
        self._follow(self.conversation.take(value), post)
        if post.done:
            self._forget(post)
        elif not asked:
            post.finish(None, fields=self._fields)

    def listen_on(self, request: HttpRequest, last_event: str | None) -> None:
        """Let a GET carry what belongs to no request, or the rest of the stream whose last event it names."""
        number, position = (0, None) if last_event is None else _position(last_event)
        stream = self._streams.get(number) if number is not None else None
        if stream is None:
            refuse(request, _FORGOTTEN)
        else:
            stream.carry(request, position)

    def follow(self, events: Sequence[Event]) -> None:
        """Do what the conversation says is to be done."""
        self._follow(events, None)

    def _follow(self, events: Sequence[Event], post: Post | None) -> None:
        withdrawn: dict[RequestId, Post] = {}
        for event in events:
            match event:
                case Outgoing(message, request_id, code):
                    owner = None if request_id is None else withdrawn.get(request_id)
                    if owner is not None:
                        self._finish(owner, message)  # the batch whose last open request that was
                    else:
                        self._answer_now(message, request_id, code, post)
                case Asked():
                    owner = self._posts[event.id] if post is None else post
                    self._posts[event.id] = owner
                    stream = self._calls[event.id] = _PostStream(self, owner, event.id)
                    self.tasks.start(self._answer(event, stream), key=stream)
                case Opening(request_id):
                    self.tasks.start(self._side.welcome(request_id))
                case Opened():
                    self._side.start_pushing()
                case Withdrawn(request_id):
                    call = self._calls.pop(request_id)
                    self.tasks.cancel(call)
                    withdrawn[request_id] = self._posts.pop(request_id)
                case Answered(request_id, reply):
                    self._side.answered(request_id, reply)
        for request_id, owner in withdrawn.items():
            if not any(call.post is owner for call in self._calls.values()):
                self._forget(owner)
                owner.withdraw(request_id)
        if self.conversation.session.stage is Stage.CREATED:
            self.close()  # its initialize was refused

    def _answer_now(self, message: bytes, request_id: RequestId | None, code: int | None, post: Post | None) -> None:
        owner = self._posts.get(request_id) if request_id is not None else None
        # A refused duplicate answers its own POST, not that of the request whose id it took.
        if post is not None and owner is not post:
            post.finish(message, code, self._fields)
        elif owner is not None:
            self._finish(owner, message, code)

    def _finish(self, post: Post, message: bytes, code: int | None = None) -> None:
        self._forget(post)
        post.finish(message, code, self._fields)

    @property
    def _fields(self) -> Fields:
        return () if self.conversation.session.stage is Stage.CREATED else ((SESSION_HEADER, self.id),)

    async def _answer(self, asked: Asked, stream: _PostStream) -> None:
        profile = asked.profile
        if not stream.post.can_ask:
            # A question would have no way to a client that takes JSON only, whatever it said that it can answer.
            profile = msgspec.structs.replace(profile, capabilities={})
        sink = SessionSink(self._side, stream, profile)
        exchange = Exchange(asked.method, asked.params, sink, profile, self.caller)
        if self.conversation.session.revision.elicitation_modes:
            # Of 2025-11-25, whose clients know how to come back; others would take it for the end.
            exchange.let_go = stream.let_go
        reply = await self.answering.session_reply(exchange, self._side, self.conversation.session.revision)
        await stream.reply(reply)

    def respond(self, call: _PostStream, reply: Reply) -> None:
        """Answer a request; its POST is answered with it, or with the last of its batch."""
        if self._calls.get(call.id) is not call:
            return  # Withdrawn, by a tool that swallowed it: the id may be another request's by now.
        del self._calls[call.id]
        self.touch()
        message = self.conversation.respond(call.id, reply)
        if message is not None:
            code = reply.code if isinstance(reply, ErrorObject) and message[:1] == b"{" else None
            self._finish(call.post, message, code)

    def _forget(self, post: Post) -> None:
        for request_id in post.ids:
            if self._posts.get(request_id) is post:
                del self._posts[request_id]


class Sessions:
    """The live sessions of one endpoint."""

    def __init__(self, answering: Answering, tasks: TaskScope, hold: float) -> None:
        self._answering = answering
        self._tasks = tasks
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
            refuse(request, _UNKNOWN if named else MISSING)

    def get(self, request: HttpRequest, caller: Caller) -> None:
        """Let a GET carry a session's events."""
        session = self._of(request.headers.get_all(SESSION_HEADER), caller)
        if session is None:
            refuse(request, _UNKNOWN)
        elif _other_version(request, session):
            refuse(request, _OTHER_VERSION)
        else:
            session.touch()
            session.listen_on(request, request.headers.get("last-event-id"))

    def delete(self, request: HttpRequest, caller: Caller) -> None:
        """End a session at its client's wish."""
        session = self._of(request.headers.get_all(SESSION_HEADER), caller)
        if session is None:
            refuse(request, _UNKNOWN)
        elif _other_version(request, session):
            refuse(request, _OTHER_VERSION)
        else:
            self._end(session)
            request.respond(204)

    def close(self) -> None:
        """End all sessions, because we are about to stop."""
        for session in list(self._sessions.values()):
            session.stop()
        self._sessions.clear()

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
            if now - session.born > LONGEST_LIFE or (session.idle and now - session.last_used > LONGEST_IDLE):
                self._end(session)

    def _open(self, request: HttpRequest, value: object, takes: Accepted, caller: Caller) -> None:
        if len(self._sessions) >= MOST_SESSIONS and not self._make_room():
            refuse(request, _FULL)
            return
        session = HttpSession(self._answering, caller, self._hold, asyncio.get_running_loop().time())
        self._sessions[session.id] = session
        self._tasks.start(self._keep(session))
        self._tasks.start(self._first(session, request, value, takes))

    async def _keep(self, session: HttpSession) -> None:
        try:
            await session.live()
        finally:
            self._sessions.pop(session.id, None)

    async def _first(self, session: HttpSession, request: HttpRequest, value: object, takes: Accepted) -> None:
        await session.alive()
        session.post(request, value, takes)

    def _make_room(self) -> bool:
        idle = min(
            (session for session in self._sessions.values() if session.idle), key=lambda s: s.last_used, default=None
        )
        if idle is not None:
            self._end(idle)
        return idle is not None

    def _of(self, named: Sequence[str], caller: Caller) -> HttpSession | None:
        session = self._sessions.get(named[0]) if len(named) == 1 else None
        # Another caller's session is as unknown as one that never was (T10).
        return session if session is not None and session.caller == caller else None

    def _end(self, session: HttpSession) -> None:
        self._sessions.pop(session.id, None)
        session.close()


def _other_version(request: HttpRequest, session: HttpSession) -> bool:
    version = request.headers.get(VERSION)
    return version is not None and version != session.conversation.session.version


def _request_ids(value: object) -> list[RequestId]:
    """The ids under which a message or a batch wants answers."""
    ids: list[RequestId] = []
    for item in as_array(value) or [value]:
        message = as_object(item) or {}
        request_id = message.get("id")
        if "method" in message and (isinstance(request_id, str) or type(request_id) is int):
            ids.append(request_id)
    return ids


def _position(event_id: str) -> tuple[int | None, int | None]:
    """Stream and place of an event that we sent, by its id."""
    stream, _, place = event_id.partition("-")
    if not (stream.isascii() and stream.isdecimal() and place.isascii() and place.isdecimal()):
        return None, None
    return (int(stream), int(place)) if len(stream) + len(place) < 30 else (None, None)


def _cancelled(request_id: RequestId) -> bytes:
    return encode(Response(request_id, ErrorObject(-32800, "Request cancelled")))
