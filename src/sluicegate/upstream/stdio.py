"""A server as a child process, spoken to over its stdin and stdout."""

import hashlib
import math
import os
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from sluicegate.concurrency import TaskScope
from sluicegate.errors import UpstreamClosed, UpstreamError, UpstreamUnavailable
from sluicegate.exchange import Connection, Host
from sluicegate.protocol.framing import DEFAULT_CEILING
from sluicegate.upstream.launching import Launched
from sluicegate.upstream.link import Era, Link
from sluicegate.upstream.mask import Mask, Masked
from sluicegate.upstream.process import Child
from sluicegate.upstream.skipped import SkippedLines
from sluicegate.upstream.stderr import StderrLog

CRASH_COUNTS: Final = 600.0
"""Seconds for which a server that ended when it was probed is taken for one of the session era. Some of these do, each
time; but any server may crash, and one of 2026-07-28 must not be spoken to as an older one for ever."""

_verdicts: Final[dict[bytes, tuple[Era, float]]] = {}
"""The era of every command probed so far, and until when that counts (by the monotonic clock): to probe again would
cost a slow server its time-out again."""


class StdioUpstream:
    """A command that is a server. Each connection starts a process of its own and ends it."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        era: Era = "auto",
        name: str | None = None,
        probe_timeout: float = 10.0,
        open_timeout: float = 30.0,
        stop_grace: float = 2.0,
        ceiling: int = DEFAULT_CEILING,
        secrets: Iterable[str] = (),
        on_lines: Callable[[list[str]], object] | None = None,
        launched: Launched | None = None,
        missing: str = "",
    ) -> None:
        """`ceiling` is how many bytes one message of the server may have.

        `on_lines` hears what the process writes to its stderr, of a flood only some lines.

        `secrets` are masked in it and in every error, as the values of `env` are. `launched` is one of this command
        that was started before: the first connection takes it, unless whoever launched it has dismissed it by then.
        `missing` is the sentence for a program that is not there, of whoever knows where the command is written.
        """
        self._command = list(command)
        self._env = dict(env or {})
        self._cwd = cwd
        self._era: Era = era
        self._name = name or _name_of(self._command)
        self._probe_timeout = probe_timeout
        self._open_timeout = open_timeout
        self._stop_grace = stop_grace
        self._ceiling = ceiling
        self._mask = Mask({*self._env.values(), *secrets})
        self._on_lines = on_lines
        self._launched = launched
        self._missing = missing
        self._skipped = SkippedLines(self._name)
        identity = [self._command, sorted(self._env.items()), str(cwd)]
        # Variables may hold secrets: only a digest of them is kept. `ascii` takes what is no UTF-8, as the system does.
        self._identity = hashlib.blake2b(ascii(identity).encode()).digest()

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Connection]:
        """A running server that has been made acquainted, for as long as the `async with` lasts."""
        async with TaskScope() as tasks:
            try:
                link, child = await self._start(self._mask.over(host), tasks)
            except UpstreamError as problem:
                if self._missing and isinstance(problem.__cause__, FileNotFoundError):
                    raise UpstreamUnavailable(self._missing) from problem.__cause__
                self._mask.put_on(problem)
                raise
            try:
                yield Masked(link, self._mask) if self._mask.secrets else link
            finally:
                link.close()
                tasks.cancel_all()
                await child.aclose()

    async def _start(self, host: Host, tasks: TaskScope) -> tuple[Link, Child]:
        era = self._era
        remembered, until = _verdicts.get(self._identity, (None, 0.0))
        if era == "auto" and remembered == "session" and time.monotonic() < until:
            try:
                return await self._attempt(host, tasks, "session")
            except UpstreamError as problem:
                # It stopped being true: the package behind the command may have been updated.
                _verdicts.pop(self._identity, None)  # Another connection may have found out as well.
                if isinstance(problem, UpstreamUnavailable):
                    raise  # There is no such program, or all the time has passed; the next connection begins anew.
        until = math.inf
        try:
            link, child = await self._attempt(host, tasks, era)
        except UpstreamClosed:
            if era != "auto":
                raise
            # Some session-era servers take any request before initialize for a reason to exit.
            link, child = await self._attempt(host, tasks, "session")
            until = time.monotonic() + CRASH_COUNTS
        if era == "auto":  # What an operator insists on says nothing about the server.
            _verdicts[self._identity] = link.era, until
        return link, child

    async def _attempt(self, host: Host, tasks: TaskScope, era: Era) -> tuple[Link, Child]:
        link = Link(self._name, host, tasks, self._skipped, ceiling=self._ceiling)
        stderr = StderrLog(self._name, self._mask.values, self._on_lines, is_probed=era != "session")
        launched, self._launched = self._launched, None
        child = await Child.open(
            self._command,
            link,
            env=self._env,
            cwd=self._cwd,
            stop_grace=self._stop_grace,
            on_stderr=stderr.received,
            launched=launched,
        )
        link.describe_end = child.describe_exit
        link.last_words = lambda: stderr.last_words(child.stderr_tail)
        try:
            await link.open(child, era, probe_timeout=self._probe_timeout, open_timeout=self._open_timeout)
        except BaseException as problem:  # Handed on, whatever it is: but a child that was started is stopped first.
            tasks.cancel(link)
            await child.aclose()
            if isinstance(problem, UpstreamClosed):
                details = link.last_words() or "; run its command in a shell to see why"
                raise UpstreamClosed(problem.message, details=details, delivered="no") from None
            raise
        stderr.end_probe()
        return link, child


_RUNNERS: Final = frozenset({"python", "node", "npx", "uv", "uvx", "deno", "bun", "bash", "sh"})


def _name_of(command: Sequence[str]) -> str:
    """What to call a server that nobody gave a name: its program, and the script if the program only runs scripts."""
    program = os.path.basename(command[0]) if command else ""
    if program.removesuffix(".exe").rstrip("0123456789.") in _RUNNERS:
        for word in command[1:]:
            if word in ("-c", "-e"):
                break  # Code, which nobody wants to read in every sentence about the server.
            if not word.startswith("-") and word not in ("run", "exec"):
                return f"{program} {os.path.basename(word)}"
    return program or "The server"
