"""One request on its way to a server: who asked, and what has come for it."""

import asyncio
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from time import monotonic
from typing import Final

from sluicegate.errors import UpstreamClosed, UpstreamError
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Notification, Reply
from sluicegate.protocol.spelling import Spellings
from sluicegate.wire import Wire

FULL: Final = 4096
"""Notices that may wait for one slow client before the server has to wait."""

FULL_BYTES: Final = 1 << 20
"""Bytes of the lines they came in that may wait, for a thousand notices can be a gigabyte."""

LONGEST_HOLD_UP: Final = 1.0
"""Seconds that the calls of others wait for a slow client, whose notices are then passed over (threats R24)."""

Item = Notification | Reply | UpstreamError

_NOTHING: Final[frozenset[str]] = frozenset()
_NO_URIS: Final = Spellings()


class Waiter:
    """An inbox: notices and the reply leave it in the order they came, so that a slow client holds up nobody else."""

    __slots__ = ("_hand", "_size", "exchange", "holds_up", "inbox", "is_passed_over", "since", "uris", "wanted")

    def __init__(self, exchange: Exchange | None) -> None:
        self.exchange = exchange
        self.since = monotonic()
        """When the server was last told something for its sake: what is wanted, or the answer to a question."""
        self.wanted = _NOTHING
        self.uris = _NO_URIS
        self.holds_up = False
        """Whether the server has to wait because of this one."""
        self.is_passed_over = False
        """Whether notices for it are dropped until it has room again, because others waited for it too long."""
        self.inbox: deque[tuple[Item, int]] = deque()
        self._size = 0
        self._hand: asyncio.Future[Item] | None = None

    def post(self, item: Item, size: int = 0) -> bool:
        """Put something in that came in so many bytes, or hand it to whoever waits for it; whether it is full now."""
        hand = self._hand
        if hand is not None:
            self._hand = None
            if not hand.done():  # Else whoever waited was cancelled.
                hand.set_result(item)
                return False
        self.inbox.append((item, size))
        self._size += size
        return self._size >= FULL_BYTES or len(self.inbox) >= FULL

    def take(self) -> Item:
        """The oldest item, if there is one in the inbox."""
        item, size = self.inbox.popleft()
        self._size -= size
        return item

    def coming(self, loop: asyncio.AbstractEventLoop) -> "asyncio.Future[Item]":
        """The next item, if the inbox is empty."""
        hand = self._hand = loop.create_future()
        return hand

    async def next(self) -> Item:
        """The oldest item, as soon as there is one."""
        return self.take() if self.inbox else await self.coming(asyncio.get_running_loop())

    @property
    def is_full(self) -> bool:
        """Whether so much waits here that nothing more should come."""
        return self._size >= FULL_BYTES or len(self.inbox) >= FULL

    @property
    def is_half_empty(self) -> bool:
        """Whether more may come again."""
        return len(self.inbox) <= FULL // 2 and self._size <= FULL_BYTES // 2

    def wants(self, notification: Notification) -> bool:
        """Whether a change belongs to this subscription; an update may name a part of it, or spell it otherwise."""
        if notification.method in self.wanted:
            return True
        uri = notification.params.get("uri")
        if notification.method != "notifications/resources/updated" or not isinstance(uri, str):
            return False
        return any(self.uris.of(uri))


class Brake:
    """Lets a server wait for as long as somebody is full; not for long while others wait for its answers."""

    def __init__(self, under_way: Iterable[Waiter]) -> None:
        """`under_way` are all who wait for the server."""
        self._under_way = under_way
        self._wire: Wire | None = None
        self._full: dict[Waiter, float] = {}  # and since when
        self._look: asyncio.TimerHandle | None = None

    def engage(self, wire: Wire) -> None:
        """Hold up the server at this wire from now on."""
        self._wire = wire

    def hold(self, waiter: Waiter) -> bool:
        """Let the server wait until there is room for this one again; False if it does already, or is gone."""
        if self._wire is None or waiter.holds_up:
            return False
        waiter.holds_up = True
        self._full[waiter] = monotonic()
        self._wire.pause_reading()
        if self._look is None:
            self._look_later()
        return True

    def _look_later(self) -> None:
        self._look = asyncio.get_running_loop().call_later(LONGEST_HOLD_UP, self._pass_over)

    def _pass_over(self) -> None:
        """Go on without those who have been full for long, if others wait: one who takes nothing must not stop them."""
        self._look = None
        if any(_is_call(waiter) and not waiter.holds_up for waiter in self._under_way):
            # Not who was full just now for a moment, as every quick server makes its callers be.
            latest = monotonic() - LONGEST_HOLD_UP
            for waiter in [each for each, since in self._full.items() if since <= latest and _is_call(each)]:
                waiter.is_passed_over = True
                self.release(waiter)
        if self._full and self._look is None:
            self._look_later()

    def ease(self, waiter: Waiter) -> None:
        """Wait no more because of this one, if it has room again."""
        if waiter.is_half_empty:
            self.release(waiter)

    def release(self, waiter: Waiter) -> None:
        """Wait no more because of this one."""
        if waiter.holds_up:
            waiter.holds_up = False
            del self._full[waiter]
            if not self._full:
                self._look_no_more()
                if self._wire is not None:
                    self._wire.resume_reading()

    def _look_no_more(self) -> None:
        if self._look is not None:
            self._look.cancel()
            self._look = None

    async def drained(self) -> None:
        """Return when the server has read enough of what was written to it, or is gone."""
        if self._wire is not None:
            with suppress(UpstreamClosed):
                await self._wire.drain()

    def disengage(self) -> None:
        """Hold up nobody any more; who was held up stays so."""
        self._wire = None
        self._look_no_more()


def _is_call(waiter: Waiter) -> bool:
    # Who listens for changes waits for no answer, and must not miss any.
    return waiter.exchange is not None and waiter.exchange.method != "subscriptions/listen"
