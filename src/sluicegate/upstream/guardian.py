"""Our end of the guardian process (see guard_main.py): its reports and our orders."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
from typing import Protocol


class GuardedServer(Protocol):
    """Receives the events of a guarded server, in the event loop."""

    def started(self, error: int) -> None:
        """The server runs (0), or could not be executed (errno)."""
        ...

    def exited(self, status: int) -> None:
        """The server ended with this status, negative for a signal."""
        ...

    def all_gone(self) -> None:
        """No process of the server is left, and the guardian is about to end; or the guardian was killed."""
        ...

    def reaped(self) -> None:
        """The guardian has ended and was reaped. This is the last event."""
        ...


class Guardian:
    """One guardian process and the socket to it."""

    pid: int = 0
    """The process id of the server itself, once it runs."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, server: GuardedServer) -> None:
        self._process = process
        self._control = control
        self._server = server
        self._words = b""
        self._has_exited = False
        self._loop = asyncio.get_running_loop()
        control.setblocking(False)
        self._loop.add_reader(control, self._ready)

    @property
    def is_there(self) -> bool:
        """Whether the guardian can still get orders."""
        return self._control.fileno() >= 0

    def order(self, order: bytes) -> None:
        """Order the guardian to stop the server: `T` by SIGTERM, `K` by SIGKILL."""
        with contextlib.suppress(OSError):  # If it is gone, `_ready` is about to be called.
            self._control.send(order)

    def abandon(self) -> None:
        """Kill the guardian: it hangs, or a process of the server survives SIGKILL."""
        self._process.kill()
        self._lost()

    def _ready(self) -> None:
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._lost()
            return
        *lines, self._words = (self._words + data).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            match word:
                case b"started":
                    self.pid = int(number)
                    self._server.started(0)
                case b"failed":
                    self._server.started(int(number))
                case b"exited":
                    self._has_exited = True
                    self._server.exited(int(number))
                case _:
                    pass

    def _lost(self) -> None:
        # The guardian ends when no process is left. If it was killed, the kernel has killed the server as well, and we
        # kill at least what is left of its process group.
        if self.pid and not self._has_exited:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        self._loop.remove_reader(self._control)
        self._control.close()
        self._server.started(errno.ECHILD)
        self._server.all_gone()
        self._reap(0.001)

    def _reap(self, pause: float) -> None:
        # A process closes its descriptors a little before it can be reaped.
        if self._process.poll() is None:
            self._loop.call_later(pause, self._reap, min(pause * 2, 0.1))
        else:
            self._server.reaped()
