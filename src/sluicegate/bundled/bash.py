"""`bash`: runs commands. The whole process tree of a command ends with its call."""

import asyncio
import os
import pwd
import signal
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Annotated, Final, Literal, Protocol

import msgspec
from msgspec import Meta

from sluicegate.activations.values import Error, Structured, ToolError
from sluicegate.gateway.loading import Services
from sluicegate.server import activation
from sluicegate.upstream.guarded_command import OutputReceiver, start_command

MAX_LINE: Final = 64 * 1024
"""Bytes of one event; longer lines come in several."""
MAX_WAITING: Final = 64
"""Events that wait for the client; then the command waits, too."""
SHELLS: Final = ("/bin/bash", "/usr/bin/bash", "/usr/local/bin/bash", "/bin/sh")
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

Stream = Literal["stdout", "stderr"]


class Stdout(msgspec.Struct, frozen=True, tag="stdout"):
    """A line of the standard output, with its end."""

    data: Annotated[str, Meta(description="The line.")]


class Stderr(msgspec.Struct, frozen=True, tag="stderr"):
    """A line of the standard error output, with its end."""

    data: Annotated[str, Meta(description="The line.")]

    def __str__(self) -> str:
        return f"[stderr] {self.data}"


class Command(Protocol):
    """A command that runs, and all processes that it started."""

    def pause(self) -> None:
        """Read no more of its output until `resume`."""
        ...

    def resume(self) -> None: ...

    def kill(self) -> None:
        """End all its processes."""
        ...


Start = Callable[[Sequence[str], Mapping[str, str], str, OutputReceiver], Command]
"""Starts a command line with exactly these variables, in a folder; raises OSError if that is not possible."""


@activation("bash")
class Bash:
    """Runs commands on the machine of the gateway, as its user."""

    def __init__(self, services: Services | None = None, start: Start = start_command) -> None:
        self._folder = services.root if services is not None else os.getcwd()
        self._start = start

    async def execute(
        self,
        command: str,
        cwd: str | None = None,
        env: dict[str, str] | None = None,
        timeout: Annotated[float, Meta(gt=0, le=86_400)] = 120.0,  # noqa: ASYNC109 - for the caller of the tool
        max_output: Annotated[int, Meta(ge=0, le=64 * 1024 * 1024)] = 1024 * 1024,
    ) -> AsyncIterator[Stdout | Stderr | Structured | Error]:
        """Run a command with Bash, and stream its output by line.

        All processes that it starts end with it, also those in the background. Of the gateway's variables it inherits
        none.

        Args:
            command: What to run, as it would be typed into a shell.
            cwd: The folder to run it in; by default that of the gateway.
            env: Variables for it, besides PATH, HOME and LANG.
            timeout: Seconds after which it is ended.
            max_output: Bytes of output that are kept; the rest is dropped.
        """
        home = pwd.getpwuid(os.getuid()).pw_dir
        folder = os.path.join(self._folder, cwd or "")
        if not os.path.isdir(folder):  # noqa: ASYNC240 - as the start of the process, which takes longer
            raise ToolError(f"There is no folder {folder}.")
        variables = {"PATH": PATH, "HOME": home, "LANG": "C.UTF-8", **(env or {})}
        shell = next((each for each in SHELLS if os.access(each, os.X_OK)), SHELLS[-1])
        output = _Output(max_output)
        try:
            output.follow(self._start([shell, "-c", command], variables, folder, output), timeout)
        except OSError as problem:
            raise _not_started(problem) from None
        try:
            while (event := await output.next()) is not None:
                yield event
        finally:
            await output.aclose()
        if isinstance(output.status, OSError):
            raise _not_started(output.status)
        if output.is_expired:
            yield Error(f"The command was ended after {timeout:g} seconds.")
            return
        yield Structured(_outcome(output.status, is_truncated=output.is_truncated))
        if output.status > 0:
            yield Error(f"The command failed with exit code {output.status}.")
        elif output.status < 0:
            yield Error(f"The command was ended by the signal {_signal_name(-output.status)}.")


def _not_started(problem: OSError) -> ToolError:
    # The number is 0 if the system was not even asked.
    why = "remove NUL characters, and = from the names of variables" if problem.errno == 0 else problem.strerror
    return ToolError(f"The command could not be started: {why or 'it took too long'}.")


def _outcome(status: int, *, is_truncated: bool) -> dict[str, object]:
    outcome: dict[str, object] = {"exit_code": status if status >= 0 else 128 - status}
    if status < 0:
        outcome["signal"] = _signal_name(-status)
    if is_truncated:
        outcome["truncated"] = True
    return outcome


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


class _Output:
    """The lines of both streams in the order in which they came, for one reader."""

    def __init__(self, max_output: int) -> None:
        self.status: int | OSError = 0
        self.is_truncated = self.is_expired = False
        self._room = max_output
        self._parts: dict[Stream, bytearray] = {"stdout": bytearray(), "stderr": bytearray()}
        self._events: deque[Stdout | Stderr] = deque()
        self._news = asyncio.Event()
        self._over = asyncio.Event()
        self._command: Command | None = None
        self._timer: asyncio.TimerHandle | None = None

    def follow(self, command: Command, timeout: float) -> None:
        """Read the output of a command, and end it after so many seconds."""
        self._command = command
        self._timer = asyncio.get_running_loop().call_later(timeout, self._expire)

    async def next(self) -> Stdout | Stderr | None:
        """The next line; None after the end of the command."""
        while not self._events:
            if self._over.is_set():
                return None
            self._news.clear()
            if self._command is not None:
                self._command.resume()
            await self._news.wait()
        return self._events.popleft()

    async def aclose(self) -> None:
        """End the command, and return when its processes are gone."""
        if self._timer is not None:
            self._timer.cancel()
        if self._command is not None and not self._over.is_set():
            self._room = 0
            self._command.kill()
            self._command.resume()
            await self._over.wait()

    def received(self, stream: Stream, data: bytes) -> None:
        """Take output; the command waits while there are too many lines."""
        part = self._parts[stream]
        part += data
        while part and ((end := part.find(b"\n") + 1) or len(part) >= MAX_LINE):
            end = min(end or MAX_LINE, MAX_LINE)
            self._add(stream, part[: _whole_characters(part, end)])
            del part[: _whole_characters(part, end)]
        if len(self._events) >= MAX_WAITING and self._command is not None:
            self._command.pause()

    def ended(self, status: int | OSError) -> None:
        """Note the end."""
        for stream, part in self._parts.items():
            if part:
                self._add(stream, part)
        self.status = status
        self._over.set()
        self._news.set()

    def _expire(self) -> None:
        self.is_expired = True
        if self._command is not None:
            self._command.kill()

    def _add(self, stream: Stream, line: bytes | bytearray) -> None:
        if len(line) > self._room:
            self.is_truncated = True
            line = line[: _whole_characters(line, self._room)]
        self._room -= len(line)
        if line:
            text = line.decode("utf-8", "replace")
            self._events.append(Stdout(text) if stream == "stdout" else Stderr(text))
            self._news.set()
        if self.is_truncated:
            self._room = 0


def _whole_characters(data: bytes | bytearray, end: int) -> int:
    """Where to cut so that no character is split; `end` itself if the data is no text."""
    for cut in range(end, max(end - 4, 0), -1):
        if cut == len(data) or data[cut] & 0b1100_0000 != 0b1000_0000:
            return cut
    return end
