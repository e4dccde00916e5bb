"""Clients that connect to a Unix socket: the commands of the user who runs the gateway, and relayed stdio clients."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final

from sluicegate.downstream.duplex import INPUT_TIMEOUT, DuplexServer, serve_duplex
from sluicegate.errors import STOPPED
from sluicegate.exchange import Handler
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.runtime.unix_socket import SocketWire, listening

FIRST_LINE_TIMEOUT: Final = 10.0
MAX_FIRST_LINE: Final = 4096

Greet = Callable[[bytes], tuple[Handler | None, bytes]]
"""Returns the handler for a client by its first line, None if it is refused, and the line to answer it with."""


class SocketServer:
    """The clients of one socket."""

    def __init__(self, hold: float, changed: Callable[[int], None] | None) -> None:
        self._hold = hold
        self._changed = changed
        self._clients: dict[SocketWire, DuplexServer] = {}

    def end_subscriptions(self) -> None:
        """End the subscriptions of all clients, which would go on for ever."""
        for client in self._clients.values():
            client.end_subscriptions()

    def give_up(self) -> None:
        """Answer all requests in progress that we are about to stop (R29)."""
        for client in self._clients.values():
            client.stop(STOPPED)

    async def serve(self, wire: SocketWire, target: Handler, greet: Greet | None) -> None:
        """Answer a client until it hangs up."""

        def attach(client: DuplexServer) -> None:
            self._clients[wire] = client
            self._report()
            wire.attach(client)

        try:
            handler = target if greet is None else await _greeted(wire, greet)
            if handler is not None:
                await serve_duplex(handler, wire, attach, hold=self._hold)
        finally:
            if self._clients.pop(wire, None) is not None:
                self._report()
            wire.close()

    def _report(self) -> None:
        if self._changed is not None:
            self._changed(len(self._clients))


class _FirstLine:
    """Receives the first line of a client, which sends nothing more before it is answered."""

    def __init__(self) -> None:
        self.data = b""
        self.is_complete = asyncio.Event()

    def received(self, data: bytes) -> None:
        self.data += data
        if self.data.endswith(b"\n") or len(self.data) > MAX_FIRST_LINE:
            self.is_complete.set()

    def ended(self) -> None:
        self.is_complete.set()


async def _greeted(wire: SocketWire, greet: Greet) -> Handler | None:
    first = _FirstLine()
    wire.attach(first)
    try:
        async with asyncio.timeout(FIRST_LINE_TIMEOUT):
            await first.is_complete.wait()
    except TimeoutError:
        return None
    handler, answer = greet(first.data)
    wire.write(answer)
    return handler


@asynccontextmanager
async def serve_socket(
    handler: Handler,
    path: str,
    *,
    hold: float = INPUT_TIMEOUT,
    greet: Greet | None = None,
    changed: Callable[[int], None] | None = None,
) -> AsyncGenerator[SocketServer]:
    """Answer all clients that connect to the path, for as long as the `async with` lasts.

    Args:
        hold: how many seconds a call waits for a client that it has asked something.
        greet: called with the first line of each client; returns the handler to use instead.
        changed: called with the number of clients whenever one comes or leaves.

    Raises:
        ConfigError: another process listens at the path, or the socket cannot be made.
    """
    async with TaskScope() as tasks:
        clients = SocketServer(hold, changed)

        def connected(wire: SocketWire) -> None:
            tasks.start(clients.serve(wire, handler, greet))

        async with listening(path, connected):
            try:
                yield clients
            finally:
                tasks.wind_up()
