"""The two halves of a duplex byte channel: what we call, and what calls us.

Bytes come by callback rather than by `await read()`: this saves a task switch per chunk.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Protocol


class Output(Protocol):
    """The way to a peer. Writing never waits; callers that can wait call `drain` first to keep buffers bounded."""

    def write(self, data: bytes) -> None:
        """Send bytes. They are dropped if the channel is closed, which `Receiver.ended` reports."""
        ...

    def drain(self) -> Awaitable[None]:
        """Wait while the peer reads more slowly than we write."""
        ...


class ClientWire(Output, Protocol):
    """Our end of the channel of a client. It stops reading by itself while the client does not read."""

    @property
    def unsent(self) -> int:
        """Bytes that the client has not read yet."""
        ...


class Wire(Output, Protocol):
    """Our end of the channel of a server."""

    def pause_reading(self) -> None:
        """Stop taking bytes, so that the peer has to wait."""
        ...

    def resume_reading(self) -> None:
        """Take bytes again."""
        ...


class Receiver(Protocol):
    """Receives the bytes of a channel. Both methods are called in the event loop and must not raise."""

    def received(self, data: bytes) -> None:
        """Take the next bytes of the peer."""
        ...

    def ended(self) -> None:
        """Called exactly once, when no more bytes will come."""
        ...


BLOCKED_TIME: float = 30.0
"""Seconds after which a client that reads nothing of what waits for it is cut off (R24)."""


class StallTimer:
    """Calls `cut` when a client has read nothing for `BLOCKED_TIME` although bytes wait for it."""

    def __init__(self, transport: asyncio.WriteTransport, cut: Callable[[], None]) -> None:
        self.written = 0
        """Bytes handed to the transport so far; maintained by its owner."""
        self._transport = transport
        self._cut = cut
        self._mark = 0
        self._timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        """Watch the client: some bytes wait for it from now on."""
        if self._timer is None:
            self._mark = self._taken
            self._timer = asyncio.get_running_loop().call_later(BLOCKED_TIME, self._check)

    def stop(self) -> None:
        """Stop watching: the client has read enough, or is gone."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    @property
    def _taken(self) -> int:
        return self.written - self._transport.get_write_buffer_size()

    def _check(self) -> None:
        self._timer = None
        if self._taken == self._mark:
            self._cut()
        else:
            self.start()
