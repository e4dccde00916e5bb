"""The messages of a server for one request, and backpressure if its caller takes them too slowly."""

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from typing import Final

from sluicegate.errors import UpstreamClosed, UpstreamError
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Notification, Reply
from sluicegate.protocol.uri_normalize import Spellings
from sluicegate.runtime.byte_channel import Wire

MAX_ITEMS: Final = 4096
"""Notifications that wait for one slow client before we stop reading from the server."""

MAX_BYTES: Final = 1 << 20
"""The limit in bytes, because a thousand notifications can be a gigabyte."""

MAX_READ_STOP: Final = 0.5
"""Seconds that other calls wait for a slow client. Then its notifications are dropped (threats R24)."""

SHORT_READ_STOP: Final = 0.02
SLOW_CLIENTS: Final = 10.0
"""Seconds after such a client in which others wait for the next one only for `SHORT_READ_STOP`: slow clients fill their
inboxes one after the other, and all of them together may delay the others by no more than a second."""

_CLOCK_STEP: Final = 0.001

Item = Notification | Reply | UpstreamError

_NOTHING: Final[frozenset[str]] = frozenset()
_NO_URIS: Final = Spellings()


class Inbox:
    """The notifications and the reply for one request, in the order they came."""

    __slots__ = ("_next", "_size", "exchange", "is_dropping", "is_pausing", "items", "since", "uris", "wanted")

    def __init__(self, exchange: Exchange | None) -> None:
        self.exchange = exchange
        self.since = monotonic()
        """When the server last got something for this request: the request itself, or the answer to a question."""
        self.wanted = _NOTHING
        self.uris = _NO_URIS
        self.is_pausing = False
        """Whether we read nothing from the server because this inbox is full."""
        self.is_dropping = False
        """Whether notifications are dropped until there is room, because other calls waited too long."""
        self.items: deque[tuple[Item, int]] = deque()
        self._size = 0
        self._next: asyncio.Future[Item] | None = None

    def put(self, item: Item, size: int = 0) -> bool:
        """Add an item that came in `size` bytes; whether the inbox is full now."""
        waiting = self._next
        if waiting is not None:
            self._next = None
            if not waiting.done():  # Otherwise the reader was cancelled.
                waiting.set_result(item)
                return False
        self.items.append((item, size))
        self._size += size
        return self._size >= MAX_BYTES or len(self.items) >= MAX_ITEMS

    def get_nowait(self) -> Item:
        """The oldest item. Raises IndexError if there is none."""
        item, size = self.items.popleft()
        self._size -= size
        return item

    def next_future(self, loop: asyncio.AbstractEventLoop) -> "asyncio.Future[Item]":
        """A future for the next item; only valid while the inbox is empty."""
        future = self._next = loop.create_future()
        return future

    async def get(self) -> Item:
        """The oldest item, as soon as there is one."""
        return self.get_nowait() if self.items else await self.next_future(asyncio.get_running_loop())

    @property
    def oldest(self) -> object:
        """The item that is to be taken next, for comparison; None if there is none."""
        return self.items[0] if self.items else None

    @property
    def is_full(self) -> bool:
        return self._size >= MAX_BYTES or len(self.items) >= MAX_ITEMS

    @property
    def is_half_empty(self) -> bool:
        return len(self.items) <= MAX_ITEMS // 2 and self._size <= MAX_BYTES // 2

    def wants(self, notification: Notification) -> bool:
        """Whether a change belongs to this subscription; its URI may name a sub-resource or be spelled otherwise."""
        if notification.method in self.wanted:
            return True
        uri = notification.params.get("uri")
        if notification.method != "notifications/resources/updated" or not isinstance(uri, str):
            return False
        return any(self.uris.of(uri))


class Backpressure:
    """Stops reading from a server while an inbox is full, but only briefly while other calls wait for the server."""

    def __init__(self, pending: Iterable[Inbox]) -> None:
        """`pending` are the inboxes of all requests to the server."""
        self._pending = pending
        self._wire: Wire | None = None
        self._full: dict[Inbox, tuple[float, object]] = {}  # Since when, and the item that is to be taken next.
        self._short_until = 0.0
        self._check: asyncio.TimerHandle | None = None

    def attach(self, wire: Wire) -> None:
        """Pause and resume this wire from now on."""
        self._wire = wire

    def hold(self, inbox: Inbox) -> bool:
        """Read nothing until this inbox has room; False if it holds already, or the server is gone."""
        if self._wire is None or inbox.is_pausing:
            return False
        inbox.is_pausing = True
        self._full[inbox] = monotonic(), inbox.oldest
        self._wire.pause_reading()
        if self._check is None:
            self._check_later()
        return True

    @property
    def _patience(self) -> float:
        return SHORT_READ_STOP if monotonic() < self._short_until else MAX_READ_STOP

    def _check_later(self) -> None:
        self._check = asyncio.get_running_loop().call_later(self._patience, self._drop_slow)

    def _drop_slow(self) -> None:
        """If other calls wait, drop notifications for inboxes from which nothing was taken for long."""
        self._check = None
        now, others_wait = monotonic(), any(_is_call(inbox) and not inbox.is_pausing for inbox in self._pending)
        latest = now - self._patience + _CLOCK_STEP
        for inbox, (since, oldest) in list(self._full.items()):
            if inbox.oldest is not oldest:
                # Every fast server fills the inboxes of its callers now and then; this one is being emptied.
                self._full[inbox] = now, inbox.oldest
            elif others_wait and since <= latest and _is_call(inbox):
                inbox.is_dropping = True
                self._short_until = now + SLOW_CLIENTS
                self.release(inbox)
        if self._full and self._check is None:
            self._check_later()

    def release_if_room(self, inbox: Inbox) -> None:
        if inbox.is_half_empty:
            self.release(inbox)

    def release(self, inbox: Inbox) -> None:
        """Read again, as far as this inbox is concerned."""
        if inbox.is_pausing:
            inbox.is_pausing = False
            del self._full[inbox]
            if not self._full:
                self._cancel_check()
                if self._wire is not None:
                    self._wire.resume_reading()

    def _cancel_check(self) -> None:
        if self._check is not None:
            self._check.cancel()
            self._check = None

    async def wait_drained(self) -> None:
        """Return when the server has read enough of the data that was written to it, or is gone."""
        if self._wire is not None:
            with suppress(UpstreamClosed):
                await self._wire.drain()

    def detach(self) -> None:
        """Leave the wire as it is, paused or not."""
        self._wire = None
        self._cancel_check()


def _is_call(inbox: Inbox) -> bool:
    # Subscriptions wait for no answer and must not miss a change.
    return inbox.exchange is not None and inbox.exchange.method != "subscriptions/listen"
