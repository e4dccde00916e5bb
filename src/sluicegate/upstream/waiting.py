"""One request on its way to a server: who asked, and what has come for it."""

import asyncio
from collections import deque
from typing import Final

from sluicegate.errors import UpstreamError
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Notification, Reply

FULL: Final = 1024
"""Notices that may wait for one slow client before the server has to wait."""

Item = Notification | Reply | UpstreamError


class Waiter:
    """An inbox: notices and the reply leave it in the order they came, so that a slow client holds up nobody else."""

    __slots__ = ("_wake", "exchange", "inbox", "uris", "wanted")

    def __init__(self, exchange: Exchange | None) -> None:
        self.exchange = exchange
        self.inbox: deque[Item] = deque()
        self.wanted: frozenset[str] = frozenset()
        self.uris: frozenset[str] = frozenset()
        self._wake: asyncio.Future[None] | None = None

    def post(self, item: Item) -> None:
        """Put something in; wakes whoever waits for it."""
        self.inbox.append(item)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    async def next(self) -> Item:
        """The oldest item, as soon as there is one."""
        if not self.inbox:
            self._wake = asyncio.get_running_loop().create_future()
            await self._wake
        return self.inbox.popleft()

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
