"""Deadlines of many calls, looked at together: a timer for each would cost more than all else that is done for it.

A call has so many seconds, progress gives it that time again, and there is an end to that, too.
"""

import asyncio
import math
from types import TracebackType
from typing import Final

from sluicegate.errors import UpstreamTimeout

TICK: Final = 0.05
"""Seconds between two looks. A deadline is kept within this."""


class Deadline:
    """The time that one call has; `async with` raises UpstreamTimeout when it is over."""

    __slots__ = ("_deadlines", "_longest", "_seconds", "_task", "expires", "is_over")

    def __init__(self, deadlines: "Deadlines", seconds: float, longest: float) -> None:
        self._deadlines = deadlines
        self._seconds = seconds
        now = deadlines.now()
        self._longest = now + longest
        self.expires = now + min(seconds, longest)
        self.is_over = False
        self._task: asyncio.Task[object] | None = None

    def again(self) -> None:
        """Give the call its time again."""
        self.expires = min(self._deadlines.now() + self._seconds, self._longest)

    def wait(self) -> None:
        """Let no time pass until `again`: the call waits for a person."""
        self.expires = math.inf

    def expire(self) -> None:
        """End the call: nobody waits any longer."""
        self.is_over = True
        if self._task is not None:
            self._task.cancel()

    async def __aenter__(self) -> "Deadline":
        self._task = asyncio.current_task()
        self._deadlines.add(self)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._deadlines.discard(self)
        # As `asyncio.timeout` does: the cancellation was ours if nobody else asked for one, too.
        if self.is_over and self._task is not None and self._task.uncancel() == 0:
            if kind is asyncio.CancelledError:
                raise UpstreamTimeout(f"{self._deadlines.name} did not answer within {self._seconds:g} s.") from error


class Deadlines:
    """The deadlines of the calls to one server."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._running: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def now(self) -> float:
        """The clock that deadlines are told by."""
        if self._loop is None:
            self._loop = asyncio.get_running_loop()
        return self._loop.time()

    def deadline(self, seconds: float, longest: float) -> Deadline:
        """The time of a call that begins now."""
        return Deadline(self, seconds, longest)

    def add(self, deadline: Deadline) -> None:
        """Watch it from now on."""
        self._running.add(deadline)
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK, self._look)

    def discard(self, deadline: Deadline) -> None:
        """Watch it no more."""
        self._running.discard(deadline)

    def _look(self) -> None:
        now = self.now()
        for deadline in [deadline for deadline in self._running if deadline.expires <= now]:
            self._running.discard(deadline)
            deadline.expire()
        # With nothing under way there is nothing to look at, and an idle process sleeps.
        self._timer = asyncio.get_running_loop().call_later(TICK, self._look) if self._running else None
