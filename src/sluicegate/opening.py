"""A handler that lives, such as a hub, kept open by whoever serves it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol, runtime_checkable

from sluicegate.exchange import Handler

PATIENCE: Final = 5.0
"""Seconds that it has to be ready: some clients ask once for a list, and would have too short a one."""


@runtime_checkable
class Living(Protocol):
    """What answers only while its `async with` lasts."""

    @property
    def is_open(self) -> bool: ...
    async def __aenter__(self) -> object: ...
    async def __aexit__(self, *error: object) -> None: ...
    async def settled(self) -> None: ...


@asynccontextmanager
async def kept_open(handler: Handler) -> AsyncGenerator[None]:
    """Have a handler open meanwhile, unless it always is, or somebody has opened it."""
    if not isinstance(handler, Living) or handler.is_open:
        yield
        return
    async with handler:
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                await handler.settled()
        yield
