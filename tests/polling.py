"""Polling for conditions that no event announces: files, the process table, states inside other processes."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

PATIENCE: Final = 40.0
"""Seconds for any condition, on a machine that is busy with other work."""

STEP: Final = 0.005
"""Seconds between two looks."""

T = TypeVar("T")


async def until(look: Callable[[], T], is_so: Callable[[T], object] = bool, *, within: float = PATIENCE) -> T:
    """Poll until a condition holds; return the value for which it does."""
    async with asyncio.timeout(within):
        while not is_so(seen := look()):  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(STEP)  # The pause between two looks.
    return seen


async def until_called(
    look: Callable[[], Awaitable[T]], is_so: Callable[[T], object] = bool, *, within: float = PATIENCE
) -> T:
    """As `until`, with a look that is awaited."""
    async with asyncio.timeout(within):
        while not is_so(seen := await look()):  # noqa: ASYNC110 - no event announces it
            await asyncio.sleep(STEP)  # The pause between two looks.
    return seen


async def until_steady(look: Callable[[], T], *, looks: int = 10) -> T:
    """Poll until a value has been the same for some looks in a row, such as a count that stops to grow."""
    seen, same = look(), 0
    async with asyncio.timeout(PATIENCE):
        while same < looks:
            await asyncio.sleep(STEP)  # The pause between two looks.
            before, seen = seen, look()
            same = same + 1 if seen == before else 0
    return seen


def wait_until(is_so: Callable[[], object], *, within: float = PATIENCE) -> None:
    """As `until`, outside of an event loop."""
    deadline = time.monotonic() + within
    while not is_so():
        assert time.monotonic() < deadline, "the condition does not hold in time"
        time.sleep(STEP)  # The pause between two looks.
