"""One client on a duplex channel, served in whatever era it speaks. The transports (pipes, memory) bring the bytes.

Inside we speak 2026-07-28: what the older era needs beyond that is in `session_era`, how the newer one asks in
`modern_era`. Here events become tasks and replies become bytes.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.answering import Answering, failure
from sluicegate.downstream.modern_era import ModernSink
from sluicegate.downstream.parked import PREFIX, Comeback, Parked, binding_of
from sluicegate.downstream.session_era import SessionSide, SessionSink
from sluicegate.errors import InvalidParams, error_object
from sluicegate.exchange import NOBODY, Caller, Exchange, Handler
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
from sluicegate.protocol.lines import encode_line
from sluicegate.protocol.message import Notification, Params, Reply, RequestId, Result, as_object, encode
from sluicegate.protocol.modern import complete, marked
from sluicegate.wire import Wire

LONGEST_HOLD: Final = 300.0
"""Seconds that a question to the client stays open before the call goes on without its answer."""

MESSAGES_A_TURN: Final = 32
"""Messages that one call may send before everybody else has a turn."""

LAST_ANSWERS: Final = 0.2
"""Seconds that requests under way have left when the client hangs up."""


class DuplexServer:
    """Answers one peer until it hangs up. A `Receiver`: a transport hands it bytes and writes what it gives back."""

    def __init__(self, handler: Handler, wire: Wire, tasks: TaskScope, *, caller: Caller, hold: float) -> None:
        self.conversation = ServerConversation()
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.tasks = tasks
        self.wire = wire
        self.caller = caller
        self.hold = hold
        self.pushes = _PipeStream(self, 0)
        self.answering = Answering(handler)
        self._handler = handler
        self._parked = Parked()
        self._streams: dict[RequestId, _PipeStream] = {}
        self._session_side = SessionSide(self)
        self._hung_up = False
        self._last_answers = LAST_ANSWERS
        self._farewell: Reply | None = None
        self._listens: dict[RequestId, _PipeStream] = {}

    def received(self, data: bytes) -> None:
        """Take the next bytes of the client."""
        self.follow(self.conversation.receive(data))

    def received_message(self, data: bytes) -> None:
        """Take a message of the client from a transport that brings them whole."""
        self.follow(self.conversation.receive_message(data))

    def ended(self) -> None:
        """Learn that the client says nothing more."""
        self.follow(self.conversation.finish())
        self._hung_up = True
        # A shell pipe closes its end right behind the requests: what is answered at once still gets its answer.
        asyncio.get_running_loop().call_later(self._last_answers, self._finish)
        self._finish_when_idle()

    def leave_after(self, seconds: float, farewell: Reply) -> None:
        """Learn that it is we who will hang up: what is under way then has so long, and gets this for an answer."""
        self._last_answers, self._farewell = seconds, farewell
        # Subscriptions would go on for ever; they end in order, as they do when there is nothing more to hear.
        for request_id, stream in list(self._listens.items()):
            self.respond(request_id, Result(marked(complete({}), request_id)))
            stream.end_listening()
            stream.withdrawn = True
            self.tasks.cancel(stream)
        if self._hung_up:
            self._finish()  # Told once more: whoever says so twice means at once.

    def stop(self, reply: Reply) -> None:
        """Answer all that is under way with this, because we are about to stop: whoever waits is told so (R29)."""
        for request_id in self.conversation.requests_under_way():
            self.respond(request_id, reply)

    def _finish_when_idle(self) -> None:
        if self._hung_up and not self.conversation.under_way:
            self._finish()

    def _finish(self) -> None:
        if not self.finished.done() and self._farewell is not None:
            farewell, self._farewell = self._farewell, None
            self.stop(farewell)
        if not self.finished.done():
            self.finished.set_result(None)

    def follow(self, events: Iterable[Event]) -> None:
        """Do what the conversation says is to be done."""
        for event in events:
            if isinstance(event, Asked):  # Ahead of the rest: this is nearly every one.
                self._start(event)
                continue
            match event:
                case Outgoing(message):
                    self.wire.write(encode_line(message))
                case Opening(request_id):
                    self.tasks.start(self._session_side.welcome(request_id))
                case Opened():
                    self._session_side.start_pushing()
                case LogLevelSet(level):
                    self._session_side.set_level(level)
                case Withdrawn(request_id):
                    stream = self._streams.pop(request_id, None)
                    if stream is not None:
                        stream.withdrawn = True
                        self.tasks.cancel(stream)
                case Answered(request_id, reply):
                    self._session_side.answered(request_id, reply)

    def _start(self, asked: Asked) -> None:
        stream = self._streams[asked.id] = _PipeStream(self, asked.id)
        if not asked.modern:
            self.tasks.start(self._answer_session(asked, stream), key=stream)
            return
        state = asked.params.get("requestState")
        if isinstance(state, str) and state.startswith(PREFIX):
            self._resume(asked, state, stream)
        elif asked.method == "subscriptions/listen":
            self.tasks.start(self._serve_listen(asked, stream), key=stream)
        else:
            self.tasks.start(self._answer_modern(asked, stream), key=stream)

    def _resume(self, asked: Asked, state: str, stream: "_PipeStream") -> None:
        comeback = Comeback(stream, asked.profile, as_object(asked.params.get("inputResponses")) or {})
        try:
            self._parked.resume(state, binding_of(self.caller, asked.method, asked.params), comeback, self.tasks)
        except InvalidParams as problem:
            self.respond(asked.id, error_object(problem))

    async def _answer_modern(self, asked: Asked, stream: "_PipeStream") -> None:
        sink = self._modern_sink(asked, stream)
        exchange = sink.exchange
        try:
            try:
                reply = await self._handler(exchange)
            except Exception as problem:  # The edge where everything is caught: a failed exchange never ends a server.
                reply = failure(exchange, problem)
            if sink.stream is None:
                await sink.wait_for_client(reply)
        finally:
            sink.close()
        if sink.stream is not None:  # Else nobody came back for it in time.
            await sink.stream.reply(reply)

    async def _serve_listen(self, asked: Asked, stream: "_PipeStream") -> None:
        sink = self._modern_sink(asked, stream)
        self._listens[asked.id] = stream
        try:
            reply = await self.answering.modern_reply(sink.exchange, asked.id)
        finally:
            sink.close()
            self._listens.pop(asked.id, None)
        await stream.reply(reply)
        if not stream.withdrawn:
            stream.end_listening()

    def _modern_sink(self, asked: Asked, stream: "_PipeStream") -> ModernSink:
        exchange = Exchange(asked.method, asked.params, NOBODY, asked.profile, self.caller)
        exchange.sink = sink = ModernSink(exchange, stream, self.tasks, self._parked, self.hold)
        return sink

    async def _answer_session(self, asked: Asked, stream: "_PipeStream") -> None:
        sink = SessionSink(self._session_side, stream, asked.profile)
        exchange = Exchange(asked.method, asked.params, sink, asked.profile, self.caller)
        revision = self.conversation.session.revision
        await stream.reply(await self.answering.session_reply(exchange, self._session_side, revision))

    def respond(self, request_id: RequestId, reply: Reply) -> None:
        """Write the reply to a request, if it is still wanted and its batch is complete."""
        self._streams.pop(request_id, None)
        message = self.conversation.respond(request_id, reply)
        if message is not None:
            self.wire.write(encode_line(message))
        if self._hung_up:
            self._finish_when_idle()


class _PipeStream:
    """A request's way back through the one pipe that all requests share."""

    __slots__ = ("_sent", "_server", "id", "withdrawn")

    def __init__(self, server: DuplexServer, request_id: RequestId) -> None:
        self.id = request_id
        self.withdrawn = False
        self._server = server
        self._sent = 0

    async def send(self, message: bytes) -> None:
        """Send a message; waits while the client is slow. Nothing is sent for a request that was withdrawn."""
        await self._server.wire.drain()
        if self.withdrawn:
            return
        self.send_now(message)
        # A tool that never waits would otherwise never let us hear that its call was withdrawn.
        self._sent += 1
        if self._sent % MESSAGES_A_TURN == 0:
            await asyncio.sleep(0)

    async def send_in_passing(self, message: bytes) -> None:
        """Send a message: on a pipe all are heard as they come."""
        await self.send(message)

    def send_now(self, message: bytes) -> None:
        """Send a message without waiting."""
        self._server.wire.write(encode_line(message))

    def end_listening(self) -> None:
        """Say that a subscription is over, behind its reply."""
        # The specification wants this end on a pipe, and that one (protocol §7): both are said.
        params: Params = {"requestId": self.id, "reason": "The subscription ended."}
        self.send_now(encode(Notification("notifications/cancelled", params)))

    async def reply(self, reply: Reply) -> None:
        """Send the reply."""
        if self.withdrawn or self._server.finished.done():
            # A tool that swallowed its cancellation: the id may be another request's by now.
            return
        self._server.respond(self.id, reply)
        await self._server.wire.drain()


async def serve_duplex(
    handler: Handler,
    wire: Wire,
    attach: Callable[[DuplexServer], None],
    *,
    caller: Caller | None = None,
    hold: float = LONGEST_HOLD,
) -> None:
    """Answer one peer until it hangs up; then nobody waits for what is still under way, and it is cancelled.

    `attach` is called with the receiver of the wire's bytes as soon as they can be taken.
    """
    async with TaskScope() as tasks:
        server = DuplexServer(handler, wire, tasks, caller=caller or Caller(), hold=hold)
        try:
            attach(server)
            await server.finished
        finally:
            tasks.wind_up()
