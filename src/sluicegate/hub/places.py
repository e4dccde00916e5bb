"""How many calls one server has at a time, and how many wait for their turn (threats §3, R12)."""

import asyncio
from collections import deque
from contextlib import suppress
from typing import Final

from sluicegate.errors import LimitExceeded

CONCURRENCY: Final = 64
QUEUE: Final = 256
QUEUE_WAIT: Final = 5.0


class Places:
    """Places for calls: `await take()`, then `free()`. Who comes first is first."""

    def __init__(
        self, name: str, concurrency: int = CONCURRENCY, queue: int = QUEUE, longest_wait: float = QUEUE_WAIT
    ) -> None:
        self._name = name
        self._concurrency = concurrency
        self._queue = queue
        self._longest_wait = longest_wait
        self._taken = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._empty: asyncio.Event | None = None

    def adjust(self, concurrency: int, queue: int, longest_wait: float) -> None:
        """Have more places or fewer from now on; who has one keeps it, and who waits gets what is new."""
        self._concurrency = concurrency
        self._queue = queue
        self._longest_wait = longest_wait
        while self._taken < concurrency and self._pass_on():
            self._taken += 1

    @property
    def taken(self) -> int:
        """Calls under way."""
        return self._taken

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return len(self._waiting)

    def take_now(self) -> bool:
        """Whether a place was free. Asked for each call, so it does not wait and makes nothing."""
        if self._taken < self._concurrency and not self._waiting:
            self._taken += 1
            return True
        return False

    async def take(self) -> None:
        """Take a place, as soon as it is our turn.

        Raises:
            LimitExceeded: too many wait already, or it took too long.
        """
        if self.take_now():
            return
        if len(self._waiting) >= self._queue:
            raise LimitExceeded(f"{self._name} is busy, and {self._queue} calls wait for it already; try again later.")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._longest_wait):
                await turn
        except BaseException as problem:
            if turn.done() and not turn.cancelled():
                self.free()  # It was our turn at the very moment we left; somebody else has it now.
            else:
                with suppress(ValueError):  # A place that was freed in the same moment passed us over already.
                    self._waiting.remove(turn)
            if isinstance(problem, TimeoutError):
                raise LimitExceeded(f"{self._name} was busy for {self._longest_wait:g} s; try again later.") from None
            raise

    def free(self) -> None:
        """Give a place back; it goes to whoever waits longest."""
        if self._waiting and self._taken <= self._concurrency and self._pass_on():
            return
        self._taken -= 1
        if self._empty is not None and self._taken == 0:
            self._empty.set()

    def _pass_on(self) -> bool:
        """Whether somebody who waits has the place now."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return True
        return False

    async def wait_empty(self) -> None:
        """Return when no place is taken."""
        if self._empty is None:
            self._empty = asyncio.Event()
        while self._taken:
            self._empty.clear()
            await self._empty.wait()
