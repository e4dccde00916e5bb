"""A place for a socket that one process has to itself: who may listen there, found out before anything is started.

The one rule: no event loop is needed for it, nor loaded. A gateway has claimed its place before it starts its servers.
"""

import os
import socket
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from typing import Final

from sluicegate.errors import ConfigError

LONGEST_PATH: Final = 100
"""The system's own limit on the path of a socket is a little more than this."""
ELSEWHERE: Final = "Name another place with socket = under [control] in sluicegate.toml."


class Taken(ConfigError):
    """Another gateway has the path."""

    def __init__(self, path: str) -> None:
        super().__init__(f"Another gateway serves this folder already (its control socket is {path}).")


@contextmanager
def claimed(path: str) -> Generator[None]:
    """Have a path to oneself for as long as the `with` lasts: of all who claim it, one does, and the others are told.

    Who listens there must have claimed it: to look whether somebody listens, to clear away what was left behind and
    to listen are three steps, which two gateways that start together would otherwise take side by side.

    Raises:
        Taken: another process has claimed it, or listens there.
        ConfigError: the folder is somebody else's, or cannot be made.
    """
    check_folder(path)
    beside = f"{path}.lock"
    lock = _locked(beside)
    if lock is None:
        raise Taken(path)
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
                f"The lock of the control socket, {file}, cannot be made: {problem.strerror}. {ELSEWHERE}"
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
            raise ConfigError(f"{file} cannot be locked: {problem.strerror}. {ELSEWHERE}") from None
        os.close(descriptor)  # Its owner took it away between our two steps.


def _is_at(descriptor: int, file: str) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.stat(file))
    except FileNotFoundError:
        return False


def check_folder(path: str) -> None:
    """See to it that a socket can be made at a path, in a folder that is this user's alone.

    Raises:
        ConfigError: it cannot.
    """
    if len(os.fsencode(path)) > LONGEST_PATH:
        raise ConfigError(f"The path of the control socket is longer than {LONGEST_PATH} bytes: {path}")
    folder = os.path.dirname(path)
    try:
        os.makedirs(folder, mode=0o700, exist_ok=True)
        is_ours = is_private(os.stat(folder))
    except OSError as problem:
        raise ConfigError(
            f"The folder of the control socket, {folder}, cannot be made: {problem.strerror}. {ELSEWHERE}"
        ) from None
    if not is_ours:
        raise ConfigError(f"The folder of the control socket, {folder}, must be yours alone (chmod 700).")


def check_free(path: str) -> None:
    """Raise Taken if somebody listens at a path."""
    if os.path.exists(path) and _is_served(path):
        raise Taken(path)


def _is_served(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(1.0)
        try:
            probe.connect(path)
        except OSError:
            return False
    return True


def is_private(status: os.stat_result) -> bool:
    """Whether what this is the status of belongs to this user, and nobody else can reach it."""
    return status.st_uid == os.geteuid() and not stat.S_IMODE(status.st_mode) & 0o077


def leave(path: str) -> None:
    """Take away what is at a path."""
    with suppress(FileNotFoundError):
        os.unlink(path)
