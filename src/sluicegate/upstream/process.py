"""A server as a child process: bytes in, bytes out, and nothing left of it afterwards.

The server is started by a guardian (see guard.py), which finds all its descendants and outlives us. The one rule: what
happens is told by callbacks of the event loop, so a `Child` needs no task and ends the same way whoever waits for it.

The pipes are read and written here rather than by the loop's pipe transports: one write per turn of the loop, however
many messages it has (a third of the CPU at 32 in flight), nothing to await while they are set up, and no
`connect_read_pipe` of uvloop, which, when cancelled, closes the descriptor behind its owner's back.
"""

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final

from sluicegate.errors import UpstreamClosed
from sluicegate.upstream.guardian import Guardian
from sluicegate.upstream.launching import START_LIMIT, Launched, cannot_start, launch
from sluicegate.upstream.stderr import visible
from sluicegate.upstream.tap import Tap
from sluicegate.wire import Receiver

STDERR_KEPT: Final = 64 * 1024
WRITE_HIGH: Final = 64 * 1024
LAST_WORDS: Final = 1024 * 1024  # Of each pipe, read at the end, at most: who still holds it may write on forever.
SETTLE: Final = 0.25  # From the first sign of death to its certainty: the rest of the output, the exit status.
KILL_LIMIT: Final = 3.0  # KILL takes milliseconds; this is for a machine out of breath.


class Child:
    """One running server. Made by `open`; whoever opened it must `aclose` it."""

    exit_status: int | None = None
    """How the server ended, negative for a signal; None while it runs, or if nobody could see it."""

    def __init__(self, launched: Launched, receiver: Receiver, stop_grace: float) -> None:
        process = launched.process
        assert process.stdin and process.stdout and process.stderr
        self._loop = asyncio.get_running_loop()
        self._stdin = process.stdin
        self.on_stderr: Callable[[bytes], None] | None = None
        self._receiver = receiver
        self._stop_grace = stop_grace
        self._outgoing = bytearray()
        self._writable = asyncio.Event()
        self._writable.set()
        self._tail = bytearray()
        self._cause: str | None = None
        self._waiting_to_write = False
        self._exited = self._ended = self._stopping = self._killed = self._reaped = False
        self._settling: asyncio.Handle | None = None
        self._stop_timer: asyncio.TimerHandle | None = None
        self._at_once: asyncio.Future[None] = self._loop.create_future()
        self._at_once.set_result(None)
        self._started: asyncio.Future[int] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        os.set_blocking(self._stdin.fileno(), False)
        self._guardian = Guardian(process, launched.control, self)
        self._stdout = Tap(process.stdout, receiver.received, self._dying)
        self._stderr = Tap(process.stderr, self._heard_stderr, self._stderr_ended, is_log=True)
        self._last_words = {self._stdout: LAST_WORDS, self._stderr: LAST_WORDS}
        # Nothing can be read here, but a closed other end shows as an error, even if nothing is being written.
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
        launched: Launched | None = None,
    ) -> "Child":
        """Return the running server: its program has been executed, its output goes to the receiver.

        `launched` is one of this command that was started before; if nobody has taken it yet, no other is started.

        Raises:
            UpstreamUnavailable: it cannot be started. The sentence is safe to show; `__cause__` has the paths.
        """
        if launched is None or not launched.take():
            launched = launch(command, env=env, cwd=cwd)
        argv = launched.argv
        child = cls(launched, receiver, stop_grace)
        child.on_stderr = on_stderr
        try:
            async with asyncio.timeout(START_LIMIT):
                error = await child._started
            if error:
                raise OSError(error, os.strerror(error), argv[0])
        except OSError as cause:  # TimeoutError is one, too.
            await child._discard()
            cause.add_note(child.stderr_tail)  # If it was the guardian that failed, it says so there.
            raise cannot_start(argv, cause) from cause
        except BaseException:  # Handed on, a cancellation mostly: but nothing of a child is ever left behind.
            await child._discard()
            raise
        return child

    @property
    def pid(self) -> int:
        """The process id of the server itself."""
        return self._guardian.pid

    @property
    def alive(self) -> bool:
        """Whether it can still be asked: it runs, has closed no pipe, and was not told to stop."""
        return self._settling is None and not self._stopping

    @property
    def stderr_tail(self) -> str:
        """The last 64 KiB at most of what it wrote to stderr, safe for a terminal."""
        return visible(self._tail)[-STDERR_KEPT:]

    def describe_exit(self) -> str:
        """How it ended, as the rest of a sentence about it: "exited with status 3"."""
        return self._cause or self._exit_so_far()

    def write(self, data: bytes) -> None:
        """Send bytes with the next turn of the loop; once it is dead they are dropped, and `ended` has told so."""
        if self._stopping or self._stdin.closed:
            return
        if not self._outgoing:
            self._loop.call_soon(self._flush)
        self._outgoing += data
        if len(self._outgoing) > WRITE_HIGH:
            self._writable.clear()

    def drain(self) -> Awaitable[None]:
        """Return when the server has taken enough of what was written.

        Raises:
            UpstreamClosed: it never will.
        """
        # Before each request: nearly always there is nothing to wait for, and then no coroutine is made.
        is_ready = self._writable.is_set() and not self._stopping and not self._stdin.closed
        return self._at_once if is_ready else self._drained()

    async def _drained(self) -> None:
        # Looked at again after each wait: of many who wait, the first may fill the pipe again.
        while not self._writable.is_set():
            await self._writable.wait()
        if self._stopping or self._stdin.closed:
            raise UpstreamClosed(f"The server {self.describe_exit()}.")

    def pause_reading(self) -> None:
        """Leave its output in the pipe, and so let the server wait, until `resume_reading`."""
        self._stdout.pause()

    def resume_reading(self) -> None:
        """Go on after `pause_reading`."""
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

    # What the pipes say.

    def _heard_stderr(self, data: bytes) -> None:
        # Always read, or the server would wait for us; only the end is kept, however much comes.
        self._tail += data
        del self._tail[:-STDERR_KEPT]
        if self.on_stderr is not None:
            self.on_stderr(data)

    def _stderr_ended(self) -> None:
        if self._settling is not None:  # A server may close its stderr and go on; this only completes other signs.
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
        if self._stopping and not self._outgoing:
            self._close_stdin()

    def _stdin_lost(self) -> None:
        # A server that takes no input is as good as dead, whether or not it lives.
        self._close_stdin()
        self._dying()

    def _close_stdin(self) -> None:
        if not self._stdin.closed:
            self._loop.remove_writer(self._stdin)
            self._loop.remove_reader(self._stdin)
            self._stdin.close()
            self._outgoing.clear()
            self._writable.set()

    # What the guardian says.

    def started(self, error: int) -> None:
        """Learn that the server runs, or why it does not."""
        if not self._started.done():
            self._started.set_result(error)

    def exited(self, status: int) -> None:
        """Learn how the server ended."""
        self.exit_status = status
        self._exited = True
        self._dying()

    def unguarded(self) -> None:
        """Learn that nothing is left of the server."""
        self._set_stop_timer(None)
        self._close_stdin()
        self._exited = True
        self._dying()

    def buried(self) -> None:
        """Learn that its guardian is gone, too."""
        self._reaped = True
        self._release()

    # How it ends.

    def _dying(self) -> None:
        """Note a sign of death: stdin or stdout closed, the exit reported, the guardian gone, in whatever order."""
        if self._exited and not self._stdout.is_open and not self._stderr.is_open:
            self._end()
        elif self._settling is None:
            # The rest may come in a moment, or never: a grandchild can hold the pipes, a server close them and live.
            self._settling = self._loop.call_later(SETTLE, self._settled)

    def _settled(self) -> None:
        if self._stdout.is_paused and not self._stopping:
            # There may be output left that the receiver wants, but not now.
            self._settling = self._loop.call_later(SETTLE, self._settled)
            return
        # A busy loop may not have come to what is in the pipes. A portion in each turn, as ever: others are served too.
        if self._draw_last_words():
            self._settling = self._loop.call_soon(self._settled)
        else:
            self._end()

    def _draw_last_words(self) -> bool:
        """Take a portion of what is left in each pipe; whether there may be more."""
        has_more = False
        for tap, left in self._last_words.items():  # To each its own: a log without end must not hide an answer.
            if left > 0 and tap.is_open and not tap.is_paused:
                size = tap.draw()
                self._last_words[tap] = left - size
                has_more |= size > 0
        return has_more

    def _end(self) -> None:
        if self._ended:
            return
        if not self._stopping:
            self._cause = self._exit_so_far()
        self._tell_nothing_more()
        self._stop()
        if self._guardian.pid:  # Otherwise it has never run, which `open` is about to tell.
            self._receiver.ended()
        self._release()

    def _tell_nothing_more(self) -> None:
        self._ended = True
        self._stdout.hear = _pass_over  # Still read: a server that cannot write may not see that it is to end.

    def _release(self) -> None:
        if not self._ended or not self._reaped or self._gone.done():
            return
        has_more = self._draw_last_words()  # They are those of a guardian that failed.
        if self._settling is not None:
            self._settling.cancel()
        if has_more:
            self._settling = self._loop.call_soon(self._release)
            return
        self._stderr.close()
        self._stdout.close()
        self._gone.set_result(None)

    def _exit_so_far(self) -> str:
        match self.exit_status:
            case None if self._exited:
                return "ended, and nobody knows with which status"
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

    # How we end it.

    def _stop(self) -> None:
        if self._stopping:
            return
        self._stopping = True
        self._writable.set()
        if not self._outgoing:  # Otherwise when the last words are out.
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
        self._tell_nothing_more()  # The receiver will never know this server.
        self._stop()
        self._kill()
        self._release()
        await self.aclose()

    def _set_stop_timer(self, seconds: float | None, then: Callable[[], None] | None = None) -> None:
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        self._stop_timer = None if seconds is None or then is None else self._loop.call_later(seconds, then)


def _pass_over(data: bytes) -> None:
    """Nobody wants it."""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
