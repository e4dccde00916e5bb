"""Of which call a question of a session-era server is, where the transport does not say (protocol §3.4).

The one rule: callers are never guessed. Among several calls of one caller the likeliest is asked, and that it was
likely only is counted; the answer goes back under the question's own id, so that it reaches whichever call asked.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final

from sluicegate.errors import METHOD_NOT_FOUND, ErrorObject, InputRefused, MethodNotFound
from sluicegate.exchange import Exchange, Host
from sluicegate.protocol.input_required import Answers, Question, lacking_capability
from sluicegate.protocol.message import Request, RequestId
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.pending import Pending
from sluicegate.upstream.tickets import Tickets
from sluicegate.upstream.waiting import Waiter

LATE_QUESTIONS: Final = 60.0
"""Seconds in which a call that was given up may still ask something: the question was on its way, or the server does
not heed our word. So long most servers wait for an answer."""

TOGETHER: Final = 0.05
"""Seconds between one call and the next that were made at the same time."""

GUESSED: Final = "questions whose call was guessed"
ANYBODYS: Final = "questions that may be of several callers"

_ENDED: Final = "The call that this was about has ended."
_GIVEN_UP: Final = "The call that this was about has been given up."


class Asking:
    """A question that has not been answered yet, and the calls that it may be of, all of one caller."""

    def __init__(self, request_id: RequestId, question: Question, causes: list[Exchange]) -> None:
        self.id = request_id
        self.question = question
        self.causes = causes
        self.cause: Exchange | None = None
        """The one whose caller is asked."""
        self.is_given_up = False
        self.patience: asyncio.Timeout | None = None
        """Ends the wait for the answer."""


class Attribution:
    """What is known of one server's calls and open questions."""

    def __init__(self, host: Host, pending: Pending[Waiter], tickets: Tickets) -> None:
        self._host = host
        self._pending = pending
        self._tickets = tickets
        self._forsaken: dict[str, float] = {}  # who has lately given up a call, and until when that matters
        self._open: dict[RequestId, Asking] = {}

    def find(self, request: Request, question: Question) -> Asking | MethodNotFound | None:
        """Which call's caller is to be asked what a request asks, or why nobody is; None if no call is under way.

        To be found out as soon as the question is heard: an answer right behind it ends the call that it is about, and
        then somebody else's would be the only one under way.
        """
        owner = self._tickets.owner_of(request.params)
        causes = [owner] if owner is not None else [*self._calls(), *self._tickets]
        if not causes:
            return None
        if owner is None:
            now = monotonic()
            forsaken = {caller for caller, until in self._forsaken.items() if until > now}
            if len({cause.caller.id for cause in causes} | forsaken) > 1:
                self._host.lost(ANYBODYS)
                return MethodNotFound(f"{request.method} cannot be attributed to one caller and is refused.")
            if len({id(cause.sink) for cause in causes}) > 1:  # What is asked about a task has the sink of its call.
                self._host.lost(GUESSED)
        asking = Asking(request.id, question, causes)
        asking.cause = self._likeliest(asking)
        self._open[request.id] = asking  # Not only when it is asked: the next question may be right behind.
        return asking

    async def ask(self, asking: Asking, put: Callable[[Exchange, Question], Awaitable[Answers]]) -> Answers:
        """The answers that `put` gets from the caller of the call.

        Raises:
            InputRefused: the caller did not answer, or the call has ended and there is none that it could be of.
        """
        refusal = InputRefused(_ENDED, error=ErrorObject(METHOD_NOT_FOUND, _ENDED))
        try:
            while asking.cause is not None:
                if self._is_under_way(asking.cause):
                    try:
                        async with asyncio.timeout(None) as asking.patience:
                            answers = await put(asking.cause, asking.question)
                        self._stir(asking.cause)
                        return answers
                    except TimeoutError:
                        raise InputRefused(_GIVEN_UP) from None
                    except InputRefused as problem:
                        refusal = problem
                        if self._is_under_way(asking.cause):
                            raise
                # A call that has its result waits for no answer: the question is another's. One that was given up may
                # well have asked it, and nobody wants to see it again.
                if asking.is_given_up:
                    raise InputRefused(_GIVEN_UP)
                asking.cause = self._likeliest(asking)
            raise refusal
        finally:
            if self._open.get(asking.id) is asking:
                del self._open[asking.id]

    def forget(self, request_id: RequestId) -> None:
        """Know that a question was taken back, perhaps before anybody was asked."""
        self._open.pop(request_id, None)

    def give_up(self, exchange: Exchange) -> None:
        """Know that nobody waits for a call any more; what it asks all the same is not another's."""
        if may_ask(exchange.method):
            now = monotonic()
            self._forsaken = {caller: until for caller, until in self._forsaken.items() if until > now}
            self._forsaken[exchange.caller.id] = now + LATE_QUESTIONS
            self.end(exchange)

    def end(self, exchange: Exchange) -> None:
        """Ask no longer on behalf of a call: nobody should be left before a form that is of no use any more."""
        for asking in self._open.values():
            if asking.cause is exchange:
                asking.is_given_up = True
                if asking.patience is not None:
                    asking.patience.reschedule(asyncio.get_running_loop().time())

    def _calls(self) -> list[Exchange]:
        found = (waiter.exchange for waiter in self._pending)
        return [exchange for exchange in found if exchange is not None and may_ask(exchange.method)]

    def _is_under_way(self, cause: Exchange) -> bool:
        under_way = [*(waiter.exchange for waiter in self._pending), *self._tickets]
        return any(exchange is cause for exchange in under_way)

    def _stir(self, cause: Exchange) -> None:
        for waiter in self._pending:
            if waiter.exchange is cause:
                waiter.since = monotonic()

    def _likeliest(self, asking: Asking) -> Exchange | None:
        """Of the calls that a question may be of, the likeliest that is under way."""
        since = {**{id(call): 0.0 for call in self._tickets}, **{id(w.exchange): w.since for w in self._pending}}
        left = [cause for cause in asking.causes if id(cause) in since]
        # One that has asked waits for its answer, mostly, and asks nothing else.
        asked = Counter(id(other.cause.sink) for other in self._open.values() if other.cause and other is not asking)
        quiet = [cause for cause in left if not asked[id(cause.sink)]]
        # Rather one whose caller can be asked this: the others' would be refused, for a call that may not be theirs.
        among = quiet or left
        able = [cause for cause in among if lacking_capability(asking.question, cause.profile.capabilities) is None]
        able = able or among
        if not quiet:
            # Every caller has a form open; that of the oldest call may be gone for good.
            return min(reversed(able), key=lambda cause: asked[id(cause.sink)], default=None)
        free = sorted(able, key=lambda cause: since[id(cause)])
        # Tools that ask mostly do so at once, and again as soon as they are answered: so it is one that has just been
        # spoken to, rather than one that has been quiet for long and asks by chance at this very moment. But servers on
        # the official SDKs begin calls in the order they come: of several that came together the oldest asks first.
        likeliest = free.pop()
        together = max(TOGETHER, 2 * (monotonic() - since[id(likeliest)]))  # A slow server is late for all of them.
        while free and since[id(likeliest)] - since[id(free[-1])] <= together:
            likeliest = free.pop()
        return likeliest


def may_ask(method: str) -> bool:
    """Whether a server may ask something while it works on a request of this method."""
    row = METHODS.get(method)
    if row is None:
        return method not in ("tasks/get", "tasks/cancel")  # The method of an extension may, for all we know.
    return row.may_ask
