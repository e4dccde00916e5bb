"""Clients that connect to a Unix socket: the commands of the user who runs the gateway."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sluicegate.downstream.duplex import INPUT_TIMEOUT, DuplexServer, serve_duplex
from sluicegate.errors import STOPPED
from sluicegate.exchange import Handler
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.runtime.unix_socket import SocketWire, listening


class SocketServer:
    """The clients of one socket."""

    def __init__(self, handler: Handler, hold: float) -> None:
        self._handler = handler
        self._hold = hold
        self._clients: dict[SocketWire, DuplexServer] = {}

    def end_subscriptions(self) -> None:
        """End the subscriptions of all clients, which would go on for ever."""
        for client in self._clients.values():
            client.end_subscriptions()

    def give_up(self) -> None:
        """Answer all requests in progress that we are about to stop (R29)."""
        for client in self._clients.values():
            client.stop(STOPPED)

    async def serve(self, wire: SocketWire) -> None:

        def attach(client: DuplexServer) -> None:
            self._clients[wire] = client
            wire.attach(client)

        try:
            await serve_duplex(self._handler, wire, attach, hold=self._hold)
        finally:
            self._clients.pop(wire, None)
            wire.close()


@asynccontextmanager
async def serve_socket(handler: Handler, path: str, *, hold: float = INPUT_TIMEOUT) -> AsyncGenerator[SocketServer]:
    """Answer all clients that connect to the path, for as long as the `async with` lasts.

    `hold` is how many seconds a call waits for a client that it has asked something.

    Raises:
        ConfigError: another process listens at the path, or the socket cannot be made.
    """
    async with TaskScope() as tasks:
        clients = SocketServer(handler, hold)

        def connected(wire: SocketWire) -> None:
            tasks.start(clients.serve(wire))

        async with listening(path, connected):
            try:
                yield clients
            finally:
                tasks.wind_up()
