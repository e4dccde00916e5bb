"""Clients that come by a Unix socket: the commands of whoever runs the gateway."""

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from sluicegate.claims import leave
from sluicegate.concurrency import TaskScope
from sluicegate.downstream.duplex import LONGEST_HOLD, serve_duplex
from sluicegate.errors import ConfigError
from sluicegate.exchange import Caller, Handler
from sluicegate.sockets import SocketWire, listen

log = logging.getLogger("sluicegate")

GLANCE: float = 2.0
"""Seconds between two looks at whether the socket is still there."""


@asynccontextmanager
async def serve_socket(
    handler: Handler, path: str, *, caller: Caller | None = None, hold: float = LONGEST_HOLD
) -> AsyncGenerator[None]:
    """Answer everybody who comes to the path, for as long as the `async with` lasts.

    `hold` is how many seconds a call waits for a client that it has asked something.

    Raises:
        ConfigError: the path cannot be had.
    """
    async with TaskScope() as tasks:

        def connected(wire: SocketWire) -> None:
            tasks.start(_serve(handler, wire, caller, hold))

        place = _Place(path, connected)
        await place.take()
        tasks.start(place.keep(), key=place)
        try:
            yield
        finally:
            place.leave()
            tasks.wind_up()


class _Place:
    """A path that we listen at, and go on to listen at when somebody clears the folder away, as a logout may."""

    def __init__(self, path: str, connected: Callable[[SocketWire], None]) -> None:
        self._path = path
        self._connected = connected
        self._server: asyncio.Server | None = None

    async def take(self) -> None:
        """Listen.

        Raises:
            ConfigError: the path cannot be had.
        """
        self._server = await listen(self._path, self._connected)

    async def keep(self) -> None:
        """Listen again whenever the socket is gone, until cancelled."""
        is_told = False
        while True:
            await asyncio.sleep(GLANCE)
            if self._is_there():
                continue
            self._close()
            try:
                await self.take()
            except ConfigError as problem:
                if not is_told:
                    log.warning("The control socket is gone, so that no command reaches this gateway: %s", problem)
                is_told = True
            else:
                log.warning("The control socket was taken away, and is there again: %s", self._path)
                is_told = False

    def _is_there(self) -> bool:
        return self._server is not None and os.path.exists(self._path)

    def leave(self) -> None:
        """Listen no more."""
        if self._server is not None:  # Else what is there now is another's.
            self._close()
            leave(self._path)

    def _close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


async def _serve(handler: Handler, wire: SocketWire, caller: Caller | None, hold: float) -> None:
    try:
        await serve_duplex(handler, wire, wire.attach, caller=caller, hold=hold)
    finally:
        wire.close()
