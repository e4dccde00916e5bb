"""A server as a child process: bytes in, bytes out, and nothing left of it afterwards.

The server is started by a guardian (see guard.py), which finds all its descendants and outlives us. The one rule: what
happens is told by callbacks of the event loop, so a `Child` needs no task and ends the same way whoever waits for it.

The pipes are read and written here rather than by the loop's pipe transports: one write per turn of the loop, however
many messages it has (a third of the CPU at 32 in flight), nothing to await while they are set up, and no
`connect_read_pipe` of uvloop, which, when cancelled, closes the descriptor behind its owner's back.
"""

import asyncio
import contextlib
import errno
import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Final

from sluicegate.errors import UpstreamClosed, UpstreamUnavailable
from sluicegate.wire import Receiver

GUARD: Final = os.path.join(os.path.dirname(os.path.abspath(__file__)), "guard.py")
CHUNK: Final = 64 * 1024  # What a pipe holds.
STDERR_KEPT: Final = 64 * 1024
WRITE_HIGH: Final = 64 * 1024
START_LIMIT: Final = 10.0
SETTLE: Final = 0.25  # From the first sign of death to its certainty: the rest of the output, the exit status.
KILL_LIMIT: Final = 3.0  # KILL takes milliseconds; this is for a machine out of breath.

# What a program needs to run as its user, and nothing that could be a secret: no name here is one of a credential.
INHERITED: Final = frozenset(
    "HOME LOGNAME PATH SHELL TERM USER LANG LANGUAGE TZ TMPDIR "
    # Where a company has its own certificates, nothing can be reached without these; they name files.
    "SSL_CERT_FILE SSL_CERT_DIR NODE_EXTRA_CA_CERTS REQUESTS_CA_BUNDLE CURL_CA_BUNDLE NO_PROXY no_proxy".split()
)
INHERITED_FAMILIES: Final = ("LC_", "XDG_")
# Likewise needed to reach anything, but their URLs may hold a password: with an `@` they must be declared.
PROXIES: Final = frozenset("HTTP_PROXY HTTPS_PROXY ALL_PROXY http_proxy https_proxy all_proxy".split())

# Escape sequences that drive a terminal, and characters that turn a line around or break it in two.
_HIDDEN: Final = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029}
_VISIBLE: Final = {code: ascii(chr(code))[1:-1] for code in _HIDDEN - {ord("\t"), ord("\n")}}


class Child:
    """One running server. Made by `open`; whoever opened it must `aclose` it."""

    exit_status: int | None = None
    """How the server ended, negative for a signal; None while it runs, or if nobody could see it."""

    def __init__(
        self, process: subprocess.Popen[bytes], control: socket.socket, receiver: Receiver, stop_grace: float
    ) -> None:
        assert process.stdin and process.stdout and process.stderr
        self._loop = asyncio.get_running_loop()
        self._guardian = process
        self._control = control
        self._stdin, self._stdout, self._stderr = process.stdin, process.stdout, process.stderr
        self.on_stderr: Callable[[bytes], None] | None = None
        self._receiver = receiver
        self._stop_grace = stop_grace
        self._pid = 0
        self._words = b""
        self._outgoing = bytearray()
        self._writable = asyncio.Event()
        self._writable.set()
        self._tail = bytearray()
        self._cause: str | None = None
        self._waiting_to_write = self._paused = False
        self._exited = self._ended = self._stopping = self._killed = self._reaped = False
        self._settling: asyncio.TimerHandle | None = None
        self._stop_timer: asyncio.TimerHandle | None = None
        self._started: asyncio.Future[int] = self._loop.create_future()
        self._gone: asyncio.Future[None] = self._loop.create_future()
        for pipe in (self._stdin, self._stdout, self._stderr):
            os.set_blocking(pipe.fileno(), False)
        control.setblocking(False)
        self._loop.add_reader(control, self._control_ready)
        self._loop.add_reader(self._stdout, self._stdout_ready)
        self._loop.add_reader(self._stderr, self._stderr_ready)
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
    ) -> "Child":
        """Return the running server: its program has been executed, its output goes to the receiver.

        Raises:
            UpstreamUnavailable: it cannot be started. The sentence is safe to show; `__cause__` has the paths.
        """
        environment = child_environment(env)
        argv = _executable(command, environment, cwd)
        child = cls(*_spawn(argv, environment, cwd), receiver, stop_grace)
        child.on_stderr = on_stderr
        try:
            async with asyncio.timeout(START_LIMIT):
                error = await child._started
            if error:
                raise OSError(error, os.strerror(error), argv[0])
        except OSError as cause:  # TimeoutError is one, too.
            await child._discard()
            cause.add_note(child.stderr_tail)  # If it was the guardian that failed, it says so there.
            raise _cannot_start(argv, cause) from cause
        except BaseException:  # Handed on, a cancellation mostly: but nothing of a child is ever left behind.
            await child._discard()
            raise
        return child

    @property
    def pid(self) -> int:
        """The process id of the server itself."""
        return self._pid

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

    async def drain(self) -> None:
        """Return when the server has taken enough of what was written.

        Raises:
            UpstreamClosed: it never will.
        """
        # Looked at again after each wait: of many who wait, the first may fill the pipe again.
        while not self._writable.is_set():
            await self._writable.wait()
        if self._stopping or self._stdin.closed:
            raise UpstreamClosed(f"The server {self.describe_exit()}.")

    def pause_reading(self) -> None:
        """Leave its output in the pipe, and so let the server wait, until `resume_reading`."""
        if not self._paused:
            self._paused = True
            if not self._stdout.closed:
                self._loop.remove_reader(self._stdout)

    def resume_reading(self) -> None:
        """Go on after `pause_reading`."""
        if self._paused:
            self._paused = False
            if not self._stdout.closed:
                self._loop.add_reader(self._stdout, self._stdout_ready)

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

    def _stdout_ready(self) -> None:
        data = _read(self._stdout)
        if data:
            if not self._ended:
                self._receiver.received(data)
        elif data is not None:
            self._close(self._stdout)
            self._dying()

    def _stderr_ready(self) -> None:
        data = _read(self._stderr)
        if data:
            # Always read, or the server would wait for us; only the end is kept, however much comes.
            self._tail += data
            del self._tail[:-STDERR_KEPT]
            if self.on_stderr is not None:
                self.on_stderr(data)
        elif data is not None:
            self._close(self._stderr)
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
            self._close(self._stdin)
            self._outgoing.clear()
            self._writable.set()

    def _close(self, pipe: IO[bytes]) -> None:
        if not pipe.closed:
            self._loop.remove_reader(pipe)
            pipe.close()

    # What the guardian says.

    def _control_ready(self) -> None:
        try:
            data = self._control.recv(4096)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self._guardian_lost()
            return
        *lines, self._words = (self._words + data).split(b"\n")
        for line in lines:
            word, _, number = line.partition(b" ")
            match word:
                case b"started":
                    self._pid = int(number)
                    self._report_start(0)
                case b"failed":
                    self._report_start(int(number))
                case b"exited":
                    self.exit_status = int(number)
                    self._exited = True
                    self._dying()
                case _:
                    pass

    def _report_start(self, error: int) -> None:
        if not self._started.done():
            self._started.set_result(error)

    def _guardian_lost(self) -> None:
        # It ends when nothing is left of the server. Or somebody killed it: then the kernel has killed the server, and
        # we reach at least who stayed in its group.
        if self._pid and not self._exited:
            with contextlib.suppress(OSError):
                os.killpg(self._pid, signal.SIGKILL)
        self._loop.remove_reader(self._control)
        self._control.close()
        self._set_stop_timer(None)
        self._report_start(errno.ECHILD)
        self._close_stdin()
        self._exited = True
        self._dying()
        self._reap(0.001)

    def _reap(self, pause: float) -> None:
        # A process closes its descriptors a little before it can be waited for.
        if self._guardian.poll() is None:
            self._loop.call_later(pause, self._reap, min(pause * 2, 0.1))
        else:
            self._reaped = True
            self._release()

    # How it ends.

    def _dying(self) -> None:
        """Note a sign of death: stdin or stdout closed, the exit reported, the guardian gone, in whatever order."""
        if self._exited and self._stdout.closed and self._stderr.closed:
            self._end()
        elif self._settling is None:
            # The rest may come in a moment, or never: a grandchild can hold the pipes, a server close them and live.
            self._settling = self._loop.call_later(SETTLE, self._settled)

    def _settled(self) -> None:
        if self._paused and not self._stopping:
            # There may be output left that the receiver wants, but not now.
            self._settling = self._loop.call_later(SETTLE, self._settled)
            return
        # A busy loop may not have come to what is in the pipes. At most 1 MiB: their holder may write on forever.
        for _ in range(16):
            if not self._stdout.closed and not self._paused:
                self._stdout_ready()
            if not self._stderr.closed:
                self._stderr_ready()
        self._end()

    def _end(self) -> None:
        if self._ended:
            return
        if not self._stopping:
            self._cause = self._exit_so_far()
        self._ended = True
        self._stop()
        if self._pid:  # Otherwise it has never run, which `open` is about to tell.
            self._receiver.ended()
        self._release()

    def _release(self) -> None:
        if self._ended and self._reaped and not self._gone.done():
            if self._settling is not None:
                self._settling.cancel()
            if not self._stderr.closed:
                self._stderr_ready()  # The last words of a guardian that failed.
            self._close(self._stderr)
            self._close(self._stdout)
            self._gone.set_result(None)

    def _exit_so_far(self) -> str:
        match self.exit_status:
            case None if self._exited:
                return "ended unseen"
            case None if self._stdout.closed:
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
        if self._control.fileno() >= 0:
            self._set_stop_timer(self._stop_grace, self._terminate)

    def _terminate(self) -> None:
        self._close_stdin()
        self._order(b"T")
        self._set_stop_timer(self._stop_grace, self._kill)

    def _kill(self) -> None:
        if not self._killed and self._control.fileno() >= 0:
            self._killed = True
            self._close_stdin()
            self._order(b"K")
            self._set_stop_timer(KILL_LIMIT, self._abandon)

    def _abandon(self) -> None:
        # The guardian itself hangs, or something in its care cannot be killed; nobody could do more.
        self._guardian.kill()
        self._guardian_lost()

    async def _discard(self) -> None:
        self._ended = True  # The receiver will never know this server.
        self._stop()
        self._kill()
        self._release()
        await self.aclose()

    def _order(self, order: bytes) -> None:
        with contextlib.suppress(OSError):  # If the guardian is gone, its end is about to reach us.
            self._control.send(order)

    def _set_stop_timer(self, seconds: float | None, then: Callable[[], None] | None = None) -> None:
        if self._stop_timer is not None:
            self._stop_timer.cancel()
        self._stop_timer = None if seconds is None or then is None else self._loop.call_later(seconds, then)


def visible(text: bytes | bytearray) -> str:
    """What a server wrote, safe for a terminal."""
    return text.decode("utf-8", "backslashreplace").replace("\r\n", "\n").translate(_VISIBLE)


def child_environment(extra: Mapping[str, str] | None) -> dict[str, str]:
    """The environment of a server: the harmless part of ours, and what was declared for it."""
    inherited = {
        name: value
        for name, value in os.environ.items()
        if (name in INHERITED or name.startswith(INHERITED_FAMILIES) or (name in PROXIES and "@" not in value))
        and not value.startswith("()")  # A function exported by an old shell is code.
    }
    return inherited | dict(extra or {})


def _executable(
    command: Sequence[str], environment: Mapping[str, str], cwd: str | os.PathLike[str] | None
) -> list[str]:
    """The command with its program as an absolute path, found where the server itself would find it."""
    if not command or not command[0]:
        raise UpstreamUnavailable("The server has no command; give the program to run and its arguments.")
    program, *arguments = command
    name = os.path.basename(program)
    base = os.path.abspath(cwd or os.curdir)
    if not os.path.isdir(base):
        problem = "is a file" if os.path.exists(base) else "does not exist"
        raise UpstreamUnavailable(
            f"The working directory of the server's command {name!r} {problem}; create it or correct it."
        ) from NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), base)
    if os.sep in program:
        program, path = os.path.join(base, program), ""
    else:
        places = environment.get("PATH", os.defpath).split(os.pathsep)
        path = os.pathsep.join(os.path.join(base, place) for place in places)
    if found := shutil.which(program, path=path):
        return [found, *arguments]
    if os.path.lexists(program) or shutil.which(program, os.F_OK, path):
        raise UpstreamUnavailable(
            f"The server's command {name!r} is not an executable file; make it one (chmod +x) or name its interpreter."
        ) from PermissionError(errno.EACCES, os.strerror(errno.EACCES), program)
    raise UpstreamUnavailable(
        f"The server's command {name!r} was not found; install it, or give its full path."
    ) from FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)


def _spawn(
    argv: list[str], environment: dict[str, str], cwd: str | os.PathLike[str] | None
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """The guardian that is about to start the server, and our end of its control socket."""
    try:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # A quarter of a millisecond, whatever our size (vfork): not worth a thread.
                process = subprocess.Popen(
                    [sys.executable, "-I", "-S", GUARD, str(theirs.fileno()), "--", *argv],
                    bufsize=0,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=cwd,
                    env=environment,
                    pass_fds=[theirs.fileno()],
                    start_new_session=True,
                )
            except BaseException:  # Handed on, whatever it is: but the socket is nobody's now.
                ours.close()
                raise
    except (OSError, ValueError) as cause:
        raise _cannot_start(argv, cause) from cause
    return process, ours


def _cannot_start(argv: list[str], cause: Exception) -> UpstreamUnavailable:
    match cause:
        case TimeoutError():
            why = f"it took more than {START_LIMIT:.0f} seconds; see what keeps the machine or its disk busy"
        case OSError(errno=errno.ENOENT, filename=name) if name == argv[0]:
            why = "its interpreter is missing; install what its first line names"
        case OSError(errno=errno.ENOEXEC):
            why = "it is no program; begin it with a #! line, or name its interpreter"
        case OSError(errno=errno.ECHILD):
            why = "the process that guards it has ended; see the log of the machine"
        case OSError(errno=int(number)):
            why = f"{os.strerror(number).lower()}; try it in a shell as the same user"
        case _:
            why = "its arguments or variables hold what no system passes on; remove NUL characters, and = from names"
    return UpstreamUnavailable(f"The server's command {os.path.basename(argv[0])!r} could not be started: {why}.")


def _read(pipe: IO[bytes]) -> bytes | None:
    """What is in the pipe, None if nothing is, b"" at its end."""
    try:
        return os.read(pipe.fileno(), CHUNK)
    except BlockingIOError:
        return None
    except OSError:
        return b""


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"
