"""Listeners to changes, and the notices that each of them has yet to receive.

A notice says that something changed, not what. So equal notices that wait for a slow listener become one, and their
number is bounded. Notices may come from any thread: tools that are plain functions run in one.
"""

import asyncio
import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from types import TracebackType
from typing import Final, Generic, TypeVar, cast

import msgspec

from sluicegate.errors import InvalidParams
from sluicegate.protocol.message import Notification, Params
from sluicegate.protocol.methods import LIST_CHANGES

RESOURCE_UPDATED: Final = "notifications/resources/updated"

T = TypeVar("T")

MAX_URIS: Final = 1000
"""Resources that one listener may subscribe to."""

MAX_PENDING: Final = 256
"""Sub-resources that wait in a listener; beyond that, the subscribed resource is named in their place."""

LISTS_PACE: Final = 1.0
"""Seconds between two notices of the same list to a client of many servers."""


class Filter(msgspec.Struct, frozen=True):
    """The changes that a listener asked for: lists by the method of their notification, resources by URI."""

    lists: Collection[str] = ()
    uris: Sequence[str] = ()

    def wire(self) -> Params:
        """The filter for an acknowledgement: only the parts that the server honours."""
        honoured: Params = {flag: True for flag, method in LIST_CHANGES.items() if method in self.lists}
        return honoured | ({"resourceSubscriptions": list(self.uris)} if self.uris else {})


def read_filter(params: Mapping[str, object]) -> Filter:
    """The filter of a `subscriptions/listen` request; unknown members are ignored.

    Raises:
        InvalidParams: it is missing, has a member of the wrong type, or too many URIs.
    """
    wanted = params.get("notifications")
    if not isinstance(wanted, dict):
        raise InvalidParams("Invalid params: notifications must be an object that says what to listen to.")
    members = cast(Params, wanted)
    for flag in LIST_CHANGES:
        if not isinstance(members.get(flag, False), bool):
            raise InvalidParams(f"Invalid params: {flag} must be true or false.")
    uris: object = members.get("resourceSubscriptions", [])
    if not isinstance(uris, list) or not all(isinstance(uri, str) for uri in cast(list[object], uris)):
        raise InvalidParams("Invalid params: resourceSubscriptions must be a list of URIs.")
    if len(cast(list[str], uris)) > MAX_URIS:
        raise InvalidParams(f"Invalid params: resourceSubscriptions holds no more than {MAX_URIS} URIs.")
    lists = frozenset(method for flag, method in LIST_CHANGES.items() if members.get(flag))
    return Filter(lists, tuple(dict.fromkeys(cast(list[str], uris))))


# Not `uri_normalize.Spellings`: that compares the spellings of a fixed set, which servers choose. Here URIs are ours,
# spelled in one way, and entries come and go.
class Subtrees(Generic[T]):
    """Values by URI, found by that URI and by all paths below it."""

    def __init__(self) -> None:
        self._values: dict[str, dict[T, None]] = {}
        self._longest = 0

    def add(self, uri: str, value: T) -> None:
        """Add a value for a URI and all paths below it."""
        for key in _keys(uri):
            self._values.setdefault(key, {})[value] = None
            self._longest = max(self._longest, len(key))

    def remove(self, uri: str, value: T) -> None:
        """Remove a value. Raises KeyError if it is not there."""
        for key in _keys(uri):
            values = self._values[key]
            del values[value]
            if not values:
                del self._values[key]

    def of(self, uri: str) -> list[T]:
        """The values of a URI and of all that it is below."""
        found = list(self._values.get(uri, ())) if uri[-1:] != "/" else []
        # A server's URI may be a megabyte of slashes: only as much as the longest key matters.
        end = uri.find("/", 0, self._longest) + 1
        while end:
            found += self._values.get(uri[:end], ())
            end = uri.find("/", end, self._longest) + 1
        return found


def _keys(uri: str) -> Sequence[str]:
    """The keys of a URI. A key that ends with a slash stands for all URIs below it, other keys also for themselves."""
    below = uri.rstrip("/") + "/"
    return (below,) if uri.endswith("/") else (uri, below)


class Listener:
    """One listener. It collects changes from the start of its `with` block; `wait` returns them."""

    def __init__(self, filter: Filter, changes: "Changes") -> None:
        self.filter = filter
        self._changes = changes
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        # A dict for its order: method and URI of each notice that has not been handed over.
        self._pending: dict[tuple[str, str | None], None] = {}
        self._lock = threading.Lock()
        self._closed = False
        self._leaving: str | None = None  # The list change that was returned last.
        self._not_before: dict[str, float] = {}

    def __enter__(self) -> "Listener":
        self._changes.begin(self)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._changes.end(self)

    async def wait(self) -> Notification | None:
        """The next notice, as soon as there is one; None once it is closed and all notices were returned.

        The first change of a list is returned at once; further ones wait for the pace and become one notice.
        """
        if self._leaving is not None:  # It was sent: the caller asks for the next one.
            self._not_before[self._leaving] = self._loop.time() + self._changes.pace
            self._leaving = None
        while True:
            with self._lock:
                now = self._loop.time()
                ready = (each for each in self._pending if self._closed or self._not_before.get(each[0], now) <= now)
                if (notice := next(ready, None)) is not None:
                    del self._pending[notice]
                    method, uri = notice
                    self._leaving = method if uri is None else None
                    return Notification(method, {} if uri is None else {"uri": uri})
                if self._closed:
                    return None
                self._woken.clear()
                later = min((self._not_before[method] for method, _ in self._pending), default=None)
            timer = None if later is None else self._loop.call_at(later, self._woken.set)
            try:
                await self._woken.wait()
            finally:
                if timer is not None:
                    timer.cancel()

    def narrow(self, filter: Filter) -> None:
        """Restrict it to this filter, also for notices that wait already."""
        if filter != self.filter:
            self._changes.narrow(self, filter)

    def keep(self, concerns: Callable[[str, str | None], bool]) -> None:
        """Drop the waiting notices that do not concern it."""
        with self._lock:
            self._pending = dict.fromkeys(notice for notice in self._pending if concerns(*notice))

    def note(self, method: str, uri: str | None = None, subscribed: str | None = None) -> None:
        """Add a notice; for a resource also the subscribed URI. From any thread."""
        with self._lock:
            self._pending[method, subscribed if len(self._pending) >= MAX_PENDING else uri] = None
        self._wake()

    def close(self) -> None:
        """Let `wait` return None after the last notice. From any thread."""
        self._closed = True
        self._wake()

    def _wake(self) -> None:
        try:
            self._loop.call_soon_threadsafe(self._woken.set)
        except RuntimeError:
            pass  # Its loop is closed.


class Changes:
    """The listeners to one catalog."""

    def __init__(self, pace: float = 0.0) -> None:
        """`pace` is the number of seconds between two notices of the same list to one listener."""
        self.pace = pace
        self._listeners: set[Listener] = set()
        self._subscriptions = Subtrees[tuple[Listener, int]]()
        """Listeners, each with the index in its filter."""
        self._lock = threading.Lock()  # Acquired before the lock of a listener, never after it.
        self._closed = False

    def listener(self, filter: Filter) -> Listener:
        """A listener to what the filter names, for a `with`."""
        listener = Listener(filter, self)
        if self._closed:
            listener.close()
        return listener

    def begin(self, listener: Listener) -> None:
        """Start to notify it."""
        with self._lock:
            self._listeners.add(listener)
            self._subscribe(listener)

    def end(self, listener: Listener) -> None:
        """Stop notifying it."""
        with self._lock:
            self._listeners.discard(listener)
            self._unsubscribe(listener)

    def narrow(self, listener: Listener, filter: Filter) -> None:
        """Notify it only of what this filter names."""
        with self._lock:
            self._unsubscribe(listener)
            listener.filter = filter
            self._subscribe(listener)
            listener.keep(partial(self._concerns, listener))

    def _concerns(self, listener: Listener, method: str, uri: str | None) -> bool:
        if uri is None:
            return method in listener.filter.lists
        return any(each is listener for each, _ in self._subscriptions.of(uri))

    def _subscribe(self, listener: Listener) -> None:
        for place, uri in enumerate(listener.filter.uris):
            self._subscriptions.add(uri, (listener, place))

    def _unsubscribe(self, listener: Listener) -> None:
        for place, uri in enumerate(listener.filter.uris):
            self._subscriptions.remove(uri, (listener, place))

    def note(self, method: str, uri: str | None = None) -> None:
        """Notify all listeners that asked for this. From any thread."""
        with self._lock:
            if uri is None:
                for listener in self._listeners:
                    if method in listener.filter.lists:
                        listener.note(method)
                return
            places: dict[Listener, int] = {}
            for listener, place in self._subscriptions.of(uri):
                places[listener] = min(place, places.get(listener, place))
            for listener, place in places.items():
                listener.note(method, uri, listener.filter.uris[place])

    def close(self) -> None:
        """Close all listeners, also future ones."""
        self._closed = True
        for listener in list(self._listeners):
            listener.close()
