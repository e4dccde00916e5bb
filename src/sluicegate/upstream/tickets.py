"""Calls that go on behind their answer: a server of 2025-11-25 may answer with a ticket, and work on as a task.

Whose a task is must be known from the call to its end, also while nobody waits for anything of it: what the server
asks or says meanwhile would else be taken for another caller's (protocol §3.4).
"""

from collections.abc import Iterator
from time import monotonic
from typing import Final

from sluicegate.errors import RemoteProtocolError
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Params, Reply, Result, as_object, opened
from sluicegate.protocol.tasks import RELATED

LONGEST: Final = 3600.0
"""Seconds after which a task is thought to be over whose result nobody has fetched, and which nobody has stopped."""

MOST: Final = 1024


class Ticket:
    """One call that is, or may become, a task."""

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self.task_id: str | None = None
        self.until = monotonic() + LONGEST


class Tickets:
    """All of one server's."""

    def __init__(self) -> None:
        self._open: list[Ticket] = []

    def __iter__(self) -> Iterator[Exchange]:
        now = monotonic()
        return iter([ticket.exchange for ticket in self._open if ticket.until > now])

    @property
    def callers(self) -> set[str]:
        """Whose they are."""
        return {exchange.caller.id for exchange in self} if self._open else set()

    def begin(self, exchange: Exchange) -> Ticket:
        """Know of a call that is to become a task."""
        del self._open[: len(self._open) - MOST + 1]
        ticket = Ticket(exchange)
        self._open.append(ticket)
        return ticket

    def name(self, ticket: Ticket, reply: Reply) -> None:
        """Learn how the call was answered: under which id it goes on, or that it does not."""
        try:
            task = as_object(opened(reply).get("task")) if isinstance(reply, Result) else None
        except RemoteProtocolError:
            task = None
        task_id = None if task is None else task.get("taskId")
        if isinstance(task_id, str):
            ticket.task_id = task_id
        else:
            self.drop(ticket)

    def drop(self, ticket: Ticket) -> None:
        """Know that a call is over."""
        self._open = [other for other in self._open if other is not ticket]

    def end(self, task_id: object) -> Exchange | None:
        """Know that a task is over; the call that it was."""
        ticket = next((ticket for ticket in self._open if ticket.task_id == task_id), None)
        if ticket is None:
            return None
        self.drop(ticket)
        return ticket.exchange

    def owner_of(self, params: Params) -> Exchange | None:
        """The call whose task a message says it is about."""
        related = as_object((as_object(params.get("_meta")) or {}).get(RELATED)) or {}
        task_id = related.get("taskId")
        found = (ticket.exchange for ticket in self._open if isinstance(task_id, str) and ticket.task_id == task_id)
        return next(found, None)
