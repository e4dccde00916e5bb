"""One session-era client over Streamable HTTP. A session outlives its connections: hanging up cancels nothing."""

import asyncio
import secrets
from collections.abc import Callable, Sequence
from typing import Final, Protocol

import msgspec

from sluicegate.downstream.http_guard import SESSION_HEADER, STOPPING, Accepted, too_many
from sluicegate.downstream.http_post import Post, id_of_request
from sluicegate.downstream.http_response import JSON_FIELDS, HttpRequest, KeepAlive, refuse
from sluicegate.downstream.resumable_stream import ReplayBuffer, ReplayMemory, ResumableStream
from sluicegate.downstream.session_client import Replies, SessionSide, all_lists, hold_subscription
from sluicegate.errors import STOPPED, ErrorObject, SluicegateError
from sluicegate.exchange import Caller, Exchange, Nobody
from sluicegate.protocol.message import Notification, Reply, RequestId
from sluicegate.protocol.modern_era import ACKNOWLEDGED
from sluicegate.protocol.server_connection import (
    Answered,
    Asked,
    Called,
    Event,
    LogLevelSet,
    Opened,
    Opening,
    Outgoing,
    ServerConversation,
    Withdrawn,
    WithoutId,
)
from sluicegate.protocol.session_era import Stage
from sluicegate.runtime.identity import Fields, Refusal
from sluicegate.runtime.quota import Exceeded, Lease, Quota
from sluicegate.runtime.task_scope import TaskScope

UNKNOWN_SESSION: Final = Refusal(404, "unknown_session", "There is no such session; send initialize to open one.")
_FORGOTTEN: Final = Refusal(
    400, "unknown_event", "The events of the stream that Last-Event-ID names are no longer kept."
)
# The only status that tells a client that there is nothing to read; after an empty stream official SDKs come again.
_ENDED: Final = Refusal(
    405, "stream_ended", "The stream that Last-Event-ID names has ended with that event.", (("Allow", "POST, DELETE"),)
)


class ListChangeListener(Protocol):
    """A session that is notified of list changes."""

    def on_list_changed(self, notification: Notification) -> None:
        """Take note of a change, without waiting."""
        ...


class SessionListChanges:
    """Notifies all HTTP sessions of a caller of list changes, with one subscription for all of them.

    A subscription for each session would need a task each, and there may be ten thousand sessions.
    """

    def __init__(self, replies: Replies, tasks: TaskScope) -> None:
        self._replies = replies
        self._tasks = tasks
        self._audiences: dict[tuple[Caller, str], Audience] = {}

    def join(self, listener: ListChangeListener, caller: Caller, offers: str) -> "Audience":
        """Notify this session of changes, until `leave`. Sessions with the same offer share a subscription."""
        # A subscription brings what was announced when it began, and may differ between callers (T11).
        audience = self._audiences.get((caller, offers))
        if audience is None:
            audience = self._audiences[caller, offers] = Audience(caller, offers)
            self._tasks.start(self._hold(audience), key=audience)
        audience.members[listener] = None
        return audience

    def leave(self, listener: ListChangeListener, audience: "Audience") -> None:
        """Stop notifying this session; the last one ends the subscription."""
        audience.members.pop(listener, None)
        if not audience.members:
            self._forget(audience)  # At once: a session that joins before it has ended would never be notified.
            self._tasks.cancel(audience)

    async def _hold(self, audience: "Audience") -> None:
        try:
            await hold_subscription(self._replies, audience.caller, all_lists(), audience)
        finally:
            self._forget(audience)  # The next session begins a new one.

    def _forget(self, audience: "Audience") -> None:
        if self._audiences.get((audience.caller, audience.offers)) is audience:
            del self._audiences[audience.caller, audience.offers]


class Audience(Nobody):
    """Sessions that are notified of the same changes: the sink of their subscription."""

    def __init__(self, caller: Caller, offers: str) -> None:
        self.caller = caller
        self.offers = offers
        self.members: dict[ListChangeListener, None] = {}

    async def emit(self, notification: Notification) -> None:
        if notification.method != ACKNOWLEDGED:
            for listener in list(self.members):
                listener.on_list_changed(notification)

    def failed(self, problem: SluicegateError) -> None:
        """Do nothing: no request waits for the subscription."""


class SharedBySessions(msgspec.Struct):
    """What all sessions of an endpoint have in common."""

    replies: Replies
    tasks: TaskScope
    streams: Quota
    memory: ReplayMemory
    keepalive: KeepAlive
    changes: SessionListChanges
    hold: float
    retry_ms: int
    """How long clients that know this field wait before they come back for a stream."""
    on_idle: Callable[["HttpSession"], None]
    """Called when a session becomes idle."""
    on_end: Callable[["HttpSession"], None]
    """Called when a session ended by itself."""


class HttpSession:
    """One session-era client over Streamable HTTP: the front of its conversation."""

    transport = "http"
    # There may be ten thousand of them, most of them idle: no task, no timer, and little that is made ahead.
    __slots__ = (
        *(
            "born",
            "caller",
            "carried",
            "conversation",
            "id",
            "is_over",
            "buffer",
            "last_used",
            "lease",
            "pushes",
            "size",
        ),
        *("shared", "side", "_audience", "_calls", "_json_fields", "_loop", "_numbers", "_streams", "_unsent_changes"),
        "_waiting",
    )

    def __init__(self, shared: SharedBySessions, caller: Caller, lease: Lease, size: int) -> None:
        """`size` is about how many bytes it takes."""
        # 256 random bits: any client that knows it is taken for the owner (T10).
        self.id = secrets.token_urlsafe(32)
        self.caller = caller
        self.lease = lease
        self.size = size
        self.conversation = ServerConversation()
        self.buffer: ReplayBuffer | None = None
        self.pushes = ResumableStream(self, 0)
        self._loop = asyncio.get_running_loop()  # kept: each look-up is a system call
        self.born = self.last_used = self._loop.time()
        self.carried = 0
        """How many of its streams a client reads now."""
        self.is_over = False
        self.shared = shared
        self.side = SessionSide(self)
        self._audience: Audience | None = None
        self._json_fields: Fields | None = None
        self._unsent_changes: dict[str, bytes] | None = None
        self._calls: dict[RequestId, Post] = {}
        """The POST of each request in progress; both together are the key of its task."""
        self._waiting: dict[RequestId, Post] = {}
        """`initialize`, and what waits behind it."""
        self._streams: dict[int, ResumableStream] = {}
        self._numbers = 0

    @property
    def tasks(self) -> TaskScope:
        return self.shared.tasks

    @property
    def replies(self) -> Replies:
        return self.shared.replies

    @property
    def hold(self) -> float:
        return self.shared.hold

    @property
    def fields(self) -> Fields:
        """The header that names the session."""
        return () if self.conversation.session.stage is Stage.CREATED else ((SESSION_HEADER, self.id),)

    @property
    def json_fields(self) -> Fields:
        """The headers of a JSON answer, made once: nearly every answer has them."""
        if self._json_fields is None:
            fields = (*JSON_FIELDS, *self.fields)
            if self.conversation.session.stage is Stage.CREATED:
                return fields
            self._json_fields = fields
        return self._json_fields

    @property
    def idle(self) -> bool:
        """Whether no request is in progress and no stream is read."""
        return not (self._calls or self._waiting or self.carried)

    def rest(self) -> None:
        """Called when a request or a stream has ended; after the last one, the session's idle time begins."""
        if not (self._calls or self._waiting or self.carried or self.is_over):
            self.last_used = self._loop.time()
            self.shared.on_idle(self)

    def close(self, why: Refusal = UNKNOWN_SESSION) -> None:
        """End the session and its requests; POSTs that wait are answered with `why`."""
        self.is_over = True
        self.conversation.session.close()
        posts = [*self._waiting.values(), *self._calls.values()]
        # At once: no task may go on in a session that is over.
        for key in (self, self.side, *((post, request_id) for request_id, post in self._calls.items())):
            self.shared.tasks.cancel(key)
        self._calls.clear()
        self._waiting.clear()
        self.side.close()
        if self._audience is not None:
            self.shared.changes.leave(self, self._audience)
            self._audience = None
        for post in posts:
            post.refuse(why)
        for stream in [self.pushes, *self._streams.values()]:
            stream.close()
        self._streams.clear()
        if self.buffer is not None:
            self.buffer.clear()
            self.buffer = None

    def stop(self) -> None:
        """End the session because we are about to stop, and answer its requests so (R29)."""
        for request_id, post in list(self._calls.items()):
            self.respond(post, request_id, STOPPED)
            self.shared.tasks.cancel((post, request_id))
        self.close(STOPPING)  # What is left has not begun: an `initialize`, and requests that wait for it.

    # --------------------------------------------------------------------------------------- streams and their memory

    def open_stream(self) -> ResumableStream:
        """The stream of a POST, from its first event on."""
        self._numbers += 1
        stream = self._streams[self._numbers] = ResumableStream(self, self._numbers)
        return stream

    def remember(self, number: int, position: int, message: bytes) -> None:
        """Keep an event for a client that comes back."""
        # Not events after the end of the session, such as a withdrawn question: no client can ask for them.
        if self.is_over:
            return
        if self.buffer is None:
            self.buffer = ReplayBuffer(self.shared.memory, self.drop_forgotten)
        self.buffer.add(number, position, message)

    def drop_forgotten(self, number: int) -> None:
        """Drop a stream that has ended and has no events left in the buffer."""
        stream = self._streams.get(number)
        if stream is not None and stream.finished and (self.buffer is None or number not in self.buffer):
            del self._streams[number]

    def on_list_changed(self, notification: Notification) -> None:
        """Notify the client that a list changed. While it is slow to read, changes of the same kind become one."""
        message = self.side.message_of(notification)
        if message is None:
            return
        if self._unsent_changes is not None:
            self._unsent_changes[notification.method] = message
        elif self.pushes.carrier is None:
            self.pushes.send_now(message)
        else:
            self._unsent_changes = {notification.method: message}
            self.shared.tasks.start(self._send_changes(self._unsent_changes), key=self)

    async def _send_changes(self, unsent: dict[str, bytes]) -> None:
        try:
            while unsent:
                await self.pushes.send(unsent.pop(next(iter(unsent))))
        finally:
            self._unsent_changes = None

    # --------------------------------------------------------------------------------------------- what comes in

    def post(self, request: HttpRequest, value: object, takes: Accepted) -> None:
        """Take the message or the batch of a POST; it is answered now or later."""
        post = Post(self, request, value, takes)
        self._follow(self.conversation.take(value), post)
        if not (post.done or post.open):
            self._let_wait(post, value)
        if post.done:
            self.rest()
        elif takes.events:
            self.shared.keepalive.watch(post)

    def _let_wait(self, post: Post, value: object) -> None:
        """Let a request wait until the handshake is done; other messages need no answer."""
        request_id = id_of_request(value)
        if request_id is None:
            post.finish(None)
        else:
            self._waiting[request_id] = post

    def listen_on(self, request: HttpRequest, last_event: str | None) -> None:
        """Let a GET carry messages that belong to no request, or the rest of the stream whose last event it names."""
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
        # The GET that it replaces goes first and frees its lease, so that a client at its limit can come back.
        stream.drop_carrier()
        lease = self.shared.streams.lease(self.caller)
        if isinstance(lease, Exceeded):
            refuse(request, too_many(lease, "open streams"))
        else:
            stream.carry(request, position, lease)

    def follow(self, events: Sequence[Event]) -> None:
        self._follow(events, None)
        self.rest()

    def _follow(self, events: Sequence[Event], post: Post | None) -> None:
        """Do it; `post` is the POST that caused these events, if one did."""
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
                    self.side.on_initialized()
                    self._audience = self.shared.changes.join(self, self.caller, self.conversation.session.offers)
                case LogLevelSet(level):
                    self.side.set_level(level)
                case Withdrawn(request_id):
                    owner = owners[request_id] = self._withdraw(request_id)
                    withdrawn[owner] = request_id
                case Answered(request_id, reply):
                    self.side.answered(request_id, reply)
                case WithoutId(method, params):
                    self.shared.replies.clients.note_without_id(self.caller.id, method, params)
                case Called():
                    raise AssertionError("a session has no native requests")
        for owner, request_id in withdrawn.items():
            if not owner.open:
                owner.withdraw(request_id)
        if self.conversation.session.stage is Stage.CREATED:
            self.close()  # its initialize was refused
            self.shared.on_end(self)

    def _start(self, asked: Asked, post: Post) -> None:
        request_id, profile = asked.id, asked.profile
        if not post.takes.events:
            profile = msgspec.structs.replace(profile, capabilities={})  # As `Post.ask` says.
        self._calls[request_id] = post
        post.open += 1
        # Clients of 2025-11-25 know how to come back; others would take this for the end.
        end_response_early = post.end_response_early if self.conversation.session.revision.elicitation_modes else None
        headers = post.header_values
        exchange = Exchange(asked.method, asked.params, post, profile, self.caller, headers, end_response_early)
        exchange.accepts_events = post.takes.events
        self.shared.tasks.start(self._answer(exchange, post, request_id), key=(post, request_id))

    def _withdraw(self, request_id: RequestId) -> Post:
        post = self._calls.pop(request_id, None)
        if post is None:
            return self._waiting.pop(request_id)
        self.shared.tasks.cancel((post, request_id))
        post.open -= 1
        return post

    async def _answer(self, exchange: Exchange, post: Post, request_id: RequestId) -> None:
        self.respond(post, request_id, await self.shared.replies.answer(exchange, self.side))

    def respond(self, post: Post, request_id: RequestId, reply: Reply) -> None:
        """Answer a request; its POST is answered with it, or with the last of its batch."""
        if self._calls.get(request_id) is not post:
            # Withdrawn, and a tool swallowed the cancellation: the id may be that of another request by now. (An id
            # that is used again within a batch is no problem: tasks begin in a later turn, so a request that its own
            # batch withdraws never begins.)
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
    """The stream and position in the id of an event that we sent."""
    stream, _, place = event_id.partition("-")
    if not (stream.isascii() and stream.isdecimal() and place.isascii() and place.isdecimal()):
        return None, None
    return (int(stream), int(place)) if len(stream) + len(place) < 30 else (None, None)
