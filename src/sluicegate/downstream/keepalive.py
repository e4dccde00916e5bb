"""Who has to say that it is still there, and when: one timer for all streams of an endpoint.

Most answers leave long before it is time, and a timer for each of them would cost a tenth of all their work.
"""

import asyncio
import math
from itertools import takewhile
from typing import Final, Protocol

KEEP_ALIVE: float = 15.0
"""Seconds of silence after which a stream says that it is still there; proxies close what says nothing."""


class Waiting(Protocol):
    """A stream on which a client waits."""

    def stay_alive(self) -> None:
        """Say something; called again and again, until the stream is forgotten."""
        ...


class KeepAlive:
    """Lets each stream that is watched speak every `KEEP_ALIVE` seconds."""

    def __init__(self) -> None:
        # All wait for the same time, so the order in which they came is the order in which they are due.
        self._due: Final[dict[Waiting, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._loop: asyncio.AbstractEventLoop | None = None  # Kept: to ask for it is a system call each time.

    def __len__(self) -> int:
        return len(self._due)

    def watch(self, stream: Waiting) -> None:
        """Let this stream speak from now on; one that is watched already is due later than it was."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        self._due.pop(stream, None)
        due = self._due[stream] = loop.time() + KEEP_ALIVE
        if due < self._timer_at:
            self._set_timer(loop, due)

    def forget(self, stream: Waiting) -> None:
        """Let it be: nobody waits on it any more. Once is enough, and twice does no harm."""
        self._due.pop(stream, None)

    def close(self) -> None:
        """Forget all of them."""
        self._due.clear()
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_at = math.inf

    def _set_timer(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = loop.call_at(due, self._speak)

    def _speak(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        loop = asyncio.get_running_loop()
        now = loop.time()
        # Streams that ended meanwhile are not in it any more, so few are looked at.
        try:
            for stream, _ in list(takewhile(lambda entry: entry[1] <= now, self._due.items())):
                # Again in its turn, before it speaks: that may be its end.
                if self._due.pop(stream, None) is not None:
                    self.watch(stream)
                    stream.stay_alive()
        finally:
            if self._due:
                due = next(iter(self._due.values()))
                if due < self._timer_at:
                    self._set_timer(loop, due)
