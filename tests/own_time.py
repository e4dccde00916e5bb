"""An event loop with a time of its own, which passes only while everybody waits: a minute takes no time, and a run is
the same each time.
"""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import TypeVar

T = TypeVar("T")


class _Selector(selectors.DefaultSelector):
    """Lets the time pass where another would wait for it."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready:
            if timeout is None:
                raise RuntimeError("All wait, and nothing will ever happen.")
            self.now += max(timeout, 0.0)
        return ready


class _Loop(asyncio.SelectorEventLoop):
    def __init__(self) -> None:
        self._of = _Selector()
        super().__init__(self._of)

    def time(self) -> float:
        return self._of.now


def run_in_own_time(main: Coroutine[object, object, T]) -> T:
    """What a coroutine returns that needs no input from outside, neither sockets nor threads."""
    with asyncio.Runner(loop_factory=_Loop) as runner:
        return runner.run(main)
