"""How a client of 2026-07-28 is asked in the middle of a call: its request ends with questions, a retry brings answers.

The call's own task stays alive between the two (see `parked`); only the request it answers changes.
"""

import asyncio
from typing import Protocol, cast

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.parked import Comeback, Parked, binding_of
from sluicegate.downstream.session_era import check_capabilities
from sluicegate.errors import InputRefused, InvalidParams, error_object
from sluicegate.exchange import Caller, Exchange
from sluicegate.protocol.conversation import Asked, ServerConversation
from sluicegate.protocol.message import Notification, Params, RequestId, as_object
from sluicegate.protocol.modern import Answers, Questions, input_required, tagged


class Channel(Protocol):
    """The channel to the client, as this part needs it."""

    conversation: ServerConversation
    tasks: TaskScope
    parked: Parked
    caller: Caller
    hold: float

    def write(self, data: bytes | None) -> None: ...
    async def notify(self, notification: Notification) -> None: ...


class ModernSink:
    """The way back to a client of 2026-07-28: the stream of the request that is open now, if one is."""

    def __init__(self, channel: Channel, asked: Asked) -> None:
        self.request_id: RequestId | None = asked.id
        self.exchange = Exchange(asked.method, asked.params, self, asked.profile, channel.caller)
        self._channel = channel
        self._listening = asked.method == "subscriptions/listen"

    async def emit(self, notification: Notification) -> None:
        """Send a notification on the open request's stream; between two rounds there is none to travel on."""
        if self.request_id is None:
            return
        if self._listening:
            notification = tagged(notification, self.request_id)
        await self._channel.notify(notification)

    async def ask(self, questions: Questions) -> Answers:
        """End the request with the questions, as often as some are left unanswered, and take up the retry's."""
        exchange = self.exchange
        check_capabilities(questions, exchange.profile)
        answers: dict[str, Params] = {}
        unanswered = dict(questions)
        while unanswered:
            retry = await self._next_round(unanswered)
            # The retry may come with another progress token, and what it declares is what holds from now on.
            exchange.profile = retry.profile
            for key in list(unanswered):
                answer = as_object(retry.answers.get(key))
                if answer is not None:
                    answers[key] = answer
                    del unanswered[key]
        return answers

    async def _next_round(self, questions: Questions) -> Comeback:
        channel, request_id = self._channel, cast(RequestId, self.request_id)
        binding = binding_of(self.exchange.caller, self.exchange.method, self.exchange.params)
        state, comeback = channel.parked.park(binding)
        channel.write(channel.conversation.respond(request_id, input_required(questions, state)))
        # From here on a withdrawal of the answered request must not find this task any more.
        channel.tasks.rekey(("call", request_id), ("parked", state))
        self.request_id = None
        try:
            async with asyncio.timeout(channel.hold):
                retry = await comeback
        except TimeoutError:
            raise InputRefused(f"Nobody answered within {channel.hold:g} s.") from None
        self.request_id = retry.id
        return retry


def resume(channel: Channel, asked: Asked, state: str) -> None:
    """Hand a retry to the call that waits for it, or refuse it."""
    comeback = Comeback(asked.id, asked.profile, as_object(asked.params.get("inputResponses")) or {})
    try:
        channel.parked.resume(state, binding_of(channel.caller, asked.method, asked.params), comeback)
        # Before the call wakes up: the client may withdraw the retry in the very next message.
        channel.tasks.rekey(("parked", state), ("call", asked.id))
    except InvalidParams as problem:
        channel.write(channel.conversation.respond(asked.id, error_object(problem)))
