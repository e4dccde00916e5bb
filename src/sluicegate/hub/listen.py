"""Holds one `subscriptions/listen`: lists, resources and tasks of a router, under the names that the client uses."""

import asyncio
from collections.abc import Callable, Mapping
from typing import Final

from sluicegate.exchange import Exchange
from sluicegate.hub.mount import Mount
from sluicegate.hub.naming import exposed_uri
from sluicegate.hub.subscriptions import Subscriptions
from sluicegate.hub.tasks.notifications import TaskNotifications
from sluicegate.protocol.message import Notification, Reply, Result
from sluicegate.protocol.modern_era import ACKNOWLEDGED, complete
from sluicegate.protocol.tasks import WANTED
from sluicegate.runtime.change_feed import RESOURCE_UPDATED, Changes, Filter, Subtrees

TASKS_ACCEPTED_WITHIN: Final = 5.0
"""Seconds that servers have to acknowledge subscriptions to their tasks."""

Resources = Mapping[str, tuple[Mount, str]]
"""The mounts of the URIs of a subscription, and the URIs there."""


async def hold(
    exchange: Exchange,
    changes: Changes,
    wanted: Filter,
    resources: Resources,
    may_notify: Callable[[Mount, str], bool],
    tasks: TaskNotifications | None = None,
) -> Reply:
    """Send what changes until the subscription ends. `may_notify` is asked before each update of a resource."""
    # The subscriptions and not their mounts: another mount may take them over.
    owned: list[tuple[Subscriptions, str]] = []
    asked: dict[str, asyncio.Future[bool]] = {}
    exposed: dict[str, str] = {}
    patience = 0.0
    try:
        for uri, (mount, own) in resources.items():
            owned.append((mount.subscriptions, own))
            patience = max(patience, mount.settings.queue_wait)
            mount.calls.know_caller(exchange.caller)
            asked[uri] = mount.subscriptions.watch(own)
            exposed[uri] = exposed_uri(mount.prefix, own)
        # From now on: one server may report a change while another has yet to acknowledge.
        with changes.listener(Filter(wanted.lists, tuple(dict.fromkeys(exposed.values())))) as listener:
            if asked:
                await asyncio.wait(asked.values(), timeout=patience)
            names = {uri: exposed[uri] for uri, one in asked.items() if one.done() and one.result()}
            honoured = Filter(wanted.lists, tuple(dict.fromkeys(names.values())))
            listener.narrow(honoured)
            accepted = {**honoured.wire(), **({"resourceSubscriptions": list(names)} if names else {})}
            ids = [] if tasks is None else await tasks.accepted(TASKS_ACCEPTED_WITHIN)
            if ids:
                accepted[WANTED] = ids
            given = Subtrees[tuple[str, str]]()
            for uri, shown in names.items():
                given.add(shown, (uri, shown))
            await exchange.emit(Notification(ACKNOWLEDGED, {"notifications": accepted}))
            if tasks is not None:
                tasks.start(ids, listener.close)
            while (notice := await listener.wait()) is not None:
                named = _as_named(notice, given)
                if named is None:
                    await exchange.emit(notice)
                elif may_notify(*resources[named[0]]):
                    await exchange.emit(named[1])
    finally:
        for subscriptions, own in owned:
            subscriptions.unwatch(own)
    return Result(complete({}))


def _as_named(notice: Notification, given: Subtrees[tuple[str, str]]) -> tuple[str, Notification] | None:
    """An update of a resource under the URI that the client subscribed to, and that URI; None for other notices.

    The client may have used a server's own URI.
    """
    uri = notice.params.get("uri")
    if notice.method != RESOURCE_UPDATED or not isinstance(uri, str):
        return None
    found = given.of(uri)
    if not found:
        return None
    name, exposed = next((pair for pair in found if pair[0] != pair[1]), found[0])
    return name, Notification(notice.method, {**notice.params, "uri": name + uri.removeprefix(exposed)})
