"""Handlers with a lifespan, such as a hub or a server: they answer only while their `async with` lasts."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager, nullcontext, suppress
from typing import Final, Protocol, runtime_checkable

READY_WITHIN: Final = 5.0
"""Seconds to wait for its servers: some clients request a list only once, and would keep an incomplete one."""


@runtime_checkable
class Lifespan(Protocol):
    """A handler that has to be opened before it answers."""

    @property
    def is_open(self) -> bool: ...
    async def __aenter__(self) -> object: ...
    async def __aexit__(self, *error: object) -> None: ...
    async def settled(self) -> None: ...


@runtime_checkable
class Runnable(Protocol):
    """A handler that may have a lifespan of its own, and several users at a time, such as a `Server`."""

    def running(self) -> AbstractAsyncContextManager[object]: ...


def running(handler: object) -> AbstractAsyncContextManager[object]:
    """Keeps the lifespan of a server open; nothing for other handlers."""
    return handler.running() if isinstance(handler, Runnable) else nullcontext()


@asynccontextmanager
async def opened(handler: object) -> AsyncGenerator[None]:
    """Keep a handler open that has a lifespan and is not open yet; wait a few seconds until it is ready.

    Raises:
        ConfigError: it is open in another event loop.
    """
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(running(handler))
        if isinstance(handler, Lifespan):
            if not handler.is_open:
                await stack.enter_async_context(handler)
            with suppress(TimeoutError):
                async with asyncio.timeout(READY_WITHIN):
                    await handler.settled()
        yield
