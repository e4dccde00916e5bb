"""What a session-era client is owed beyond answers: a welcome, pushed changes, live questions.

Its subscriptions are `subscriptions/listen` exchanges that we hold on its behalf, so that what answers it needs to know
one way of telling changes only.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, Protocol

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.asking_rights import check_capabilities
from sluicegate.downstream.streams import PushStream, Stream
from sluicegate.errors import (
    ErrorObject,
    InputRefused,
    InvalidParams,
    LimitExceeded,
    RpcError,
    SluicegateError,
    UpstreamProtocolError,
    error_object,
)
from sluicegate.exchange import NOBODY, Caller, Exchange, Nobody, Sink
from sluicegate.protocol.conversation import Event, ServerConversation
from sluicegate.protocol.discovery import Discovery, judge_probe
from sluicegate.protocol.input_required import Answers, Question, Questions
from sluicegate.protocol.message import (
    Notification,
    Params,
    Reply,
    RequestId,
    Result,
    as_array,
    as_object,
    encode,
    opened,
)
from sluicegate.protocol.methods import LIST_CHANGES
from sluicegate.protocol.modern import ACKNOWLEDGED, Profile
from sluicegate.protocol.translate import notification_for_session
from sluicegate.protocol.translate_questions import answer_from_session, question_for_session

log = logging.getLogger("sluicegate")

OF_THIS_ERA: Final = frozenset({"resources/subscribe", "resources/unsubscribe"})
"""Methods that are answered here, for whoever answers the others does not know them."""

_LOG: Final = object()  # A key that no URI can be: subscriptions go by theirs.

VISITED: Final = "notifications/elicitation/complete"
"""What may come after the reply to the call that it is about."""

MOST_SUBSCRIPTIONS: Final = 1000
"""Resources that one session may be subscribed to."""


class HeldExchanges(Protocol):
    """What answers the exchanges that we hold on a client's behalf."""

    async def reply_to(self, exchange: Exchange) -> Reply:
        """The handler's reply, or the error that its exception is."""
        ...

    async def listen(self, exchange: Exchange) -> Reply:
        """Hold a subscription; raises what the handler raises."""
        ...


class Front(Protocol):
    """What a session-era client is in front of, as this part needs it."""

    @property
    def conversation(self) -> ServerConversation: ...
    @property
    def tasks(self) -> TaskScope: ...
    @property
    def caller(self) -> Caller: ...
    @property
    def hold(self) -> float: ...
    @property
    def answering(self) -> "HeldExchanges":
        """What answers."""
        ...

    @property
    def pushes(self) -> PushStream:
        """Where things go that belong to no request."""
        ...

    def follow(self, events: list[Event]) -> None:
        """Do what the conversation says is to be done."""
        ...


class SessionSide:
    """What one session-era client is owed."""

    __slots__ = ("_front", "_questions", "_subscriptions", "_welcomed")

    def __init__(self, front: Front) -> None:
        self._front = front
        self._welcomed: asyncio.Event | None = None
        self._questions: dict[int, asyncio.Future[Reply]] = {}
        self._subscriptions: dict[str, asyncio.Future[Params]] = {}

    def close(self) -> None:
        """End the subscriptions that are held for the client, but for those to lists."""
        for uri in list(self._subscriptions):
            self._end_updates(uri)
        self._front.tasks.cancel((self, _LOG))

    async def welcome(self, request_id: RequestId) -> None:
        """Answer `initialize` with what the handler says of itself."""
        front = self._front
        reply = await front.answering.reply_to(Exchange("server/discover", {}, NOBODY, Profile(), front.caller))
        offer = judge_probe(reply)
        if isinstance(offer, Discovery):
            front.follow(front.conversation.welcome(request_id, offer))
        else:
            error = error_object(RuntimeError()) if isinstance(reply, Result) else reply
            front.follow(front.conversation.refuse_opening(request_id, error))

    # ------------------------------------------------------------------------------------------------ changes

    def start_pushing(self) -> None:
        """Send list changes from now on: a session-era client never asks for them but expects them."""
        self.heard_welcome()
        listening = hold_subscription(self._front, all_lists(), _PushSink(self, None))
        self._front.tasks.start(listening, key="list changes")

    def set_level(self, level: str) -> None:
        """Send log lines that belong to no call, from this level on; those of a call come with it."""
        front = self._front
        front.tasks.cancel((self, _LOG))
        profile = Profile(front.conversation.session.version, log_level=level)
        listening = hold_subscription(front, {"notifications": {}}, _PushSink(self, None), profile)
        front.tasks.start(listening, key=(self, _LOG))

    def heard_welcome(self) -> None:
        """Learn that the client may be told things unasked."""
        if self._welcomed is not None:
            self._welcomed.set()

    def reply_to(self, exchange: Exchange) -> Awaitable[Reply]:
        """The reply to a method that only this era has, one of `OF_THIS_ERA`."""
        return (self._subscribe if exchange.method == "resources/subscribe" else self._unsubscribe)(exchange)

    async def _subscribe(self, exchange: Exchange) -> Reply:
        uri = _uri_of(exchange)
        acknowledged = self._subscriptions.get(uri)
        if acknowledged is None:
            if len(self._subscriptions) >= MOST_SUBSCRIPTIONS:
                raise LimitExceeded(f"More than {MOST_SUBSCRIPTIONS} resources are subscribed; unsubscribe from some.")
            acknowledged = self._subscriptions[uri] = asyncio.get_running_loop().create_future()
            # Looked at, so that nobody need wait for it: the client may have withdrawn its request.
            acknowledged.add_done_callback(lambda future: future.cancelled() or future.exception())
            self._front.tasks.start(self._updates(uri, acknowledged), key=(self, uri))
        # A second subscription to the same URI is the first one: updates are delivered once.
        honoured = as_object((await asyncio.shield(acknowledged)).get("notifications")) or {}
        if uri not in (as_array(honoured.get("resourceSubscriptions")) or []):
            self._end_updates(uri)
            raise InvalidParams(f"Resource not found: {uri}", data={"uri": uri})
        return Result({})

    async def _unsubscribe(self, exchange: Exchange) -> Reply:
        self._end_updates(_uri_of(exchange))
        return Result({})

    async def _updates(self, uri: str, acknowledged: "asyncio.Future[Params]") -> None:
        try:
            wanted: Params = {"notifications": {"resourceSubscriptions": [uri]}}
            await hold_subscription(self._front, wanted, _PushSink(self, acknowledged))
        finally:
            if self._subscriptions.get(uri) is acknowledged:
                del self._subscriptions[uri]

    def _end_updates(self, uri: str) -> None:
        acknowledged = self._subscriptions.pop(uri, None)
        self._front.tasks.cancel((self, uri))
        if acknowledged is not None and not acknowledged.done():
            # Whoever still waits to be subscribed was, for as long as it wanted to be.
            acknowledged.set_result({"notifications": {"resourceSubscriptions": [uri]}})

    async def push(self, notification: Notification) -> None:
        """Send something that belongs to no request, once the client has heard our welcome."""
        if not self._front.conversation.session.ready_for_pushes:
            if self._welcomed is None:
                self._welcomed = asyncio.Event()
            await self._welcomed.wait()
        message = self.message_of(notification)
        if message is None:
            return
        if notification.method == "notifications/message":
            await self._front.pushes.send_in_passing(message)
        else:
            await self._front.pushes.send(message)

    async def tell_of_visit(self, notification: Notification) -> None:
        """Say that a page was visited; the call that it was about may have ended. To one who may not hear, nothing."""
        if self._front.conversation.session.ready_for_pushes:
            await self.push(notification)

    def message_of(self, notification: Notification) -> bytes | None:
        """The bytes of a notification in the client's own revision, or None if that has no such thing."""
        older = notification_for_session(notification, self._front.conversation.session.revision)
        return None if older is None else encode(older)

    # ---------------------------------------------------------------------------------------------- questions

    async def ask(self, question: Question, stream: Stream) -> Params:
        """The client's answer to a live request of ours, in the modern shape."""
        conversation, hold = self._front.conversation, self._front.hold
        revision = conversation.session.revision
        import secrets  # here and not above: it brings OpenSSL, and most calls ask nothing

        asked = question_for_session(question, revision, new_id=secrets.token_urlsafe(12))
        request_id, message = conversation.ask(asked.method, asked.params)
        answer = self._questions[request_id] = asyncio.get_running_loop().create_future()
        try:
            async with asyncio.timeout(hold):
                await stream.send(message)
                reply = await answer
        except TimeoutError:
            raise InputRefused(f"The client did not answer {question.method} within {hold:g} s.") from None
        finally:
            del self._questions[request_id]
            if not answer.done() or answer.cancelled():
                stream.send_now(conversation.forget_question(request_id, "The call no longer needs it."))
        if isinstance(reply, Result):
            return answer_from_session(question, opened(reply), revision)
        raise InputRefused(f"The client refused {question.method}: {reply.message}", error=reply)

    def answered(self, request_id: int, reply: Reply) -> None:
        """Hand a reply of the client to whoever asked."""
        question = self._questions.get(request_id)
        if question is not None and not question.done():
            question.set_result(reply)


class SessionSink:
    """The way back to a session-era client while one of its requests is open."""

    __slots__ = ("_profile", "_side", "_stream")

    def __init__(self, side: SessionSide, stream: Stream, profile: Profile) -> None:
        self._side = side
        self._stream = stream
        self._profile = profile

    async def emit(self, notification: Notification) -> None:
        """Send a notification ahead of the reply."""
        if notification.method == VISITED:
            await self._side.tell_of_visit(notification)
            return
        message = self._side.message_of(notification)
        if message is not None:
            await self._stream.send(message)

    async def ask(self, questions: Questions) -> Answers:
        """Ask live, one dialog at a time: a person is at the other end."""
        check_capabilities(questions, self._profile)
        return {key: await self._side.ask(question, self._stream) for key, question in questions.items()}


class AskedInRounds:
    """The way back to a session-era client for a server of 2026-07-28: it cannot be told of an error, but of a cancel.

    Only where it asks for a form or a page (§3.3.4): for the rest, nothing stands for "no".
    """

    __slots__ = ("_sink",)

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def emit(self, notification: Notification) -> Awaitable[None]:
        """Pass it on."""
        return self._sink.emit(notification)

    async def ask(self, questions: Questions) -> Answers:
        """The client's answers, to one question after the other."""
        return {key: await self._ask(key, question) for key, question in questions.items()}

    async def _ask(self, key: str, question: Question) -> Params:
        try:
            return (await self._sink.ask({key: question}))[key]
        except InputRefused as refusal:
            if refusal.error is None or question.method != "elicitation/create":
                raise
            return {"action": "cancel"}


class Held(Protocol):
    """Whose subscriptions we hold."""

    @property
    def answering(self) -> HeldExchanges: ...
    @property
    def caller(self) -> Caller: ...


class Subscriber(Sink, Protocol):
    """Who is told what a subscription brings, and why it ended."""

    def failed(self, problem: SluicegateError) -> None: ...


def all_lists() -> Params:
    """The params of a subscription to the changes of every list."""
    return {"notifications": dict.fromkeys(LIST_CHANGES, True)}


async def hold_subscription(held: Held, params: Params, sink: Subscriber, profile: Profile | None = None) -> None:
    """Hold a subscription on a client's behalf, until it ends."""
    exchange = Exchange("subscriptions/listen", params, sink, profile or Profile(), held.caller)
    try:
        reply = await held.answering.listen(exchange)
        if isinstance(reply, ErrorObject):
            sink.failed(RpcError(reply))
        else:
            sink.failed(UpstreamProtocolError("The subscription ended before it was acknowledged."))
    except SluicegateError as problem:
        sink.failed(problem)
    except Exception as problem:
        log.exception("subscriptions/listen failed")
        sink.failed(SluicegateError(error_object(problem).message))


class _PushSink(Nobody):
    """The way of changes: no request of the client is open."""

    def __init__(self, side: SessionSide, acknowledged: "asyncio.Future[Params] | None") -> None:
        self._side = side
        self._acknowledged = acknowledged

    async def emit(self, notification: Notification) -> None:
        if notification.method != ACKNOWLEDGED:
            await self._side.push(notification)
        elif self._acknowledged is not None and not self._acknowledged.done():
            self._acknowledged.set_result(notification.params)

    def failed(self, problem: SluicegateError) -> None:
        if self._acknowledged is not None and not self._acknowledged.done():
            self._acknowledged.set_exception(problem)


def _uri_of(exchange: Exchange) -> str:
    uri = exchange.params.get("uri")
    if not isinstance(uri, str):
        raise InvalidParams("Invalid params: uri is a string.")
    return uri
