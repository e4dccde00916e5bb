"""How a client of 2026-07-28 is asked in the middle of a call: its request ends with questions, a retry brings answers.

The call's own task stays alive between the two (see `parked`); only the request it answers changes.
"""

import asyncio
from collections.abc import Iterable

import msgspec

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.asking_rights import check_capabilities
from sluicegate.downstream.parked import Comeback, Parked, binding_of
from sluicegate.downstream.streams import RequestStream
from sluicegate.errors import InputRefused
from sluicegate.exchange import Exchange
from sluicegate.protocol.input_required import Answers, Questions, input_required
from sluicegate.protocol.message import Notification, Params, as_object, encode
from sluicegate.protocol.modern import tagged


# A Struct, though nothing of it is ever on a wire: one is made for every request, in a fraction of the time.
class ModernSink(msgspec.Struct, eq=False):
    """The way back to a client of 2026-07-28: the stream of the request that is open now, if one is.

    Once the exchange is answered, `NOBODY` takes its place: the two need not keep each other alive.
    """

    exchange: Exchange
    stream: RequestStream | None
    _tasks: TaskScope
    _parked: Parked
    _hold: float
    headers: Iterable[tuple[str, str]] = ()
    """Those of the HTTP request, where one brought it."""
    _brought: Params | None = None
    _turn: asyncio.Lock | None = None
    _has_come_back: bool = False

    async def emit(self, notification: Notification) -> None:
        """Send a notification on the open request's stream; between two rounds there is none to travel on."""
        if self.stream is None:
            return
        if self._has_come_back and notification.method == "notifications/progress":
            # Whoever says so knows the token of the request that the call began with; that one has ended.
            token = self.exchange.profile.progress_token
            if token is None:
                return
            notification = Notification(notification.method, {**notification.params, "progressToken": token})
        if self.exchange.method == "subscriptions/listen":
            notification = tagged(notification, self.stream.id)
        await self.stream.send(encode(notification))

    async def ask(self, questions: Questions) -> Answers:
        """End the request with the questions, as often as some are left unanswered, and take up the retry's."""
        if self._turn is None:
            self._turn = asyncio.Lock()
        # A result can ask only once: who asks meanwhile has to wait for the next round.
        async with self._turn:
            return await self._ask(questions)

    async def _ask(self, questions: Questions) -> Answers:
        exchange = self.exchange
        check_capabilities(questions, exchange.profile)
        answers: dict[str, Params] = {}
        unanswered = dict(questions)
        if self._brought is None:
            # A client may answer ahead what it knows it will be asked; without a state it belongs to no parked call.
            params = exchange.params
            self._brought = dict({} if "requestState" in params else as_object(params.get("inputResponses")) or {})
        brought = self._brought
        while True:
            for key in list(unanswered):
                # Taken out: the same question, asked again later, wants an answer of its own.
                answer = as_object(brought.pop(key, None))
                if answer is not None:
                    answers[key] = answer
                    del unanswered[key]
            if not unanswered:
                return answers
            if self.stream is None:
                raise InputRefused("Nobody is there any more to be asked.")
            retry = await self._next_round(self.stream, unanswered)
            # The retry may come with another progress token, and what it declares is what holds from now on.
            exchange.profile = retry.profile
            self._has_come_back = True
            brought = dict(retry.answers)

    async def _next_round(self, stream: RequestStream, questions: Questions) -> Comeback:
        exchange = self.exchange
        binding = binding_of(exchange.caller, exchange.method, exchange.params, self.headers)
        state, comeback = self._parked.park(binding)
        # Before anything is sent: from here on a withdrawal of this request must not find the call any more.
        self._tasks.rekey(stream, comeback)
        self.stream = None
        try:
            await stream.reply(input_required(questions, state))
            async with asyncio.timeout(self._hold):
                return await comeback
        except TimeoutError:
            raise InputRefused(f"Nobody answered within {self._hold:g} s.") from None
        finally:
            # Nobody else would take the call out of those that wait. If the retry has come, just as the time ran out
            # or we were cancelled, it is owed an answer, too.
            if not comeback.cancel() and not comeback.cancelled():
                self.stream = comeback.result().stream
