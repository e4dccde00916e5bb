"""Enforces what the rules say: allowed calls pass, denied ones are refused, and for the others a person is asked.

A call that a person must approve is held. The question is in the store, where the commands and the page answer it; the
client itself is asked, too, if it may be. The first answer wins, is used by one call, and only by a call that is equal
in all that the person saw (T18). The store reports each change to the step, which wakes the held calls.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final, Literal, ParamSpec, TypeVar

import msgspec

from sluicegate.errors import (
    URL_ELICITATION_REQUIRED,
    ApprovalExpired,
    ErrorObject,
    RateLimited,
    Refused,
    SluicegateError,
    StateUnavailable,
    UpstreamError,
)
from sluicegate.exchange import NETWORK, Exchange, Handler, Target, Verdict
from sluicegate.gate.approval_text import (
    Unanswered,
    bind,
    declined,
    form,
    is_once_only,
    name_of,
    not_allowed,
    question_of,
    read_answer,
    rules_changed,
    too_late,
    unanswered,
    unaskable,
    with_answer,
)
from sluicegate.gate.audit import REFUSAL, covered_row, decided_row, granted_row
from sluicegate.protocol.canonical_json import canonical_json
from sluicegate.protocol.input_required import Question, lacking_capability, read_input_required
from sluicegate.protocol.message import Notification, Params, Reply, Result, as_object
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.modern_era import complete
from sluicegate.protocol.tasks import REQUESTS as TASK_REQUESTS
from sluicegate.protocol.versions import MODERN_VERSIONS
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.store.base import Approval, ApprovalAnswer, AuditLog, Change, Coverage, Decisions, Grant, Row

P = ParamSpec("P")
T = TypeVar("T")

RETRY_AFTER: Final = 0.3
"""Seconds until an operation of the store is tried again."""
TRIES: Final = 5
"""Attempts to record, read or use an answer while another process writes to the store."""
PROGRESS_EVERY: float = 10.0
"""Seconds between two notifications that say what is awaited."""
MAX_QUESTIONS: Final = 50
"""Open questions of one caller."""
MAX_CONTINUED: Final = 1000
LEAVE_WITHIN: Final = 1.0
"""Seconds to note that a cancelled call no longer waits."""
_SECOND: Final = 10**9
_FORM: Final = Question("elicitation/create", {})


class ApprovalSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How a person is asked."""

    wait: float = 300.0
    """Seconds until a question, and an answer that was not used, expire."""
    hold: float = 300.0
    """Seconds that one call waits at most."""
    client: Literal["local", "any", "none"] = "local"
    """Which clients may answer for their own calls: those of the local user, any, or none."""
    late: Literal["keep", "void"] = "keep"
    """Whether a question stays open when its client has given up."""
    program_wait: float = 86_400.0
    """Seconds until a question expires that the program around this gateway answers."""


DEFAULTS: Final = ApprovalSettings()


class _Hold(msgspec.Struct, eq=False):
    """One held call, and what its client has said."""

    question: Approval
    wake: asyncio.Event
    is_up_to_client: bool
    """Whether the call ends if its own client does not answer."""
    said: ApprovalAnswer | Unanswered | None = None

    def hear(self, said: ApprovalAnswer | Unanswered) -> None:
        self.said = said
        self.wake.set()


class ApprovalStep:
    """A step that lets a request pass if its verdict, a grant or a person allows it."""

    def __init__(
        self,
        decisions: Decisions,
        audit: AuditLog,
        settings: ApprovalSettings = DEFAULTS,
        *,
        rules_version: Callable[[], str],
        notify: Callable[[Approval], Awaitable[None]] | None = None,
        is_shared: bool = True,
    ) -> None:
        """`rules_version` is a digest of the rules that are in force; `notify` tells people about a new question.

        Without `is_shared` there is neither command nor page that could answer, so clients that cannot be asked are
        refused.
        """
        self.settings = settings
        self._decisions = decisions
        decisions.observe(self._on_change)
        self._audit = audit
        self._rules_version = rules_version
        self._notify = notify
        self._is_shared = is_shared
        self._is_stopping = False
        self._ends: dict[str, float] = {}
        """When the questions of this process expire, on the clock that nobody can set (R31)."""
        self._unannounced: dict[str, asyncio.Lock] = {}
        """Questions that have not been announced yet. The call that announces one holds its lock."""
        self._holds: dict[str, list[_Hold]] = {}
        """The calls that wait for each question. The last one gets the answer: a client that gives up calls again, and
        may not say that it gave up."""
        self._asked_in_rounds: dict[str, _Hold] = {}
        """Calls whose client has no request open, because it was asked by a result; by their binding."""
        self._continued: dict[str, list[float]] = {}
        """Calls that ran and were asked for input, by their binding: when the retry is due."""

    def __call__(self, exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
        """The reply, or a refusal: for a tool a result with `isError`, so that the model can adapt.

        Raises:
            Refused: it is not allowed, or a person declined or did not answer.
            AuditUnavailable: the decision cannot be recorded.
        """
        # No coroutine here: most calls are allowed.
        verdict = exchange.verdict
        if verdict is not None and verdict.action == "allow":
            return proceed(exchange)
        if verdict is None or exchange.target is None:
            raise Refused("Nothing was decided about this request, so it is refused.")
        if verdict.action == "ask":
            return self._asked(exchange, exchange.target, verdict, proceed)
        return _refusal(exchange, Refused(not_allowed(exchange.target, verdict)))

    async def _asked(self, exchange: Exchange, target: Target, verdict: Verdict, proceed: Handler) -> Reply:
        if exchange.method in TASK_REQUESTS:
            return await proceed(exchange)  # The task exists because its call was approved.
        rules = self._rules_version()
        binding = bind(exchange, target, rules)
        ends = time.monotonic() + self.settings.hold
        while True:
            coverage = await self._coverage(exchange, target, binding)
            if coverage is not None:
                if isinstance(coverage, Grant):
                    await self._record(exchange, granted_row(exchange, target, coverage))
                elif coverage == "repeated":
                    await self._record(exchange, covered_row(exchange, target))
                return await self._run(exchange, binding, proceed)
            if not _may_be_held(exchange):
                sentence = f"{_name(target)} needs the approval of a person, who is asked only when it is used."
                return await _refusal(exchange, Refused(sentence))
            if isinstance(exchange.answer, ApprovalAnswer | Refused):
                question = self._question_for_program(exchange, target, verdict, binding)
                return await self._answered(exchange, target, question, exchange.answer, proceed)
            is_up_to_client = verdict.needs_client or not self._is_shared
            if is_up_to_client and not self._may_ask(exchange):
                return await _refusal(exchange, unaskable(target))
            question = await self._question(exchange, target, verdict, binding)
            hold = _Hold(question, asyncio.Event(), is_up_to_client)
            refusal = await self._decision(exchange, hold, rules, ends)
            if refusal is not None:
                found = await self._decisions.find(question.id) or question
                return await self._record_and_run(exchange, target, found, refusal, proceed)
            decided = await _retried(self._decisions.find, question.id)
            if decided is None or not await _retried(self._decisions.take, question.id):
                continue  # An equal call has used the answer, which is good for one.
            self._ends.pop(question.id, None)
            refusal = None if decided.state == "approved" else declined(target, decided)
            return await self._record_and_run(exchange, target, decided, refusal, proceed)

    async def _answered(
        self, exchange: Exchange, target: Target, question: Approval, answer: ApprovalAnswer | Refused, proceed: Handler
    ) -> Reply:
        """Use the answer of this program. The call is the only one that can use it, so the store has no part."""
        if isinstance(answer, Refused):
            return await self._record_and_run(exchange, target, question, answer, proceed)
        decided = with_answer(question, answer)
        refusal = None if decided.state == "approved" else declined(target, decided)
        return await self._record_and_run(exchange, target, decided, refusal, proceed, answer)

    async def question_for_program(self, exchange: Exchange) -> Approval | None:
        """The question that the program around this gateway has to answer before a call runs; None if there is none.

        What lets the call run without one is kept in `exchange.answer`: it may end before the call runs.

        Raises:
            Refused: the call is too long to be shown.
        """
        target, verdict = exchange.target, exchange.verdict
        if target is None or verdict is None or verdict.action != "ask":
            return None
        if exchange.method in TASK_REQUESTS or not _may_be_held(exchange):
            return None
        binding = bind(exchange, target, self._rules_version())
        coverage = await self._coverage(exchange, target, binding)
        if coverage is not None:
            exchange.answer = coverage
            return None
        return self._question_for_program(exchange, target, verdict, binding)

    async def _coverage(self, exchange: Exchange, target: Target, binding: str) -> Coverage | None:
        """What lets a call run without a question. The one retry of a call that ran is used up by this."""
        if exchange.answer is not None and not isinstance(exchange.answer, ApprovalAnswer | Refused):
            return exchange.answer
        if exchange.is_continued and self._continues(binding):
            return "continued"
        repetition = exchange.repetition
        if repetition is not None and repetition.approved == binding and time.monotonic() < repetition.ends:
            return "repeated"
        if is_once_only(exchange.caller.id, target.name, as_object(exchange.params.get("arguments")) or {}):
            return None  # Also if the store has one, of an earlier version for example.
        place = (target.server, target.kind, target.name, target.definition, target.origin)
        return await self._decisions.find_grant(exchange.caller.id, *place)

    def _question_for_program(self, exchange: Exchange, target: Target, verdict: Verdict, binding: str) -> Approval:
        return question_of(exchange, target, verdict, binding, self._decisions.run, self.settings.program_wait)

    async def in_time(self, question: Approval, answer: Awaitable[T]) -> T | Refused:
        """The answer to a question, unless it takes too long or the rules change meanwhile."""
        rules, wait = self._rules_version(), self.settings.program_wait
        try:
            async with asyncio.timeout(wait):
                found = await answer
        except TimeoutError:
            return too_late(question, wait)
        return found if self._rules_version() == rules else rules_changed(question)

    async def _record_and_run(
        self,
        exchange: Exchange,
        target: Target,
        question: Approval,
        refusal: Refused | None,
        proceed: Handler,
        answer: ApprovalAnswer | None = None,
    ) -> Reply:
        """Record what became of a question, and let the call run if it may; `answer` if the store does not have it."""
        await self._record(exchange, decided_row(exchange, target, question, refusal))
        if answer is not None and answer.scope in ("minutes", "always"):
            await self._decisions.add_grant(question, answer)
        if refusal is not None:
            return await _refusal(exchange, refusal)
        if exchange.repetition is not None:  # Bound again: a person may have changed the arguments.
            exchange.repetition.approved = bind(exchange, target, self._rules_version())
        return await self._run(exchange, question.binding, proceed)

    async def _record(self, exchange: Exchange, row: Row) -> None:
        """Write a row with the digest of the arguments, which is that of the decision's row."""
        arguments = canonical_json(as_object(exchange.params.get("arguments")) or {})
        body = {**row.body, "digest": self._audit.digest(arguments)}
        await self._audit.append(msgspec.structs.replace(row, body=body))

    async def _run(self, exchange: Exchange, binding: str, proceed: Handler) -> Reply:
        """Let it pass. If the server asks for input, one retry of this very call belongs to it."""
        reply = await proceed(exchange)
        if _asks_for_input(exchange.method, reply):
            if len(self._continued) >= MAX_CONTINUED:
                del self._continued[next(iter(self._continued))]
            self._continued.setdefault(binding, []).append(time.monotonic() + 3600.0)
        return reply

    def _continues(self, binding: str) -> bool:
        """Whether a retry belongs to a call that ran. A client that repeats a retry is asked again."""
        due = self._continued.pop(binding, [])
        if due[1:]:
            self._continued[binding] = due[1:]
        return bool(due) and time.monotonic() < due[0]

    # ------------------------------------------------------------------------------------------------- the question

    async def _question(self, exchange: Exchange, target: Target, verdict: Verdict, binding: str) -> Approval:
        """The open question about this call, or a new one, which is announced."""
        new = question_of(exchange, target, verdict, binding, self._decisions.run, self.settings.wait)
        found = await self._decisions.ask(new, MAX_QUESTIONS)
        if found is None:
            raise RateLimited(f"{MAX_QUESTIONS} of your calls wait for approval already; try again later.")
        if found.id == new.id:
            ended = [id for id, end in self._ends.items() if end < time.monotonic()]
            for id in ended:
                del self._ends[id]
                self._unannounced.pop(id, None)
            self._ends[new.id] = time.monotonic() + self.settings.wait
            if self._notify is not None:
                self._unannounced[new.id] = asyncio.Lock()
        return found

    async def _decision(self, exchange: Exchange, hold: _Hold, rules: str, ends: float) -> Refused | None:
        """Ask, and wait for the decision. Returns the refusal to send, or None if there is an answer for this call."""
        question = hold.question
        before = self._asked_in_rounds.pop(question.binding, None)
        if before is not None:
            before.hear("replaced")
        self._holds.setdefault(question.id, []).append(hold)
        try:
            async with TaskScope() as tasks:
                try:
                    if question.state == "pending":
                        self._ask_everyone(tasks, exchange, hold)
                    return await self._until_decided(hold, rules, ends)
                finally:
                    tasks.cancel_all()
        except (asyncio.CancelledError, StateUnavailable):
            with suppress(StateUnavailable, TimeoutError):
                async with asyncio.timeout(LEAVE_WITHIN):
                    await self._left(question)
            raise
        finally:
            self._holds[question.id].remove(hold)
            if not self._holds[question.id]:
                del self._holds[question.id]
            if self._asked_in_rounds.get(question.binding) is hold:
                del self._asked_in_rounds[question.binding]

    async def _left(self, question: Approval, why: Unanswered = "gone") -> bool:
        """Note that a call ends without an answer; whether its question ends with it."""
        if len(self._holds[question.id]) > 1:
            return False
        if self.settings.late == "void" or why in ("closed", "failed", "unseen"):
            return await self._decisions.void(question.id)
        with suppress(StateUnavailable):
            await self._decisions.abandon(question.id)
        return False

    def _ask_everyone(self, tasks: TaskScope, exchange: Exchange, hold: _Hold) -> None:
        if exchange.profile.progress_token is not None:
            tasks.start(_report(exchange, hold.question))
        lock = self._unannounced.get(hold.question.id)
        if self._notify is not None and lock is not None:
            tasks.start(self._announce(self._notify, hold.question, lock))
        if self._may_ask(exchange):
            asked = form(hold.question, lambda: hold.hear("gone"))
            if asked is not None:
                if exchange.profile.version in MODERN_VERSIONS:
                    self._asked_in_rounds[hold.question.binding] = hold
                tasks.start(_ask_client(exchange, hold, asked))
            elif hold.is_up_to_client:
                hold.hear("unseen")

    async def _announce(
        self, notify: Callable[[Approval], Awaitable[None]], question: Approval, lock: asyncio.Lock
    ) -> None:
        # A client that gives up cancels this. An equal call that waits for the lock, or comes later, announces it then.
        async with lock:
            if question.id in self._unannounced:
                await notify(question)
                self._unannounced.pop(question.id, None)

    def _may_ask(self, exchange: Exchange) -> bool:
        who, caller = self.settings.client, exchange.caller.id
        # Nobody knows which machine of the network it is, so its yes would be that of anyone (T38).
        is_trusted = (who == "any" and caller != NETWORK.id) or (who == "local" and caller == "local")
        return is_trusted and lacking_capability(_FORM, exchange.profile.capabilities) is None

    async def _until_decided(self, hold: _Hold, rules: str, ends: float) -> Refused | None:
        """Wait for the decision. Returns the refusal to send, or None if there is an answer for this call."""
        question, decisions, name = hold.question, self._decisions, name_of(hold.question.server, hold.question.name)
        end = self._end_of(question)
        while True:
            said, hold.said = hold.said, None
            hold.wake.clear()
            if isinstance(said, ApprovalAnswer):
                await _retried(decisions.decide, question.id, said)  # The first answer counts.
            found = await _retried(decisions.find, question.id)
            if found is None or found.state == "void":
                return ApprovalExpired(f"The question about {name} was withdrawn; nothing was run.")
            if found.state != "pending":
                is_last = self._holds[question.id][-1] is hold
                return None if is_last else unanswered("replaced", question, is_open=False)
            if said is not None and not isinstance(said, ApprovalAnswer):
                return unanswered(said, question, is_open=not await self._left(question, said))
            now = time.monotonic()
            if now >= end:
                await decisions.void(question.id)
                return too_late(question, self.settings.wait)
            if self._rules_version() != rules:
                await decisions.void(question.id)
                return rules_changed(question)
            if self._is_stopping:
                await decisions.void(question.id)
                return ApprovalExpired(f"The gateway stopped before a person decided on {name}; nothing was run.")
            if now >= ends:
                return unanswered("waits", question, is_open=not await self._left(question))
            await _pause(hold.wake, min(end, ends) - now)

    def _on_change(self, change: Change) -> None:
        if change == "approvals":
            self.wake()

    def stop(self) -> None:
        """Refuse the calls that are held: the gateway stops, and their questions end with it."""
        self._is_stopping = True
        self.wake()

    def wake(self) -> None:
        """Let every held call look again: an answer is in the store, or other rules are in force."""
        for holds in self._holds.values():
            for hold in holds:
                hold.wake.set()

    def _end_of(self, question: Approval) -> float:
        """When a question expires, on the monotonic clock. A clock that was set forward ends it earlier."""
        left = (question.deadline - time.time_ns()) / _SECOND
        return min(self._ends.get(question.id, time.monotonic() + left), time.monotonic() + left)


async def _retried(operation: Callable[P, Awaitable[T]], *arguments: P.args, **named: P.kwargs) -> T:
    """The result of an operation of the store. An answer must not be lost because another process writes to it."""
    for _ in range(TRIES - 1):
        with suppress(StateUnavailable):
            return await operation(*arguments, **named)
        await asyncio.sleep(RETRY_AFTER)
    return await operation(*arguments, **named)


async def _pause(wake: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(max(0.0, seconds)):
            await wake.wait()
    except TimeoutError:
        pass


def _may_be_held(exchange: Exchange) -> bool:
    row = METHODS.get(exchange.method)
    return row is not None and row.may_ask


def _asks_for_input(method: str, reply: Reply) -> bool:
    if isinstance(reply, ErrorObject):
        return reply.code == URL_ELICITATION_REQUIRED
    try:
        return read_input_required(method, reply) is not None
    except UpstreamError:
        return False  # Another kind of result, such as a task.


# ------------------------------------------------------------------------------------------------- asking the client


async def _ask_client(exchange: Exchange, hold: _Hold, asked: Question) -> None:
    # The id cannot be guessed, so a client cannot send the answer along with the call, before it has shown anything.
    key = f"approval-{hold.question.id}"
    try:
        answers = await exchange.request_input({key: asked})
        said: ApprovalAnswer | Unanswered = read_answer(hold.question, answers.get(key, {})) or "closed"
    except SluicegateError:
        said = "failed"
    # Unless it is up to the client others may answer: a program perhaps closed it that has no person to ask.
    if isinstance(said, ApprovalAnswer) or hold.is_up_to_client:
        hold.hear(said)


async def _report(exchange: Exchange, question: Approval) -> None:
    number = 0
    awaited = f"Waiting for a person to approve {name_of(question.server, question.name)} (question {question.id}"
    while True:
        await asyncio.sleep(PROGRESS_EVERY)
        number += 1
        # It must grow, and stay below all that follows: the hub's own begins with -1, that of servers with 0.
        params: Params = {
            "progressToken": exchange.profile.progress_token,
            "progress": -1 - 1 / number,
            "message": f"{awaited}, {number * PROGRESS_EVERY:.0f} s).",
        }
        await exchange.emit(Notification("notifications/progress", params))


# ----------------------------------------------------------------------------------------------------------- replies


async def _refusal(exchange: Exchange, refusal: Refused) -> Reply:
    if exchange.method != "tools/call":
        raise refusal
    value: Params = {"content": [{"type": "text", "text": refusal.message}], "isError": True}
    value["_meta"] = {REFUSAL: refusal.reason, "dev.sluicegate/request": exchange.request_id}
    return Result(complete(value))


def _name(target: Target) -> str:
    return name_of(target.server, target.name)
