"""A server as a child process: its pipes, its exit, and how it is stopped.

A guardian process (see guard_main.py) starts the server, finds all its descendants and outlives us. The one rule:
events come by callbacks of the event loop, so a `Child` needs no task.

The pipes are read and written here rather than by the loop's pipe transports: all messages of one turn of the loop go
out in one write (a third of the CPU at 32 in flight), set-up needs no await, and uvloop's `connect_read_pipe`, when
cancelled, closes the descriptor although it is not its owner.
"""

import asyncio
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AsyncExitStack, suppress
from typing import IO, Final

from sluicegate.errors import UpstreamClosed
from sluicegate.runtime.byte_channel import Receiver
from sluicegate.upstream.guardian import Guardian
from sluicegate.upstream.spawn import START_LIMIT, Launched, cannot_start, launch
from sluicegate.upstream.stderr import visible

if sys.platform == "linux":
    from fcntl import F_SETPIPE_SZ, fcntl

PORTION: Final = 16 * 1024  # Read from a pipe per turn of the event loop, so that no server blocks others.
# Size of the pipe for answers. With the default of 64 KiB, a long answer costs a process switch per portion.
CAPACITY: Final = 256 * 1024
STDERR_KEPT: Final = 64 * 1024
WRITE_HIGH: Final = 64 * 1024
MAX_AT_END: Final = 1024 * 1024  # Bytes to read from each pipe after the exit; a descendant may never stop writing.
EXIT_SETTLE: Final = 0.25  # From the first sign of an exit until it is certain; output and exit status may follow.
KILL_LIMIT: Final = 3.0  # KILL takes milliseconds, but longer on an overloaded machine.


class PipeReader:
    """Passes the output of a pipe to `on_data`, then calls `on_end` once."""

    def __init__(
        self, pipe: IO[bytes], on_data: Callable[[bytes], None], on_end: Callable[[], None], *, is_log: bool = False
    ) -> None:
        self.on_data = on_data
        self.is_paused = False
        self._pipe = pipe
        self._fd = pipe.fileno()
        self._on_end = on_end
        self._loop = asyncio.get_running_loop()
        os.set_blocking(self._fd, False)
        if not is_log and sys.platform == "linux":
            with suppress(OSError):  # The kernel limits the pipe memory of one user.
                fcntl(self._fd, F_SETPIPE_SZ, CAPACITY)
        self._loop.add_reader(self._fd, self.read_portion)

    @property
    def is_open(self) -> bool:
        return not self._pipe.closed

    def pause(self) -> None:
        """Leave new bytes in the pipe until `resume`."""
        if not self.is_paused:
            self.is_paused = True
            if self.is_open:
                self._loop.remove_reader(self._fd)

    def resume(self) -> None:
        if self.is_paused:
            self.is_paused = False
            if self.is_open:
                self._loop.add_reader(self._fd, self.read_portion)

    def close(self) -> None:
        if self.is_open:
            self._loop.remove_reader(self._fd)
            self._pipe.close()

    def read_portion(self) -> int:
        """Read and pass on the next portion; returns its size."""
        try:
            data = os.read(self._fd, PORTION)
        except BlockingIOError:
            return 0
        except OSError:
            data = b""
        if data:
            self.on_data(data)
        else:
            self.close()
            self._on_end()
        return len(data)


class Child:
    """One running server, made by `open`. Its owner must call `aclose`."""

    exit_status: int | None = None
    """The exit status, negative for a signal; None while the server runs, or if the status is unknown."""

    def __init__(self, launched: Launched, receiver: Receiver, stop_grace: float) -> None:
        process = launched.process
        assert process.stdin and process.stdout and process.stderr
        self._loop = asyncio.get_running_loop()
        self._stdin = process.stdin
        self.on_stderr: Callable[[bytes], None] | None = None
        self.on_gone: Callable[[str], None] | None = None
        self._receiver = receiver
        self._stop_grace = stop_grace
        self._outgoing = bytearray()
        self._writable = asyncio.Event()
        self._writable.set()
        self._tail = bytearray()
        self._cause: str | None = None
        self._waiting_to_write = False
        self._input_ends = False
        self._exited = self._ended = self._stopping = self._killed = self._reaped = False
        self._settling: asyncio.Handle | None = None
        self._stop_timer: asyncio.TimerHandle | None = None
        self._at_once: asyncio.Future[None] = self._loop.create_future()
        self._at_once.set_result(None)
        self._started: asyncio.Future[int] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(self._stdin.fileno(), False)
        self._guardian = Guardian(process, launched.control, self)
        self._stdout = PipeReader(process.stdout, receiver.received, self._dying)
        self._stderr = PipeReader(process.stderr, self._heard_stderr, self._stderr_ended, is_log=True)
        self._left_to_read = {self._stdout: MAX_AT_END, self._stderr: MAX_AT_END}
        # There is nothing to read, but this reports when the server closes its end, even if we are not writing.
        self._loop.add_reader(self._stdin, self._stdin_lost)

    @classmethod
    async def open(
        cls,
        command: Sequence[str],
        receiver: Receiver,
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        stop_grace: float = 2.0,
        on_stderr: Callable[[bytes], None] | None = None,
        on_gone: Callable[[str], None] | None = None,
        launched: Launched | None = None,
    ) -> "Child":
        """Return the running server: its program has been executed, its output goes to the receiver.

        `on_gone` is called after the last output, with how it ended, as a predicate.
        `launched` is a process of this command that was started before. It is used if it was not taken yet.

        Raises:
            UpstreamUnavailable: it cannot be started. The message is safe to show; `__cause__` has the paths.
        """
        if launched is None or not launched.take():
            launched = launch(command, env=env, cwd=cwd)
        argv = launched.argv
        child = cls(launched, receiver, stop_grace)
        child.on_stderr = on_stderr
        try:
            async with AsyncExitStack() as on_failure:
                on_failure.push_async_callback(child._discard)
                async with asyncio.timeout(START_LIMIT):
                    error = await child._started
                if error:
                    raise OSError(error, os.strerror(error), argv[0])
                on_failure.pop_all()
        except OSError as cause:  # TimeoutError is one, too.
            cause.add_note(child.stderr_tail)  # If the guardian failed, its traceback is here.
            raise cannot_start(argv, cause) from cause
        child.on_gone = on_gone  # Not before: a program that could not be executed has not ended.
        return child

    @property
    def pid(self) -> int:
        """The process id of the server itself."""
        return self._guardian.pid

    @property
    def alive(self) -> bool:
        """Whether the process runs, has its pipes open, and is not being stopped."""
        return self._settling is None and not self._stopping

    @property
    def stderr_tail(self) -> str:
        """The last 64 KiB of its stderr, safe for a terminal."""
        return visible(self._tail)[-STDERR_KEPT:]

    def describe_exit(self) -> str:
        """How the process ended, as a predicate: "exited with status 3"."""
        return self._cause or self._exit_so_far()

    def write(self, data: bytes) -> None:
        """Send bytes with the next turn of the loop. They are dropped if the server is gone."""
        if self._stopping or self._stdin.closed:
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing += data
        if len(self._outgoing) > WRITE_HIGH:
            self._writable.clear()

    def drain(self) -> Awaitable[None]:
        """Return when the write buffer is below its limit.

        Raises:
            UpstreamClosed: the server is gone or being stopped.
        """
        # Called before each request, and mostly there is nothing to wait for: then no coroutine is made.
        is_ready = self._writable.is_set() and not self._stopping and not self._stdin.closed
        return self._at_once if is_ready else self._drained()

    async def _drained(self) -> None:
        # In a loop, because another task may fill the buffer first.
        while not self._writable.is_set():
            await self._writable.wait()
        if self._stopping or self._stdin.closed:
            raise UpstreamClosed(f"The server {self.describe_exit()}.")

    def end_input(self) -> None:
        """Close its input after the bytes written so far, and let it go on. Only for programs that are no servers."""
        self._input_ends = True
        if not self._outgoing:
            self._close_stdin()

    def kill(self) -> None:
        """Kill all its processes without letting them end by themselves. `aclose` waits for that."""
        self._stop()
        self._kill()

    def pause_reading(self) -> None:
        """Leave its output in the pipe until `resume_reading`, so that the server has to wait."""
        self._stdout.pause()

    def resume_reading(self) -> None:
        """Read again after `pause_reading`."""
        self._stdout.resume()

    async def aclose(self) -> None:
        """Stop the server and return when all its processes are gone: input closed, then TERM, then KILL.

        A cancelled `aclose` goes straight to KILL, waits for that, and only then passes the cancellation on.
        """
        self._stop()
        cancelled: asyncio.CancelledError | None = None
        while not self._gone.done():
            try:
                await asyncio.shield(self._gone)
            except asyncio.CancelledError as cancellation:
                cancelled = cancellation
                self._kill()
        if cancelled is not None:
            raise cancelled

    # Callbacks of the pipes.

    def _heard_stderr(self, data: bytes) -> None:
        # Always read, or the server would block; only the end is kept.
        self._tail += data
        del self._tail[:-STDERR_KEPT]
        if self.on_stderr is not None:
            self.on_stderr(data)

    def _stderr_ended(self) -> None:
        if self._settling is not None:  # A server may close its stderr and go on, so this alone is no sign.
            self._dying()

    def _flush(self) -> None:
        if self._stdin.closed:
            return
        try:
            sent = os.write(self._stdin.fileno(), self._outgoing)
        except BlockingIOError:
            sent = 0
        except OSError:
            self._stdin_lost()
            return
        del self._outgoing[:sent]
        if bool(self._outgoing) != self._waiting_to_write:
            self._waiting_to_write = not self._waiting_to_write
            if self._waiting_to_write:
                self._loop.add_writer(self._stdin, self._flush)
            else:
                self._loop.remove_writer(self._stdin)
        if len(self._outgoing) <= WRITE_HIGH:
            self._writable.set()
        if (self._stopping or self._input_ends) and not self._outgoing:
            self._close_stdin()

    def _stdin_lost(self) -> None:
        # A server that has closed its input cannot be used, even if it still runs.
        self._close_stdin()
        self._dying()

    def _close_stdin(self) -> None:
        if not self._stdin.closed:
            self._loop.remove_writer(self._stdin)
            self._loop.remove_reader(self._stdin)
            self._stdin.close()
            self._outgoing.clear()
            self._writable.set()

    # Callbacks of the guardian.

    def started(self, error: int) -> None:
        """The server runs (0), or could not be executed (errno)."""
        if not self._started.done():
            self._started.set_result(error)

    def exited(self, status: int) -> None:
        """The server has ended with this status."""
        self.exit_status = status
        self._exited = True
        self._dying()

    def all_gone(self) -> None:
        """No process of the server is left."""
        self._set_stop_timer(None)
        self._close_stdin()
        self._exited = True
        self._dying()

    def reaped(self) -> None:
        """The guardian has ended and was reaped."""
        self._reaped = True
        self._release()

    # The end of the server.

    def _dying(self) -> None:
        """Note a sign of the exit: stdin or stdout closed, exit reported, guardian gone, in any order."""
        if self._exited and not self._stdout.is_open and not self._stderr.is_open:
            self._end()
        elif self._settling is None:
            # The other signs may never come: a descendant can hold the pipes, or the server close them and live.
            self._settling = self._loop.call_later(EXIT_SETTLE, self._settled)

    def _settled(self) -> None:
        if self._stdout.is_paused and not self._stopping:
            # There may be output left that the receiver does not want yet.
            self._settling = self._loop.call_later(EXIT_SETTLE, self._settled)
            return
        # On a busy loop there may be unread output. One portion per turn, so that other servers are served, too.
        if self._read_rest():
            self._settling = self._loop.call_soon(self._settled)
        else:
            self._end()

    def _read_rest(self) -> bool:
        """Read a part of the remaining output of each pipe; returns whether there may be more."""
        has_more = False
        for (
            reader,
            left,
        ) in self._left_to_read.items():  # Each has its own limit: an endless log must not hide an answer.
            if left > 0 and reader.is_open and not reader.is_paused:
                size = reader.read_portion()
                self._left_to_read[reader] = left - size
                has_more |= size > 0
        return has_more

    def _end(self) -> None:
        if self._ended:
            return
        if not self._stopping:
            self._cause = self._exit_so_far()
        self._detach_receiver()
        self._stop()
        if self._guardian.pid:  # Otherwise it never ran, and `open` raises.
            self._receiver.ended()
        self._release()

    def _detach_receiver(self) -> None:
        self._ended = True
        self._stdout.on_data = (
            _discard  # Still read: a server that is blocked in a write does not see that it is to end.
        )

    def _release(self) -> None:
        if not self._ended or not self._reaped or self._gone.done():
            return
        has_more = self._read_rest()  # The traceback of a guardian that failed.
        if self._settling is not None:
            self._settling.cancel()
        if has_more:
            self._settling = self._loop.call_soon(self._release)
            return
        self._stderr.close()
        self._stdout.close()
        self._gone.set_result(None)
        if self.on_gone is not None:
            first, last = self._cause or "was stopped", self._exit_so_far()
            self.on_gone(last if first == last else f"{first} and {last}")

    def _exit_so_far(self) -> str:
        match self.exit_status:
            case None if self._exited:
                return "ended with an unknown status"
            case None if not self._stdout.is_open:
                return "closed its output"
            case None if self._stopping:
                return "is being stopped"
            case None:
                return "closed its input" if self._stdin.closed else "is running"
            case status if status < 0:
                return f"was killed by {_signal_name(-status)}"
            case status:
                return f"exited with status {status}"

    # How it is stopped.

    def _stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._writable.set()
        if not self._outgoing:  # Otherwise `_flush` closes it after the last bytes.
            self._close_stdin()
        if self._guardian.is_there:
            self._set_stop_timer(self._stop_grace, self._terminate)

    def _terminate(self) -> None:
        self._close_stdin()
        self._guardian.order(b"T")
        self._set_stop_timer(self._stop_grace, self._kill)

    def _kill(self) -> None:
        if not self._killed and self._guardian.is_there:
            self._killed = True
            self._close_stdin()
            self._guardian.order(b"K")
            self._set_stop_timer(KILL_LIMIT, self._guardian.abandon)

    async def _discard(self) -> None:
        self._detach_receiver()  # The receiver never learns of this server.
        self._stop()
        self._kill()
        self._release()
        await self.aclose()

    def _set_stop_timer(self, seconds: float | None, then: Callable[[], None] | None = None) -> None:
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        self._stop_timer = None if seconds is None or then is None else self._loop.call_later(seconds, then)


def _discard(data: bytes) -> None:
    """Drop output that comes after the end."""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
