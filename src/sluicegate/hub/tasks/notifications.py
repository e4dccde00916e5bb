"""Notifications of the tasks that one client listens to, passed through from their servers.

If a server ends its subscription before all of its tasks have ended, the client's subscription ends, too: it may
have missed something, and asks or listens again.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Collection
from typing import Final

import msgspec

from sluicegate.errors import UpstreamError, UpstreamProtocolError
from sluicegate.exchange import NOBODY, Exchange
from sluicegate.hub.mount import Mount
from sluicegate.hub.subscriptions import LISTEN
from sluicegate.hub.tasks.passthrough import Names, state_rewritten
from sluicegate.protocol.message import Notification, Params, as_array, as_object
from sluicegate.protocol.modern_era import ACKNOWLEDGED
from sluicegate.protocol.tasks import ENDED, NOTICE, WANTED, offers_tasks
from sluicegate.runtime.task_scope import TaskScope

log = logging.getLogger("sluicegate")

MAX_LISTENS: Final = 64
"""Subscriptions to tasks of one server at a time: over HTTP each takes a connection that calls may need."""


class TaskNotifications:
    """The subscriptions to tasks for one client, at one server or several."""

    def __init__(self, exchange: Exchange, scope: TaskScope, may_notify: Callable[[str], bool]) -> None:
        """`may_notify` says whether the client may still be notified of a task."""
        self._exchange = exchange
        self._scope = scope
        self._may_notify = may_notify
        self._sinks: list[_TaskSink] = []
        self._ids: Collection[str] = ()
        self._end: Callable[[], None] | None = None
        self._has_started = asyncio.Event()

    def listen(self, mount: Mount, names: Names) -> None:
        """Subscribe to tasks of a mount."""
        sink = _TaskSink(mount, names, self._scope, self._pass_on)
        self._sinks.append(sink)
        self._scope.start(self._listen(mount, sink), key=sink)

    async def accepted(self, seconds: float) -> list[str]:
        """The ids of the tasks that their servers acknowledge in time."""
        await asyncio.wait([sink.accepted for sink in self._sinks], timeout=seconds)
        for sink in self._sinks:
            if not sink.accepted.done():
                self._scope.cancel(sink)  # Its tasks are not part of what the client is promised.
        return [name for sink in self._sinks if sink.accepted.done() for name in sink.accepted.result()]

    def start(self, ids: Collection[str], end: Callable[[], None]) -> None:
        """Notify the client of these tasks from now on; `end` ends its subscription."""
        self._ids = frozenset(ids)
        self._end = end
        self._has_started.set()

    async def _pass_on(self, sealed_id: str, state: Params) -> None:
        await self._has_started.wait()
        if sealed_id in self._ids and self._may_notify(sealed_id):
            await self._exchange.emit(Notification(NOTICE, state))

    async def _listen(self, mount: Mount, sink: "_TaskSink") -> None:
        exchange = self._exchange
        # Without a log level: else the server's log lines could be taken for those of this caller (T11).
        profile = msgspec.structs.replace(exchange.profile, log_level=None, progress_token=None)
        params: Params = {"notifications": {WANTED: list(sink.left)}}
        try:
            connection = mount.connection or await mount.wait_until_ready()
            if offers_tasks(connection.discovery) and mount.task_listens < MAX_LISTENS:
                mount.task_listens += 1
                try:
                    await connection(Exchange(LISTEN, params, sink, profile, exchange.caller))
                finally:
                    mount.task_listens -= 1
        except UpstreamError as problem:
            log.debug("%s: a subscription to tasks ended: %s", mount.name, problem)
        finally:
            sink.accept(())
        if sink.left:
            await self._has_started.wait()
            if self._end is not None:
                self._end()


class _TaskSink:
    """The sink of a subscription to tasks of one server."""

    def __init__(
        self, mount: Mount, names: Names, scope: TaskScope, pass_on: Callable[[str, Params], Awaitable[None]]
    ) -> None:
        self.left = dict(names)
        """The tasks that have not ended."""
        self.accepted: asyncio.Future[list[str]] = asyncio.get_running_loop().create_future()
        self.ask = NOBODY.ask
        self._mount = mount
        self._scope = scope
        self._pass_on = pass_on

    def accept(self, owns: Collection[str]) -> None:
        """The server named the tasks that it will report; the first time counts."""
        if not self.accepted.done():
            self.left = {own: sealed_id for own, sealed_id in self.left.items() if own in owns}
            self.accepted.set_result(list(self.left.values()))

    async def emit(self, notification: Notification) -> None:
        """Pass the state of a task on. A server acknowledges first: what it sends before is dropped."""
        if notification.method == ACKNOWLEDGED:
            honoured = as_object(notification.params.get("notifications")) or {}
            self.accept({own for own in as_array(honoured.get(WANTED)) or [] if isinstance(own, str)})
        elif notification.method == NOTICE and self.accepted.done():
            await self._report(notification.params)
        if self.accepted.done() and not self.left:
            self._scope.cancel(self)  # Nothing more will come.

    async def _report(self, params: Params) -> None:
        own, status = params.get("taskId"), params.get("status")
        if not isinstance(own, str) or own not in self.left:
            return
        sealed_id = self.left[own]
        try:
            state = state_rewritten(self._mount, params, own, sealed_id)
        except UpstreamProtocolError as problem:
            log.debug("%s: a notification of a task cannot be passed on: %s", self._mount.name, problem)
            return
        if isinstance(status, str) and status in ENDED:
            del self.left[own]
        await self._pass_on(sealed_id, state)
