"""A server, of 2026-07-28 unless told, that a test plays itself, answer by answer."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager

from sluicegate.exchange import Exchange, Host
from sluicegate.protocol.message import Notification, Params, Reply, Result
from sluicegate.protocol.modern_era import ACKNOWLEDGED, Discovery, complete
from tests.polling import until as until

Answer = Callable[[Exchange], Awaitable[Reply]]


class Connected:
    """One connection; `hang_up` ends it."""

    def __init__(self, answer: Answer, capabilities: Mapping[str, object], version: str, host: Host) -> None:
        self.discovery = Discovery(version=version, capabilities=dict(capabilities))
        self.host = host
        self._answer = answer
        self._is_over = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> Reply:
        return await self._answer(exchange)

    async def wait_closed(self) -> None:
        await self._is_over.wait()

    def hang_up(self) -> None:
        self._is_over.set()


class Scripted:
    """An upstream whose connections answer by one function; while `way` is not set, it cannot be connected to."""

    def __init__(self, answer: Answer, capabilities: Mapping[str, object], version: str = "2026-07-28") -> None:
        self.attempts = 0
        self.connections: list[Connected] = []
        self.way = asyncio.Event()
        self.way.set()
        self._answer = answer
        self._capabilities = capabilities
        self._version = version

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Connected]:
        self.attempts += 1
        await self.way.wait()
        connection = Connected(self._answer, self._capabilities, self._version, host)
        self.connections.append(connection)
        yield connection


def tools(*names: str, ttl_ms: int = 0) -> Result:
    """The answer to `tools/list`."""
    listed = [{"name": name, "inputSchema": {"type": "object"}} for name in names]
    return Result(complete({"tools": listed}, ttl_ms=ttl_ms, scope="public"))


async def acknowledge(exchange: Exchange) -> None:
    """Honour all that a `subscriptions/listen` wants."""
    wanted: Params = {"notifications": exchange.params["notifications"]}
    await exchange.emit(Notification(ACKNOWLEDGED, wanted))
