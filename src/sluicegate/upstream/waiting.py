"""One request on its way to a server: who asked, and what has come for it."""

import asyncio
from collections import deque
from typing import Final

from sluicegate.errors import UpstreamError
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Notification, Reply

FULL: Final = 1024
"""Notices that may wait for one slow client before the server has to wait."""

FULL_BYTES: Final = 1 << 20
"""Bytes of the lines they came in that may wait, for a thousand notices can be a gigabyte."""

Item = Notification | Reply | UpstreamError


class Waiter:
    """An inbox: notices and the reply leave it in the order they came, so that a slow client holds up nobody else."""

    __slots__ = ("_size", "_wake", "exchange", "inbox", "uris", "wanted")

    def __init__(self, exchange: Exchange | None) -> None:
        self.exchange = exchange
        self.inbox: deque[tuple[Item, int]] = deque()
        self.wanted: frozenset[str] = frozenset()
        self.uris: frozenset[str] = frozenset()
        self._size = 0
        self._wake: asyncio.Future[None] | None = None

    def post(self, item: Item, size: int = 0) -> None:
        """Put something in that came in so many bytes; wakes whoever waits for it."""
        self.inbox.append((item, size))
        self._size += size
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def next(self) -> Item:
        """The oldest item, as soon as there is one."""
        if not self.inbox:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        item, size = self.inbox.popleft()
        self._size -= size
        return item

    @property
    def is_full(self) -> bool:
        """Whether so much waits here that nothing more should come."""
        return len(self.inbox) >= FULL or self._size >= FULL_BYTES

    @property
    def is_half_empty(self) -> bool:
        """Whether more may come again."""
        return len(self.inbox) <= FULL // 2 and self._size <= FULL_BYTES // 2

    def wants(self, notification: Notification) -> bool:
        """Whether a change belongs to this subscription; an update may name a part of what was subscribed."""
        if notification.method in self.wanted:
            return True
        uri = notification.params.get("uri")
        if notification.method != "notifications/resources/updated" or not isinstance(uri, str):
            return False
        return any(
            uri == whole or (uri.startswith(whole) and (whole.endswith("/") or uri[len(whole)] in "/#?"))
            for whole in self.uris
        )
