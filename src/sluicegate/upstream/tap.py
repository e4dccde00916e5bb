"""A pipe that a server writes to, read a portion at a time: as much as is dealt with in a moment.

What a byte costs, the server decides: 64 KiB are a piece of one long answer, or thousands of lines that each want to be
looked at. While we look, nobody else is served; so whoever writes what takes long is read less of at once, and less
often if even a little of it takes long. It waits, the others do not.
"""

import asyncio
import os
from collections.abc import Callable
from time import perf_counter
from typing import IO, Final

SMALLEST: Final = 1024
LARGEST: Final = 64 * 1024

SLOW: Final = 0.00025
"""Seconds for a portion, after which the next one is smaller. Somebody else's call waits for a few of these."""

QUICK: Final = SLOW / 4
"""Seconds for a portion, within which the next one may be larger."""

REST: Final = 0.005
"""Seconds until the next portion if the smallest one was slow, for nothing of use is written like that; or if there is
more of a log than can be read quickly, for nobody waits for that."""


class Tap:
    """One such pipe: who hears what comes out of it, and who is told that it has ended."""

    def __init__(
        self, pipe: IO[bytes], hear: Callable[[bytes], None], ended: Callable[[], None], *, is_log: bool = False
    ) -> None:
        self.hear = hear
        self.is_paused = False
        self._pipe = pipe
        self._fd = pipe.fileno()
        self._ended = ended
        self._is_log = is_log
        self._portion = SMALLEST  # It has to show first that more can be read at once.
        self._rest: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        os.set_blocking(self._fd, False)
        self._loop.add_reader(self._fd, self.draw)

    @property
    def is_open(self) -> bool:
        """Whether something may still come."""
        return not self._pipe.closed

    def pause(self) -> None:
        """Leave in the pipe what comes."""
        if not self.is_paused:
            self.is_paused = True
            self._follow()

    def resume(self) -> None:
        """Go on after `pause`."""
        if self.is_paused:
            self.is_paused = False
            self._follow()

    def close(self) -> None:
        """Read no more."""
        if self.is_open:
            self._loop.remove_reader(self._fd)
            self._pipe.close()
            if self._rest is not None:
                self._rest.cancel()

    def draw(self) -> int:
        """Hand on the next portion, now; how many bytes it had."""
        try:
            data = os.read(self._fd, self._portion)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        size = len(data)
        if size >= SMALLEST:
            start = perf_counter()
            self.hear(data)
            self._adapt(size, perf_counter() - start)
        elif data:  # Nearly always: an answer. A portion cannot become smaller, and more was not there.
            self.hear(data)
        else:
            self.close()
            self._ended()
        return size

    def _adapt(self, size: int, took: float) -> None:
        is_full = size == self._portion
        if took < QUICK:
            if is_full and size < LARGEST:
                self._portion *= 2
            return
        has_to_rest = is_full and (self._is_log or (took > SLOW and size == SMALLEST))
        if took > SLOW:
            self._portion = max(self._portion // 2, SMALLEST)
        if has_to_rest and self._rest is None and self.is_open:
            self._rest = self._loop.call_later(REST, self._rested)
            self._follow()

    def _rested(self) -> None:
        self._rest = None
        self._follow()

    def _follow(self) -> None:
        """Wait for what comes, or do not: as things are now."""
        if not self.is_open:
            return
        if self.is_paused or self._rest is not None:
            self._loop.remove_reader(self._fd)
        else:
            self._loop.add_reader(self._fd, self.draw)
