"""The time that each request may take: one timer for all of a client's, which looks again whenever the nearest is due.

A timer for each would cost as much as all else that a client does for a call.
"""

import asyncio
import math
from collections.abc import Callable
from types import TracebackType

import msgspec

from sluicegate.errors import UpstreamTimeout
from sluicegate.protocol.message import Params

Missed = Callable[[str, Params, str], UpstreamTimeout]
"""Makes an error of a request's method and params, and of the words for how long it had."""


class Clock(msgspec.Struct, eq=False):
    """The time of one request: begun anew by progress up to a maximum, stopped while our own side is at work.

    `with` lets it run.

    Raises:
        UpstreamTimeout: it ran out; what was going on inside was cancelled.
    """

    clocks: "Clocks"
    method: str
    params: Params
    seconds: float
    due: float
    end: float
    """Here progress is of no more use."""
    stops: int = 0
    stopped_at: float = 0.0
    task: "asyncio.Task[object] | None" = None
    cancels_before: int = 0
    is_over: bool = False

    def __enter__(self) -> None:
        task = self.task = asyncio.current_task(self.clocks.loop)
        assert task is not None
        self.cancels_before = task.cancelling()
        self.clocks.start(self)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.clocks.running.discard(self)
        # As `asyncio.timeout` does: the cancellation is ours if nobody else asked for one, too.
        if self.is_over and self.task is not None and self.task.uncancel() <= self.cancels_before:
            if kind is asyncio.CancelledError:
                raise self.clocks.error(self) from None

    def restart(self) -> None:
        """Give the server its full time again: it has just shown that it is at work."""
        self.due = self.clocks.now() + self.seconds

    def stop(self) -> None:
        """Let no time pass until `go_on`: what our own side takes, perhaps a person, is not the server's delay."""
        if not self.stops:
            self.stopped_at = self.clocks.now()
        self.stops += 1

    def go_on(self) -> None:
        """Let time pass again, if nobody else has stopped it."""
        self.stops -= 1
        if not self.stops:
            passed = self.clocks.now() - self.stopped_at
            self.due += passed
            self.end += passed
            self.clocks.look_at(min(self.due, self.end))


class Clocks:
    """All the clocks of one client."""

    def __init__(self, most: float, missed: Missed) -> None:
        """`most` is what a request may take in all, however much progress it makes."""
        self.loop = asyncio.get_running_loop()  # Kept: to ask for it is a system call each time.
        self._most = most
        self._missed = missed
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self.running: set[Clock] = set()
        self.now = self.loop.time
        """The time that they tell."""

    def clock(self, method: str, params: Params, seconds: float) -> Clock:
        """A clock for one request that begins now."""
        now = self.now()
        return Clock(self, method, params, seconds, now + seconds, now + max(seconds, self._most))

    def start(self, clock: Clock) -> None:
        """Look at a clock until it leaves; the timer stays then, as it is mostly early enough for the next one."""
        self.running.add(clock)
        if clock.due < self._timer_at:
            self.look_at(clock.due)

    def error(self, clock: Clock) -> UpstreamTimeout:
        """What a clock says that is over."""
        had = f"{clock.seconds:g} s"
        if clock.due >= clock.end:
            had = f"{max(clock.seconds, self._most):g} s, the most that is given to it"
        return self._missed(clock.method, clock.params, had)

    def look_at(self, when: float) -> None:
        """Look at the clocks then, if not earlier."""
        if when < self._timer_at:
            self.close()
            self._timer_at = when
            self._timer = self.loop.call_at(when, self._look)

    def close(self) -> None:
        """Have no timer."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = None
        self._timer_at = math.inf

    def _look(self) -> None:
        self.close()
        now = self.now()
        nearest = math.inf
        for clock in self.running:
            if clock.stops or clock.is_over or clock.task is None:
                continue
            over_at = min(clock.due, clock.end)
            if over_at <= now:
                clock.is_over = True
                clock.task.cancel()
            elif over_at < nearest:
                nearest = over_at
        # With nothing under way there is nothing to look at, and an idle process sleeps.
        self.look_at(nearest)
