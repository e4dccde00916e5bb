"""Hubs and handlers of this process, so that clients and other hubs can connect to them."""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Protocol, TypeGuard, cast, runtime_checkable

from sluicegate.errors import UpstreamUnavailable
from sluicegate.exchange import Caller, Connection, Exchange, Handler, Host, Upstream
from sluicegate.protocol.message import Params, Reply
from sluicegate.protocol.modern_era import ClientProfile, Discovery, judge_probe
from sluicegate.protocol.versions import LATEST_VERSION
from sluicegate.runtime.lifespan import Lifespan, opened
from sluicegate.runtime.task_scope import forever


@runtime_checkable
class LocalHub(Lifespan, Protocol):
    """A handler with a lifespan, such as a `Hub`."""

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]: ...
    async def wait_closed(self) -> None: ...


def is_local_hub(target: object) -> TypeGuard[LocalHub]:
    """Whether a target is a hub, and not the class of one."""
    return isinstance(target, LocalHub) and not isinstance(target, type)


def as_upstream(target: Upstream | LocalHub) -> Upstream:
    """The target, with a hub wrapped so that it can be connected to."""
    return InProcess(target) if is_local_hub(target) else cast(Upstream, target)


class InProcess:
    """A hub as an `Upstream`: a connection opens the hub if it is not open yet, and then closes it at its end."""

    def __init__(self, hub: LocalHub, handler: Handler | None = None) -> None:
        """`handler` is in front of the hub, such as that of a gateway."""
        self._hub = hub
        self._handler: Handler = hub if handler is None else handler

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Connection]:
        """A connection to the hub, after its servers had a few seconds to start."""
        async with opened(self._hub):
            profile = ClientProfile(capabilities=host.capabilities, client_info=host.client_info)
            verdict = judge_probe(await self._handler(Exchange("server/discover", {}, host.sink, profile)))
            if not isinstance(verdict, Discovery):
                raise UpstreamUnavailable(f"{type(self._hub).__name__} does not answer server/discover.")
            yield _HubConnection(self._hub, self._handler, verdict)


class _HubConnection:
    def __init__(self, hub: LocalHub, handler: Handler, discovery: Discovery) -> None:
        self.discovery = discovery
        self._hub = hub
        self._handler = handler

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        return self._handler(exchange)

    async def wait_closed(self) -> None:
        await self._hub.wait_closed()


class CallerConnection:
    """A handler of this process as a connection, for one caller."""

    def __init__(self, handler: Handler, caller: Caller, capabilities: Params) -> None:
        self.discovery = Discovery(LATEST_VERSION, capabilities, {"name": "toolbox"})
        self._handler = handler
        self._caller = caller

    async def __call__(self, exchange: Exchange) -> Reply:
        exchange.caller = self._caller
        return await self._handler(exchange)

    async def wait_closed(self) -> None:
        await forever()
