"""One client on a duplex channel, in either era. The transports (pipes, sockets, memory) bring the bytes.

Here events become tasks and replies become bytes. `session_client` has what the older era needs beyond that,
`modern_client` how the newer one answers.
"""

import asyncio
from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from sluicegate.downstream.modern_client import ModernCalls, state_of_retry
from sluicegate.downstream.session_client import Replies, SessionSide, SessionSink
from sluicegate.errors import UNREAD, LimitExceeded, error_object, reason_of
from sluicegate.exchange import Caller, Exchange, Handler, accepting_retries
from sluicegate.protocol.framing import encode_line
from sluicegate.protocol.message import Notification, Params, Reply, RequestId, Result, encode
from sluicegate.protocol.modern_era import ClientProfile, complete, marked
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
from sluicegate.runtime.byte_channel import ClientWire
from sluicegate.runtime.clients import Era
from sluicegate.runtime.task_scope import TaskScope

INPUT_TIMEOUT: Final = 300.0
"""Seconds that a question to the client stays open before the call goes on without its answer."""

MESSAGES_A_TURN: Final = 32
"""Messages that one call may send before other tasks get a turn."""

MAX_UNANSWERED: Final = 32 * 1024 * 1024
"""Bytes of requests in progress of one client beyond which further ones are refused (T4)."""

TOO_MANY_UNANSWERED: Final = "More than 32 MiB of requests of this client are in progress; wait for their answers."

MAX_UNREAD: Final = 32 * 1024 * 1024
"""Bytes that a client may leave unread before it gets errors in place of results (R24)."""

LAST_ANSWERS: Final = 0.2
"""Seconds that requests in progress have left when the client hangs up."""


class DuplexServer:
    """Answers one client until it hangs up. A `Receiver`: a transport hands it bytes and writes its output."""

    conversation_type: type[ServerConversation] = ServerConversation
    transport: str = "stdio"

    def __init__(self, handler: Handler, wire: ClientWire, tasks: TaskScope, *, caller: Caller, hold: float) -> None:
        self.conversation = self.conversation_type()
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tasks = tasks
        self.wire = wire
        self.caller = caller
        self.hold = hold
        self.pushes = _PipeStream(self, 0)
        self.replies = Replies(handler)
        self._modern = ModernCalls(handler, tasks, hold)
        self._on_refused = accepting_retries(handler).on_refused
        self._streams: dict[RequestId, _PipeStream] = {}
        self._session_side = SessionSide(self)
        self._hung_up = False
        self._has_come = False
        """Whether the client sent a request without a handshake, and is known since then."""
        self._ending: asyncio.TimerHandle | None = None
        self._last_answers = LAST_ANSWERS
        self._farewell: Reply | None = None
        self._listens: dict[RequestId, _PipeStream] = {}
        self._arrived = 0
        """Bytes since the last message that was complete."""
        self._share = 0
        """Bytes that count for each request that is being started."""
        self._unanswered = 0
        """Bytes of all requests in progress."""

    def received(self, data: bytes) -> None:
        events = self.conversation.receive(data)
        self._arrived += len(data)
        if events:
            self._follow_counted(events)

    def received_message(self, data: bytes) -> None:
        """Take a message of the client from a transport that brings them whole."""
        self.follow_message(data, self.conversation.receive_message(data))

    def follow_message(self, data: bytes, events: list[Event]) -> None:
        """Do what a message says, of which the conversation has made these events."""
        self._arrived = len(data)
        self._follow_counted(events)

    def _follow_counted(self, events: list[Event]) -> None:
        """Share the bytes that arrived among the requests in them; a large request arrives in many pieces."""
        requests = sum(type(event) in _REQUESTS for event in events) if len(events) > 1 else 1
        self._share = self._arrived // max(requests, 1)
        self._arrived = 0
        self.follow(events)

    def ended(self) -> None:
        """Called when the client sends nothing more."""
        if self.finished.done():
            return
        self.follow(self.conversation.finish())
        self._hung_up = True
        # A shell pipe closes its end right behind the requests: what is answered at once still gets its answer.
        self._ending = asyncio.get_running_loop().call_later(self._last_answers, self._finish)
        self._finish_when_idle()

    def leave_after(self, seconds: float, farewell: Reply) -> None:
        """Let requests in progress finish for so many seconds once we hang up, and answer the rest with `farewell`."""
        self._last_answers, self._farewell = seconds, farewell
        self.end_subscriptions()
        if self._hung_up:
            self._finish()  # Called twice: at once.

    def end_subscriptions(self) -> None:
        """End all subscriptions with their final result: they would go on for ever."""
        for request_id, stream in list(self._listens.items()):
            self.respond(request_id, Result(marked(complete({}), request_id)))
            stream.end_listening()
            stream.withdrawn = True
            self.tasks.cancel(stream)

    def stop(self, reply: Reply) -> None:
        """Answer all requests in progress with this, because we are about to stop (R29)."""
        for request_id in self.conversation.requests_in_progress():
            self.respond(request_id, reply)

    def _finish_when_idle(self) -> None:
        if self._hung_up and not self.in_progress:
            self._finish()

    @property
    def in_progress(self) -> int:
        """How many requests have not been answered yet."""
        return self.conversation.in_progress

    def _finish(self) -> None:
        if not self.finished.done() and self._farewell is not None:
            farewell, self._farewell = self._farewell, None
            self.stop(farewell)
        if not self.finished.done():
            self.finished.set_result(None)

    def close(self) -> None:
        """Break the reference cycles, so that an ended connection is freed without the garbage collector."""
        if self._ending is not None:
            self._ending.cancel()
        self._session_side.close()
        self.replies.clients.left(self)
        del self.pushes

    def follow(self, events: Iterable[Event]) -> None:
        for event in events:
            if isinstance(event, Asked):  # First, since it is nearly every event.
                self._start(event)
                continue
            match event:
                case Outgoing(message):
                    if event.error is not None:
                        self._on_refused(reason_of(event.error), self.caller.id)
                    self.wire.write(encode_line(message))
                case Opening(request_id):
                    self.tasks.start(self._session_side.welcome(request_id))
                case Opened():
                    self._session_side.start_pushing()
                case LogLevelSet(level):
                    self._session_side.set_level(level)
                case Withdrawn(request_id):
                    stream = self._streams.pop(request_id, None)
                    # Here too: a task that is cancelled before its first step never ends its subscription itself.
                    self._listens.pop(request_id, None)
                    if stream is not None:
                        self._unanswered -= stream.size
                        stream.withdrawn = True
                        self.tasks.cancel(stream)
                case Answered(request_id, reply):
                    self._session_side.answered(request_id, reply)
                case Called():
                    self.called(event)
                case WithoutId(method, params):
                    self.replies.clients.note_without_id(self.caller.id, method, params)

    def called(self, call: Called) -> None:
        """Start a native call; only `NativePeer` gets any."""
        raise NotImplementedError

    def _start(self, asked: Asked) -> None:
        if self._unanswered > MAX_UNANSWERED:
            self.respond(asked.id, error_object(LimitExceeded(TOO_MANY_UNANSWERED)))
            return
        self._unanswered += self._share
        stream = self._streams[asked.id] = _PipeStream(self, asked.id, self._share)
        if not asked.modern:
            self.tasks.start(self._answer_session(asked, stream), key=stream)
            return
        if not self._has_come:
            self._come(asked.profile, "modern")
        on_end = None
        if asked.method == "subscriptions/listen" and state_of_retry(asked) is None:
            self._listens[asked.id] = stream
            on_end = partial(self._listen_ended, stream)
        self._modern.start(asked, stream, self.caller, on_end=on_end)

    def _come(self, profile: ClientProfile, era: Era) -> None:
        self._has_come = True
        self.replies.clients.connected(self, self.caller.id, profile, era, self.transport)

    def _listen_ended(self, stream: "_PipeStream") -> None:
        if self._listens.get(stream.id) is stream:
            del self._listens[stream.id]
        if not (stream.withdrawn or self.finished.done()):
            stream.end_listening()

    async def _answer_session(self, asked: Asked, stream: "_PipeStream") -> None:
        sink = SessionSink(self._session_side, stream, asked.profile)
        exchange = Exchange(asked.method, asked.params, sink, asked.profile, self.caller)
        stream.reply(await self.replies.answer(exchange, self._session_side))

    def respond(self, request_id: RequestId, reply: Reply) -> None:
        """Write the reply to a request, if it is still wanted and its batch is complete."""
        stream = self._streams.pop(request_id, None)
        if stream is not None:
            self._unanswered -= stream.size
        if self.wire.unsent > MAX_UNREAD:
            reply = UNREAD
        message = self.conversation.respond(request_id, reply)
        if message is not None:
            self.wire.write(encode_line(message))
        if self._hung_up:
            self._finish_when_idle()


_REQUESTS: Final = frozenset({Asked, Called})


class _PipeStream:
    """The `RequestStream` of one request, on the pipe that all requests share."""

    __slots__ = ("_sent", "_server", "id", "size", "withdrawn")

    def __init__(self, server: DuplexServer, request_id: RequestId, size: int = 0) -> None:
        self.id = request_id
        self.size = size
        self.withdrawn = False
        self._server = server
        self._sent = 0

    async def send(self, message: bytes) -> None:
        """Send a message, unless the request was withdrawn; waits while the client is slow."""
        await self._server.wire.drain()
        if self.withdrawn:
            return
        self.send_now(message)
        # A tool that never waits would otherwise keep us from reading that its call was withdrawn.
        self._sent += 1
        if self._sent % MESSAGES_A_TURN == 0:
            await asyncio.sleep(0)

    async def send_in_passing(self, message: bytes) -> None:
        """Send a message: a pipe has no gaps in which one could be missed."""
        await self.send(message)

    def send_now(self, message: bytes) -> None:
        self._server.wire.write(encode_line(message))

    def end_listening(self) -> None:
        """Say that a subscription is over, after its reply."""
        # On stdio the specification (Subscriptions) asks for both: the reply, and this notification.
        params: Params = {"requestId": self.id, "reason": "The subscription ended."}
        self.send_now(encode(Notification("notifications/cancelled", params)))

    def reply(self, reply: Reply) -> None:
        if self.withdrawn or self._server.finished.done():
            # A tool swallowed its cancellation: the id may be another request's by now.
            return
        self._server.respond(self.id, reply)


async def serve_duplex(
    handler: Handler,
    wire: ClientWire,
    attach: Callable[[DuplexServer], None],
    *,
    caller: Caller | None = None,
    hold: float = INPUT_TIMEOUT,
    kind: type[DuplexServer] = DuplexServer,
    transport: str = "stdio",
) -> None:
    """Answer one client until it hangs up, then cancel what is still in progress.

    `attach` is called with the receiver of the wire's bytes as soon as it can take them; `kind` is its class.
    """
    async with TaskScope() as tasks:
        server = kind(handler, wire, tasks, caller=caller or Caller(), hold=hold)
        server.transport = transport
        try:
            attach(server)
            await server.finished
        finally:
            tasks.wind_up()
    server.close()
