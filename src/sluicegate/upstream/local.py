"""A server of this machine behind a Unix socket: a running gateway, met by its own commands."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from sluicegate.concurrency import TaskScope
from sluicegate.exchange import Host
from sluicegate.sockets import dial
from sluicegate.upstream.link import Link


class SocketUpstream:
    """A path where somebody listens who speaks 2026-07-28, as we do."""

    def __init__(self, path: str, *, name: str = "The gateway", open_timeout: float = 10.0) -> None:
        self._path = path
        self._name = name
        self._open_timeout = open_timeout

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Link]:
        """A connection for as long as the `async with` lasts."""
        wire = await dial(self._path)
        try:
            async with TaskScope() as tasks:
                link = Link(self._name, host, tasks)
                wire.attach(link)
                try:
                    await link.open(wire, "modern", probe_timeout=self._open_timeout, open_timeout=self._open_timeout)
                    yield link
                finally:
                    link.close()
                    tasks.cancel_all()
        finally:
            wire.close()
