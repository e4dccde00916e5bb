"""Our end of the process that guards a server (see guard.py): what it reports, and what it is told."""

import asyncio
import contextlib
import errno
import os
import signal
import socket
import subprocess
from typing import Protocol


class Ward(Protocol):
    """Who is told what becomes of a guarded server. All of this is called in the event loop."""

    def started(self, error: int) -> None:
        """It runs, or the system gave this error instead."""
        ...

    def exited(self, status: int) -> None:
        """It ended with this status, negative for a signal."""
        ...

    def unguarded(self) -> None:
        """Nothing is left of it, and its guardian is about to end, or was killed."""
        ...

    def buried(self) -> None:
        """The guardian is gone, too: the last that will be told."""
        ...


class Guardian:
    """One guardian process and the socket to it."""

    pid: int = 0
    """The process id of the server itself, once it runs."""

    def __init__(self, process: subprocess.Popen[bytes], control: socket.socket, ward: Ward) -> None:
        self._process = process
        self._control = control
        self._ward = ward
        self._words = b""
        self._has_exited = False
        self._loop = asyncio.get_running_loop()
        control.setblocking(False)
        self._loop.add_reader(control, self._ready)

    @property
    def is_there(self) -> bool:
        """Whether it can still be told something."""
        return self._control.fileno() >= 0

    def order(self, order: bytes) -> None:
        """Tell it to end the server: `T` with SIGTERM, `K` with SIGKILL."""
        with contextlib.suppress(OSError):  # If it is gone, its end is about to reach us.
            self._control.send(order)

    def abandon(self) -> None:
        """Kill it: it hangs itself, or something in its care cannot be killed. Nobody could do more."""
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
                    self._ward.started(0)
                case b"failed":
                    self._ward.started(int(number))
                case b"exited":
                    self._has_exited = True
                    self._ward.exited(int(number))
                case _:
                    pass

    def _lost(self) -> None:
        # It ends when nothing is left of the server. Or somebody killed it: then the kernel has killed the server, and
        # we reach at least who stayed in its group.
        if self.pid and not self._has_exited:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        self._loop.remove_reader(self._control)
        self._control.close()
        self._ward.started(errno.ECHILD)
        self._ward.unguarded()
        self._reap(0.001)

    def _reap(self, pause: float) -> None:
        # A process closes its descriptors a little before it can be waited for.
        if self._process.poll() is None:
            self._loop.call_later(pause, self._reap, min(pause * 2, 0.1))
        else:
            self._ward.buried()
