"""One session-era client over Streamable HTTP. A session outlives its connections: to hang up is not to cancel."""

import asyncio
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.admission import STOPPING, too_many
from sluicegate.downstream.answering import Answering
from sluicegate.downstream.doors import Accepted, Fields, Refusal
from sluicegate.downstream.event_stream import SESSION_HEADER, EventStream
from sluicegate.downstream.http_streams import STOPPED, HttpRequest, refuse
from sluicegate.downstream.journal import Journal, Memory
from sluicegate.downstream.places import Full, Place, Places
from sluicegate.downstream.posts import Post, PostStream
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
from sluicegate.protocol.handshake import Stage
from sluicegate.protocol.message import Reply, RequestId, as_array, as_object

UNKNOWN: Final = Refusal(404, "unknown_session", "There is no such session; send initialize to open one.")
NO_ROOM: Final = too_many(Full.FOR_ALL, "sessions")
_FORGOTTEN: Final = Refusal(400, "unknown_event", "Nothing is remembered of the stream that Last-Event-ID names.")


class HttpSession:
    """One session-era client over Streamable HTTP: the front of its conversation."""

    def __init__(
        self,
        answering: Answering,
        streams: Places,
        memory: Memory,
        caller: Caller,
        *,
        hold: float,
        retry_ms: int,
        now: float,
    ) -> None:
        # 256 random bits: whoever knows it is taken for the client (T10).
        self.id = secrets.token_urlsafe(32)
        self.caller = caller
        self.hold = hold
        self.retry_ms = retry_ms
        """How long a client that knows of it waits before it comes back for a stream."""
        self.conversation = ServerConversation()
        self.journal = Journal(memory, self.drop_forgotten)
        self.pushes = EventStream(self, 0)
        self.born = self.last_used = now
        self.tasks: TaskScope
        self.place: Place
        self.answering = answering
        self._places = streams
        self._side = SessionSide(self)
        self._posts: dict[RequestId, Post] = {}
        self._calls: dict[RequestId, PostStream] = {}
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

    def close(self, why: Refusal = UNKNOWN) -> None:
        """End the session, and all that is under way in it; POSTs that wait are told why."""
        self.conversation.session.close()
        if not self._closed.done():
            self._closed.set_result(None)
        if self._living.done():
            # At once: whoever is about to go on must not find a session that is over.
            self.tasks.cancel_all()
        self._calls.clear()
        for post in list(self._posts.values()):
            post.refuse(why)
        self._posts.clear()
        for stream in list(self._streams.values()):
            stream.finish()
        self.journal.clear()

    def stop(self) -> None:
        """End the session because we are about to stop: whoever waits for an answer is told so (R29)."""
        for call in list(self._calls.values()):
            self.respond(call, STOPPED)
        self.close(STOPPING)  # what is left has not begun: an `initialize`, and what waits behind it

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
        # Not what is still said when the session is over, such as a question that is taken back: nobody can ask for it.
        if not self._closed.done():
            self.journal.add(number, position, message)

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
            post.refuse(NO_ROOM)  # it gave way to others before it could begin
            return
        asked = _request_ids(value)
        post.ids = {request_id for request_id in asked if request_id not in self._posts}
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
            return
        # First of all the one that it replaces goes: its place is free then, so that nobody is kept from coming back.
        stream.drop_carrier()
        place = self._places.take(self.caller)
        if isinstance(place, Full):
            refuse(request, too_many(place, "open streams"))
        else:
            stream.carry(request, position, place)

    def follow(self, events: Sequence[Event]) -> None:
        """Do what the conversation says is to be done."""
        self._follow(events, None)

    def _follow(self, events: Sequence[Event], post: Post | None) -> None:
        withdrawn: dict[Post, RequestId] = {}
        owners: dict[RequestId, Post] = {}
        for event in events:
            match event:
                case Outgoing(message, request_id, code):
                    owner = None if request_id is None else owners.get(request_id)
                    if owner is not None:
                        self._finish(owner, message)  # the batch whose last open request that was
                    else:
                        self._answer_now(message, request_id, code, post)
                case Asked():
                    owner = self._posts[event.id] if post is None else post
                    self._posts[event.id] = owner
                    owner.ids.add(event.id)  # not there yet if its batch withdrew another request of that id first
                    stream = self._calls[event.id] = PostStream(self, owner, event.id)
                    self.tasks.start(self._answer(event, stream), key=stream)
                case Opening(request_id):
                    self.tasks.start(self._side.welcome(request_id))
                case Opened():
                    self._side.start_pushing()
                case Withdrawn(request_id):
                    call = self._calls.pop(request_id, None)
                    if call is not None:  # else it waits behind the handshake
                        self.tasks.cancel(call)
                    owner = owners[request_id] = self._posts.pop(request_id)
                    withdrawn[owner] = request_id
                case Answered(request_id, reply):
                    self._side.answered(request_id, reply)
        for owner, request_id in withdrawn.items():
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

    async def _answer(self, asked: Asked, stream: PostStream) -> None:
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

    def respond(self, call: PostStream, reply: Reply) -> None:
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
