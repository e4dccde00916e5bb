"""That a list changed, told to all sessions of a caller: one subscription is held for all of them.

Each session would be told the same, and a subscription for each is a task and what it waits for, ten thousand times.
"""

from typing import Protocol

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.session_era import HeldExchanges, all_lists, hold_subscription
from sluicegate.errors import SluicegateError
from sluicegate.exchange import Caller, Nobody
from sluicegate.protocol.message import Notification
from sluicegate.protocol.modern import ACKNOWLEDGED


class Hearer(Protocol):
    """Who is told of changes."""

    def hear(self, notification: Notification) -> None:
        """Take note of a change, without waiting: others are to be told, too."""
        ...


class ListChanges:
    """The subscriptions of one endpoint to the changes of lists."""

    def __init__(self, answering: HeldExchanges, tasks: TaskScope) -> None:
        self._answering = answering
        self._tasks = tasks
        self._audiences: dict[tuple[Caller, str], Audience] = {}

    def join(self, hearer: Hearer, caller: Caller, offers: str) -> "Audience":
        """Tell them of changes from now on, together with those whom the same was offered; until they leave."""
        # A subscription brings what was announced when it began, and may differ between callers (T11).
        audience = self._audiences.get((caller, offers))
        if audience is None:
            audience = self._audiences[caller, offers] = Audience(self._answering, caller, offers)
            self._tasks.start(self._hold(audience), key=audience)
        audience.members[hearer] = None
        return audience

    def leave(self, hearer: Hearer, audience: "Audience") -> None:
        """Tell them no more; the last one ends the subscription."""
        audience.members.pop(hearer, None)
        if not audience.members:
            self._forget(audience)  # At once: who comes before it has ended would never be told anything.
            self._tasks.cancel(audience)

    async def _hold(self, audience: "Audience") -> None:
        try:
            await hold_subscription(audience, all_lists(), audience)
        finally:
            self._forget(audience)  # Whoever comes now begins a new one.

    def _forget(self, audience: "Audience") -> None:
        if self._audiences.get((audience.caller, audience.offers)) is audience:
            del self._audiences[audience.caller, audience.offers]


class Audience(Nobody):
    """All who are told the same."""

    def __init__(self, answering: HeldExchanges, caller: Caller, offers: str) -> None:
        self.answering = answering
        self.caller = caller
        self.offers = offers
        self.members: dict[Hearer, None] = {}

    async def emit(self, notification: Notification) -> None:
        """Tell everybody."""
        if notification.method != ACKNOWLEDGED:
            for hearer in list(self.members):
                hearer.hear(notification)

    def failed(self, problem: SluicegateError) -> None:
        """Let it be: nobody waits to be told."""
