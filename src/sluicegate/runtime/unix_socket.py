"""A byte channel over a Unix socket that only its owner can reach; commands use it to talk to a running gateway."""

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from typing import cast

from sluicegate.errors import ConfigError, UpstreamUnavailable
from sluicegate.runtime.byte_channel import Receiver, StallTimer
from sluicegate.runtime.lock import OTHER_PATH, check_folder, check_free


class SocketWire(asyncio.Protocol):
    """Our end of a connection: a `Wire` that passes incoming bytes to the attached receiver."""

    def __init__(self, connected: "Callable[[SocketWire], None] | None" = None) -> None:
        """`connected` is called with each connection of a listening socket, whose peers are clients."""
        self._connected = connected
        self._transport: asyncio.Transport | None = None
        self._receiver: Receiver | None = None
        self._room = asyncio.Event()
        self._room.set()
        self._reopening: asyncio.TimerHandle | None = None
        self._early: list[bytes] = []
        self._has_ended = False
        self._stall: StallTimer | None = None

    def attach(self, receiver: Receiver) -> None:
        """Pass incoming bytes to the receiver, starting with those that arrived before."""
        self._receiver = receiver
        for data in self._early:
            receiver.received(data)
        self._early.clear()
        if self._has_ended:
            self._notify_end()

    def write(self, data: bytes) -> None:
        """Send bytes; dropped if the peer is gone."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.write(data)
            if self._stall is not None:
                self._stall.written += len(data)

    @property
    def unsent(self) -> int:
        """Bytes that the peer has not read yet."""
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    async def drain(self) -> None:
        """Wait while the peer reads more slowly than we write."""
        await self._room.wait()

    def pause_reading(self) -> None:
        """Stop reading from the peer."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume_reading(self) -> None:
        """Continue reading."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close the connection after everything written has been sent."""
        if self._transport is not None:
            self._transport.close()

    # -------------------------------------------------------------------------------------------- asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports do not inherit from it
        if self._connected is not None:
            self._stall = StallTimer(self._transport, self._transport.abort)
            self._connected(self)

    def data_received(self, data: bytes) -> None:
        if self._receiver is None:
            self._early.append(data)
        else:
            self._receiver.received(data)

    def eof_received(self) -> bool:
        self._end()
        return True  # Keep the write side open: replies may still be sent.

    def connection_lost(self, exc: Exception | None) -> None:
        self._room.set()
        if self._stall is not None:
            self._stall.stop()
            self._stall = None
        self._end()

    def pause_writing(self) -> None:
        if self._reopening is not None:
            self._reopening.cancel()
        self._room.clear()
        if self._stall is not None:
            # No requests are read from a client that does not read its answers (T4). Only at the end of the server: if
            # both ends stopped reading, neither could continue.
            self.pause_reading()
            self._stall.start()

    def resume_writing(self) -> None:
        if self._stall is not None:
            self._stall.stop()
            self.resume_reading()
        # Read first, then write: calls that never stop sending would fill the output again at once.
        self._reopening = asyncio.get_running_loop().call_later(0, self._room.set)

    def _end(self) -> None:
        if not self._has_ended:
            self._has_ended = True
            self._notify_end()

    def _notify_end(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.ended()


@asynccontextmanager
async def listening(path: str, connected: Callable[[SocketWire], None]) -> AsyncGenerator[None]:
    """Accept connections at a path that only this user can reach.

    Raises:
        ConfigError: another process listens there, or the socket cannot be created.
    """
    check_folder(path)
    check_free(path)
    with suppress(FileNotFoundError):
        os.unlink(path)  # A killed process leaves its socket behind.
    try:
        server = await asyncio.get_running_loop().create_unix_server(lambda: SocketWire(connected), path)
        os.chmod(path, 0o600)
        made = os.stat(path)
    except OSError as problem:
        raise ConfigError(f"The control socket, {path}, cannot be created: {problem.strerror}. {OTHER_PATH}") from None
    try:
        yield
    finally:
        server.close()
        with suppress(FileNotFoundError):
            # If the folder was cleared, another gateway may listen at the path by now.
            if os.path.samestat(made, os.stat(path)):
                os.unlink(path)


async def dial(path: str) -> SocketWire:
    """Connect to the process that listens at a path.

    Raises:
        UpstreamUnavailable: no process listens there.
    """
    try:
        _, wire = await asyncio.get_running_loop().create_unix_connection(SocketWire, path)
    except OSError:
        raise UpstreamUnavailable("No gateway is running for this folder; start one with `sluicegate serve`.") from None
    return wire
