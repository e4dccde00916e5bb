"""A handler that lives, such as a hub, kept open by whoever serves it or asks it: the last one to leave closes it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from typing import Final, Protocol, runtime_checkable

from sluicegate.concurrency import TaskScope
from sluicegate.errors import ConfigError
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


@runtime_checkable
class StandIn(Protocol):
    """What has no life but that of another, which is the one to be opened."""

    @property
    def stands_for(self) -> Living: ...


@asynccontextmanager
async def kept_open(handler: Handler) -> AsyncGenerator[None]:
    """Have a handler open meanwhile, unless it always is, or somebody has opened it; it has a moment to be ready.

    Raises:
        ConfigError: it is open in another event loop.
    """
    living: object = handler
    while isinstance(living, StandIn):
        living = living.stands_for
    if not isinstance(living, Living):
        yield
        return
    opening = await _opening_of(living)
    if opening is None:  # Whoever wrote `async with` has it open, and closes it.
        await _ready(living)
        yield
        return
    async with opening.joined():
        await _ready(living)
        yield


async def _ready(handler: Living) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(PATIENCE):
            await handler.settled()


async def _opening_of(handler: Living) -> "_Opening | None":
    """The opening to join, a new one if there is none; None if somebody has opened the handler by themselves."""
    while (opening := _openings.get(id(handler))) is not None:
        if opening.loop is not asyncio.get_running_loop():
            if not opening.loop.is_closed():
                raise ConfigError(f"This {type(handler).__name__} is open in another event loop; use it in that one.")
            break  # Nobody is left who could close it.
        if not opening.is_closing:
            return opening
        await opening.gone.wait()  # To ask one that is about to close would be of no use.
    if handler.is_open:
        return None
    opening = _openings[id(handler)] = _Opening(handler)
    return opening


class _Opening:
    """A handler that several have open together, in a task of its own: whoever came first may be first to leave."""

    def __init__(self, handler: Living) -> None:
        self.loop = asyncio.get_running_loop()
        self.gone = asyncio.Event()
        self._handler = handler
        self._inside = 0
        self._scope = TaskScope()
        self._is_begun = asyncio.Event()
        self._is_left = asyncio.Event()
        self._is_over = asyncio.Event()
        self._failure: Exception | None = None

    @property
    def is_closing(self) -> bool:
        """Whether nobody can come in any more."""
        return self._is_left.is_set() or self._is_over.is_set()

    @asynccontextmanager
    async def joined(self) -> AsyncGenerator[None]:
        """Be one of those who have it open. If it fails, all of them do."""
        if not self._inside:
            # The scope takes whoever opens it for its owner, whom a task that fails would cancel. This one never does.
            await self._scope.__aenter__()
            self._scope.start(self._hold())
        self._inside += 1
        try:
            await self._is_begun.wait()
            if self._failure is not None:
                raise self._failure
            async with TaskScope() as watching:
                watching.start(self._fail_with_it())
                yield
                watching.cancel_all()
        finally:
            self._inside -= 1
            if not self._inside:
                await self._close()

    async def _hold(self) -> None:
        try:
            async with self._handler:
                self._is_begun.set()
                await self._is_left.wait()
        except Exception as problem:  # noqa: BLE001 - handed to all who are inside, not handled here
            self._failure = problem
        finally:
            self._is_begun.set()
            self._is_over.set()

    async def _fail_with_it(self) -> None:
        await self._is_over.wait()
        if self._failure is not None:
            raise self._failure

    async def _close(self) -> None:
        self._is_left.set()
        failed_before = self._failure is not None
        try:
            await self._scope.__aexit__(None, None, None)
        finally:
            if _openings.get(id(self._handler)) is self:
                del _openings[id(self._handler)]
            self.gone.set()
        if self._failure is not None and not failed_before:
            raise self._failure


_openings: Final[dict[int, _Opening]] = {}
"""Those that there are, by the identity of their handlers, which they keep alive: not every handler can be a key."""
