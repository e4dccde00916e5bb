"""Limits for peers, in bytes and seconds."""

import asyncio
import socket
from contextlib import suppress
from typing import Final, cast

import msgspec


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for clients. The numbers are those of the threat model."""

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
    """Unsent bytes of all slow clients together. From half of it on `Request.drain` waits much sooner; beyond it the
    clients that are behind for the longest time are cut off."""
    blocked_time: float = 30.0
    """A client that reads nothing of its answer for this long is cut off."""
    connections: int = 10_000
    """Beyond this, clients wait to be accepted."""


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Limits for servers."""

    connect: float = 10.0
    """Until a connection is open: waiting for a free one, DNS, TCP and TLS."""
    first_byte: float = 60.0
    """From the request to the first byte of its answer, and from the head to the first byte of the body: some servers
    send the head before they do the work."""
    idle: float = 30.0
    """Between two bytes of an answer."""
    keep: float = 30.0
    """For an unused connection; less if the server says so."""
    head: int = 64 * 1024
    body: int = 16 * 1024 * 1024
    """For `Answer.read`, after decompression."""
    per_origin: int = 256
    """Connections to one scheme, host and port."""


READ_BUFFER: Final = 64 * 1024
"""Bytes that asyncio's transports allocate for one read. Their default of 256 KiB is so large that the allocator gets
it from the system and gives it back each time, which takes longer than all else that asyncio does for a message."""


def set_read_buffer(transport: asyncio.BaseTransport) -> None:
    """Use `READ_BUFFER` with asyncio's own transports; uvloop and TLS have no such setting."""
    if hasattr(transport, "max_size"):
        transport.max_size = READ_BUFFER  # pyright: ignore[reportAttributeAccessIssue] - not documented


# Only TCP keep-alive distinguishes a host that has vanished from a server that works on a long answer: a probe after 15
# silent seconds, the end after 15 more. (TCP_USER_TIMEOUT would also cut off a server that is slow to read.)
_KEEP_ALIVE: Final = tuple(
    (socket.IPPROTO_TCP, cast(int, getattr(socket, name)), value)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
)


def set_keep_alive(transport: asyncio.BaseTransport) -> None:
    """Let TCP find out whether the host of a server has vanished."""
    sock = cast(socket.socket | None, transport.get_extra_info("socket"))
    if sock is not None:
        with suppress(OSError):  # It may be closed already.
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            for option in _KEEP_ALIVE:
                sock.setsockopt(*option)
