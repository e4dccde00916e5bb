"""Finds the call that caused a question or notification of a session-era server, if the transport does not show it.

The one rule: callers are never guessed. Among several calls of one caller the likeliest is asked, and the guess is
counted; the answer goes back under the question's own id, so that it reaches the call that asked.
"""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator
from contextlib import suppress
from time import monotonic
from typing import Final, NamedTuple

from sluicegate.errors import (
    METHOD_NOT_FOUND,
    URL_ELICITATION_REQUIRED,
    ErrorObject,
    InputRefused,
    MethodNotFound,
    RemoteProtocolError,
    SluicegateError,
)
from sluicegate.exchange import Exchange, Host, Sink
from sluicegate.protocol.input_required import Answers, Question, lacking_capability
from sluicegate.protocol.message import (
    Notification,
    Params,
    Pending,
    Reply,
    Request,
    RequestId,
    Result,
    as_array,
    as_object,
    opened,
)
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.tasks import RELATED
from sluicegate.protocol.versions import REVISIONS, V2025_11_25
from sluicegate.upstream.inbox import Inbox

LATE_QUESTIONS: Final = 60.0
"""Seconds in which a cancelled call may still ask: its question was on the way, or the server ignores cancellation.
Most servers wait that long for an answer."""

TOGETHER: Final = 0.05
"""Seconds between two calls that count as made at the same time."""

MAX_TASK: Final = 3600.0
"""Seconds after which a task counts as finished although its result was never fetched and it was never cancelled."""
MAX_TASK_CALLS: Final = 1024

MAX_KEPT_PAGES: Final = 256
"""Pages per server that are remembered until the server reports the visit; many servers never do."""
MAX_PAGE_ID: Final = 1024
NAMED_WITHIN: Final = 5.0
"""Seconds by which the reply that names a page may follow the report of the visit: over HTTP they use two streams."""

VISITED: Final = "notifications/elicitation/complete"

# Counted by `Host.on_loss`, and shown by these words.
GUESSED: Final = "questions whose call was guessed"
ANYBODYS: Final = "questions that may be of several callers"
UNTOLD: Final = "visits to pages that the caller cannot be told of"
UNOWNED: Final = "visits to pages that belong to no call"

_ENDED: Final = "The call that this was about has ended."
_CANCELLED: Final = "The call that this was about was cancelled."


def may_ask(method: str) -> bool:
    """Whether a server may ask something while it works on a request of this method."""
    row = METHODS.get(method)
    if row is None:
        return method not in ("tasks/get", "tasks/cancel")  # Extension methods may ask, for all we know.
    return row.may_ask


# ---------------------------------------------------------------------------------------------------------- tasks


class TaskCall:
    """A call that is, or may become, a task."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.task_id: str | None = None
        self.until = monotonic() + MAX_TASK


class TaskCalls:
    """The calls that a 2025-11-25 server answered with a task and still works on, although no request is pending.

    Their callers must be known to the end: questions and log lines of a task would be taken for another caller's.
    """

    def __init__(self) -> None:
        self._open: list[TaskCall] = []

    def __iter__(self) -> Iterator[Exchange]:
        now = monotonic()
        return iter([call.exchange for call in self._open if call.until > now])

    @property
    def callers(self) -> set[str]:
        return {exchange.caller.id for exchange in self} if self._open else set()

    def begin(self, exchange: Exchange) -> TaskCall:
        """Note a call that asks for a task."""
        del self._open[: len(self._open) - MAX_TASK_CALLS + 1]
        call = TaskCall(exchange)
        self._open.append(call)
        return call

    def set_reply(self, call: TaskCall, reply: Reply) -> None:
        """Note the id of the task, or that the call did not become one."""
        try:
            task = as_object(opened(reply).get("task")) if isinstance(reply, Result) else None
        except RemoteProtocolError:
            task = None
        task_id = None if task is None else task.get("taskId")
        if isinstance(task_id, str):
            call.task_id = task_id
        else:
            self.drop(call)

    def drop(self, call: TaskCall) -> None:
        self._open = [other for other in self._open if other is not call]

    def end(self, task_id: object) -> Exchange | None:
        """Forget a task that has finished; returns the call that began it."""
        call = next((call for call in self._open if call.task_id == task_id), None)
        if call is None:
            return None
        self.drop(call)
        return call.exchange

    def owner_of(self, params: Params) -> Exchange | None:
        """The call whose task a message names."""
        related = as_object((as_object(params.get("_meta")) or {}).get(RELATED)) or {}
        task_id = related.get("taskId")
        found = (call.exchange for call in self._open if isinstance(task_id, str) and call.task_id == task_id)
        return next(found, None)


# ------------------------------------------------------------------------------------------------------ questions


class OpenQuestion:
    """A question that has not been answered yet, and the calls that may have caused it, all of one caller."""

    def __init__(self, request_id: RequestId, question: Question, causes: list[Exchange]) -> None:
        self.id = request_id
        self.question = question
        self.causes = causes
        self.cause: Exchange | None = None
        """The call whose caller is asked."""
        self.is_cancelled = False
        self.timeout: asyncio.Timeout | None = None
        """Ends the wait for the answer."""


class Attribution:
    """One server's calls and open questions."""

    def __init__(self, host: Host, pending: Pending[Inbox]) -> None:
        self.task_calls = TaskCalls()
        self._host = host
        self._pending = pending
        self._cancelled_until: dict[str, float] = {}  # callers that cancelled a call, and until when that matters
        self._open: dict[RequestId, OpenQuestion] = {}

    @property
    def has_calls(self) -> bool:
        """Whether there is a call during which the server may ask something."""
        return bool(self._calls()) or any(True for _ in self.task_calls)

    def find(self, request: Request, question: Question) -> OpenQuestion | MethodNotFound | None:
        """The question with the call that caused it, or why it is refused; None if no call is pending.

        Must run as soon as the question is read: the next message may end the call that it is about, and then another
        call would be the only one pending.
        """
        owner = self.task_calls.owner_of(request.params)
        causes = [owner] if owner is not None else [*self._calls(), *self.task_calls]
        if not causes:
            return None
        if owner is None:
            now = monotonic()
            cancelled = {caller for caller, until in self._cancelled_until.items() if until > now}
            if len({cause.caller.id for cause in causes} | cancelled) > 1:
                self._host.on_loss(ANYBODYS)
                return MethodNotFound(f"{request.method} cannot be attributed to one caller and is refused.")
            if len({id(cause.sink) for cause in causes}) > 1:  # Requests about a task share the sink of its call.
                self._host.on_loss(GUESSED)
        unanswered = OpenQuestion(request.id, question, causes)
        unanswered.cause = self._likeliest(unanswered)
        self._open[request.id] = unanswered  # Now, not when the caller is asked: the next question may follow at once.
        return unanswered

    async def ask(self, unanswered: OpenQuestion, put: Callable[[Exchange, Question], Awaitable[Answers]]) -> Answers:
        """The answers that `put` gets from the caller.

        Raises:
            InputRefused: the caller did not answer, or all calls that could have asked have ended.
        """
        refusal = InputRefused(_ENDED, error=ErrorObject(METHOD_NOT_FOUND, _ENDED))
        try:
            while unanswered.cause is not None:
                if self._is_pending(unanswered.cause):
                    try:
                        async with asyncio.timeout(None) as unanswered.timeout:
                            answers = await put(unanswered.cause, unanswered.question)
                        self._touch(unanswered.cause)
                        return answers
                    except TimeoutError:
                        raise InputRefused(_CANCELLED) from None
                    except InputRefused as problem:
                        refusal = problem
                        if self._is_pending(unanswered.cause):
                            raise
                # A call that has its result waits for no answer, so another call asked. A cancelled call may well have
                # asked, and its caller does not want to see the question again.
                if unanswered.is_cancelled:
                    raise InputRefused(_CANCELLED)
                unanswered.cause = self._likeliest(unanswered)
            raise refusal
        finally:
            if self._open.get(unanswered.id) is unanswered:
                del self._open[unanswered.id]

    def forget(self, request_id: RequestId) -> None:
        """Drop a question that the server has cancelled, perhaps before the caller was asked."""
        self._open.pop(request_id, None)

    def cancel(self, exchange: Exchange) -> None:
        """Note that a call was cancelled: its late questions are not another caller's."""
        if may_ask(exchange.method):
            now = monotonic()
            self._cancelled_until = {caller: until for caller, until in self._cancelled_until.items() if until > now}
            self._cancelled_until[exchange.caller.id] = now + LATE_QUESTIONS
            self.end(exchange)

    def end(self, exchange: Exchange) -> None:
        """Stop asking on behalf of a call, so that no user is left with a form that has no use."""
        for unanswered in self._open.values():
            if unanswered.cause is exchange:
                unanswered.is_cancelled = True
                if unanswered.timeout is not None:
                    unanswered.timeout.reschedule(asyncio.get_running_loop().time())

    def _calls(self) -> list[Exchange]:
        found = (inbox.exchange for inbox in self._pending)
        return [exchange for exchange in found if exchange is not None and may_ask(exchange.method)]

    def _is_pending(self, cause: Exchange) -> bool:
        pending = [*(inbox.exchange for inbox in self._pending), *self.task_calls]
        return any(exchange is cause for exchange in pending)

    def _touch(self, cause: Exchange) -> None:
        for inbox in self._pending:
            if inbox.exchange is cause:
                inbox.since = monotonic()

    def _likeliest(self, unanswered: OpenQuestion) -> Exchange | None:
        """The most likely pending call, among those that may have caused the question."""
        since = {**{id(call): 0.0 for call in self.task_calls}, **{id(i.exchange): i.since for i in self._pending}}
        left = [cause for cause in unanswered.causes if id(cause) in since]
        # A call that has asked mostly waits for its answer and asks nothing else.
        asked = Counter(
            id(other.cause.sink) for other in self._open.values() if other.cause and other is not unanswered
        )
        quiet = [cause for cause in left if not asked[id(cause.sink)]]
        # Prefer a caller that can be asked this: the others would refuse, perhaps for a call that is not theirs.
        among = quiet or left
        able = [cause for cause in among if lacking_capability(unanswered.question, cause.profile.capabilities) is None]
        able = able or among
        if not quiet:
            # Every caller has a form open; the form of the oldest call may never be answered.
            return min(reversed(able), key=lambda cause: asked[id(cause.sink)], default=None)
        free = sorted(able, key=lambda cause: since[id(cause)])
        # Tools that ask mostly do so at once, and again as soon as they are answered. So the call that was written to
        # last is likelier than one that has been quiet for long. But servers on the official SDKs start calls in the
        # order they come: of several that came together, the oldest asks first.
        likeliest = free.pop()
        together = max(TOGETHER, 2 * (monotonic() - since[id(likeliest)]))  # A slow server is late for all of them.
        while free and since[id(likeliest)] - since[id(free[-1])] <= together:
            likeliest = free.pop()
        return likeliest


# ---------------------------------------------------------------------------------------------------------- pages


class SentPage(NamedTuple):
    """A page that a caller was sent to."""

    sink: Sink | None
    """The way to the caller; None if its revision has no notification of a visit."""
    shown_id: str
    """The id by which the caller knows it."""
    is_awaited: bool = False
    """Whether the hub waits for the visit in the caller's place."""


class Pages:
    """Pages that a server of 2025-11-25 sent callers to, by the server's ids. Only that caller learns of the visit."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._pages: dict[str, SentPage] = {}
        self._early: dict[str, asyncio.Future[SentPage]] = {}

    def add_question(self, elicitation: str, cause: Exchange) -> str:
        """Note a page that a question names; returns the id to show to the caller."""
        import secrets  # Here because it loads OpenSSL, and most servers never ask.

        # Two servers behind us may use the same id.
        shown_id = secrets.token_urlsafe(12)
        self._add(elicitation, SentPage(_sink_for_visits(cause), shown_id))
        return shown_id

    def add_reply(self, cause: Exchange, reply: Reply) -> None:
        """Note the pages that an error reply names. It is passed on with the server's own ids."""
        if not isinstance(reply, ErrorObject) or reply.code != URL_ELICITATION_REQUIRED:
            return
        for entry in as_array((as_object(reply.data) or {}).get("elicitations")) or []:
            elicitation = (as_object(entry) or {}).get("elicitationId")
            if isinstance(elicitation, str):
                revision = REVISIONS.get(cause.profile.version)
                is_awaited = revision is None or revision.modern
                self._add(elicitation, SentPage(_sink_for_visits(cause), elicitation, is_awaited))

    def forget(self, elicitation: str) -> None:
        self._pages.pop(elicitation, None)

    def visited(self, elicitation: object) -> Coroutine[object, object, None] | None:
        """Work that notifies the caller of a visit; None if there is nothing to do."""
        if not isinstance(elicitation, str):
            return None
        page = self._pages.pop(elicitation, None)
        if page is not None:
            return self._notify(page)
        # The reply that names it may still be on its way.
        if elicitation in self._early or len(self._early) >= MAX_KEPT_PAGES:
            self._host.on_loss(UNOWNED)
            return None
        self._early[elicitation] = asyncio.get_running_loop().create_future()
        return self._notify_when_named(elicitation)

    def _add(self, elicitation: str, page: SentPage) -> None:
        early = self._early.get(elicitation)
        if early is not None and not early.done():
            early.set_result(page)
        elif len(elicitation) <= MAX_PAGE_ID:
            self._pages[elicitation] = page
            if len(self._pages) > MAX_KEPT_PAGES:
                del self._pages[next(iter(self._pages))]

    async def _notify_when_named(self, elicitation: str) -> None:
        try:
            async with asyncio.timeout(NAMED_WITHIN):
                page = await self._early[elicitation]
        except TimeoutError:
            self._host.on_loss(UNOWNED)
            return
        finally:
            del self._early[elicitation]
        await self._notify(page)

    async def _notify(self, page: SentPage) -> None:
        if page.sink is not None:
            with suppress(SluicegateError):  # A caller that cannot be notified is not the server's fault.
                await page.sink.emit(Notification(VISITED, {"elicitationId": page.shown_id}))
        elif not page.is_awaited:
            self._host.on_loss(UNTOLD)


def _sink_for_visits(cause: Exchange) -> Sink | None:
    return cause.sink if cause.profile.version == V2025_11_25 else None
