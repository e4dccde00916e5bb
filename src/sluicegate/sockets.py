"""A duplex wire on a Unix socket that only its owner can reach: how the commands talk to a running gateway."""

import asyncio
import os
import stat
from collections.abc import Callable
from typing import cast

from sluicegate.claims import ELSEWHERE, check_folder, check_free, is_private, leave
from sluicegate.errors import ConfigError, UpstreamUnavailable
from sluicegate.wire import Receiver


class SocketWire(asyncio.Protocol):
    """Our end of a socket: a `Wire` whose bytes go to the receiver that is attached to it."""

    def __init__(self, connected: "Callable[[SocketWire], None] | None" = None) -> None:
        self._connected = connected
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._early: list[bytes] = []
        self._is_over = False

    def attach(self, receiver: Receiver) -> None:
        """Hand what arrives to the receiver, from what has come already on."""
        self._receiver = receiver
        for data in self._early:
            receiver.received(data)
        self._early.clear()
        if self._is_over:
            self._tell_end()

    def write(self, data: bytes) -> None:
        """Send bytes; dropped if the peer is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)

    async def drain(self) -> None:
        """Wait while the peer reads more slowly than we write."""
        await self._room.wait()

    def pause_reading(self) -> None:
        """Let the peer wait."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Take bytes again."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Hang up, once what was written has left."""
        if self._transport is not None:
            self._transport.close()

    # ------------------------------------------------------------------------------------------ what asyncio calls

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one without saying so
        if self._connected is not None:
            self._connected(self)

    def data_received(self, data: bytes) -> None:
        if self._receiver is None:
            self._early.append(data)
        else:
            self._receiver.received(data)

    def eof_received(self) -> bool:
        self._end()
        return True  # The answers to what was asked may still be written.

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.set()
        self._end()

    def pause_writing(self) -> None:
        self._room.clear()

    def resume_writing(self) -> None:
        self._room.set()

    def _end(self) -> None:
        if not self._is_over:
            self._is_over = True
            self._tell_end()

    def _tell_end(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.ended()


async def listen(path: str, connected: Callable[[SocketWire], None]) -> asyncio.Server:
    """Take connections at a path that nobody but this user can reach.

    Raises:
        ConfigError: another process listens there, or the folder is somebody else's.
    """
    check_folder(path)
    check_free(path)
    leave(path)  # Left behind by one that was killed.
    try:
        server = await asyncio.get_running_loop().create_unix_server(lambda: SocketWire(connected), path)
        os.chmod(path, 0o600)
    except OSError as problem:
        raise ConfigError(f"The control socket, {path}, cannot be made: {problem.strerror}. {ELSEWHERE}") from None
    return server


def is_ours_alone(path: str) -> bool:
    """Whether a path is a socket that nobody but this user can have made or can reach, so that its word counts."""
    try:
        status = os.lstat(path)
        return stat.S_ISSOCK(status.st_mode) and is_private(status) and is_private(os.stat(os.path.dirname(path)))
    except OSError:
        return False


async def dial(path: str) -> SocketWire:
    """A connection to whoever listens at a path.

    Raises:
        UpstreamUnavailable: nobody does.
    """
    try:
        _, wire = await asyncio.get_running_loop().create_unix_connection(SocketWire, path)
    except OSError:
        raise UpstreamUnavailable("No gateway is running for this folder; start one with `sluicegate serve`.") from None
    return wire
