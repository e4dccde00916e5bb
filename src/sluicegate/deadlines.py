"""Deadlines of many calls, looked at together: a timer for each would cost more than all else that is done for it.

A call has so many seconds, a sign of life gives it that time again, and there is an end to that, too.
"""

import asyncio
from time import monotonic
from types import TracebackType
from typing import ClassVar, Final

import msgspec

TICK: Final = 0.05
"""Seconds between two looks. A deadline is kept within this."""


class OutOfTime(Exception):
    """A deadline is over. Whoever set it says what that means."""


class Deadline(msgspec.Struct, eq=False):
    """The time that one call has, which is made inside its `with`.

    Most calls are over before anybody looks at it, so it only notes what happens.

    Raises:
        OutOfTime: it is over; what was going on inside was cancelled.
    """

    deadlines: "Deadlines"
    seconds: float
    """How long it may take, and again after each sign of life."""
    expires: float
    ends: float
    """Here all signs of life end."""
    is_renewed: bool = False
    """Whether it has given a sign of life since the last look, and has all its time again."""
    waits: int = 0
    """How many of our own side it waits for, perhaps persons. No time passes then: it is not the server's delay."""
    ends_though_it_waits: ClassVar[bool] = False
    """Whether its end comes all the same. Else whoever waits moves that, too."""
    task: "asyncio.Task[object] | None" = None
    cancels_before: int = 0
    is_over: bool = False

    def __enter__(self) -> None:
        deadlines = self.deadlines
        loop = deadlines.loop
        if loop is None:
            loop = deadlines.loop = asyncio.get_running_loop()
        task = self.task = asyncio.current_task(loop)
        assert task is not None
        self.cancels_before = task.cancelling()
        deadlines.running.add(self)
        if deadlines.timer is None:
            deadlines.timer = loop.call_later(TICK, deadlines.look)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.deadlines.running.discard(self)
        # As `asyncio.timeout` does: the cancellation is ours if nobody else asked for one, too.
        if self.is_over and self.task is not None and self.task.uncancel() <= self.cancels_before:
            if kind is asyncio.CancelledError:
                raise OutOfTime from None

    @property
    def reached_its_end(self) -> bool:
        """Whether it is over, however many signs of life there were."""
        return self.expires >= self.ends

    def go_on(self, before: "Deadline") -> None:
        """Have no more time than was left of another one: the same call is tried again."""
        self.expires, self.ends, self.is_renewed = before.expires, before.ends, before.is_renewed


class Deadlines:
    """The deadlines of the calls to one server."""

    def __init__(self) -> None:
        self.running: set[Deadline] = set()
        self.timer: asyncio.TimerHandle | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # Kept: to ask for it is a system call each time.

    def look(self) -> None:
        """Cancel what is out of time, and look again in a moment."""
        now = monotonic()
        for deadline in self.running:
            if deadline.is_over or (deadline.waits and not deadline.ends_though_it_waits):
                continue
            if deadline.is_renewed or deadline.waits:
                deadline.is_renewed = False
                deadline.expires = now + deadline.seconds
            if (deadline.expires <= now or deadline.ends <= now) and deadline.task is not None:
                deadline.is_over = True
                deadline.task.cancel()
        # With nothing under way there is nothing to look at, and an idle process sleeps.
        self.timer = asyncio.get_running_loop().call_later(TICK, self.look) if self.running else None
