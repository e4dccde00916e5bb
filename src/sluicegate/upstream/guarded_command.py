"""Runs a command that is not a server: its output goes to a receiver, and its whole process tree ends with it."""

import asyncio
import os
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Final, Literal, Protocol

from sluicegate.errors import UpstreamUnavailable
from sluicegate.upstream.guardian import Guardian
from sluicegate.upstream.process import KILL_LIMIT, PipeReader
from sluicegate.upstream.spawn import Launched, launch

SETTLE: Final = 0.05
"""Seconds between two looks at pipes that something holds open after the end of all processes."""


class OutputReceiver(Protocol):
    """Receives the output and the end of a command, in the event loop."""

    def received(self, stream: Literal["stdout", "stderr"], data: bytes) -> None: ...

    def ended(self, status: int | OSError) -> None:
        """No process of it is left, and all output was received. With an OSError it could not be started."""
        ...


def start_command(
    argv: Sequence[str], variables: Mapping[str, str], cwd: str, receiver: OutputReceiver
) -> "GuardedCommand":
    """Start a command with exactly these variables and no input; raises OSError if that is not possible."""
    try:
        launched = launch(argv, env=variables, cwd=cwd, inherits=False)
    except UpstreamUnavailable as problem:
        cause = problem.__cause__
        raise cause if isinstance(cause, OSError) else OSError(0, problem.message) from None
    return GuardedCommand(launched, receiver)


class GuardedCommand:
    """A running command under its guardian."""

    def __init__(self, launched: Launched, receiver: OutputReceiver) -> None:
        process = launched.process
        assert process.stdin and process.stdout and process.stderr
        self._loop = asyncio.get_running_loop()
        self._receiver = receiver
        self._status: int | OSError = -9
        """How the command ended. The first value is for a command that was killed together with its guardian."""
        self._is_gone = self._is_reaped = self._has_ended = False
        self._is_killed = False
        process.stdin.close()
        self._readers = [
            PipeReader(process.stdout, partial(receiver.received, "stdout"), self._end_if_over),
            PipeReader(process.stderr, partial(receiver.received, "stderr"), self._end_if_over, is_log=True),
        ]
        self._guardian = Guardian(process, launched.control, self)

    def pause(self) -> None:
        """Leave its output in the pipes, so that it waits when they are full."""
        for reader in self._readers:
            reader.pause()

    def resume(self) -> None:
        """Read its output again."""
        for reader in self._readers:
            reader.resume()

    def kill(self) -> None:
        """Kill all its processes."""
        if not self._is_killed and self._guardian.is_there:
            self._is_killed = True
            self._guardian.order(b"K")
            self._loop.call_later(KILL_LIMIT, self._abandon)

    def _abandon(self) -> None:
        if not self._is_gone:
            self._guardian.abandon()

    # Callbacks of the guardian.

    def started(self, error: int) -> None:
        """The command runs (0), or could not be executed (errno)."""
        if error and not self._is_killed and self._guardian.pid == 0:
            self._status = OSError(error, os.strerror(error))

    def exited(self, status: int) -> None:
        """The command has ended; processes that it left in the background are ended, too."""
        if not isinstance(self._status, OSError):
            self._status = status
        self.kill()

    def all_gone(self) -> None:
        """No process of the command is left."""
        self._is_gone = True
        self._loop.call_later(SETTLE, self._read_rest)

    def reaped(self) -> None:
        """The guardian has ended."""
        self._is_reaped = True
        self._end_if_over()

    # The end.

    def _read_rest(self) -> None:
        """Close pipes that have nothing left; only a process that could not be killed holds them open."""
        for reader in self._readers:
            if reader.is_open and not reader.is_paused and not reader.read_portion():
                reader.close()
        self._end_if_over()
        if not self._has_ended:
            self._loop.call_later(SETTLE, self._read_rest)

    def _end_if_over(self) -> None:
        is_over = self._is_gone and self._is_reaped and not any(reader.is_open for reader in self._readers)
        if is_over and not self._has_ended:
            self._has_ended = True
            self._receiver.ended(self._status)
