"""The two halves of a duplex byte channel: what we call, and what calls us.

Bytes come by callback rather than by `await read()`: this saves a task switch per chunk.
"""

from collections.abc import Awaitable
from typing import Protocol


class Wire(Protocol):
    """Our end of a channel. Writing never waits; callers that can wait call `drain` first to keep buffers bounded."""

    def write(self, data: bytes) -> None:
        """Send bytes. They are dropped if the channel is closed, which `Receiver.ended` reports."""
        ...

    def drain(self) -> Awaitable[None]:
        """Wait while the peer reads more slowly than we write."""
        ...

    def pause_reading(self) -> None:
        """Stop taking bytes, so that the peer has to wait."""
        ...

    def resume_reading(self) -> None:
        """Take bytes again."""
        ...


class Receiver(Protocol):
    """Gets the bytes of a channel. Both methods are called in the event loop and must not raise."""

    def received(self, data: bytes) -> None:
        """Take the next bytes of the peer."""
        ...

    def ended(self) -> None:
        """Called exactly once, when no more bytes will come."""
        ...
