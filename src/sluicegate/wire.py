"""The two halves of a duplex byte channel, as every room sees them: what we call, and what calls us.

Bytes come by callback rather than by `await read()`: it saves a task switch for every chunk on the hot path.
"""

from collections.abc import Awaitable
from typing import Protocol


class Wire(Protocol):
    """Our end of a channel. Writing never waits; whoever can wait calls `drain` first, so that buffers stay bounded."""

    def write(self, data: bytes) -> None:
        """Hand over bytes to be sent; dropped if the channel is gone (the receiver is told so)."""
        ...

    def drain(self) -> Awaitable[None]:
        """Wait while the peer reads more slowly than we write."""
        ...

    def pause_reading(self) -> None:
        """Let the peer wait: we have more than we can use."""
        ...

    def resume_reading(self) -> None:
        """Take bytes again."""
        ...


class Receiver(Protocol):
    """Who gets the bytes of a channel. Both methods are called in the event loop and must not raise."""

    def received(self, data: bytes) -> None:
        """Take the next bytes of the peer."""
        ...

    def ended(self) -> None:
        """Learn, exactly once, that nothing more will come."""
        ...
