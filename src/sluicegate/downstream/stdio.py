"""Our own stdin and stdout as a channel to one client. Stdout carries protocol only, whatever the process prints.

The descriptors are redirected first: 1 to stderr and 0 to /dev/null, so that neither a print in a tool nor a program it
starts can write into the protocol or read from it.
"""

import asyncio
import logging
import os
import select
import signal
import stat
import sys
import threading
from collections.abc import Awaitable, Callable, Generator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Final, cast

from sluicegate.downstream.duplex import INPUT_TIMEOUT, LAST_ANSWERS, DuplexServer, serve_duplex
from sluicegate.errors import STOPPED
from sluicegate.exchange import Handler
from sluicegate.runtime.byte_channel import BLOCKED_TIME, Receiver, StallTimer

log = logging.getLogger("sluicegate")

_CHUNK: Final = 65536
_HANG_UP_POLL: Final = 0.5
_STUCK_AFTER: Final = 3.0
_LAST_WRITE: Final = 2.0
"""Seconds that a client that stopped reading may delay our exit."""


async def serve_stdio(
    handler: Handler,
    *,
    hold: float = INPUT_TIMEOUT,
    on_stuck: Callable[[], None] | None = None,
    drain: float = LAST_ANSWERS,
    told: "Callable[[Callable[[float], None]], AbstractContextManager[None]] | None" = None,
    on_hang_up: Callable[[], None] | None = None,
    native: bool = False,
) -> None:
    """Answer the client on stdin and stdout until it closes them, or until SIGTERM or SIGINT.

    Args:
        drain: seconds that calls in progress have after a signal; the rest is answered that we stop.
        on_stuck: called when cancelled work has not ended for a while, or on a second signal.
        told: for a caller that handles the signals itself. It is given a function to call in the loop when we are to
            stop, with the seconds that calls in progress have. Without it, signals are handled here.
        native: whether native methods can be called, which needs no handshake.
        on_hang_up: called as soon as nothing more is read, before calls in progress have had their time.
    """
    kind = DuplexServer
    if native:
        from sluicegate.downstream.native.peer import NativePeer as kind  # Imported late: few need it.
    with _own_pipes() as (stdin, stdout):
        wire = await StdioWire.open(stdin, stdout)
        wire.on_stuck = on_stuck
        wire.on_hang_up = on_hang_up
        server: DuplexServer | None = None

        def attach(receiver: DuplexServer) -> None:
            nonlocal server
            server = receiver
            wire.attach(receiver)

        def told_to_stop(seconds: float = drain) -> None:
            if server is not None:
                server.leave_after(seconds, STOPPED)
            wire.told_to_stop()

        with (told or _on_signal)(told_to_stop):
            try:
                await serve_duplex(handler, wire, attach, hold=hold, kind=kind)
            finally:
                await wire.aclose()


class StdioWire(asyncio.Protocol):
    """A pair of file descriptors as a `Wire`. Reading pauses while the client does not take what we write."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._receiver: Receiver | None = None
        self._early: list[bytes] = []
        self._ended = False
        self.on_stuck: Callable[[], None] | None = None
        self.on_hang_up: Callable[[], None] | None = None
        self._reader: asyncio.ReadTransport | None = None
        self._writer: asyncio.WriteTransport | None = None
        self._stdin = self._stdout = -1
        self._outgoing: list[bytes] = []
        self._unsent = 0
        self._writable = asyncio.Event()
        self._writable.set()
        self._stall: StallTimer | None = None
        self._reading_paused = False
        self._reopening: asyncio.TimerHandle | None = None
        self._at_once: asyncio.Future[None] = self._loop.create_future()
        self._at_once.set_result(None)
        self._written = self._loop.create_future()
        self._thread_may_go_on = threading.Event()

    @classmethod
    async def open(cls, stdin: int, stdout: int) -> "StdioWire":
        """A wire over two file descriptors, which may be pipes, sockets, files or a terminal."""
        self = cls()
        self._stdin, self._stdout = stdin, stdout
        if _is_pipe(stdout):
            output = os.fdopen(os.dup(stdout), "wb", buffering=0)
            self._writer, _ = await self._loop.connect_write_pipe(lambda: _Output(self), output)
            self._stall = StallTimer(self._writer, self._cut)
        if _is_pipe(stdin):
            source = os.fdopen(os.dup(stdin), "rb", buffering=0)
            self._reader, _ = await self._loop.connect_read_pipe(lambda: self, source)
        else:
            threading.Thread(target=self._read_in_thread, args=(stdin,), name="sluicegate stdin", daemon=True).start()
        return self

    # ---------------------------------------------------------------------------------------------------- reading

    def attach(self, receiver: Receiver) -> None:
        """Hand all bytes to this receiver, those that came early first."""
        self._receiver = receiver
        early, self._early = self._early, []
        for data in early:
            receiver.received(data)
        if self._ended:
            receiver.ended()

    def data_received(self, data: bytes) -> None:
        if self._ended:
            return
        if self._receiver is None:
            self._early.append(data)
        else:
            self._receiver.received(data)

    def eof_received(self) -> None:
        self.hang_up()

    def connection_lost(self, exc: Exception | None) -> None:
        self.hang_up()

    def hang_up(self) -> None:
        """End the conversation as at EOF: also when we have to stop."""
        if self._ended:
            return
        self._ended = True
        if self.on_hang_up is not None:
            self.on_hang_up()
        if self.on_stuck is not None:
            self._loop.call_later(_STUCK_AFTER, self.on_stuck)
        if self._receiver is not None:
            self._receiver.ended()

    def told_to_stop(self) -> None:
        """End the conversation; a second call ends it at once."""
        if self._ended and self.on_stuck is not None:
            self._flush()
            self.on_stuck()
        self.hang_up()

    def _pause_reading(self) -> None:
        self._reading_paused = True
        if self._reader is not None and not self._reader.is_closing():
            self._reader.pause_reading()

    def _resume_reading(self) -> None:
        self._reading_paused = False
        self._thread_may_go_on.set()
        if self._reader is not None and not self._reader.is_closing():
            self._reader.resume_reading()

    def _read_in_thread(self, stdin: int) -> None:
        # Files and terminals cannot be polled. One chunk at a time: the next is read when this one has been handled.
        while True:
            try:
                data = os.read(stdin, _CHUNK)
            except OSError:
                data = b""
            self._thread_may_go_on.clear()
            try:
                self._loop.call_soon_threadsafe(self._chunk_from_thread, data)
            except RuntimeError:
                return  # The loop is closed: the process is about to exit.
            if not data:
                return
            self._thread_may_go_on.wait()

    def _chunk_from_thread(self, data: bytes) -> None:
        if data:
            self.data_received(data)
        else:
            self.hang_up()
        if not self._reading_paused:
            self._thread_may_go_on.set()

    # ---------------------------------------------------------------------------------------------------- writing

    def write(self, data: bytes) -> None:
        """Send bytes with all that is written in this turn of the loop; dropped if the client is gone."""
        if self._writer is None:
            view = memoryview(data)
            with suppress(OSError):
                while view:
                    view = view[os.write(self._stdout, view) :]
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing.append(data)
        self._unsent += len(data)
        if self._unsent >= _CHUNK:  # More than a pipe holds: writers should notice that it is full.
            self._flush()

    def _flush(self) -> None:
        data = b"".join(self._outgoing)
        self._outgoing.clear()
        self._unsent = 0
        if data and self._writer is not None and not self._writer.is_closing():
            if self._stall is not None:
                self._stall.written += len(data)
            self._writer.write(data)

    @property
    def unsent(self) -> int:
        """Bytes that the client has not read yet."""
        return 0 if self._writer is None else self._unsent + self._writer.get_write_buffer_size()

    def drain(self) -> Awaitable[None]:
        """Wait while the client reads more slowly than we write."""
        return self._at_once if self._writable.is_set() else self._wait_writable()

    async def _wait_writable(self) -> None:
        await self._writable.wait()

    def output_paused(self) -> None:
        """Stop reading as well: no requests are read from a client that does not read its answers."""
        if self._reopening is not None:
            self._reopening.cancel()
        self._writable.clear()
        self._pause_reading()
        self._notice_hang_up()
        if self._stall is not None:
            self._stall.start()

    def _cut(self) -> None:
        log.warning("The client has not read its answers for %g s; the connection is closed.", BLOCKED_TIME)
        if self._writer is not None:
            self._writer.abort()

    def _notice_hang_up(self) -> None:
        """Poll for a hang-up of the client while we do not read, since no event tells it."""
        if self._writable.is_set() or self._ended or self._reader is None:
            return
        poll = select.poll()
        poll.register(self._stdin, 0)  # A hang-up is reported without asking for it.
        if poll.poll(0):
            self.hang_up()
        else:
            self._loop.call_later(_HANG_UP_POLL, self._notice_hang_up)

    def output_resumed(self) -> None:
        """Read again, then write: calls that never stop sending would fill the output again at once."""
        if self._stall is not None:
            self._stall.stop()
        self._resume_reading()
        self._reopening = self._loop.call_later(0, self._writable.set)

    def output_lost(self) -> None:
        """Called when the client has closed its end."""
        self._writable.set()
        self._resume_reading()
        if self._stall is not None:
            self._stall.stop()
        if not self._written.done():
            self._written.set_result(None)
        self.hang_up()

    async def aclose(self) -> None:
        """Write what is left, as long as the client reads, and close."""
        if self._reader is not None:
            self._reader.close()
        if self._writer is not None:
            self._flush()
            self._writer.close()
            _, late = await asyncio.wait([self._written], timeout=_LAST_WRITE)
            if late:
                self._writer.abort()
                await self._written


class _Output(asyncio.BaseProtocol):
    """Tells the wire what happens to its output pipe."""

    def __init__(self, wire: StdioWire) -> None:
        self._wire = wire

    def pause_writing(self) -> None:
        self._wire.output_paused()

    def resume_writing(self) -> None:
        self._wire.output_resumed()

    def connection_lost(self, exc: Exception | None) -> None:
        self._wire.output_lost()


def _is_pipe(descriptor: int) -> bool:
    mode = os.fstat(descriptor).st_mode
    return stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


@contextmanager
def _own_pipes() -> Generator[tuple[int, int]]:
    """Private copies of stdin and stdout, which are redirected for all other code until the end."""
    stdin, stdout = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDONLY)
    flush: Callable[[], None] | None = getattr(sys.stdout, "flush", None)  # None if it was closed before.
    try:
        os.dup2(nothing, 0)
        os.dup2(2, 1)
        # After the redirection: text printed while the program started is not protocol either.
        if flush is not None:
            flush()
        # Output of tools is a log now, so it should appear at once.
        reconfigure: Callable[..., None] | None = getattr(sys.stdout, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(line_buffering=True)
        yield stdin, stdout
    finally:
        if flush is not None:
            with suppress(OSError, ValueError):
                flush()
        os.dup2(stdin, 0)
        os.dup2(stdout, 1)
        for descriptor in (stdin, stdout, nothing):
            # Transports made it non-blocking for all processes that share it.
            with suppress(OSError):
                os.set_blocking(descriptor, True)
            os.close(descriptor)


@contextmanager
def _on_signal(stop: Callable[[], None]) -> Generator[None]:
    """Call `stop` in the loop on SIGTERM and SIGINT, if this thread can handle signals."""
    loop = asyncio.get_running_loop()
    handled: list[signal.Signals] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(NotImplementedError, ValueError, RuntimeError):
            loop.add_signal_handler(number, stop)
            handled.append(number)
    try:
        yield
    finally:
        for number in handled:
            loop.remove_signal_handler(cast(int, number))
