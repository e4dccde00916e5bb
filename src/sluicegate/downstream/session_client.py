"""What a session-era client needs beyond answers: the handshake, pushed changes, live questions.

Its subscriptions are `subscriptions/listen` exchanges that we hold on its behalf, so that handlers need only that one
way to announce changes.
"""

import asyncio
from collections.abc import Awaitable
from functools import partial
from typing import Final, Protocol

import msgspec

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
from sluicegate.exchange import NOBODY, Caller, Exchange, Handler, Nobody, Sink, accepting_retries, answer
from sluicegate.protocol.input_required import Answers, Question, Questions, read_input_required
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
from sluicegate.protocol.modern_era import ACKNOWLEDGED, ClientProfile, Discovery, judge_probe
from sluicegate.protocol.server_connection import Event, ServerConversation
from sluicegate.protocol.translate.questions import answer_from_session, question_for_session
from sluicegate.protocol.translate.results import notification_for_session, reply_for_session
from sluicegate.protocol.versions import Revision
from sluicegate.runtime.input_rounds import check_capabilities, settle
from sluicegate.runtime.task_scope import TaskScope

OF_THIS_ERA: Final = frozenset({"resources/subscribe", "resources/unsubscribe"})
"""Methods that are answered here: handlers do not know them."""

_LOG: Final = object()  # A task key that no URI equals: the keys of subscriptions have their URI.

VISITED: Final = "notifications/elicitation/complete"
"""May come after the reply to the call that it is about."""

SUBSCRIPTIONS_PER_SESSION: Final = 1000
"""Resources that one session may subscribe to."""


class Stream(Protocol):
    """Messages on their way to a client, in order: one pipe for all requests, or an HTTP response for each."""

    async def send(self, message: bytes) -> None:
        """Send a message; waits while the client is slow."""
        ...

    def send_now(self, message: bytes) -> None:
        """Send a message without waiting, where there is no time left to wait."""
        ...


class PushStream(Stream, Protocol):
    """The stream of messages that belong to no request."""

    async def send_in_passing(self, message: bytes) -> None:
        """Send a message that is not kept: a client that does not listen now misses it."""
        ...


class Front(Protocol):
    """The server side of a session-era client's connection, as this module needs it."""

    @property
    def replies(self) -> "Replies": ...
    @property
    def caller(self) -> Caller: ...
    @property
    def conversation(self) -> ServerConversation: ...
    @property
    def tasks(self) -> TaskScope: ...
    @property
    def hold(self) -> float: ...
    @property
    def transport(self) -> str: ...
    @property
    def pushes(self) -> PushStream:
        """For messages that belong to no request."""
        ...

    def follow(self, events: list[Event]) -> None:
        """Do what the conversation says is to be done."""
        ...


class SessionSide:
    """The handshake, pushed changes and live questions of one session-era client."""

    __slots__ = ("_front", "_questions", "_subscriptions", "_initialized")

    def __init__(self, front: Front) -> None:
        self._front = front
        self._initialized: asyncio.Event | None = None
        self._questions: dict[int, asyncio.Future[Reply]] = {}
        self._subscriptions: dict[str, asyncio.Future[Params]] = {}

    @property
    def revision(self) -> Revision:
        return self._front.conversation.session.revision

    def close(self) -> None:
        """End the subscriptions that are held for the client, except those to lists; nothing is sent any more."""
        for uri in list(self._subscriptions):
            self._end_updates(uri)
        self._front.tasks.cancel((self, _LOG))
        self._front.replies.clients.left(self)
        del self._front  # Breaks a reference cycle, so that sessions are freed without the garbage collector.

    async def welcome(self, request_id: RequestId) -> None:
        """Answer `initialize` with what the handler says about itself."""
        front = self._front
        # With what the client declares: whether servers have its extensions is known only when they have started.
        profile = front.conversation.session.profile
        reply = await front.replies.answer(Exchange("server/discover", {}, NOBODY, profile, front.caller))
        offer = judge_probe(reply)
        if isinstance(offer, Discovery):
            front.replies.clients.connected(self, front.caller.id, profile, "session", front.transport)
            front.follow(front.conversation.welcome(request_id, offer))
        else:
            error = error_object(RuntimeError()) if isinstance(reply, Result) else reply
            front.follow(front.conversation.refuse_opening(request_id, error))

    # ------------------------------------------------------------------------------------------------ changes

    def start_pushing(self) -> None:
        """Send list changes from now on: session-era clients expect them without asking."""
        self.on_initialized()
        listening = self._hold(all_lists(), _PushSink(self, None))
        self._front.tasks.start(listening, key="list changes")

    def set_level(self, level: str) -> None:
        """Send log lines of this level and above that belong to no call; those of a call come with it."""
        front = self._front
        front.tasks.cancel((self, _LOG))
        profile = ClientProfile(front.conversation.session.version, log_level=level)
        listening = self._hold({"notifications": {}}, _PushSink(self, None), profile)
        front.tasks.start(listening, key=(self, _LOG))

    async def _hold(self, params: Params, sink: "_PushSink", profile: ClientProfile | None = None) -> None:
        await hold_subscription(self._front.replies, self._front.caller, params, sink, profile)

    def on_initialized(self) -> None:
        """Called when the client has finished the handshake, after which it may be sent notifications."""
        if self._initialized is not None:
            self._initialized.set()

    def reply_to(self, exchange: Exchange) -> Awaitable[Reply]:
        """The reply to a method that only this era has, one of `OF_THIS_ERA`."""
        return (self._subscribe if exchange.method == "resources/subscribe" else self._unsubscribe)(exchange)

    async def _subscribe(self, exchange: Exchange) -> Reply:
        uri = _uri_of(exchange)
        acknowledged = self._subscriptions.get(uri)
        if acknowledged is None:
            if len(self._subscriptions) >= SUBSCRIPTIONS_PER_SESSION:
                count = f"This session has {SUBSCRIPTIONS_PER_SESSION} subscriptions already"
                raise LimitExceeded(f"{count}; unsubscribe from some resources.")
            acknowledged = self._subscriptions[uri] = asyncio.get_running_loop().create_future()
            # The exception is retrieved here, since the client may have withdrawn its request.
            acknowledged.add_done_callback(lambda future: future.cancelled() or future.exception())
            self._front.tasks.start(self._updates(uri, acknowledged), key=(self, uri))
        # A second subscription to the same URI is the first one: updates are delivered once.
        honoured = as_object((await asyncio.shield(acknowledged)).get("notifications")) or {}
        if uri not in (as_array(honoured.get("resourceSubscriptions")) or []):
            self._end_updates(uri)
            why = "there is no such resource, or its server has no subscriptions to it"
            raise InvalidParams(f"Cannot subscribe to {uri[:200]}: {why}.", data={"uri": uri})
        return Result({})

    async def _unsubscribe(self, exchange: Exchange) -> Reply:
        self._end_updates(_uri_of(exchange))
        return Result({})

    async def _updates(self, uri: str, acknowledged: "asyncio.Future[Params]") -> None:
        try:
            wanted: Params = {"notifications": {"resourceSubscriptions": [uri]}}
            await self._hold(wanted, _PushSink(self, acknowledged))
        finally:
            if self._subscriptions.get(uri) is acknowledged:
                del self._subscriptions[uri]

    def _end_updates(self, uri: str) -> None:
        acknowledged = self._subscriptions.pop(uri, None)
        self._front.tasks.cancel((self, uri))
        if acknowledged is not None and not acknowledged.done():
            # A request that still waits was subscribed for as long as it wanted to be.
            acknowledged.set_result({"notifications": {"resourceSubscriptions": [uri]}})

    async def push(self, notification: Notification) -> None:
        """Send a notification that belongs to no request, once the client has finished the handshake."""
        if not self._front.conversation.session.ready_for_pushes:
            if self._initialized is None:
                self._initialized = asyncio.Event()
            await self._initialized.wait()
        message = self.message_of(notification)
        if message is None:
            return
        if notification.method == "notifications/message":
            await self._front.pushes.send_in_passing(message)
        else:
            await self._front.pushes.send(message)

    async def tell_of_visit(self, notification: Notification) -> None:
        """Say that a page was visited, after the handshake; the call that it was about may have ended."""
        if self._front.conversation.session.ready_for_pushes:
            await self.push(notification)

    def message_of(self, notification: Notification) -> bytes | None:
        """The bytes of a notification in the client's revision, or None if that does not have it."""
        older = notification_for_session(notification, self._front.conversation.session.revision)
        return None if older is None else encode(older)

    # ---------------------------------------------------------------------------------------------- questions

    async def ask(self, question: Question, stream: Stream) -> Params:
        """The client's answer to a live request of ours, in the modern shape."""
        conversation, hold = self._front.conversation, self._front.hold
        revision = conversation.session.revision
        import secrets  # Not above: it loads OpenSSL, and most calls ask nothing.

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
        """Hand a reply of the client to the call that asked."""
        question = self._questions.get(request_id)
        if question is not None and not question.done():
            question.set_result(reply)


class SessionSink:
    """The way back to a session-era client while one of its requests is open."""

    __slots__ = ("_profile", "_side", "_stream")

    def __init__(self, side: SessionSide, stream: Stream, profile: ClientProfile) -> None:
        self._side = side
        self._stream = stream
        self._profile = profile

    async def emit(self, notification: Notification) -> None:
        if notification.method == VISITED:
            await self._side.tell_of_visit(notification)
            return
        message = self._side.message_of(notification)
        if message is not None:
            await self._stream.send(message)

    async def ask(self, questions: Questions) -> Answers:
        """Ask live, one question at a time, since a person answers."""
        check_capabilities(questions, self._profile.capabilities)
        return {key: await self._side.ask(question, self._stream) for key, question in questions.items()}


class AskedInRounds:
    """The way back to a session-era client for a server of 2026-07-28, which accepts no error as an answer.

    A refused form or page becomes a cancelled one; other refusals end the call.
    """

    __slots__ = ("_sink",)

    def __init__(self, sink: Sink) -> None:
        self._sink = sink

    def emit(self, notification: Notification) -> Awaitable[None]:
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


class Subscriber(Sink, Protocol):
    """The sink of a held subscription, which also gets the reason of its end."""

    def failed(self, problem: SluicegateError) -> None: ...


def all_lists() -> Params:
    """The params of a subscription to the changes of every list."""
    return {"notifications": dict.fromkeys(LIST_CHANGES, True)}


async def hold_subscription(
    replies: "Replies", caller: Caller, params: Params, sink: Subscriber, profile: ClientProfile | None = None
) -> None:
    """Hold a subscription on a client's behalf, until it ends."""
    reply = await replies.answer(Exchange("subscriptions/listen", params, sink, profile or ClientProfile(), caller))
    if isinstance(reply, ErrorObject):
        sink.failed(RpcError(reply))
    else:
        sink.failed(UpstreamProtocolError("The subscription ended before it was acknowledged."))


class _PushSink(Nobody):
    """The sink of a subscription: changes go out without a request of the client."""

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
        raise InvalidParams("Invalid params: uri must be a string.")
    return uri


_LISTS: Final = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})


class Replies:
    """A handler as the edges use it: always a reply, in the client's own revision."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.clients = accepting_retries(handler).clients
        self._lists: dict[tuple[str, str], tuple[object, Reply]] = {}

    def answer(self, exchange: Exchange, side: SessionSide | None = None) -> Awaitable[Reply]:
        """The handler's reply, or the error that its exception stands for.

        With `side`, the reply for that session-era client: it is asked live what the handler asks for in rounds, and
        the reply is translated to its revision.
        """
        return answer(self._handler if side is None else partial(self._answer_session, side), exchange)

    async def _answer_session(self, side: SessionSide, exchange: Exchange) -> Reply:
        revision = side.revision  # First: the session may end while a tool ignores that it is cancelled.
        reply = await answer(side.reply_to if exchange.method in OF_THIS_ERA else self._handler, exchange)
        if read_input_required(exchange.method, reply) is not None:
            exchange.sink = AskedInRounds(exchange.sink)
            reply = await answer(partial(settle, self._handler, first=reply), exchange)
        return self._for_session(exchange, reply, revision)

    def _for_session(self, exchange: Exchange, reply: Reply, revision: Revision) -> Reply:
        if exchange.method not in _LISTS or not isinstance(reply, Result):
            return reply_for_session(exchange.method, exchange.params, reply, revision)
        # A hub gives all clients the same bytes until something changes; a thousand tools take ten milliseconds.
        place = exchange.method, revision.version
        kept = self._lists.get(place)
        if kept is not None and kept[0] is reply.value:
            return kept[1]
        translated = reply_for_session(exchange.method, exchange.params, reply, revision)
        if isinstance(reply.value, msgspec.Raw) and isinstance(translated, Result):
            translated = Result(msgspec.Raw(msgspec.json.encode(translated.value)))
            self._lists[place] = reply.value, translated
        return translated
