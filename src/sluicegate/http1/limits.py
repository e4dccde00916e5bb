"""What a client may cost us, in bytes and in seconds."""

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """What a client may cost us. The numbers are those of the threat model."""

    url: int = 8 * 1024
    headers: int = 32 * 1024
    """All lines together."""
    body: int = 4 * 1024 * 1024
    header_time: float = 10.0
    body_time: float = 30.0
    idle_time: float = 75.0
    """Between requests."""
    unsent: int = 1024 * 1024
    """Beyond this, `Request.drain` waits."""
    unsent_to_all: int = 256 * 1024 * 1024
    """What slow clients may leave with us all together. From half of it on `Request.drain` waits much sooner; beyond it
    those who have been behind for longest are cut off."""
    blocked_time: float = 30.0
    """A client that takes none of its answer for that long is cut off."""
    connections: int = 10_000
    """Beyond this, clients wait to be accepted."""
