"""One client on a duplex channel, served in whatever era it speaks. The transports (pipes, memory) bring the bytes.

Inside we speak 2026-07-28: what the older era needs beyond that is in `session_era`, how the newer one asks in
`modern_era`. Here events become tasks and replies become bytes.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Final

from sluicegate.asking import settle
from sluicegate.concurrency import TaskScope
from sluicegate.downstream.modern_era import ModernSink, resume
from sluicegate.downstream.parked import PREFIX, Parked
from sluicegate.downstream.session_era import SessionSide, SessionSink
from sluicegate.errors import SluicegateError, error_object
from sluicegate.exchange import Caller, Exchange, Handler
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
from sluicegate.protocol.message import Notification, Reply, RequestId, Result, opened
from sluicegate.protocol.modern import marked
from sluicegate.protocol.translate import reply_for_session
from sluicegate.wire import Receiver, Wire

log = logging.getLogger("sluicegate")

LONGEST_HOLD: Final = 300.0
"""Seconds that a question to the client stays open before the call goes on without its answer."""

NOTICES_A_TURN: Final = 32
"""Notices that may be sent before everybody else has a turn."""

LAST_ANSWERS: Final = 0.2
"""Seconds that requests under way have left when the client hangs up."""


class DuplexServer:
    """Answers one peer until it hangs up. A `Receiver`: a transport hands it bytes and writes what it gives back."""

    def __init__(self, handler: Handler, wire: Wire, tasks: TaskScope, *, caller: Caller, hold: float) -> None:
        self.conversation = ServerConversation()
        self.finished: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.parked = Parked()
        self.tasks = tasks
        self.wire = wire
        self.caller = caller
        self.hold = hold
        self._handler = handler
        self._session_side = SessionSide(self)
        self._hung_up = False
        self._notices = 0

    def received(self, data: bytes) -> None:
        """Take the next bytes of the client."""
        self.follow(self.conversation.receive(data))

    def ended(self) -> None:
        """Learn that the client says nothing more."""
        self.follow(self.conversation.finish())
        self._hung_up = True
        # A shell pipe closes its end right behind the requests: what is answered at once still gets its answer.
        asyncio.get_running_loop().call_later(LAST_ANSWERS, self._finish)
        self._finish_when_idle()

    def _finish_when_idle(self) -> None:
        if self._hung_up and not self.conversation.under_way:
            self._finish()

    def _finish(self) -> None:
        if not self.finished.done():
            self.finished.set_result(None)

    def follow(self, events: Iterable[Event]) -> None:
        """Do what the conversation says is to be done."""
        for event in events:
            match event:
                case Outgoing(data):
                    self.wire.write(data)
                case Asked():
                    self._start(event)
                case Opening(request_id):
                    self.tasks.start(self._session_side.welcome(request_id))
                case Opened():
                    self._session_side.start_pushing()
                case Withdrawn(request_id):
                    self.tasks.cancel(("call", request_id))
                case Answered(request_id, reply):
                    self._session_side.answered(request_id, reply)

    def write(self, data: bytes | None) -> None:
        """Write what the conversation gave, if it gave anything."""
        if data is not None:
            self.wire.write(data)

    async def notify(self, notification: Notification) -> None:
        """Send a notification as it is; waits while the client is slow."""
        await self.wire.drain()
        self.wire.write(self.conversation.notify(notification.method, notification.params))
        # A tool that never waits would otherwise never let us hear that its call was withdrawn.
        self._notices += 1
        if self._notices % NOTICES_A_TURN == 0:
            await asyncio.sleep(0)

    def _start(self, asked: Asked) -> None:
        state = asked.params.get("requestState")
        if asked.modern and isinstance(state, str) and state.startswith(PREFIX):
            resume(self, asked, state)
        else:
            answer = self._answer_modern(asked) if asked.modern else self._answer_session(asked)
            self.tasks.start(answer, key=("call", asked.id))

    async def _answer_modern(self, asked: Asked) -> None:
        sink = ModernSink(self, asked)
        reply = await self.reply_to(sink.exchange)
        if asked.method == "subscriptions/listen" and isinstance(reply, Result):
            reply = Result(marked(opened(reply), asked.id))
        if sink.request_id is not None:  # else nobody came back for it
            await self._respond(sink.request_id, reply)

    async def _answer_session(self, asked: Asked) -> None:
        sink = SessionSink(self._session_side, asked.profile)
        exchange = Exchange(asked.method, asked.params, sink, asked.profile, self.caller)
        reply = await self._safely(exchange, self._session_side.handler_of(asked.method) or self._settled)
        try:
            reply = reply_for_session(asked.method, asked.params, reply, self.conversation.session.revision)
        except SluicegateError as problem:
            reply = error_object(problem)
        await self._respond(asked.id, reply)

    async def _respond(self, request_id: RequestId, reply: Reply) -> None:
        task = asyncio.current_task()
        if task is not None and task.cancelling():
            # A tool that swallowed its cancellation: the id may be another request's by now.
            return
        self.write(self.conversation.respond(request_id, reply))
        await self.wire.drain()
        self._finish_when_idle()

    async def _settled(self, exchange: Exchange) -> Reply:
        return await settle(self._handler, exchange)

    async def reply_to(self, exchange: Exchange) -> Reply:
        """The handler's reply to an exchange, or the error that its exception is."""
        return await self._safely(exchange, self._handler)

    async def _safely(self, exchange: Exchange, handler: Handler) -> Reply:
        # One of the edges where everything is caught: a failed exchange never ends a server (R34).
        try:
            return await handler(exchange)
        except SluicegateError as problem:
            return error_object(problem)
        except Exception as problem:
            log.exception("%s failed", exchange.method)
            return error_object(problem)

    async def listen(self, exchange: Exchange) -> Reply:
        """Hold a subscription that we open on the client's behalf."""
        return await self._handler(exchange)


async def serve_duplex(
    handler: Handler,
    wire: Wire,
    attach: Callable[[Receiver], None],
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
            tasks.cancel_all()
