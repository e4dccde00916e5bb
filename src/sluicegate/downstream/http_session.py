"""One session-era client over Streamable HTTP. A session outlives its connections: to hang up is not to cancel."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.admission import STOPPING, too_many
from sluicegate.downstream.answering import Answering
from sluicegate.downstream.doors import Accepted, Fields, Refusal
from sluicegate.downstream.event_stream import SESSION_HEADER, EventStream
from sluicegate.downstream.http_streams import JSON_FIELDS, STOPPED, HttpRequest, refuse
from sluicegate.downstream.journal import Journal, Memory
from sluicegate.downstream.keepalive import KeepAlive
from sluicegate.downstream.list_changes import Audience, ListChanges
from sluicegate.downstream.places import Full, Place, Places
from sluicegate.downstream.posts import Post, id_of_request
from sluicegate.downstream.resting import Resting
from sluicegate.downstream.session_era import SessionSide
from sluicegate.errors import ErrorObject
from sluicegate.exchange import Caller, Exchange
from sluicegate.protocol.conversation import (
    Answered,
    Asked,
    Event,
    LogLevelSet,
    Opened,
    Opening,
    Outgoing,
    ServerConversation,
    Withdrawn,
)
from sluicegate.protocol.handshake import Stage
from sluicegate.protocol.message import Notification, Reply, Request, RequestId

UNKNOWN: Final = Refusal(404, "unknown_session", "There is no such session; send initialize to open one.")
_FORGOTTEN: Final = Refusal(400, "unknown_event", "Nothing is remembered of the stream that Last-Event-ID names.")
# The one status by which a client is told that there is nothing to read; at an empty stream official SDKs come again.
_ENDED: Final = Refusal(
    405, "stream_ended", "The stream that Last-Event-ID names has ended with that event.", (("Allow", "POST, DELETE"),)
)


class Shared(msgspec.Struct):
    """What all sessions of an endpoint have in common."""

    answering: Answering
    tasks: TaskScope
    streams: Places
    memory: Memory
    keepalive: KeepAlive
    changes: ListChanges
    hold: float
    retry_ms: int
    """How long a client that knows of it waits before it comes back for a stream."""
    resting: "Resting[HttpSession]"
    ended: Callable[["HttpSession"], None]
    """Told of a session that ended by itself."""


class HttpSession:
    """One session-era client over Streamable HTTP: the front of its conversation."""

    # There may be ten thousand of them, most of them idle: no task, no timer, and little that is made ahead.
    __slots__ = (
        *("born", "caller", "carried", "conversation", "id", "is_over", "journal", "last_used", "place", "pushes"),
        *("shared", "side", "_audience", "_calls", "_json_fields", "_loop", "_numbers", "_streams", "_untold"),
        "_waiting",
    )

    def __init__(self, shared: Shared, caller: Caller, place: Place) -> None:
        # 256 random bits: whoever knows it is taken for the client (T10).
        self.id = secrets.token_urlsafe(32)
        self.caller = caller
        self.place = place
        self.conversation = ServerConversation()
        self.journal: Journal | None = None
        self.pushes = EventStream(self, 0)
        self._loop = asyncio.get_running_loop()  # kept: to look it up is a system call each time
        self.born = self.last_used = self._loop.time()
        self.carried = 0
        """How many of its streams somebody reads."""
        self.is_over = False
        self.shared = shared
        self.side = SessionSide(self)
        self._audience: Audience | None = None
        self._json_fields: Fields | None = None
        self._untold: dict[str, bytes] | None = None
        self._calls: dict[RequestId, Post] = {}
        """The POST of each request that is under way; its task goes by both."""
        self._waiting: dict[RequestId, Post] = {}
        """`initialize`, and what waits behind it."""
        self._streams: dict[int, EventStream] = {}
        self._numbers = 0

    @property
    def tasks(self) -> TaskScope:
        """Where all sessions have their tasks."""
        return self.shared.tasks

    @property
    def answering(self) -> Answering:
        """What answers."""
        return self.shared.answering

    @property
    def hold(self) -> float:
        """Seconds that a question to the client stays open."""
        return self.shared.hold

    @property
    def fields(self) -> Fields:
        """The headers that say which session an answer is of."""
        return () if self.conversation.session.stage is Stage.CREATED else ((SESSION_HEADER, self.id),)

    @property
    def json_fields(self) -> Fields:
        """Those of an answer that is JSON. Made once: it is nearly every answer."""
        if self._json_fields is None:
            fields = (*JSON_FIELDS, *self.fields)
            if self.conversation.session.stage is Stage.CREATED:
                return fields
            self._json_fields = fields
        return self._json_fields

    @property
    def idle(self) -> bool:
        """Whether nothing is under way and nobody listens."""
        return not (self._calls or self._waiting or self.carried)

    def rest(self) -> None:
        """Take note that something has come to its end; if it was the last thing, the session's idle time begins."""
        if not (self._calls or self._waiting or self.carried or self.is_over):
            self.last_used = self._loop.time()
            self.shared.resting.add(self)

    def close(self, why: Refusal = UNKNOWN) -> None:
        """End the session, and all that is under way in it; POSTs that wait are told why."""
        self.is_over = True
        self.conversation.session.close()
        posts = [*self._waiting.values(), *self._calls.values()]
        # At once: whoever is about to go on must not find a session that is over.
        for key in (self, self.side, *((post, request_id) for request_id, post in self._calls.items())):
            self.shared.tasks.cancel(key)
        self._calls.clear()
        self._waiting.clear()
        self.side.close()
        if self._audience is not None:
            self.shared.changes.leave(self, self._audience)
        for post in posts:
            post.refuse(why)
        for stream in [self.pushes, *self._streams.values()]:
            stream.finish()
        if self.journal is not None:
            self.journal.clear()

    def stop(self) -> None:
        """End the session because we are about to stop: whoever waits for an answer is told so (R29)."""
        for request_id, post in list(self._calls.items()):
            self.respond(post, request_id, STOPPED)
            self.shared.tasks.cancel((post, request_id))
        self.close(STOPPING)  # what is left has not begun: an `initialize`, and what waits behind it

    # --------------------------------------------------------------------------------------- streams and their memory

    def open_stream(self) -> EventStream:
        """The stream of a POST, from its first event on."""
        self._numbers += 1
        stream = self._streams[self._numbers] = EventStream(self, self._numbers)
        return stream

    def remember(self, number: int, position: int, message: bytes) -> None:
        """Keep an event for a client that may come back for it."""
        # Not what is still said when the session is over, such as a question that is taken back: nobody can ask for it.
        if self.is_over:
            return
        if self.journal is None:
            self.journal = Journal(self.shared.memory, self.drop_forgotten)
        self.journal.add(number, position, message)

    def drop_forgotten(self, number: int) -> None:
        """Let go of a stream that has ended and of which nothing is remembered."""
        stream = self._streams.get(number)
        if stream is not None and stream.finished and (self.journal is None or number not in self.journal):
            del self._streams[number]

    def hear(self, notification: Notification) -> None:
        """Tell the client that a list changed. While it is slow to take that, changes of the same kind are one."""
        message = self.side.message_of(notification)
        if message is None:
            return
        if self._untold is not None:
            self._untold[notification.method] = message
        elif self.pushes.carrier is None:
            self.pushes.send_now(message)
        else:
            self._untold = {notification.method: message}
            self.shared.tasks.start(self._tell(self._untold), key=self)

    async def _tell(self, untold: dict[str, bytes]) -> None:
        try:
            while untold:
                await self.pushes.send(untold.pop(next(iter(untold))))
        finally:
            self._untold = None

    # --------------------------------------------------------------------------------------------- what comes in

    def post(self, request: HttpRequest, value: object, takes: Accepted) -> None:
        """Take the message or the batch of a POST; it is answered now or later."""
        post = Post(self, request, value, takes)
        asked = self.conversation.begin_call(value) if isinstance(value, Request) else None
        if asked is not None:  # as nearly every POST
            self._start(asked, post)
        else:
            self._follow(self.conversation.take(value), post)
            if not (post.done or post.open):
                self._let_wait(post, value)
        if post.done:
            self.rest()
        elif takes.events:
            self.shared.keepalive.watch(post)

    def _let_wait(self, post: Post, value: object) -> None:
        """Let a POST wait of which nothing has come yet, if it waits for the handshake; all else needs no answer."""
        request_id = id_of_request(value)
        if request_id is None:
            post.finish(None)
        else:
            self._waiting[request_id] = post

    def listen_on(self, request: HttpRequest, last_event: str | None) -> None:
        """Let a GET carry what belongs to no request, or the rest of the stream whose last event it names."""
        number, position = (0, None) if last_event is None else _position(last_event)
        stream = self.pushes if number == 0 else self._streams.get(number) if number is not None else None
        if stream is None:
            refuse(request, _FORGOTTEN)
            self.rest()
            return
        if position is not None and stream.ended_with(position):
            refuse(request, _ENDED)
            self.rest()
            return
        # First of all the one that it replaces goes: its place is free then, so that nobody is kept from coming back.
        stream.drop_carrier()
        place = self.shared.streams.take(self.caller)
        if isinstance(place, Full):
            refuse(request, too_many(place, "open streams"))
        else:
            stream.carry(request, position, place)

    def follow(self, events: Sequence[Event]) -> None:
        """Do what the conversation says is to be done."""
        self._follow(events, None)
        self.rest()

    def _follow(self, events: Sequence[Event], post: Post | None) -> None:
        """Do it; `post` is the POST that brought these events about, if one did."""
        withdrawn: dict[Post, RequestId] = {}
        owners: dict[RequestId, Post] = {}
        for event in events:
            match event:
                case Asked():
                    self._start(event, self._waiting.pop(event.id) if post is None else post)
                case Outgoing(message, request_id, error):
                    # Of a batch whose last open request was withdrawn; else of the POST at hand, to which a refused
                    # duplicate belongs as well, or of one that waited for the handshake.
                    owner = post if request_id is None else owners.get(request_id) or post
                    if owner is None and request_id is not None:
                        owner = self._waiting.pop(request_id, None)
                    if owner is not None:
                        owner.finish(message, error)
                case Opening(request_id):
                    self.shared.tasks.start(self.side.welcome(request_id), key=self.side)
                case Opened():
                    self.side.heard_welcome()
                    self._audience = self.shared.changes.join(self, self.caller, self.conversation.session.offers)
                case LogLevelSet(level):
                    self.side.set_level(level)
                case Withdrawn(request_id):
                    owner = owners[request_id] = self._withdraw(request_id)
                    withdrawn[owner] = request_id
                case Answered(request_id, reply):
                    self.side.answered(request_id, reply)
        for owner, request_id in withdrawn.items():
            if not owner.open:
                owner.withdraw(request_id)
        if self.conversation.session.stage is Stage.CREATED:
            self.close()  # its initialize was refused
            self.shared.ended(self)

    def _start(self, asked: Asked, post: Post) -> None:
        request_id, profile = asked.id, asked.profile
        if not post.takes.events:
            profile = msgspec.structs.replace(profile, capabilities={})  # As `Post.ask` says.
        self._calls[request_id] = post
        post.open += 1
        # Clients of 2025-11-25 know how to come back; others would take it for the end.
        let_go = post.let_go if self.conversation.session.revision.elicitation_modes else None
        exchange = Exchange(asked.method, asked.params, post, profile, self.caller, None, let_go)
        self.shared.tasks.start(self._answer(exchange, post, request_id), key=(post, request_id))

    def _withdraw(self, request_id: RequestId) -> Post:
        post = self._calls.pop(request_id, None)
        if post is None:
            return self._waiting.pop(request_id)
        self.shared.tasks.cancel((post, request_id))
        post.open -= 1
        return post

    async def _answer(self, exchange: Exchange, post: Post, request_id: RequestId) -> None:
        revision = self.conversation.session.revision
        self.respond(post, request_id, await self.shared.answering.session_reply(exchange, self.side, revision))

    def respond(self, post: Post, request_id: RequestId, reply: Reply) -> None:
        """Answer a request; its POST is answered with it, or with the last of its batch."""
        if self._calls.get(request_id) is not post:
            # Withdrawn, by a tool that swallowed it: the id may be that of another POST's request by now. (One that is
            # used again within a batch is not mistaken: tasks begin in a later turn, so what the batch itself withdraws
            # never does.)
            return
        del self._calls[request_id]
        post.open -= 1
        message = self.conversation.respond(request_id, reply)
        if message is not None:
            # A batch has one answer for all, and no status of its own.
            post.finish(message, reply if isinstance(reply, ErrorObject) and message[:1] == b"{" else None)
        if not self._calls:
            self.rest()


def _position(event_id: str) -> tuple[int | None, int | None]:
    """Stream and place of an event that we sent, by its id."""
    stream, _, place = event_id.partition("-")
    if not (stream.isascii() and stream.isdecimal() and place.isascii() and place.isdecimal()):
        return None, None
    return (int(stream), int(place)) if len(stream) + len(place) < 30 else (None, None)
