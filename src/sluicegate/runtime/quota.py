"""Limits on calls, streams and sessions at once: a quota per caller, a semaphore with a queue (R12, R23, R25).

The limit per caller protects callers from each other (R25), so it holds only for callers with an identity. Without
authentication all clients are the one local user: twenty clients would share what is meant for one, and there is
no other user to protect. Only the total limit holds for them.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from enum import Enum
from typing import Final, Generic, TypeVar

from sluicegate.errors import LimitExceeded
from sluicegate.exchange import Caller

LOCAL_USER: Final = Caller().id


class Exceeded(Enum):
    """The limit that is reached."""

    PER_CALLER = "the limit per caller"
    TOTAL = "the limit of all callers together"


class Lease:
    """One thing that counts, until it is released."""

    __slots__ = ("_caller", "_quota")

    def __init__(self, quota: "Quota", caller: str) -> None:
        self._quota: Quota | None = quota
        self._caller = caller

    def release(self) -> None:
        """Stop counting it. Releasing twice does no harm."""
        quota, self._quota = self._quota, None
        if quota is not None:
            quota.release(self._caller)


class Quota:
    """At most so many in total, and so many of one caller."""

    def __init__(self, most: int, most_per_caller: int) -> None:
        self.most = most
        self.most_per_caller = most_per_caller
        self._taken = 0
        self._of: dict[str, int] = {}

    def __len__(self) -> int:
        return self._taken

    def lease(self, caller: Caller) -> Lease | Exceeded:
        """A lease, which its owner must release; or the limit that is reached."""
        exceeded = self.acquire(caller.id)
        return Lease(self, caller.id) if exceeded is None else exceeded

    def acquire(self, caller: str, *, beyond_limit: bool = False) -> Exceeded | None:
        """Count one more, to be released exactly once; or return the limit that is reached."""
        taken = self._of.get(caller, 0)
        # The caller's own limit first: a caller that floods learns that it is the cause, however full it is (R25).
        if taken >= self.most_per_caller and caller != LOCAL_USER and not beyond_limit:
            return Exceeded.PER_CALLER
        if self._taken >= self.most and not beyond_limit:
            return Exceeded.TOTAL
        self._taken += 1
        self._of[caller] = taken + 1
        return None

    def release(self, caller: str) -> None:
        """Count one less."""
        self._taken -= 1
        left = self._of[caller] - 1
        if left:
            self._of[caller] = left
        else:
            del self._of[caller]  # Callers come and go, and the table would keep them all.


K = TypeVar("K")


class ByteBudget(Generic[K]):
    """The bytes that some things may take together. Beyond them, the oldest are dropped first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._size = 0
        self._held: dict[K, tuple[int, Callable[[K], None]]] = {}

    def add(self, key: K, size: int, drop: Callable[[K], None]) -> None:
        """Count the bytes of one thing until `remove`, which `drop` has to call."""
        self._held[key] = size, drop
        self._size += size
        while self._size > self.most:
            oldest = next(iter(self._held))
            self._held[oldest][1](oldest)

    def remove(self, key: K) -> None:
        """Stop counting it. Doing it twice does no harm."""
        held = self._held.pop(key, None)
        if held is not None:
            self._size -= held[0]


CONCURRENCY: Final = 64
QUEUE: Final = 256
QUEUE_WAIT: Final = 5.0


class ConcurrencyLimit:
    """Limits concurrent calls: `await acquire()`, then `release()`. First come, first served."""

    def __init__(
        self, name: str, concurrency: int = CONCURRENCY, queue: int = QUEUE, longest_wait: float = QUEUE_WAIT
    ) -> None:
        self._name = name
        self._concurrency = concurrency
        self._queue = queue
        self._longest_wait = longest_wait
        self._taken = 0
        self._parked = 0
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._empty: asyncio.Event | None = None

    def adjust(self, concurrency: int, queue: int, longest_wait: float) -> None:
        """Change the limits; calls in progress keep their place, waiting ones get new places."""
        self._concurrency = concurrency
        self._queue = queue
        self._longest_wait = longest_wait
        self._fill()

    @property
    def in_use(self) -> int:
        """Calls in progress."""
        return self._taken

    @property
    def waiting(self) -> int:
        """Calls that wait for their turn."""
        return len(self._waiting)

    def try_acquire(self) -> bool:
        """Take a place if one is free, without waiting."""
        if self._taken - self._parked < self._concurrency and not self._waiting:
            self._taken += 1
            return True
        return False

    async def acquire(self) -> None:
        """Take a place, as soon as it is our turn.

        Raises:
            LimitExceeded: too many wait already, or it took too long.
        """
        if self.try_acquire():
            return
        if len(self._waiting) >= self._queue:
            waiting = f"{self._queue} more wait (`queue`); try again later."
            raise LimitExceeded(f"{self._name} is busy: {self._concurrency} calls run (`concurrency`), and {waiting}")
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append(turn)
        try:
            async with asyncio.timeout(self._longest_wait):
                await turn
        except (asyncio.CancelledError, TimeoutError) as problem:
            if turn.done() and not turn.cancelled():
                self.release()  # We got the place in the moment of leaving: pass it on.
            else:
                with suppress(ValueError):  # A place that was freed in the same moment passed us over already.
                    self._waiting.remove(turn)
            if isinstance(problem, TimeoutError):
                running = f"with {self._concurrency} calls running (`concurrency`); try again later."
                waited = f"{self._name} was busy for {self._longest_wait:g} s (`queue_wait`), {running}"
                raise LimitExceeded(waited) from None
            raise

    def release(self) -> None:
        """Give a place back; it goes to the call that has waited longest."""
        if self._waiting and self._taken - self._parked <= self._concurrency and self._pass_on():
            return
        self._taken -= 1
        if self._empty is not None and self._taken == 0:
            self._empty.set()

    def park(self) -> bool:
        """Free the place of a call that waits for a person, until `unpark`; False if too many calls wait for persons.

        The call still counts as one in progress.
        """
        if self._parked >= self._queue:
            return False
        self._parked += 1
        self._fill()
        return True

    def unpark(self) -> None:
        """Count the place of a parked call again. It does not wait for one: the server has the call already."""
        self._parked -= 1

    def _fill(self) -> None:
        """Give free places to calls that wait."""
        while self._taken - self._parked < self._concurrency and self._pass_on():
            self._taken += 1

    def _pass_on(self) -> bool:
        """Hand the place to the next waiting call, if there is one."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return True
        return False

    async def wait_idle(self) -> None:
        """Return when no call is in progress."""
        if self._empty is None:
            self._empty = asyncio.Event()
        while self._taken:
            self._empty.clear()
            await self._empty.wait()
