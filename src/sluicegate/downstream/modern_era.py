"""How a client of 2026-07-28 is asked in the middle of a call: its request ends with questions, a retry brings answers.

The call's own task stays alive between the two (see `parked`); only the request it answers changes.
"""

import asyncio
import logging
from collections.abc import Iterable
from functools import partial
from typing import Final

import msgspec

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.asking_rights import check_capabilities
from sluicegate.downstream.parked import Comeback, Parked, Round, binding_of
from sluicegate.downstream.streams import RequestStream
from sluicegate.errors import METHOD_NOT_FOUND, ErrorObject, InputRefused
from sluicegate.exchange import NOBODY, Exchange
from sluicegate.protocol.input_required import Answers, Questions, input_required
from sluicegate.protocol.message import Notification, Params, Reply, as_object, encode, encode_reply
from sluicegate.protocol.modern import tagged

log: Final = logging.getLogger("sluicegate")


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
    _round: Round | None = None
    """The last one, which may be over."""
    _has_come_back: bool = False
    _is_done: bool = False

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
            brought = await self._brought_back(unanswered)

    async def _brought_back(self, questions: Questions) -> Params:
        """What the client answers to these questions; nothing, where it was asked others last."""
        if self._is_done:
            sentence = "The call that this is about has ended."
            raise InputRefused(sentence, error=ErrorObject(METHOD_NOT_FOUND, sentence))
        if self.stream is None and self._round is not None:
            # Whoever asked last has not waited for the answer, which is nobody's then.
            await self._retry(self._round)
            return {}
        if self.stream is None:
            raise InputRefused("Nobody is there any more to be asked.")
        stream, exchange = self.stream, self.exchange
        binding = binding_of(exchange.caller, exchange.method, exchange.params, self.headers)
        abandoned = partial(_abandon, questions)
        round = self._round = self._parked.park(binding, self._hold, self._take_up, abandoned)
        # Before anything is sent: from here on a withdrawal of this request must not find the call any more.
        self._tasks.rekey(stream, round)
        self.stream = None
        await stream.reply(input_required(questions, round.state))
        return dict((await self._retry(round)).answers)

    async def _retry(self, round: Round) -> Comeback:
        # Shielded: a question that is taken back does not end the call, whose client comes back for its outcome.
        retry = await asyncio.shield(round.over)
        if retry is None:
            raise InputRefused(f"Nobody answered within {self._hold:g} s.")
        return retry

    def _take_up(self, retry: Comeback) -> None:
        """Go on with a retry: it may come with another progress token, and what it declares holds from now on."""
        self.stream = retry.stream
        self.exchange.profile = retry.profile
        self._has_come_back = True

    async def wait_for_client(self, reply: Reply) -> None:
        """Wait with the reply of a call that was asking as it ended, until its client comes back or had its time."""
        self._is_done = True
        if self._round is not None:
            self._parked.keep(self._round, _size(self.exchange.params, reply))
            await asyncio.shield(self._round.over)

    def close(self) -> None:
        """Ask and tell nobody any more, and let nobody come back."""
        self.exchange.sink = NOBODY
        self._is_done = True
        if self._round is not None:
            self._parked.end(self._round)
            self._round = None  # It knows us, too.


def _abandon(questions: Questions) -> None:
    """Tell whoever asked that the client stayed away."""
    for question in questions.values():
        if question.abandoned is not None:
            question.abandoned()


def _size(params: Params, reply: Reply) -> int:
    """The bytes that a call keeps while its reply waits."""
    try:
        return len(encode_reply(None, reply)) + len(msgspec.json.encode(params))
    except Exception:  # An edge: the encoder runs code of the values in it, which may raise anything (R34).
        log.exception("An answer could not be encoded.")
        return 0  # It will be another answer that is sent.
