"""Deadlines of many calls, looked at together: a timer for each would cost more than all else that is done for it.

A call has so many seconds, progress gives it that time again, and there is an end to that, too.
"""

import asyncio
from time import monotonic
from typing import Final

import msgspec

TICK: Final = 0.05
"""Seconds between two looks. A deadline is kept within this."""


class Deadline(msgspec.Struct, eq=False):
    """The time that one call has. Most calls are over before anybody looks at it, so it only notes what happens."""

    seconds: float
    """How long it may take, and again after each sign of life."""
    expires: float
    ends: float
    """Here all signs of life end."""
    task: "asyncio.Task[object] | None" = None
    is_renewed: bool = False
    """Whether it has given a sign of life since the last look, and has all its time again."""
    waits: int = 0
    """How many questions to a person are open: no time passes then, for one may take longer than a server."""
    is_over: bool = False

    def go_on(self, before: "Deadline") -> None:
        """Have no more time than was left of another one: the same call is tried again."""
        self.expires, self.ends, self.is_renewed = before.expires, before.ends, before.is_renewed


class Deadlines:
    """The deadlines of the calls to one server."""

    def __init__(self) -> None:
        self._running: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # Kept: to ask for it is a system call each time.

    def begin(self, deadline: Deadline) -> None:
        """Cancel the current task when its time is over, unless `end` comes first."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        deadline.task = asyncio.current_task(loop)
        self._running.add(deadline)
        if self._timer is None:
            self._timer = loop.call_later(TICK, self._look)

    def end(self, deadline: Deadline) -> bool:
        """Watch it no more; whether the task was cancelled for its sake alone."""
        self._running.discard(deadline)
        if not deadline.is_over or deadline.task is None:
            return False
        deadline.is_over = False
        # As `asyncio.timeout` does: the cancellation was ours if nobody else asked for one, too.
        return deadline.task.uncancel() == 0

    def _look(self) -> None:
        now = monotonic()
        for deadline in list(self._running):
            if deadline.waits:
                continue
            if deadline.is_renewed:
                deadline.is_renewed = False
                deadline.expires = min(now + deadline.seconds, deadline.ends)
            if deadline.expires <= now and deadline.task is not None:
                self._running.discard(deadline)
                deadline.is_over = True
                deadline.task.cancel()
        # With nothing under way there is nothing to look at, and an idle process sleeps.
        self._timer = asyncio.get_running_loop().call_later(TICK, self._look) if self._running else None
