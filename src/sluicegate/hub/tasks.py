"""Tools that 2025-11-25 lets be called as tasks only, called as if they were like any other (§3.8).

Such a tool answers a call at once, with a ticket, and has its result fetched. The one rule: a ticket has one owner from
the call to its end, a task of the connection's own, so that whenever the caller leaves, even before there is a ticket,
the server is told to stop. Only `tasks/result` is asked for: it waits for the end by itself, and what the server asks
meanwhile comes while it is open, so that it is known whose it is.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from sluicegate.concurrency import TaskScope
from sluicegate.deadlines import Deadline
from sluicegate.errors import (
    INTERNAL_ERROR,
    ErrorObject,
    RemoteProtocolError,
    SluicegateError,
    Truncated,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
)
from sluicegate.exchange import NOBODY, Connection, Exchange, Sink
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, Reply, Result, as_object, opened
from sluicegate.protocol.modern import Profile, complete
from sluicegate.protocol.tasks import RELATED
from sluicegate.protocol.translate_content import members_of, without

GRACE: Final = 5.0
"""Seconds in which a ticket may still come whose caller has left; and that a server has for each word beside a call."""

MOST_ABANDONED: Final = 64
"""Calls that may be under way for the sake of their ticket alone."""

PROGRESS: Final = "progress of tasks"
"""What a caller who wants progress loses: it comes under the token of a request that has been answered."""

STATUS: Final = "notifications/tasks/status"


def needs_task(tool: Params) -> bool:
    """Whether a tool can be called as a task only."""
    return (as_object(tool.get("execution")) or {}).get("taskSupport") == "required"


class Wanted(msgspec.Struct, frozen=True):
    """What makes a task of a call, as it is written to the server. No caller can say it: what they say is plain."""

    ttl: int


def as_task(params: Params, longest: float) -> Params:
    """The params of a call that is to be a task, which lives as long as the longest call may."""
    return {**params, "task": Wanted(int(longest * 1000))}


class _Errand:
    """One call as a task: who waits for it, and what is known of it."""

    def __init__(self, deadline: Deadline) -> None:
        self.outcome: asyncio.Future[Reply | Exception] = asyncio.get_running_loop().create_future()
        self.deadline = deadline
        self.task_id: str | None = None
        self.patience: asyncio.Timeout | None = None
        """Ends what is under way for it."""


class Tasks:
    """All tasks of one server that somebody waits for."""

    def __init__(self, name: str, lost: Callable[[str], None]) -> None:
        self._name = name
        self._lost = lost
        self._errands: set[_Errand] = set()
        self._scope: TaskScope | None = None

    def begin(self, scope: TaskScope) -> None:
        """Take calls, which are seen to their end in this scope."""
        self._scope = scope

    def end(self) -> None:
        """Take no more calls: the connection ends. Who still waits is told so."""
        self._scope = None
        for errand in self._errands:
            if not errand.outcome.done():
                errand.outcome.set_result(UpstreamClosed(f"{self._name} went away before its task was done."))
        self._errands.clear()

    def heard(self, params: Params) -> None:
        """Learn how a task is, as its server tells without being asked: a sign of life."""
        for errand in self._errands:
            if errand.task_id is not None and errand.task_id == params.get("taskId"):
                errand.deadline.is_renewed = True

    async def run(self, connection: Connection, deadline: Deadline, exchange: Exchange) -> Reply:
        """The final reply to a call that is made as a task. Whoever is cancelled in here has the task cancelled.

        Raises:
            UpstreamError: as for any other call.
        """
        if self._scope is None:
            raise UpstreamClosed(f"{self._name} went away.", delivered="no")
        errand = _Errand(deadline)
        self._errands.add(errand)
        self._scope.start(self._attend(errand, connection, exchange))
        try:
            found = await errand.outcome
        except asyncio.CancelledError:
            if errand.patience is not None:
                # One that has no ticket yet may have one in a moment, without which it cannot be ended.
                waits = errand.task_id is None and self._abandoned <= MOST_ABANDONED
                errand.patience.reschedule(asyncio.get_running_loop().time() + (GRACE if waits else 0.0))
            raise
        if isinstance(found, Exception):
            raise found
        return found

    @property
    def _abandoned(self) -> int:
        return sum(errand.outcome.cancelled() for errand in self._errands)

    async def _attend(self, errand: _Errand, connection: Connection, exchange: Exchange) -> None:
        outcome = errand.outcome
        found: Reply | Exception
        try:
            async with asyncio.timeout(None) as errand.patience:
                found = await self._reply(errand, connection, exchange)
        except Exception as problem:  # Not handled here, but handed to whoever waits, if anybody does.
            found = problem
        except asyncio.CancelledError:
            if not outcome.done():
                outcome.set_result(UpstreamClosed(f"{self._name} went away before its task was done."))
            raise
        finally:
            errand.patience = None
            self._errands.discard(errand)
        if not outcome.done():
            outcome.set_result(found)
        if errand.task_id is not None and (outcome.cancelled() or isinstance(found, Exception)):
            # Nobody will fetch its result. Whether the server hears that, and heeds it, changes nothing for the caller.
            with suppress(TimeoutError, SluicegateError):
                async with asyncio.timeout(GRACE):
                    await _cancel(errand.task_id, connection, exchange)

    async def _reply(self, errand: _Errand, connection: Connection, exchange: Exchange) -> Reply:
        if errand.outcome.done():
            raise UpstreamClosed("Nobody waits for it any more.", delivered="no")
        reply = await connection(exchange)
        ticket = self._ticket_in(reply)
        if ticket is None:
            return reply  # Refused; or done at once, by a server that makes less of it than it says.
        errand.task_id = ticket.id
        if exchange.profile.progress_token is not None:
            self._lost(PROGRESS)
        if errand.outcome.done():
            return reply  # The caller has left meanwhile.
        try:
            reply = await self._result(connection, exchange, ticket)
            if not _is_result(reply):
                reply = _explained(reply, await _state(connection, exchange, ticket), self._name)
            return _unrelated(reply)
        except UpstreamError as problem:
            if problem.delivered == "no":
                problem.delivered = "unknown"  # That was about the result. The call itself has been made.
            raise

    async def _result(self, connection: Connection, exchange: Exchange, ticket: "_Ticket") -> Reply:
        """The result of a task, whenever that comes; asked for again where something between us cuts the wait."""
        while True:
            try:
                return await connection(_about(ticket, "tasks/result", exchange))
            except Truncated:
                await asyncio.sleep(ticket.pause)

    def _ticket_in(self, reply: Reply) -> "_Ticket | None":
        try:
            task = as_object(opened(reply).get("task")) if isinstance(reply, Result) else None
        except RemoteProtocolError as problem:
            raise UpstreamProtocolError(f"{self._name}: {problem.message}") from None
        if task is None:
            return None
        if not isinstance(task_id := task.get("taskId"), str):
            raise UpstreamProtocolError(f"{self._name} has begun a task and does not say which.")
        interval = task.get("pollInterval")
        seconds = interval / 1000 if isinstance(interval, int | float) else 1.0
        return _Ticket(task_id, min(max(seconds, 0.1), 10.0))


class _Ticket(msgspec.Struct, frozen=True):
    id: str
    pause: float
    """Seconds that the server wants between two questions about it."""


def _about(ticket: _Ticket, method: str, call: Exchange) -> Exchange:
    """A request about a task, on behalf of the caller whose task it is."""
    return Exchange(method, {"taskId": ticket.id}, call.sink, call.profile, call.caller, None, call.let_go)


async def _state(connection: Connection, call: Exchange, ticket: _Ticket) -> Params:
    """What a server says of a task that is over, if it does so soon."""
    with suppress(TimeoutError, UpstreamError, RemoteProtocolError):
        async with asyncio.timeout(GRACE):
            reply = await connection(_about(ticket, "tasks/get", call))
            return opened(reply) if isinstance(reply, Result) else {}
    return {}


async def _cancel(task_id: str, connection: Connection, call: Exchange) -> None:
    if "cancel" in (as_object(connection.discovery.capabilities.get("tasks")) or {}):
        await connection(Exchange("tasks/cancel", {"taskId": task_id}, NOBODY, Profile(), call.caller))


def _is_result(reply: Reply) -> bool:
    """Whether a reply is the result of a tool: of a task that failed some servers give one with nothing in it."""
    try:
        return isinstance(reply, Result) and "content" in (members_of(reply.value) or {})
    except (msgspec.DecodeError, RecursionError):
        return True  # Whoever has to read it will say that it cannot be read.


def _unrelated(reply: Reply) -> Reply:
    """A reply without the id of its task, of which the caller knows nothing."""
    if not isinstance(reply, Result):
        return reply
    try:
        members = members_of(reply.value) or {}
        meta = members_of(members.get("_meta")) or {}
    except (msgspec.DecodeError, RecursionError):
        return reply
    if RELATED not in meta:
        return reply
    meta = without(meta, (RELATED,))
    members = {**members, "_meta": meta} if meta else without(members, ("_meta",))
    return Result(msgspec.Raw(msgspec.json.encode(members)) if isinstance(reply.value, msgspec.Raw) else members)


def _explained(reply: Reply, task: Params, name: str) -> Reply:
    """What came in place of a task's result, with what its server says of the task, where it says more."""
    status, said = task.get("status"), task.get("statusMessage")
    why = said[:500] if isinstance(said, str) else ""
    if status not in ("failed", "cancelled"):
        return reply
    begin = f"{name} cancelled the task of this call" if status == "cancelled" else "The task of this call failed"
    sentence = f"{begin}: {why}" if why else f"{begin}."
    if isinstance(reply, Result):
        return Result(complete({"content": [{"type": "text", "text": sentence}], "isError": True}))
    if status == "cancelled":
        return ErrorObject(INTERNAL_ERROR, sentence)
    # The error that the call would have had without a task, unless it says only that there is no result.
    if not why or why in reply.message:
        return reply
    return ErrorObject(reply.code, f"{reply.message.rstrip('.')}. {sentence}", reply.data)


class Heard:
    """The sink of a connection itself, which learns how tasks are; all else goes to another."""

    def __init__(self, tasks: Tasks, sink: Sink) -> None:
        self._tasks = tasks
        self._sink = sink

    async def emit(self, notification: Notification) -> None:
        """Note the state of a task, or pass a notice on."""
        if notification.method == STATUS:
            self._tasks.heard(notification.params)
        else:
            await self._sink.emit(notification)

    async def ask(self, questions: Questions) -> Answers:
        """Pass questions on."""
        return await self._sink.ask(questions)
