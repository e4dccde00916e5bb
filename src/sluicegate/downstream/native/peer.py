"""The native view: clients call tools as methods and get their events as notifications.

A call is an ordinary `tools/call` through the handler that MCP clients use, so rules, limits, audit, questions and
cancelling are the same, and tools of other servers are streams, too. `NativePeer` serves a client on a duplex channel,
`answer_post` one POST.
"""

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from typing import Final

import msgspec

from sluicegate.downstream.duplex import MAX_UNANSWERED, MESSAGES_A_TURN, TOO_MANY_UNANSWERED, DuplexServer
from sluicegate.downstream.http_guard import Accepted
from sluicegate.downstream.modern_client import RequestStream
from sluicegate.downstream.native.tools import NativeTools, ToolCall, Value
from sluicegate.errors import STOPPED, ErrorObject, InputRefused, LimitExceeded, RemoteProtocolError, error_object
from sluicegate.exchange import Caller, Exchange, Handler, answer
from sluicegate.protocol.framing import encode_line
from sluicegate.protocol.input_required import Answers, Question, Questions
from sluicegate.protocol.message import (
    UNENCODABLE,
    Notification,
    Params,
    Reply,
    RequestId,
    as_object,
    encode_any_reply,
    encode_reply,
)
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.protocol.native import (
    START,
    NativeConversation,
    answer_of,
    error_event,
    event_of,
    events_of,
    question_event,
    subscription_of,
)
from sluicegate.protocol.server_connection import MAX_IN_PROGRESS, Called, Event, Withdrawn
from sluicegate.runtime.byte_channel import ClientWire
from sluicegate.runtime.input_rounds import settle
from sluicegate.runtime.task_scope import TaskScope

STUBBORN: Final = 10.0
"""Seconds after which a client learns that its stream is cancelled although the tool has not ended."""

CAN_BE_ASKED: Final[Params] = {"elicitation": {"form": {}, "url": {}}}
"""What clients on a channel can do: they answer questions with `respond`."""

_UNSUB: Final = "_unsub"
_encode: Final = msgspec.json.Encoder().encode


class NativeEvents:
    """Encodes the events of one call as notifications."""

    __slots__ = ("_head",)

    def __init__(self, method: str, subscription: int) -> None:
        self._head = b'{"jsonrpc":"2.0","method":%b,"params":{"subscription":%d,"result":' % (
            _encode(method),
            subscription,
        )

    def encoded(self, event: Params) -> bytes:
        return b"%b%b}}" % (self._head, _encode(event))


class NativePeer(DuplexServer):
    """A client on a duplex channel that calls native methods, and may use MCP as well."""

    conversation_type = NativeConversation

    def __init__(
        self,
        handler: Handler,
        wire: ClientWire,
        tasks: TaskScope,
        *,
        caller: Caller,
        hold: float,
        tools: NativeTools | None = None,
        on_idle: Callable[[], None] | None = None,
    ) -> None:
        """`tools` are those of the handler, if several peers share them.

        `on_idle` is called whenever the last request in progress has ended.
        """
        super().__init__(handler, wire, tasks, caller=caller, hold=hold)
        self._handler = handler
        self._tools = tools or NativeTools(handler)
        self._on_idle = on_idle
        self._calls: dict[int, _NativeCall] = {}
        self._questions: dict[int, tuple[Question, asyncio.Future[Params]]] = {}
        self._numbers = itertools.count(1)

    @property
    def in_progress(self) -> int:
        return self.conversation.in_progress + len(self._calls)

    def follow(self, events: Iterable[Event]) -> None:
        for event in events:
            super().follow((event,))
            if isinstance(event, Withdrawn):
                for call in [call for call in self._calls.values() if call.request_id == event.id]:
                    self._withdraw(call)

    def called(self, call: Called) -> None:
        """Start a native call, or do what it asks for at once."""
        if not self._has_come:
            self._come(ClientProfile(), "native")
        if call.method == "unsubscribe":
            self._unsubscribe(call)
        elif call.method == "respond":
            self._respond(call.id, self._take_answer(as_object(call.params) or {}))
        elif self._is_unsub_of_stream(call):
            self._unsubscribe(call)
        elif len(self._calls) >= MAX_IN_PROGRESS or self._unanswered > MAX_UNANSWERED:
            problem = f"More than {MAX_IN_PROGRESS} calls are in progress; wait for some to end."
            is_many = len(self._calls) >= MAX_IN_PROGRESS
            self._refuse(call.id, error_object(LimitExceeded(problem if is_many else TOO_MANY_UNANSWERED)))
        else:
            started = _NativeCall(self, next(self._numbers), call, self._share)
            self._calls[started.number] = started
            self._unanswered += started.size
            self.tasks.start(self._serve(started, call.params), key=started)

    def _is_unsub_of_stream(self, call: Called) -> bool:
        stream = self._find(call.params) if call.method.endswith(_UNSUB) else None
        return stream is not None and stream.method == call.method.removesuffix(_UNSUB)

    def _find(self, params: object) -> "_NativeCall | None":
        number = subscription_of(params)
        return self._calls.get(number) if type(number) is int else None

    # ------------------------------------------------------------------------------------------------------ a call

    async def _serve(self, call: "_NativeCall", params: object) -> None:
        profile = ClientProfile(capabilities=CAN_BE_ASKED, log_level="debug", progress_token=call.number)
        exchange = Exchange("tools/call", {}, call, profile, self.caller)
        try:
            reply = await answer(partial(self._call, call, params), exchange)
            if call.has_begun:
                for event in _ending(reply):
                    await call.send(event)
            elif isinstance(reply, ErrorObject):
                self._refuse(call.request_id, reply)
            else:
                self._respond(call.request_id, reply.value)
        except asyncio.CancelledError:
            call.send_now(error_event(STOPPED))  # Unless its client cancelled it: we are about to stop (R29).
            raise
        finally:
            self._end(call)

    async def _call(self, call: "_NativeCall", params: object, exchange: Exchange) -> Reply:
        """The final reply to a call. The client learns the number of its stream before the tool runs."""
        plan = await self._plan(call, params)
        if isinstance(plan, Value):
            return plan.result
        exchange.params = plan.params
        self._respond(call.request_id, call.number)
        call.begin()
        return await settle(self._handler, exchange)

    async def _plan(self, call: "_NativeCall", params: object) -> ToolCall | Value:
        if call.method.endswith(_UNSUB) and not await self._tools.knows(self.caller, call.method):
            if await self._tools.knows(self.caller, call.method.removesuffix(_UNSUB)):
                return Value(False)  # The stream has ended.
        return await self._tools.plan(self.caller, call.method, params)

    def _end(self, call: "_NativeCall") -> None:
        """Forget a call. Doing it twice does no harm."""
        if self._calls.pop(call.number, None) is not None:
            self._unanswered -= call.size
        call.close()
        self._note_end()

    def respond(self, request_id: RequestId, reply: Reply) -> None:
        """Write the reply to a request of MCP."""
        super().respond(request_id, reply)
        self._note_end()

    def _note_end(self) -> None:
        if self._hung_up:
            self._finish_when_idle()
        if self._on_idle is not None and not self.in_progress:
            self._on_idle()

    # --------------------------------------------------------------------------------------------------- cancelling

    def _unsubscribe(self, call: Called) -> None:
        stream = self._find(call.params)
        if stream is None:
            self._respond(call.id, False)
        else:
            self._withdraw(stream)
            self.tasks.start(self._say_when_ended(call.id, stream))

    def _withdraw(self, stream: "_NativeCall") -> None:
        stream.is_withdrawn = True
        if not self.tasks.cancel(stream):
            self._end(stream)

    async def _say_when_ended(self, request_id: RequestId, stream: "_NativeCall") -> None:
        await asyncio.wait([stream.ended], timeout=STUBBORN)
        self._respond(request_id, True)

    # ---------------------------------------------------------------------------------------------------- questions

    async def ask(self, call: "_NativeCall", question: Question) -> Params:
        """The client's answer to one question. Raises InputRefused if none comes in time."""
        number = next(self._numbers)
        answer: asyncio.Future[Params] = asyncio.get_running_loop().create_future()
        self._questions[number] = question, answer
        try:
            await call.send(question_event(number, question))
            async with asyncio.timeout(self.hold):
                return await answer
        except TimeoutError:
            raise InputRefused(f"The client did not answer within {self.hold:g} s.") from None
        finally:
            self._questions.pop(number, None)

    def _take_answer(self, params: Params) -> bool:
        number = params.get("id")
        question, answer = self._questions.pop(number, (None, None)) if type(number) is int else (None, None)
        if question is None or answer is None or answer.done():
            return False
        answer.set_result(answer_of(question, params))
        return True

    # ------------------------------------------------------------------------------------------------------ answers

    def _respond(self, request_id: RequestId, value: object) -> None:
        self.wire.write(encode_line(_encode({"jsonrpc": "2.0", "id": request_id, "result": value})))

    def _refuse(self, request_id: RequestId, error: ErrorObject) -> None:
        self.wire.write(encode_line(encode_reply(request_id, error)))


class _NativeCall:
    """One native call of a peer: the sink of its exchange."""

    __slots__ = (
        *("_events", "_peer", "_sent", "ended", "has_begun", "is_withdrawn", "method", "number", "request_id"),
        "size",
    )

    def __init__(self, peer: NativePeer, number: int, call: Called, size: int) -> None:
        self.number = number
        self.method = call.method
        self.request_id = call.id
        self.size = size
        self.is_withdrawn = False
        self.has_begun = False
        """Whether the client has the number of the stream, on which all else is sent."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._peer = peer
        self._events = NativeEvents(call.method, number)
        self._sent = 0

    def begin(self) -> None:
        self.has_begun = True
        self.send_now(START)

    def emit(self, notification: Notification) -> Awaitable[None]:
        event = event_of(notification)
        return _nothing() if event is None else self.send(event)

    async def send(self, event: Params) -> None:
        """Send an event; waits while the client is slow."""
        await self._peer.wire.drain()
        self.send_now(event)
        # A tool that never waits would otherwise keep us from reading that its call was withdrawn.
        self._sent += 1
        if self._sent % MESSAGES_A_TURN == 0:
            await asyncio.sleep(0)

    def send_now(self, event: Params) -> None:
        if not (self.is_withdrawn or self.ended.done()):
            self._peer.wire.write(encode_line(self._events.encoded(event)))

    async def ask(self, questions: Questions) -> Answers:
        """Send the questions as events, and wait for what `respond` brings."""
        return {key: await self._peer.ask(self, question) for key, question in questions.items()}

    def close(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


async def _nothing() -> None:
    pass


def _ending(reply: Reply) -> list[Params]:
    """The last events of a call, which can be encoded."""
    try:
        return events_of(encode_any_reply(None, reply)[1])
    except RemoteProtocolError:
        return [error_event(UNENCODABLE)]


# ----------------------------------------------------------------------------------------------------------------- POST


class _PostSink:
    """The sink of a native call by POST. The client cannot be asked: it has no way to answer."""

    def __init__(self, method: str, stream: RequestStream) -> None:
        self._stream = stream
        self._events = NativeEvents(method, 1)
        self.has_begun = False

    async def emit(self, notification: Notification) -> None:
        event = event_of(notification)
        if event is not None:
            await self.send(event)

    async def send(self, event: Params) -> None:
        if not self.has_begun:
            self.has_begun = True
            await self._stream.send(self._events.encoded(START))
        await self._stream.send(self._events.encoded(event))

    async def ask(self, questions: Questions) -> Answers:
        raise InputRefused("A client that calls by POST cannot be asked; use a WebSocket.")


async def answer_post(
    handler: Handler,
    tools: NativeTools,
    call: Called,
    stream: RequestStream,
    takes: Accepted,
    caller: Caller,
) -> None:
    """Answer a native request by POST: with its result, after its events if there were any before the result."""
    sink = _PostSink(call.method, stream)
    token, level = (1, "debug") if takes.events else (None, None)
    exchange = Exchange("tools/call", {}, sink, ClientProfile(log_level=level, progress_token=token), caller)
    try:
        reply = await answer(partial(_call_by_post, handler, tools, call), exchange)
        # An error before the call is the response alone, with a status of its own.
        if sink.has_begun or (exchange.params and not takes.json):
            for event in _ending(reply):
                await sink.send(event)
        stream.reply(reply)
    except asyncio.CancelledError:
        stream.reply(STOPPED)
        raise


async def _call_by_post(handler: Handler, tools: NativeTools, call: Called, exchange: Exchange) -> Reply:
    plan = await tools.plan(exchange.caller, call.method, call.params)
    if isinstance(plan, Value):
        return plan.result
    exchange.params = plan.params
    return await settle(handler, exchange)
