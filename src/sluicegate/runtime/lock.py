"""The lock on a gateway's control socket: of several gateways that start for one folder, one gets it.

This module does not import asyncio: a gateway takes the lock before it starts its servers, and loads the event loop
while they start.
"""

import os
import socket
import stat
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from sluicegate.errors import ConfigError

MAX_PATH: Final = 100
"""Bytes in the path of a socket; the limit of the operating system is slightly higher."""
OTHER_PATH: Final = "Set another path with socket = under [control] in sluicegate.toml."


class AlreadyServed(ConfigError):
    """Another gateway holds the lock or listens at the path."""

    def __init__(self, path: str) -> None:
        super().__init__(f"Another gateway serves this folder already (its control socket is {path}).")


@contextmanager
def locked(path: str, others: Sequence[str] = ()) -> Generator[None]:
    """Hold the lock of a socket path; take it before listening there.

    Checking for a listener, removing a stale socket and listening are three steps. Without the lock, two gateways that
    start together could interleave them. `others` are paths that a gateway of the same folder may use instead.

    Raises:
        AlreadyServed: another process holds the lock or listens there.
        ConfigError: the folder cannot be created or is accessible to other users.
    """
    check_folder(path)
    file = f"{path}.lock"
    descriptor = _lock(file)
    if descriptor is None:
        raise AlreadyServed(path)
    try:
        check_free(path)
        for other in others:
            if other != path and (is_private_socket(other) or os.path.exists(f"{other}.lock")):
                check_free(other)
                _check_unlocked(other)
        yield
    finally:
        # Unlink before unlocking: a process that waits for this very file then sees that it was removed.
        with suppress(FileNotFoundError):
            os.unlink(file)
        os.close(descriptor)


def _lock(file: str) -> int | None:
    """The descriptor of the locked file, or None if another process has locked it."""
    while True:
        try:
            descriptor = try_lock(file)
        except OSError as problem:
            raise ConfigError(
                f"The lock of the control socket, {file}, cannot be created: {problem.strerror}. {OTHER_PATH}"
            ) from None
        if descriptor is None or _is_at(descriptor, file):
            return descriptor
        os.close(descriptor)  # The previous holder removed the file between open and flock.


def _check_unlocked(path: str) -> None:
    """Raise AlreadyServed if a process holds the lock of a path."""
    with suppress(FileNotFoundError):
        try:
            descriptor = try_lock(f"{path}.lock", create=False)
        except PermissionError:
            return  # It belongs to another user.
        if descriptor is None:
            raise AlreadyServed(path)
        os.close(descriptor)


def try_lock(file: str, *, create: bool = True) -> int | None:
    """The descriptor of a file, created if needed and locked until it is closed; None if another process has locked it.

    The kernel releases it when the process ends for any reason, so a crash never blocks the next start (R30).

    Raises:
        OSError: the file cannot be created or locked, or, without `create`, there is none.
    """
    # Not every system has fcntl, and clients of a socket need no lock.
    import fcntl

    descriptor = os.open(file, os.O_RDWR | os.O_NOFOLLOW | (os.O_CREAT if create else 0), 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _is_at(descriptor: int, file: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def check_folder(path: str) -> None:
    """Create the folder of a socket path if needed.

    Raises:
        ConfigError: the path is too long, or the folder cannot be created or is accessible to other users.
    """
    if len(os.fsencode(path)) > MAX_PATH:
        raise ConfigError(f"The path of the control socket is longer than {MAX_PATH} bytes: {path}. {OTHER_PATH}")
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        is_ours = is_private(os.stat(folder))
    except OSError as problem:
        raise ConfigError(
            f"The folder of the control socket, {folder}, cannot be created: {problem.strerror}. {OTHER_PATH}"
        ) from None
    if not is_ours:
        raise ConfigError(f"The folder of the control socket, {folder}, must be accessible to you alone (chmod 700).")


def check_free(path: str) -> None:
    """Raise AlreadyServed if a process listens at a path."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        with suppress(OSError):
            probe.connect(path)
            raise AlreadyServed(path)


def is_private(status: os.stat_result) -> bool:
    """Whether a file belongs to this user and is inaccessible to others."""
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077


def is_private_folder(path: str) -> bool:
    """Whether a path is a folder of this user that is inaccessible to others."""
    try:
        status = os.stat(path)
    except OSError:
        return False
    return stat.S_ISDIR(status.st_mode) and is_private(status)


def is_private_socket(path: str) -> bool:
    """Whether a path is a socket that only this user can have created and can reach, so that it can be trusted."""
    try:
        # Anyone could listen in a folder that others can write to.
        status = os.lstat(path)
        return stat.S_ISSOCK(status.st_mode) and is_private(status) and is_private(os.stat(os.path.dirname(path)))
    except OSError:
        return False
