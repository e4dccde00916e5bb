"""Subscriptions that we hold at one server: to its lists, and to the resources that clients listen to.

Few subscriptions carry all resources, since each may take a connection of its own (threats R0, R25). One holds up to
1,000 URIs. When its set changes, another one is opened with the new set, and the old one ends once the new one is
acknowledged. Resources outlive the connection: they are subscribed to again on the next one.
"""

import asyncio
import logging
from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Final, Protocol

from sluicegate.errors import METHOD_NOT_FOUND, ErrorObject, InputRefused, UpstreamError, UpstreamUnavailable
from sluicegate.exchange import Connection, Exchange, Sink
from sluicegate.hub.supervise import FIRST_RETRY, MAX_RETRY, Reachability
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, as_array, as_object
from sluicegate.protocol.modern_era import ACKNOWLEDGED, ClientProfile
from sluicegate.protocol.uri_normalize import Spellings
from sluicegate.runtime.task_scope import TaskScope

log = logging.getLogger("sluicegate")

LISTEN: Final = "subscriptions/listen"
MAX_URIS: Final = 1000
"""Resources in one subscription: servers made with this toolkit allow no more."""
MAX_GROUPS: Final = 8
"""Subscriptions to resources of one server; beyond that, listeners are refused."""

SUBSCRIBE_DEBOUNCE: Final = 0.02
"""Seconds between two subscriptions that add resources: clients name many at once."""
PRUNES_AFTER: Final = 1.0
"""Seconds until resources without listeners are left out of their subscription."""
ANSWERS_WITHIN: Final = 4.0
"""Seconds that a server has to acknowledge; less than clients wait, since later resources wait for the answer, too."""
RESUBSCRIBES_AFTER: Final = 10.0
"""Seconds until resources that the server honoured before, and does not honour now, are requested again."""
OVERLAP: Final = 0.25
"""Seconds that a replaced subscription stays open: a notification may still be in transit there."""

MAX_REPLACED: Final = 2
"""Replaced subscriptions that stay open at a time."""

UNKNOWN_UPDATES: Final = "updates of resources that were not asked for"


class ListenSink(Sink, Protocol):
    """Gets what the server says in a subscription."""

    def ended(self) -> None:
        """The server ended the subscription; it will be opened again."""
        ...


async def listen(owner: Reachability, connection: Connection, wanted: Params, sink: ListenSink) -> None:
    """Hold a subscription while the connection lasts; it is opened again whenever the server ends it."""
    loop = asyncio.get_running_loop()
    pause = FIRST_RETRY
    reporting = _Reporting(owner, sink)
    while True:
        began = loop.time()
        try:
            reply = await connection(Exchange(LISTEN, {"notifications": wanted}, reporting, ClientProfile()))
            if isinstance(reply, ErrorObject) and reply.code == METHOD_NOT_FOUND:
                return
        except UpstreamError as problem:
            log.debug("%s: a subscription ended: %s", owner.name, problem)
            # Servers may end a subscription, or refuse further streams, and answer everything else.
            if isinstance(problem, UpstreamUnavailable) and "status" not in problem.data:
                owner.unreachable(problem)
        sink.ended()
        if loop.time() - began >= MAX_RETRY:
            pause = FIRST_RETRY
        await asyncio.sleep(pause)
        pause = min(pause * 2, MAX_RETRY)


class _Reporting:
    """A sink whose notifications show that the server can be reached."""

    def __init__(self, owner: Reachability, sink: ListenSink) -> None:
        self._owner = owner
        self._sink = sink
        self.ask = sink.ask

    async def emit(self, notification: Notification) -> None:
        self._owner.reached()
        await self._sink.emit(notification)


class ListChanges:
    """Hears that lists of a server changed, or may have changed while there was no subscription."""

    def __init__(self, on_notice: Callable[[str], None], on_change: Callable[[], None]) -> None:
        """`on_notice` gets the server's notices; `on_change` is also called when the subscription begins or ends."""
        self._on_notice = on_notice
        self._on_change = on_change

    async def emit(self, notification: Notification) -> None:
        """Take a notice."""
        if notification.method != ACKNOWLEDGED:
            self._on_notice(notification.method)
        self._on_change()  # Also when acknowledged: lists may have changed before the subscription began.

    async def ask(self, questions: Questions) -> Answers:
        """Refuse."""
        raise InputRefused("A subscription cannot ask questions.")

    def ended(self) -> None:
        """Look for changes now: the next subscription may begin much later."""
        self._on_change()


# ------------------------------------------------------------------------------------------------------------ resources

Hold = Callable[[Sequence[str], ListenSink], Coroutine[object, object, None]]
"""Holds a subscription to these resources until it is cancelled."""

OnUpdate = Callable[[str, str], None]
"""Gets the URI of a resource that changed, and the subscribed URI."""


class _Watch:
    """One resource that clients listen to."""

    def __init__(self, listeners: int) -> None:
        self.listeners = listeners
        self.accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

    @property
    def is_refused(self) -> bool:
        return self.accepted.done() and not self.accepted.result()

    @property
    def is_owed(self) -> bool:
        """Whether its listeners have an acknowledgement."""
        return self.accepted.done() and self.accepted.result()


class Subscriptions:
    """The resources of one server that clients listen to."""

    def __init__(self) -> None:
        self.watches: dict[str, _Watch] = {}
        self.tasks: TaskScope | None = None
        """Those of the connection, while there is one."""
        self.hold: Hold | None = None
        self._groups: list[_Group] = []
        self._on_update: OnUpdate | None = None
        self._lost: Callable[[str], None] | None = None

    def __len__(self) -> int:
        return len(self.watches)

    def watch(self, uri: str) -> "asyncio.Future[bool]":
        """Listen to a resource until `unwatch`; the future tells whether the server accepts that."""
        watch = self.watches.get(uri)
        if watch is None or watch.is_refused:
            watch = self.watches[uri] = _Watch(0 if watch is None else watch.listeners)
            self._place(uri, watch)
        watch.listeners += 1
        return watch.accepted

    def _place(self, uri: str, watch: _Watch) -> None:
        group = next((group for group in self._groups if len(group.uris) < MAX_URIS), None)
        if group is None and len(self._groups) < MAX_GROUPS:
            group = _Group(self)
            self._groups.append(group)
        if group is None:
            watch.accepted.set_result(False)
        else:
            group.add(uri)

    def unwatch(self, uri: str) -> None:
        """Stop listening, unless there are other listeners."""
        watch = self.watches.get(uri)
        if watch is None:
            return
        watch.listeners -= 1
        if watch.listeners == 0:
            del self.watches[uri]
            watch.accepted.cancel()
            for group in [group for group in self._groups if uri in group.uris]:
                group.remove(uri)
                if not group.uris:
                    self._groups.remove(group)

    def begin(
        self, tasks: TaskScope, hold: Hold, on_update: OnUpdate, lost: Callable[[str], None] | None = None
    ) -> None:
        """Subscribe to all resources on a new connection, with tasks that end with it."""
        self._close()
        self.tasks, self.hold, self._on_update, self._lost = tasks, hold, on_update, lost
        for group in self._groups:
            group.reopen_soon()

    def end(self, tasks: TaskScope) -> None:
        """Stop: these tasks end, and the next connection may come much later."""
        if self.tasks is tasks:
            self._close()
            self.tasks = self.hold = self._on_update = self._lost = None

    def _close(self) -> None:
        for group in self._groups:
            group.close()

    def tell(self, uri: str, subscribed: str) -> None:
        """Report that a resource changed."""
        if self._on_update is not None:
            self._on_update(uri, subscribed)

    def count_unknown(self) -> None:
        """Count an update of a resource that is not part of the subscription."""
        if self._lost is not None:
            self._lost(UNKNOWN_UPDATES)


class _Group:
    """Up to 1,000 resources that share one subscription."""

    def __init__(self, owner: Subscriptions) -> None:
        self.uris: dict[str, None] = {}  # A dict for its order.
        self._owner = owner
        self._current: _Stream | None = None
        """The subscription that the server acknowledged last."""
        self._opening: _Stream | None = None
        """The one that it has yet to acknowledge."""
        self._replaced: list[_Stream] = []
        self._timer: asyncio.TimerHandle | None = None
        self._deadline: asyncio.TimerHandle | None = None

    def add(self, uri: str) -> None:
        """Subscribe to a resource, too."""
        self.uris[uri] = None
        current = self._current
        if current is not None and uri in current.honoured and not current.has_lapsed:
            self._owner.watches[uri].accepted.set_result(True)  # It had listeners until a moment ago.
        else:
            self.reopen_soon()

    def remove(self, uri: str) -> None:
        """Leave a resource out; the group is closed with its last one."""
        del self.uris[uri]
        if self.uris:
            self.reopen_soon(PRUNES_AFTER)
        else:
            self.close()

    def close(self) -> None:
        """End its subscriptions."""
        for timer in (self._timer, self._deadline):
            if timer is not None:
                timer.cancel()
        self._timer = self._deadline = None
        for stream in (self._current, self._opening, *self._replaced):
            self._cancel(stream)
        self._current = self._opening = None
        self._replaced.clear()

    def reopen_soon(self, seconds: float | None = None) -> None:
        """Subscribe to the present set after so many seconds, by default at once but for the debounce."""
        if self._owner.tasks is None or self._opening is not None:
            return  # The next connection, or the answer to the open request, leads here again.
        loop = asyncio.get_running_loop()
        when = loop.time() + (SUBSCRIBE_DEBOUNCE if seconds is None else seconds)
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._reopen)

    def _reopen(self) -> None:
        self._timer = None
        tasks, current = self._owner.tasks, self._current
        if tasks is None or not self.uris or (current is not None and current.honoured == self.uris.keys()):
            return
        stream = self._opening = _Stream(self, tuple(self.uris))
        self._deadline = asyncio.get_running_loop().call_later(ANSWERS_WITHIN, self._fail, stream)
        tasks.start(self._run(stream), key=stream)

    async def _run(self, stream: "_Stream") -> None:
        assert self._owner.hold is not None
        await self._owner.hold(stream.uris, stream)
        # The server does not know subscriptions, or does not know them any more.
        if stream is self._current:
            self._current = None
            self.reopen_soon(RESUBSCRIBES_AFTER)
        self._fail(stream)

    def _cancel(self, stream: "_Stream | None") -> None:
        if stream is not None and self._owner.tasks is not None:
            self._owner.tasks.cancel(stream)

    # --------------------------------------------------------------------------------- what a subscription says

    def acknowledged(self, stream: "_Stream") -> None:
        """The server named the resources that it will tell of."""
        before: Collection[str] = ()
        if stream is self._opening:
            self._answered()
            old, self._current = self._current, stream
            if old is not None:
                # After a subscription that has ended, its resources may have changed without notice.
                before = () if old.has_lapsed else old.honoured
                self._replaced.append(old)
                for stream_before in self._replaced[:-MAX_REPLACED]:
                    self._end_replaced(stream_before)
                asyncio.get_running_loop().call_later(OVERLAP, self._end_replaced, old)
        elif stream is not self._current:
            return
        elif not stream.has_lapsed:
            before = stream.honoured
        stream.has_lapsed = False
        missing = [uri for uri in stream.uris if uri not in stream.honoured]
        for uri in stream.uris:
            watch = self._owner.watches.get(uri) if uri in self.uris and uri in stream.honoured else None
            if watch is not None and not watch.accepted.done():
                watch.accepted.set_result(True)
            elif watch is not None and uri not in before:
                self._owner.tell(uri, uri)  # It may have changed while there was no subscription to it.
        self._continue(stream.uris, missing)

    def ended(self, stream: "_Stream") -> None:
        """The server ended a subscription, which is opened again after a pause."""
        stream.has_lapsed = True
        self._fail(stream)

    def _fail(self, stream: "_Stream") -> None:
        """Give up a subscription that the server refused, or did not acknowledge in time."""
        if stream is self._opening:
            self._answered()
            self._cancel(stream)
            held: Collection[str] = self._current.honoured if self._current is not None else ()
            self._continue(stream.uris, [uri for uri in stream.uris if uri not in held])

    def _answered(self) -> None:
        self._opening = None
        if self._deadline is not None:
            self._deadline.cancel()

    def _continue(self, asked: Collection[str], missing: Collection[str]) -> None:
        """Refuse what the server does not tell of, or ask again later where listeners were promised to hear of it."""
        for uri in missing:
            watch = self._owner.watches.get(uri)
            if uri not in self.uris or watch is None:
                continue
            if watch.is_owed:
                self.reopen_soon(RESUBSCRIBES_AFTER)
            else:
                del self.uris[uri]
                if not watch.accepted.done():
                    watch.accepted.set_result(False)
        if not self.uris:
            self.close()
        elif not self.uris.keys() <= set(asked):
            self.reopen_soon()  # More came while the server had yet to answer.
        elif any(uri not in self.uris for uri in asked if uri not in missing):
            self.reopen_soon(PRUNES_AFTER)

    def _end_replaced(self, stream: "_Stream") -> None:
        if stream in self._replaced:
            self._replaced.remove(stream)
            self._cancel(stream)

    def updated(self, stream: "_Stream", uri: str) -> None:
        """A resource changed."""
        if stream is not self._current and stream not in self._replaced:
            return
        subscribed = stream.subscribed_for(uri)
        if subscribed is None:
            self._owner.count_unknown()
        for each in subscribed or ():
            if each in self.uris:
                self._owner.tell(uri, each)


class _Stream:
    """One `subscriptions/listen` request: the sink for what the server says there."""

    def __init__(self, group: _Group, uris: Sequence[str]) -> None:
        self.uris = uris
        self.honoured: frozenset[str] = frozenset()
        """Those that the server said it will tell of, when it was last asked."""
        self.has_lapsed = False
        """Whether the server ended it since."""
        self._spellings = Spellings(uris)
        self._group = group

    def subscribed_for(self, uri: str) -> Collection[str] | None:
        """The subscribed URIs for a resource that changed: itself, or what it is a part of; None if there are none."""
        is_known = False
        for same in self._spellings.of(uri):
            if found := [each for each in same if each in self._group.uris]:
                return found
            is_known = True
        if is_known:
            return ()  # Without listeners by now.
        return self.uris if len(self.uris) == 1 else None  # Only one can be meant, whatever the server calls it.

    async def emit(self, notification: Notification) -> None:
        """Take what the server says."""
        if notification.method == ACKNOWLEDGED:
            wanted = as_object(notification.params.get("notifications")) or {}
            said = as_array(wanted.get("resourceSubscriptions")) or []
            self.honoured = frozenset(uri for uri in said if isinstance(uri, str)).intersection(self.uris)
            self._group.acknowledged(self)
        elif notification.method == "notifications/resources/updated":
            uri = notification.params.get("uri")
            if isinstance(uri, str):
                self._group.updated(self, uri)

    async def ask(self, questions: Questions) -> Answers:
        """Refuse."""
        raise InputRefused("A subscription cannot ask questions.")

    def ended(self) -> None:
        """The server ended it."""
        self._group.ended(self)
