"""What we want of the transports of an event loop, whichever it is."""

import asyncio
from typing import Final

AT_ONCE: Final = 64 * 1024
"""Bytes that asyncio's own transports set aside for one read. Theirs are 256 KiB, so many that the allocator asks the
system for them and gives them back each time, which takes longer than all else that asyncio does for a message."""


def read_less_at_once(transport: asyncio.BaseTransport) -> None:
    """Have it set aside `AT_ONCE` for a read, where it sets aside anything: uvloop and TLS do not."""
    if hasattr(transport, "max_size"):
        transport.max_size = AT_ONCE  # pyright: ignore[reportAttributeAccessIssue] - asyncio does not tell of it
