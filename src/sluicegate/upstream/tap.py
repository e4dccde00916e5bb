"""A pipe that a server writes to, read a portion at a time: as much as is dealt with in a moment.

What a byte costs, the server decides: 64 KiB are a piece of one long answer, or thousands of lines that each want to be
looked at. While we look, nobody else is served; so whoever writes what takes long is read less of at once, and rests
in between, in proportion to what it took: at most half of our time goes to one pipe, and no server waits
for more than its own work. How long something took is the CPU time: to be interrupted is not the server's doing.
"""

import asyncio
import os
import sys
from collections.abc import Callable
from contextlib import suppress
from time import thread_time
from typing import IO, Final

if sys.platform == "linux":
    from fcntl import F_SETPIPE_SZ, fcntl

SMALLEST: Final = 1024
LARGEST: Final = 64 * 1024

CAPACITY: Final = 4 * LARGEST
"""Bytes that a server may be ahead of us. With the usual 64 KiB we and it take turns, and the machine changes from one
to the other for each portion of a long answer."""

SLOW: Final = 0.00025
"""Seconds for a portion, after which the next one is smaller. Somebody else's call waits for a few of these."""

QUICK: Final = SLOW / 4
"""Seconds for a portion, within which the next one may be larger."""

SHARE: Final = 0.5
"""How much of our time what takes long may have in the long run: as much is left for all others."""

LOG_SHARE: Final = 0.1
"""The same for a log, for which nobody waits; but its server does while the pipe is full, so it is never little."""

CREDIT: Final = 0.01
"""Seconds that may be used up at once by one who has not used its share for a while."""

REST: Final = 0.001
"""Seconds of the shortest rest: the timers of uvloop know nothing shorter."""

LONGEST_REST: Final = 0.02
"""Seconds of the longest one. What took longer was hardly the server's doing: a collection of garbage, mostly."""


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
        self._share = LOG_SHARE if is_log else SHARE
        self._credit = CREDIT
        self._portion = SMALLEST  # It has to show first that more can be read at once.
        self._rest: asyncio.TimerHandle | None = None
        self._loop = asyncio.get_running_loop()
        self._since = self._loop.time()  # Until then, its share is in the credit.
        os.set_blocking(self._fd, False)
        if not is_log and sys.platform == "linux":
            with suppress(OSError):  # Whoever has very many pipes may not have larger ones.
                fcntl(self._fd, F_SETPIPE_SZ, CAPACITY)
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
            start = thread_time()
            self.hear(data)
            self._adapt(size, thread_time() - start)
        elif data:  # Nearly always: an answer. A portion cannot become smaller, and more was not there.
            self.hear(data)
        else:
            self.close()
            self._ended()
        return size

    def _adapt(self, size: int, took: float) -> None:
        if took > SLOW:
            self._portion = max(self._portion // 2, SMALLEST)
        elif took < QUICK and size == self._portion < LARGEST:
            self._portion *= 2
        now = self._loop.time()
        credit = min(self._credit + self._share * (now - self._since), CREDIT) - took
        self._credit, self._since = max(credit, -self._share * LONGEST_REST), now
        if credit < 0 and self._rest is None and self.is_open:
            self._rest = self._loop.call_later(max(-self._credit / self._share, REST), self._rested)
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
