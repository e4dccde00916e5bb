"""Tools that servers of 2025-11-25 run only as tasks, called like any other tool.

Such a tool answers a call at once, with a ticket, and its result is fetched with `tasks/result`, which waits until
the task ends. What the server asks meanwhile comes while that request is open, so it belongs to this call. A caller
that leaves has the task cancelled.
"""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Final

import msgspec

from sluicegate.errors import (
    INTERNAL_ERROR,
    ErrorObject,
    RemoteProtocolError,
    SluicegateError,
    Truncated,
    UpstreamError,
    UpstreamProtocolError,
)
from sluicegate.exchange import NOBODY, Connection, Exchange
from sluicegate.protocol.message import Params, Reply, Result, as_object, opened
from sluicegate.protocol.modern_era import ClientProfile, complete
from sluicegate.protocol.tasks import RELATED
from sluicegate.protocol.translate.content import without
from sluicegate.runtime.deadlines import Deadline
from sluicegate.runtime.task_scope import TaskScope

TASK_ANSWERS_WITHIN: Final = 5.0
"""Seconds that a server has to answer `tasks/get` and `tasks/cancel`."""

LOST_PROGRESS: Final = "progress of tasks"
"""Counted as lost: it comes under the token of a request that has been answered."""

STATUS: Final = "notifications/tasks/status"


class Wanted(msgspec.Struct, frozen=True):
    """The `task` member of a call, as the server gets it. A type of its own: params of clients hold plain values."""

    ttl: int


class LegacyTasks:
    """The tasks of one server."""

    def __init__(self, name: str, lost: Callable[[str], None]) -> None:
        self._name = name
        self._lost = lost
        self._deadlines: dict[str, Deadline] = {}
        """Those of the calls, by the ids of their tasks."""
        self._scope: TaskScope | None = None

    def begin(self, scope: TaskScope) -> None:
        """Cancel tasks in this scope, while the connection lasts."""
        self._scope = scope

    def end(self) -> None:
        """The connection ends: there is no server to cancel tasks at."""
        self._scope = None

    def on_status(self, params: Params) -> None:
        """The server reported the state of a task: its call has all its time again."""
        deadline = self._deadlines.get(str(params.get("taskId")))
        if deadline is not None:
            deadline.is_renewed = True

    async def run(self, connection: Connection, deadline: Deadline, exchange: Exchange) -> Reply:
        """The final reply to a call that is made as a task.

        Raises:
            UpstreamError: as for any other call.
        """
        reply = await connection(exchange)
        ticket = self._ticket_in(reply)
        if ticket is None:
            return reply  # Refused; or done at once, by a server that ran it as a plain call.
        if exchange.profile.progress_token is not None:
            self._lost(LOST_PROGRESS)
        self._deadlines[ticket.id] = deadline
        has_ended = False
        try:
            reply = await _result(connection, exchange, ticket)
            value = self._opened(reply)
            if "content" not in value:  # An error; or an empty result, as some servers give for a failed task.
                reply = _explained(reply, await _state(connection, exchange, ticket), self._name)
            else:
                reply = _unrelated(reply, value)
            has_ended = True
            return reply
        except UpstreamError as problem:
            if problem.delivered == "no":
                problem.delivered = "unknown"  # That is about the result. The call itself was delivered.
            raise
        finally:
            self._deadlines.pop(ticket.id, None)
            if not has_ended and self._scope is not None:  # The call failed or was cancelled, so the task has to end.
                with suppress(RuntimeError):  # The connection is about to end.
                    self._scope.start(_cancel(ticket.id, connection, exchange))

    def _ticket_in(self, reply: Reply) -> "_Ticket | None":
        task = as_object(self._opened(reply).get("task"))
        if task is None:
            return None
        if not isinstance(task_id := task.get("taskId"), str):
            raise UpstreamProtocolError(f"{self._name} started a task without a taskId.")
        interval = task.get("pollInterval")
        seconds = interval / 1000 if isinstance(interval, int | float) else 1.0
        return _Ticket(task_id, min(max(seconds, 0.1), 10.0))

    def _opened(self, reply: Reply) -> Params:
        """The members of a result; none of an error."""
        try:
            return opened(reply) if isinstance(reply, Result) else {}
        except RemoteProtocolError as problem:
            raise UpstreamProtocolError(f"{self._name}: {problem.message}") from None


class _Ticket(msgspec.Struct, frozen=True):
    id: str
    pause: float
    """Seconds that the server wants between two requests about the task."""


def _about(ticket: _Ticket, method: str, call: Exchange) -> Exchange:
    """A request about a task, for the caller of the task."""
    return Exchange(method, {"taskId": ticket.id}, call.sink, call.profile, call.caller, None, call.end_response_early)


async def _result(connection: Connection, call: Exchange, ticket: _Ticket) -> Reply:
    """The result of a task, requested again if a proxy cuts the long response."""
    while True:
        try:
            return await connection(_about(ticket, "tasks/result", call))
        except Truncated:
            await asyncio.sleep(ticket.pause)


async def _state(connection: Connection, call: Exchange, ticket: _Ticket) -> Params:
    """The state of a task that has ended; empty if the server does not say it soon."""
    with suppress(TimeoutError, UpstreamError, RemoteProtocolError):
        async with asyncio.timeout(TASK_ANSWERS_WITHIN):
            reply = await connection(_about(ticket, "tasks/get", call))
            return opened(reply) if isinstance(reply, Result) else {}
    return {}


async def _cancel(task_id: str, connection: Connection, call: Exchange) -> None:
    if "cancel" in (as_object(connection.discovery.capabilities.get("tasks")) or {}):
        with suppress(TimeoutError, SluicegateError):
            async with asyncio.timeout(TASK_ANSWERS_WITHIN):
                await connection(Exchange("tasks/cancel", {"taskId": task_id}, NOBODY, ClientProfile(), call.caller))


def _unrelated(reply: Reply, value: Params) -> Reply:
    """The reply without the id of its task, which the caller does not know."""
    meta = as_object(value.get("_meta")) or {}
    if RELATED not in meta:
        return reply
    meta = without(meta, (RELATED,))
    value = {**value, "_meta": meta} if meta else without(value, ("_meta",))
    return Result(msgspec.Raw(msgspec.json.encode(value)))


def _explained(reply: Reply, task: Params, name: str) -> Reply:
    """What came in place of a task's result, with the reason that the state of the task gives."""
    status, message = task.get("status"), task.get("statusMessage")
    if status not in ("failed", "cancelled"):
        return reply
    why = message[:500] if isinstance(message, str) else ""
    begin = f"{name} cancelled the task of this call" if status == "cancelled" else "The task of this call failed"
    sentence = f"{begin}: {why}" if why else f"{begin}."
    if isinstance(reply, Result):
        return Result(complete({"content": [{"type": "text", "text": sentence}], "isError": True}))
    if status == "cancelled":
        return ErrorObject(INTERNAL_ERROR, sentence)
    # A failed task has the error that the call would have had without a task.
    if not why or why in reply.message:
        return reply
    return ErrorObject(reply.code, f"{reply.message.rstrip('.')}. {sentence}", reply.data)
