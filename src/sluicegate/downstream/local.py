"""Clients that come by a Unix socket: the commands of whoever runs the gateway."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sluicegate.claims import leave
from sluicegate.concurrency import TaskScope
from sluicegate.downstream.duplex import serve_duplex
from sluicegate.exchange import Caller, Handler
from sluicegate.sockets import SocketWire, listen


@asynccontextmanager
async def serve_socket(handler: Handler, path: str, *, caller: Caller | None = None) -> AsyncGenerator[None]:
    """Answer everybody who comes to the path, for as long as the `async with` lasts.

    Raises:
        ConfigError: the path cannot be had.
    """
    async with TaskScope() as tasks:

        def connected(wire: SocketWire) -> None:
            tasks.start(_serve(handler, wire, caller))

        server = await listen(path, connected)
        try:
            yield
        finally:
            server.close()
            leave(path)
            tasks.wind_up()


async def _serve(handler: Handler, wire: SocketWire, caller: Caller | None) -> None:
    try:
        await serve_duplex(handler, wire, wire.attach, caller=caller)
    finally:
        wire.close()
