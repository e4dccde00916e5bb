"""What a session-era client is owed beyond answers: a welcome, pushed changes, live questions.

Its subscriptions are `subscriptions/listen` exchanges that we hold on its behalf, so that what answers it needs to know
one way of telling changes only.
"""

import asyncio
import logging
from typing import Protocol

from sluicegate.concurrency import TaskScope
from sluicegate.errors import InputRefused, InvalidParams, SluicegateError, error_object
from sluicegate.exchange import Caller, Exchange, Handler
from sluicegate.protocol.conversation import Event, ServerConversation
from sluicegate.protocol.message import Notification, Params, Reply, RequestId, Result, as_array, as_object, opened
from sluicegate.protocol.methods import LIST_CHANGES
from sluicegate.protocol.modern import (
    ACKNOWLEDGED,
    Answers,
    Discovery,
    Profile,
    Question,
    Questions,
    judge_probe,
    lacking_capability,
)
from sluicegate.protocol.translate import notification_for_session
from sluicegate.protocol.translate_questions import answer_from_session, question_for_session
from sluicegate.wire import Wire

log = logging.getLogger("sluicegate")


class Channel(Protocol):
    """The channel to the client, as this part needs it."""

    conversation: ServerConversation
    tasks: TaskScope
    wire: Wire
    caller: Caller
    hold: float

    def follow(self, events: list[Event]) -> None: ...
    async def reply_to(self, exchange: Exchange) -> Reply: ...
    async def listen(self, exchange: Exchange) -> Reply: ...
    async def notify(self, notification: Notification) -> None: ...


class SessionSide:
    """The session-era side of one client's channel."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._welcomed = asyncio.Event()
        self._questions: dict[int, asyncio.Future[Reply]] = {}

    async def welcome(self, request_id: RequestId) -> None:
        """Answer `initialize` with what the handler says of itself."""
        channel = self._channel
        reply = await channel.reply_to(Exchange("server/discover", {}, Unheard(), Profile(), channel.caller))
        offer = judge_probe(reply)
        if isinstance(offer, Discovery):
            channel.follow(channel.conversation.welcome(request_id, offer))
        else:
            error = error_object(RuntimeError()) if isinstance(reply, Result) else reply
            channel.follow(channel.conversation.refuse_opening(request_id, error))
        await channel.wire.drain()

    # ------------------------------------------------------------------------------------------------ changes

    def start_pushing(self) -> None:
        """Send list changes from now on: a session-era client never asks for them but expects them."""
        self._welcomed.set()
        wanted: Params = dict.fromkeys(LIST_CHANGES, True)
        self._channel.tasks.start(self._listen({"notifications": wanted}, None), key="list changes")

    def handler_of(self, method: str) -> Handler | None:
        """What answers a method that only this era has, or None."""
        return {"resources/subscribe": self._subscribe, "resources/unsubscribe": self._unsubscribe}.get(method)

    async def _subscribe(self, exchange: Exchange) -> Reply:
        uri = _uri_of(exchange)
        # A second subscription to the same URI takes the place of the first: updates are delivered once.
        self._channel.tasks.cancel(("updates", uri))
        acknowledged: asyncio.Future[Params] = asyncio.get_running_loop().create_future()
        wanted: Params = {"notifications": {"resourceSubscriptions": [uri]}}
        self._channel.tasks.start(self._listen(wanted, acknowledged), key=("updates", uri))
        honoured = as_object((await acknowledged).get("notifications")) or {}
        if uri not in (as_array(honoured.get("resourceSubscriptions")) or []):
            self._channel.tasks.cancel(("updates", uri))
            raise InvalidParams(f"Resource not found: {uri}", data={"uri": uri})
        return Result({})

    async def _unsubscribe(self, exchange: Exchange) -> Reply:
        self._channel.tasks.cancel(("updates", _uri_of(exchange)))
        return Result({})

    async def _listen(self, params: Params, acknowledged: "asyncio.Future[Params] | None") -> None:
        sink = _PushSink(self, acknowledged)
        exchange = Exchange("subscriptions/listen", params, sink, Profile(), self._channel.caller)
        try:
            await self._channel.listen(exchange)
        except SluicegateError as problem:
            sink.failed(problem)
        except Exception as problem:
            log.exception("subscriptions/listen failed")
            sink.failed(SluicegateError(error_object(problem).message))

    async def push(self, notification: Notification) -> None:
        """Send something that belongs to no request, once the client has heard our welcome."""
        await self._welcomed.wait()
        await self.notify(notification)

    async def notify(self, notification: Notification) -> None:
        """Send a notification in the client's own revision."""
        older = notification_for_session(notification, self._channel.conversation.session.revision)
        if older is not None:
            await self._channel.notify(older)

    # ---------------------------------------------------------------------------------------------- questions

    async def ask(self, question: Question) -> Params:
        """The client's answer to a live request of ours, in the modern shape."""
        channel = self._channel
        revision = channel.conversation.session.revision
        await channel.wire.drain()
        asked = question_for_session(question, revision, new_id=f"sluicegate-{id(question):x}")
        request_id, data = channel.conversation.ask(asked.method, asked.params)
        answer = self._questions[request_id] = asyncio.get_running_loop().create_future()
        channel.wire.write(data)
        try:
            async with asyncio.timeout(channel.hold):
                reply = await answer
        except TimeoutError:
            raise InputRefused(f"The client did not answer {question.method} within {channel.hold:g} s.") from None
        finally:
            del self._questions[request_id]
            if answer.cancelled():
                channel.wire.write(channel.conversation.forget_question(request_id, "The call no longer needs it."))
        if isinstance(reply, Result):
            return answer_from_session(question, opened(reply), revision)
        if question.method == "elicitation/create":
            return {"action": "cancel"}
        raise InputRefused(f"The client refused {question.method}: {reply.message}", error=reply)

    def answered(self, request_id: int, reply: Reply) -> None:
        """Hand a reply of the client to whoever asked."""
        question = self._questions.get(request_id)
        if question is not None and not question.done():
            question.set_result(reply)


class SessionSink:
    """The way back to a session-era client while one of its requests is open."""

    def __init__(self, side: SessionSide, profile: Profile) -> None:
        self._side = side
        self._profile = profile

    async def emit(self, notification: Notification) -> None:
        """Send a notification ahead of the reply."""
        await self._side.notify(notification)

    async def ask(self, questions: Questions) -> Answers:
        """Ask live, one dialog at a time: a person is at the other end."""
        check_capabilities(questions, self._profile)
        return {key: await self._side.ask(question) for key, question in questions.items()}


class Unheard:
    """A sink for exchanges of our own making, which have nobody to tell or to ask."""

    async def emit(self, notification: Notification) -> None:
        """Drop it."""

    async def ask(self, questions: Questions) -> Answers:
        """Refuse."""
        raise InputRefused("Nobody is there to be asked.")


class _PushSink(Unheard):
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


def check_capabilities(questions: Questions, profile: Profile) -> None:
    """Let questions pass that the client said it can be asked.

    Raises:
        InputRefused: one of them it did not.
    """
    for question in questions.values():
        if lacking_capability(question, profile.capabilities) is not None:
            raise InputRefused(f"The client did not say that it can be asked {question.method}.")


def _uri_of(exchange: Exchange) -> str:
    uri = exchange.params.get("uri")
    if not isinstance(uri, str):
        raise InvalidParams("Invalid params: uri is a string.")
    return uri
