"""An agent's process for one answer: what is written to it, and the lines of JSON that it prints."""

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final, cast

import msgspec

from sluicegate.activations.values import ToolError
from sluicegate.bundled.agent_events import Line
from sluicegate.errors import UpstreamUnavailable
from sluicegate.text.visible_text import visible
from sluicegate.upstream.process import Child

MAX_LINE: Final = 16 * 1024 * 1024
"""Bytes of one line."""
MAX_WAITING: Final = 1024 * 1024
"""Bytes of lines that wait for the client; then the agent waits, too."""
STOP_GRACE: Final = 5.0
"""Seconds that an agent has to save its session after the end of its input."""


class AgentProcess:
    """A running agent. Its owner must call `aclose`."""

    def __init__(self) -> None:
        self._child: Child | None = None
        self._part = bytearray()
        self._lines: deque[bytes] = deque()
        self._waiting = 0
        self._is_paused = self._is_over = self._is_too_long = False
        self._news = asyncio.Event()
        self._until_end: asyncio.Timeout | None = None

    @classmethod
    async def open(cls, command: Sequence[str], env: Mapping[str, str], folder: str) -> "AgentProcess":
        """Start an agent; raises ToolError if that is not possible."""
        process = cls()
        try:
            process._child = await Child.open(command, process, env=env, cwd=folder, stop_grace=STOP_GRACE)
        except UpstreamUnavailable as problem:
            raise ToolError(problem.message.replace("The server", "The agent", 1)) from None
        return process

    @property
    def _running(self) -> Child:
        assert self._child is not None
        return self._child

    async def aclose(self, *, is_complete: bool) -> None:
        """End the agent and all processes that it started; after a complete answer, it may end by itself."""
        if not is_complete:
            self._running.kill()
        await self._running.aclose()

    def write(self, data: bytes) -> None:
        """Send bytes; they are dropped if the agent has ended."""
        self._running.write(data)

    def write_json(self, value: object) -> None:
        """Send a line of JSON."""
        self.write(msgspec.json.encode(value) + b"\n")

    def end_input(self) -> None:
        """Close its input after the last bytes; the agent goes on."""
        self._running.end_input()

    async def next_line(self, silence: float) -> Line | None:
        """The next line that is an object; None after the last one.

        Raises:
            ToolError: the agent was silent for too long, or printed a line that is too long.
        """
        while True:
            try:
                async with asyncio.timeout(silence):
                    while not self._lines and not self._is_over and not self._is_too_long:
                        self._news.clear()
                        await self._news.wait()
            except TimeoutError:
                raise ToolError(f"The agent was silent for {silence:g} seconds, and was ended.") from None
            if self._is_too_long:
                raise ToolError(f"The agent printed a line of more than {MAX_LINE // 1024**2} MiB, and was ended.")
            if not self._lines:
                return None
            line = self._lines.popleft()
            self._waiting -= len(line)
            if self._is_paused and self._waiting <= MAX_WAITING // 2:
                self._is_paused = False
                self._running.resume_reading()
            try:
                value: object = msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                continue  # Warnings of runtimes and the like; agents print them between their events.
            if isinstance(value, dict):
                return cast(Line, value)

    def how_it_ended(self) -> str:
        """How the process ended, with the last line of its stderr."""
        child = self._running
        last = child.stderr_tail.strip().rpartition("\n")[2]
        return f"{child.describe_exit()}{f': {visible(last[:500])}' if last else ''}"

    @asynccontextmanager
    async def while_running(self) -> AsyncGenerator[None]:
        """Raises TimeoutError inside the block as soon as the agent ends."""
        try:
            async with asyncio.timeout(0 if self._is_over else None) as self._until_end:
                yield
        finally:
            self._until_end = None

    # Callbacks of the child.

    def received(self, data: bytes) -> None:
        """Take output; the agent waits while too much of it is unread."""
        if self._is_too_long:
            return
        start = len(self._part)
        self._part += data
        if self._part.find(b"\n", start) >= 0:
            *lines, rest = self._part.split(b"\n")
            self._part = rest
            for line in filter(None, lines):
                self._lines.append(bytes(line))
                self._waiting += len(line)
        if len(self._part) > MAX_LINE:
            self._is_too_long = True
            self._part.clear()
        if self._waiting > MAX_WAITING and not self._is_paused:
            self._is_paused = True
            self._running.pause_reading()
        self._news.set()

    def ended(self) -> None:
        """Note the end."""
        if self._part:
            self._lines.append(bytes(self._part))
            self._waiting += len(self._part)
            self._part.clear()
        self._is_over = True
        self._news.set()
        if self._until_end is not None:
            self._until_end.reschedule(0)
