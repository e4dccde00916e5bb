"""A duplex wire on a Unix socket that only its owner can reach: how the commands talk to a running gateway."""

import asyncio
import os
import socket
import stat
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from typing import Final, cast

from sluicegate.errors import ConfigError, UpstreamUnavailable
from sluicegate.wire import Receiver

LONGEST_PATH: Final = 100
"""The system's own limit on the path of a socket is a little more than this."""
_ELSEWHERE: Final = "Name another place with socket = under [control] in sluicegate.toml."


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


@contextmanager
def claimed(path: str) -> Generator[None]:
    """Have a path to oneself for as long as the `with` lasts: of all who claim it, one does, and the others are told.

    Who listens there must have claimed it: to look whether somebody listens, to clear away what was left behind and
    to listen are three steps, which two gateways that start together would otherwise take side by side.

    Raises:
        ConfigError: another process has claimed it, or listens there, or the folder is somebody else's.
    """
    _check_folder(path)
    beside = f"{path}.lock"
    lock = _locked(beside)
    if lock is None:
        raise ConfigError(f"Another gateway serves this folder already (its control socket is {path}).")
    try:
        check_free(path)
        yield
    finally:
        # First the name, then the lock: whoever waits for this very file sees that it has none any more.
        leave(beside)
        os.close(lock)


def _locked(file: str) -> int | None:
    """The descriptor of a file that is locked for as long as it is open; None if somebody else has locked it."""
    import fcntl  # Here and not above: who only dials needs no lock, and not every system has these.

    while True:
        try:
            descriptor = os.open(file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as problem:
            raise ConfigError(
                f"The lock of the control socket, {file}, cannot be made: {problem.strerror}. {_ELSEWHERE}"
            ) from None
        try:
            # The kernel unlocks it when we end, however we do; nothing that is left behind stops the next start (R30).
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(descriptor, file):
                return descriptor
        except BlockingIOError:
            os.close(descriptor)
            return None
        except OSError as problem:
            os.close(descriptor)
            raise ConfigError(f"{file} cannot be locked: {problem.strerror}. {_ELSEWHERE}") from None
        os.close(descriptor)  # Its owner took it away between our two steps.


def _is_at(descriptor: int, file: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


async def listen(path: str, connected: Callable[[SocketWire], None]) -> asyncio.Server:
    """Take connections at a path that nobody but this user can reach.

    Raises:
        ConfigError: another process listens there, or the folder is somebody else's.
    """
    _check_folder(path)
    check_free(path)
    leave(path)  # Left behind by one that was killed.
    try:
        server = await asyncio.get_running_loop().create_unix_server(lambda: SocketWire(connected), path)
        os.chmod(path, 0o600)
    except OSError as problem:
        raise ConfigError(f"The control socket, {path}, cannot be made: {problem.strerror}. {_ELSEWHERE}") from None
    return server


def _check_folder(path: str) -> None:
    """See to it that a socket can be made at a path, in a folder that is this user's alone."""
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ConfigError(f"The path of the control socket is longer than {LONGEST_PATH} bytes: {path}")
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        is_private = _is_private(os.stat(folder))
    except OSError as problem:
        raise ConfigError(
            f"The folder of the control socket, {folder}, cannot be made: {problem.strerror}. {_ELSEWHERE}"
        ) from None
    if not is_private:
        raise ConfigError(f"The folder of the control socket, {folder}, must be yours alone (chmod 700).")


def is_ours_alone(path: str) -> bool:
    """Whether a path is a socket that nobody but this user can have made or can reach, so that its word counts."""
    try:
        status = os.lstat(path)
        return stat.S_ISSOCK(status.st_mode) and _is_private(status) and _is_private(os.stat(os.path.dirname(path)))
    except OSError:
        return False


def _is_private(status: os.stat_result) -> bool:
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077


def check_free(path: str) -> None:
    """Raise ConfigError if somebody listens at a path."""
    if os.path.exists(path) and _is_served(path):
        raise ConfigError(f"Another gateway serves this folder already (its control socket is {path}).")


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


def leave(path: str) -> None:
    """Take away what is at a path."""
    with suppress(FileNotFoundError):
        os.unlink(path)


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True
