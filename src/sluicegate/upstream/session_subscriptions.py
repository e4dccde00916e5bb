"""Serves `subscriptions/listen` from what a session-era server pushes, unasked or after `resources/subscribe`.

The one rule: each resource is subscribed to once, in one spelling of its URI, for all listeners together.
"""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Final, Protocol

from sluicegate.errors import UpstreamClosed, UpstreamError
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Notification, Params, Pending, Reply, Result, as_array, as_object
from sluicegate.protocol.methods import LIST_CHANGES
from sluicegate.protocol.modern_era import ACKNOWLEDGED, Discovery
from sluicegate.protocol.uri_normalize import Spellings, plain
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream.inbox import Inbox

SUBSCRIBE_TIMEOUT: Final = 3.0
"""Seconds for all resources of one listener. Those that are not answered by then are left out."""

UNSUBSCRIBE_TIMEOUT: Final = 4.0
"""Seconds for the answer to an unsubscription. A new listener of the same resource waits for it."""

MAX_PARALLEL: Final = 64
"""Resources that one listener subscribes to at a time."""


class SubscriptionTransport(Protocol):
    """The part of a connection that subscriptions need."""

    pending: Pending[Inbox]

    @property
    def discovery(self) -> Discovery: ...
    def attend(self, work: Coroutine[object, object, None]) -> None: ...
    async def enter(self, inbox: Inbox) -> int: ...
    def leave(self, request_id: int, inbox: Inbox) -> bool: ...
    async def request(self, method: str, params: Params) -> Reply: ...
    async def next_item(self, inbox: Inbox) -> Notification | Reply: ...


class _Subscription:
    """One resource, with all its listeners."""

    def __init__(self) -> None:
        self.listeners = 0
        self.uri: str | None = None
        """The spelling that the server has accepted."""
        self.is_ending = False
        self.lock = asyncio.Lock()
        """Over HTTP, a later POST may arrive first: subscribe and unsubscribe have to wait for each other."""


class SessionSubscriptions:
    """The subscriptions in one session with one server."""

    def __init__(self, transport: SubscriptionTransport) -> None:
        self._transport = transport
        self._subscriptions: dict[str, _Subscription] = {}  # by normalised URI

    async def listen(self, exchange: Exchange) -> Reply:
        """Acknowledge what the server accepts, then pass on its notifications until the connection ends."""
        wanted = as_object(exchange.params.get("notifications")) or {}
        flags = [flag for flag in LIST_CHANGES if wanted.get(flag) is True and self._announces(flag)]
        inbox = Inbox(exchange)
        inbox.wanted = frozenset(LIST_CHANGES[flag] for flag in flags)
        uris = [uri for uri in as_array(wanted.get("resourceSubscriptions")) or [] if isinstance(uri, str)]
        request_id = await self._transport.enter(inbox)
        # Counted before anything is awaited, so that no subscription ends that this listener is about to share.
        for uri in uris:
            self._subscriptions.setdefault(plain(uri), _Subscription()).listeners += 1
        try:
            inbox.uris = Spellings(uris)  # A resource may change while the others are being subscribed to.
            accepted = await self._subscribe_all(uris)
            inbox.uris = Spellings(accepted)
            honoured: Params = dict.fromkeys(flags, True)
            if accepted:
                honoured["resourceSubscriptions"] = accepted
            await exchange.emit(Notification(ACKNOWLEDGED, {"notifications": honoured}))
            while isinstance(item := await self._transport.next_item(inbox), Notification):
                await exchange.emit(item)
            return item
        finally:
            self._transport.leave(request_id, inbox)
            for uri in uris:
                self._drop_listener(uri)

    async def restore(self, request: Callable[[str, Params], Awaitable[Reply]], deadline: float) -> None:
        """Subscribe again in a new session, by `request`. Listeners whose resource is not accepted get an error."""
        held = [(subscription, subscription.uri) for subscription in self._subscriptions.values()]
        for subscription, _ in held:
            subscription.uri = None
        try:
            async with asyncio.timeout_at(deadline):
                for subscription, uri in held:
                    # Not under the lock: its holder may be waiting for this session.
                    with suppress(UpstreamError):
                        if uri is not None and isinstance(await request("resources/subscribe", {"uri": uri}), Result):
                            subscription.uri = uri
        except TimeoutError:
            pass  # Calls that wait for the session must not wait for the rest.
        finally:
            lost = {plain(uri) for subscription, uri in held if uri is not None and subscription.uri is None}
            for inbox in self._transport.pending:
                if lost and any(plain(uri) in lost for uri in inbox.uris):
                    inbox.put(UpstreamClosed("The server lost the session and did not accept all subscriptions again."))

    def _announces(self, flag: str) -> bool:
        kind = as_object(self._transport.discovery.capabilities.get(flag.removesuffix("ListChanged"))) or {}
        return kind.get("listChanged") is True

    async def _subscribe_all(self, uris: Sequence[str]) -> list[str]:
        """Subscribe to resources side by side; returns those that the server accepted in time.

        Raises:
            UpstreamError: the server accepted none, and at least one request failed.
        """
        # Whatever the server declares: SDK 1.x of Python says `subscribe: false` for all servers, also for those that
        # handle subscriptions.
        accepted = set[str]()
        problems: list[UpstreamError] = []
        left = iter(uris)

        async def work() -> None:
            for uri in left:
                try:
                    if await self._subscribe(uri):
                        accepted.add(uri)
                except UpstreamError as problem:  # The server may still accept the others.
                    problems.append(problem)

        with suppress(TimeoutError):
            async with asyncio.timeout(SUBSCRIBE_TIMEOUT), TaskScope() as tasks:
                for _ in range(min(MAX_PARALLEL, len(uris))):
                    tasks.start(work())
        if problems and not accepted:
            raise problems[0]
        return [uri for uri in uris if uri in accepted]

    async def _subscribe(self, uri: str) -> bool:
        subscription = self._subscriptions[plain(uri)]
        async with subscription.lock:
            if subscription.uri is None:
                reply = await self._transport.request("resources/subscribe", {"uri": uri})
                if isinstance(reply, Result):
                    subscription.uri = uri
            return subscription.uri is not None

    def _drop_listener(self, uri: str) -> None:
        name = plain(uri)
        subscription = self._subscriptions[name]
        subscription.listeners -= 1
        if subscription.listeners == 0 and not subscription.is_ending:
            subscription.is_ending = True
            self._transport.attend(self._unsubscribe(name, subscription))

    async def _unsubscribe(self, name: str, subscription: _Subscription) -> None:
        """End a subscription, unless it has a listener again."""
        async with subscription.lock:
            subscription.is_ending = False
            if subscription.listeners == 0 and subscription.uri is not None:
                # Forgotten whatever the answer is, and whether or not it comes: a new listener subscribes again.
                uri, subscription.uri = subscription.uri, None
                with suppress(TimeoutError, UpstreamError):
                    async with asyncio.timeout(UNSUBSCRIBE_TIMEOUT):
                        await self._transport.request("resources/unsubscribe", {"uri": uri})
        if not subscription.listeners and self._subscriptions.get(name) is subscription:
            del self._subscriptions[name]
