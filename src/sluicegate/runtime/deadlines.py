"""Deadlines of many calls, checked by one timer: a timer per call would cost more than the rest of the call.

Progress extends the deadline of a call by its full timeout, up to a final end. The same timer notices silence.
"""

import asyncio
import math
from collections.abc import Callable
from time import monotonic
from types import TracebackType
from typing import ClassVar, Final

import msgspec

TICK: Final = 0.05
"""Seconds between two checks, and the accuracy of a deadline."""


class DeadlineExceeded(Exception):
    """A deadline has passed."""


class Deadline(msgspec.Struct, eq=False):
    """The deadline of the call inside its `with`. Most calls end before the first check.

    Raises:
        DeadlineExceeded: the time is over; the call was cancelled.
    """

    deadlines: "Deadlines"
    seconds: float
    """The timeout, which starts again with each sign of progress."""
    expires: float
    ends: float
    """The final end, which progress does not extend."""
    is_renewed: bool = False
    """Whether there was progress since the last check."""
    waits: int = 0
    """Open questions to the client. The timeout does not run meanwhile: it is not the server's delay."""
    ends_though_it_waits: ClassVar[bool] = False
    """Whether the final end holds while it waits."""
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
        # As in `asyncio.timeout`: the cancellation is ours if there was no other.
        if self.is_over and self.task is not None and self.task.uncancel() <= self.cancels_before:
            if kind is asyncio.CancelledError:
                raise DeadlineExceeded from None

    @property
    def reached_its_end(self) -> bool:
        """Whether the final end is reached."""
        return self.expires >= self.ends

    def go_on(self, before: "Deadline") -> None:
        """Take over the time that was left of another attempt."""
        self.expires, self.ends, self.is_renewed = before.expires, before.ends, before.is_renewed


class Deadlines:
    """The deadlines of the calls to one server."""

    def __init__(self, hang_after: float = math.inf, on_silence: "Callable[[Deadline], None] | None" = None) -> None:
        """`on_silence` gets a call without a sign of the server for `hang_after` seconds, at each check."""
        self.hang_after = hang_after
        self.heard = 0.0
        """When the server last sent anything."""
        self._on_silence = on_silence
        self.running: set[Deadline] = set()
        self.timer: asyncio.TimerHandle | None = None
        self.loop: asyncio.AbstractEventLoop | None = None  # Kept: asking for it is a system call.

    def look(self) -> None:
        """Cancel the calls whose time is over, and check again after a tick."""
        now = monotonic()
        silent_since = now - self.hang_after
        for deadline in self.running:
            if deadline.is_over or (deadline.waits and not deadline.ends_though_it_waits):
                continue
            if deadline.is_renewed or deadline.waits:
                deadline.is_renewed = False
                deadline.expires = now + deadline.seconds
            if (deadline.expires <= now or deadline.ends <= now) and deadline.task is not None:
                deadline.is_over = True
                deadline.task.cancel()
            elif max(deadline.expires - deadline.seconds, self.heard) <= silent_since and self._on_silence is not None:
                self._on_silence(deadline)
        # Without calls there is no timer, so an idle process sleeps.
        self.timer = asyncio.get_running_loop().call_later(TICK, self.look) if self.running else None
