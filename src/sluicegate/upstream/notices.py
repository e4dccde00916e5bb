"""What a server says without being asked, over a wire that all its calls share: each notice to whom it belongs.

The one rule: what cannot be told to belong to one caller is given to none, but to the connection's own listener.
"""

from collections.abc import Callable
from typing import Final, cast

from sluicegate.exchange import Host
from sluicegate.protocol.message import Notification, Params
from sluicegate.protocol.methods import LOG_LEVELS
from sluicegate.protocol.modern import subscription_of
from sluicegate.protocol.pending import Pending
from sluicegate.upstream.attribution import may_ask
from sluicegate.upstream.tickets import Tickets
from sluicegate.upstream.waiting import Brake, Waiter

PROGRESS: Final = "notifications/progress"
UNWANTED: Final = "log messages that belong to no call"
UNTAKEN: Final = "notices that their caller was too slow to take"


class Notices:
    """Where the notices of one server go."""

    def __init__(self, pending: Pending[Waiter], host: Host, brake: Brake) -> None:
        self.one_level_for_all = False
        """Whether the server logs for all calls as it does for one, as in the session era."""
        self.tickets: Tickets | None = None
        """The calls that go on as tasks."""
        self.hear_visit: Callable[[Notification], None] | None = None
        """Hears that the server saw a page visited, to tell whoever was sent there."""
        self._pending = pending
        self._host = host
        self._brake = brake
        self._unattributed = Waiter(None)

    def hear(self, notification: Notification, size: int) -> None:
        """Hand on a notice that came in so many bytes."""
        match notification.method:
            case "notifications/progress":
                self.hear_progress(notification.params, size)
            case "notifications/message":
                self._hear_log(notification, size)
            case "notifications/elicitation/complete":
                if self.hear_visit is not None:
                    self.hear_visit(notification)
                self._post_unattributed(notification, size)
            case _:
                self._hear_change(notification, size)

    def hear_progress(self, params: Params, size: int) -> None:
        """Hand on progress, under the caller's own token; the params are ours to change."""
        waiter = self._pending.find(params.get("progressToken"))
        if waiter is None or waiter.exchange is None:
            return  # late
        own = waiter.exchange.profile.progress_token
        if own is not None:  # else with a token that we never gave
            params["progressToken"] = own
            self._post(waiter, Notification(PROGRESS, params), size)

    def _hear_log(self, notification: Notification, size: int) -> None:
        under_way = [(waiter, waiter.exchange) for waiter in self._pending if waiter.exchange is not None]
        listeners = [(waiter, exchange) for waiter, exchange in under_way if exchange.profile.log_level is not None]
        # Nothing in a log line says which call it belongs to. With several candidates it is given to none of them. In
        # the session era a level is set for all, so that a call which wants no log is a candidate too (threats T11).
        callers = {exchange.caller.id for _, exchange in (under_way if self.one_level_for_all else listeners)}
        if self.tickets is not None:
            callers |= self.tickets.callers
        if len(listeners) != 1 or len(callers) != 1:
            is_anybodys = self._host.sinks_refuse  # Else all calls are the host's own, and it may hear anything.
            quiet = (exchange for _, exchange in under_way if exchange.profile.log_level is None)
            if is_anybodys and any(may_ask(exchange.method) for exchange in quiet):
                self._host.lost(UNWANTED)  # Of that call, most likely, whose caller does not want it.
                return
            self._post_unattributed(notification, size)
            return
        waiter, exchange = listeners[0]
        level, wanted = notification.params.get("level"), exchange.profile.log_level
        if level in LOG_LEVELS and LOG_LEVELS.index(cast(str, level)) >= LOG_LEVELS.index(cast(str, wanted)):
            self._post(waiter, notification, size)

    def _hear_change(self, notification: Notification, size: int) -> None:
        subscription, notice = subscription_of(notification)
        if subscription is not None:
            waiter = self._pending.find(subscription)
            if waiter is not None:
                self._post(waiter, notice, size)
            return
        for waiter in self._pending:
            if waiter.wants(notice):
                self._post(waiter, notice, size)
        self._post_unattributed(notice, size)

    def _post(self, waiter: Waiter, notification: Notification, size: int) -> None:
        if waiter.is_passed_over:
            if not waiter.is_half_empty:
                self._host.lost(UNTAKEN)
                return
            waiter.is_passed_over = False
        if waiter.post(notification, size):
            self._brake.hold(waiter)

    def _post_unattributed(self, notification: Notification, size: int) -> None:
        # What belongs to no exchange has nobody who could make the server wait, so here the newest is dropped.
        if not self._unattributed.is_full:
            self._unattributed.post(notification, size)

    async def relay_unattributed(self) -> None:
        """Tell the connection's own listener what belongs to no exchange, until cancelled."""
        while True:
            item = await self._unattributed.next()
            if isinstance(item, Notification):
                await self._host.sink.emit(item)
