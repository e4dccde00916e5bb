"""A client's stdin and stdout, relayed to the gateway of its folder: the side of the client.

Imports no event loop: the relay only copies bytes, and the gateway must not wait for the import to start its servers.
"""

import os
import signal
import socket
import threading
import time
from collections.abc import Callable
from contextlib import ExitStack, suppress
from typing import Final, NoReturn

import msgspec

from sluicegate.runtime.lock import is_private_socket

CHUNK: Final = 65536
MAX_DESCRIPTORS: Final = 65536
WELCOME_TIMEOUT: Final = 10.0
"""Seconds for the gateway to accept a client; it is local and waits for nothing."""
MAX_WELCOME: Final = 65536
LAST_ANSWERS: Final = 5.0
"""Seconds for the gateway to end the connection after the client has hung up; it needs a fraction of one."""
LAST_WRITE: Final = 2.0
"""Seconds that a client which does not read may delay our exit after that."""


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """The first line of a client."""

    profile: str = ""


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """The gateway's answer, one line. Then both sides speak MCP."""

    refused: str = ""
    """Why the client is not served."""
    stopping: bool = False
    """It is not served because the gateway is shutting down; the next gateway will serve it."""


class AttachRefused(Exception):
    """The gateway refused the client; the text is a sentence."""


class NoWelcome(Exception):
    """A gateway listens but does not answer."""


class Stopping(Exception):
    """The gateway is about to end."""


def client_socket(control: str) -> str:
    """The path of the socket for relayed clients, next to the control socket."""
    return control.removesuffix(".sock") + ".io.sock"


def attach(path: str, profile: str) -> socket.socket | None:
    """A connection to the gateway that listens at the path; None if none does.

    Raises:
        Refused: it has no such profile.
        Stopping: it is shutting down.
        NoWelcome: it hangs.
    """
    with ExitStack() as stack:
        connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connection.settimeout(WELCOME_TIMEOUT)
        try:
            if not is_private_socket(path):
                return None
            connection.connect(path)
        except TimeoutError:
            raise NoWelcome from None
        except OSError:
            return None
        try:
            connection.sendall(msgspec.json.encode(Hello(profile=profile)) + b"\n")
            welcome = msgspec.json.decode(_line(connection), type=Welcome)
        except TimeoutError:
            raise NoWelcome from None
        except OSError:
            raise Stopping from None
        if welcome.refused:
            raise AttachRefused(welcome.refused)
        if welcome.stopping:
            raise Stopping
        connection.settimeout(None)
        stack.pop_all()
        return connection


def _line(connection: socket.socket) -> bytes:
    """The first line. Nothing follows it before we write again."""
    data = b""
    while not data.endswith(b"\n"):
        more = connection.recv(MAX_WELCOME - len(data))
        if not more:
            raise ConnectionResetError
        data += more
    return data


def relay(connection: socket.socket) -> bool:
    """Copy bytes between stdin, stdout and the gateway until one of them ends. Returns whether the client ended it.

    Each direction has one buffer: a side that does not read stops the other. SIGTERM and SIGINT count as the end of the
    client; a second one exits at once.
    """
    has_left = threading.Event()

    def hang_up() -> None:
        if has_left.is_set():
            return
        has_left.set()
        with suppress(OSError):
            connection.shutdown(socket.SHUT_WR)
        threading.Thread(target=_end_in_time, args=(connection,), daemon=True).start()

    def copy_in() -> None:
        while data := _read(0):
            try:
                connection.sendall(data)
            except OSError:  # The gateway has ended, which the other direction notices too.
                return
        hang_up()

    def on_signal(number: int, frame: object) -> None:
        if has_left.is_set():
            os._exit(0)
        hang_up()

    for descriptor in (0, 1):
        with suppress(OSError):
            os.set_blocking(descriptor, True)  # Another program may have changed it.
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    threading.Thread(target=copy_in, daemon=True).start()
    try:
        while data := connection.recv(CHUNK):
            if not _write(1, data):
                has_left.set()
                break
    except OSError:
        pass  # The gateway was killed.
    connection.close()
    return has_left.is_set()


def _end_in_time(connection: socket.socket) -> None:
    time.sleep(LAST_ANSWERS)
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RD)  # The gateway hangs.
    time.sleep(LAST_WRITE)
    os._exit(0)  # The client does not read.


def _read(descriptor: int) -> bytes:
    try:
        return os.read(descriptor, CHUNK)
    except OSError:
        return b""


def _write(descriptor: int, data: bytes) -> bool:
    """Write all bytes; False if the reader is gone."""
    view = memoryview(data)
    try:
        while view:
            view = view[os.write(descriptor, view) :]
    except OSError:
        return False
    return True


class Background:
    """A process that runs on when this one ends; until then, its stderr is copied to ours."""

    def __init__(self, work: Callable[[], None]) -> None:
        """Start it: it does `work` and exits.

        It is not our child, has a session of its own and none of our descriptors: clients end a server with all its
        child processes and its group, and wait until its pipes are closed.
        """
        source, sink = os.pipe()
        child = os.fork()
        if not child:
            _detach(work, sink)
        os.close(sink)
        os.waitpid(child, 0)
        self.has_written = False
        self._copying = threading.Thread(target=self._copy, args=(source,), daemon=True)
        self._copying.start()

    @property
    def has_ended(self) -> bool:
        """Whether it has ended, and all that it wrote was copied."""
        return not self._copying.is_alive()

    def _copy(self, source: int) -> None:
        while data := _read(source):
            self.has_written = True
            _write(2, data)
        os.close(source)


def _detach(work: Callable[[], None], stderr: int) -> NoReturn:
    os.setsid()
    if os.fork():
        os._exit(0)
    nothing = os.open(os.devnull, os.O_RDWR)
    for descriptor, copy in enumerate((nothing, nothing, stderr)):
        os.dup2(copy, descriptor)
    most = os.sysconf("SC_OPEN_MAX")
    os.closerange(3, most if 0 < most < MAX_DESCRIPTORS else MAX_DESCRIPTORS)
    # A first client that does not read its stderr must not stop the others; what it does not read is dropped.
    os.set_blocking(2, False)
    work()
    raise SystemExit(0)
