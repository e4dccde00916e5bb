"""A handler of this process that has to be open to answer, such as a hub: something to connect to, and to serve."""

from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Protocol, TypeGuard, runtime_checkable

from sluicegate.concurrency import forever
from sluicegate.errors import UpstreamUnavailable
from sluicegate.exchange import Connection, Exchange, Handler, Host
from sluicegate.opening import Living, kept_open
from sluicegate.protocol.discovery import Discovery, judge_probe
from sluicegate.protocol.message import Reply
from sluicegate.protocol.modern import Profile


@runtime_checkable
class LivingHandler(Living, Protocol):
    """What answers exchanges, while its `async with` lasts."""

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]: ...


@runtime_checkable
class Closing(Protocol):
    """What says when it is closed, as whoever has opened it may do at any time."""

    async def wait_closed(self) -> None: ...


def is_living_handler(target: object) -> TypeGuard[LivingHandler]:
    """Whether a target is one; the class of one is none."""
    return isinstance(target, LivingHandler) and not isinstance(target, type)


class InProcess:
    """A hub as an `Upstream`: who connects to it has it open meanwhile, as have all others who do.

    It is the hub for those who serve it, too.
    """

    def __init__(self, handler: LivingHandler, name: str = "") -> None:
        self.name = name
        self._handler = handler

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Connection]:
        """The handler itself, once its servers are there or had a moment to come."""
        async with kept_open(self._handler):
            profile = Profile(capabilities=host.capabilities, client_info=host.client_info)
            verdict = judge_probe(await self._handler(Exchange("server/discover", {}, host.sink, profile)))
            if not isinstance(verdict, Discovery):
                raise UpstreamUnavailable(f"{self.name or type(self._handler).__name__} does not say what it is.")
            yield _Met(self._handler, verdict)

    @property
    def stands_for(self) -> LivingHandler:
        """The handler itself, which is the one to be opened."""
        return self._handler

    @property
    def is_open(self) -> bool:
        """Whether it answers."""
        return self._handler.is_open

    async def __aenter__(self) -> "InProcess":
        await self._handler.__aenter__()
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._handler.__aexit__(*error)

    async def settled(self) -> None:
        """Return once what it is made of is there, or has failed."""
        await self._handler.settled()

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        """The reply to an exchange."""
        return self._handler(exchange)


class _Met:
    """A handler that has said what it offers."""

    def __init__(self, handler: Handler, discovery: Discovery) -> None:
        self.discovery = discovery
        self._handler = handler

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        return self._handler(exchange)

    async def wait_closed(self) -> None:
        """Return when somebody closes it; one that does not say so is never closed while it is asked."""
        await (self._handler.wait_closed() if isinstance(self._handler, Closing) else forever())
