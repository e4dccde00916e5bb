"""A server as a child process that speaks MCP over its stdin and stdout."""

import hashlib
import logging
import math
import os
import sys
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from typing import Final, Literal

from sluicegate.errors import UpstreamClosed, UpstreamError, UpstreamProtocolError, UpstreamUnavailable
from sluicegate.exchange import Connection, Exchange, Host, Upstream
from sluicegate.protocol.framing import DEFAULT_CEILING
from sluicegate.protocol.message import Reply
from sluicegate.protocol.modern_era import Discovery
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream.dual_era import DualEra
from sluicegate.upstream.duplex import DuplexConnection, Era
from sluicegate.upstream.process import Child
from sluicegate.upstream.redact import RedactedConnection, Redactor
from sluicegate.upstream.server_messages import SkippedLines
from sluicegate.upstream.spawn import Launched
from sluicegate.upstream.stderr import MAX_LINE, StderrLog, visible

log: Final = logging.getLogger("sluicegate")

PRINTED_IN_LOG: Final = 200
"""Characters of a line that was printed to stdout, in the log."""
CRASH_COUNTS: Final = 600.0
"""Seconds for which a server that ended during the probe is taken for one of the session era. Some of these always end;
but any server may crash, and a server of 2026-07-28 must not be treated as an older one for good."""

_verdicts: Final[dict[bytes, tuple[Era, float]]] = {}
"""The era of every command that was probed, and until when that holds (monotonic clock). A second probe would cost a
server that never answers it the timeout again."""


Eras = Era | Literal["both"]


class StdioUpstream:
    """A command that starts a server. Each connection has its own process, or two with the era "both"."""

    def __init__(
        self,
        command: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | os.PathLike[str] | None = None,
        era: Eras = "auto",
        name: str | None = None,
        probe_timeout: float = 10.0,
        open_timeout: float = 30.0,
        stop_grace: float = 2.0,
        ceiling: int = DEFAULT_CEILING,
        secrets: Iterable[str] = (),
        on_lines: Callable[[list[str]], object] | None = None,
        on_printed: Callable[[str], object] | None = None,
        launched: Launched | None = None,
        missing: str = "",
    ) -> None:
        """A server that a command starts.

        Args:
            era: with "both", session-era callers of a server of 2026-07-28 get a process of their own, which is started
                with their first call. The two processes share nothing.
            ceiling: the maximum size of a message of the server, in bytes.
            secrets: redacted in stderr and in every error, as are the values of `env`.
            on_lines: gets the lines of stderr; of a flood only some.
            on_printed: gets lines on stdout that are not messages.
            launched: a process of this command that was started before. The first connection takes it.
            missing: the message for a program that does not exist.
        """
        self._command = list(command)
        self._env = dict(env or {})
        self._cwd = cwd
        self._era: Era = "auto" if era == "both" else era
        self._has_both = era == "both"
        self._name = name or _name_of(self._command)
        self._probe_timeout = probe_timeout
        self._open_timeout = open_timeout
        self._stop_grace = stop_grace
        self._ceiling = ceiling
        self._redactor = Redactor({*self._env.values(), *secrets})
        self._on_lines = on_lines
        self._launched = launched
        self._missing = missing
        self._on_printed = on_printed
        self._has_printed = False
        self._skipped = SkippedLines(self._name, self._printed, self._redactor.redact_cut)
        identity = [self._command, sorted(self._env.items()), str(cwd)]
        # A digest, because variables may hold secrets. `ascii` because they may be invalid UTF-8.
        self._identity = hashlib.blake2b(ascii(identity).encode()).digest()

    def _printed(self, line: bytes) -> None:
        """Report a line that the server printed to stdout: in the log the first one only, since most print more."""
        text = self._redactor.redact_cut(visible(line[:MAX_LINE])).strip()
        if self._on_printed is not None:
            self._on_printed(text)
        if not self._has_printed:
            self._has_printed = True
            log.warning(
                "%s printed a line to stdout, which is for MCP messages only; make it print to stderr. The line: %s",
                self._name,
                text[:PRINTED_IN_LOG],
            )

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Connection]:
        """A running server after the handshake, for as long as the `async with` lasts."""
        async with TaskScope() as tasks:
            try:
                link, child = await self._start(self._redactor.redact_host(host), tasks)
            except UpstreamError as problem:
                if self._missing and isinstance(problem.__cause__, FileNotFoundError):
                    raise UpstreamUnavailable(self._missing) from problem.__cause__
                self._redactor.redact_error(problem)
                raise
            dual: DualEra | None = None
            try:
                shown = RedactedConnection(link, self._redactor) if self._redactor.spellings else link
                if self._has_both and link.era == "modern":
                    begin = partial(self._begin_session, self._redactor.redact_host(host), tasks)
                    shown = dual = DualEra(self._name, "", shown, begin, tasks, starts_within=self._open_timeout)
                yield shown
            finally:
                if dual is not None:
                    await dual.aclose()
                link.close()
                tasks.cancel_all()
                await child.aclose()

    async def _begin_session(self, host: Host, tasks: TaskScope) -> "_SessionProcess | None":
        """Another process of the server, in the session era; None if it does not speak that."""
        try:
            process = _SessionProcess(*await self._attempt(host, tasks, "session"))
        except UpstreamProtocolError:
            return None
        except UpstreamError as problem:
            self._redactor.redact_error(problem)
            raise
        tasks.start(process.reap())
        return process

    async def _start(self, host: Host, tasks: TaskScope) -> tuple[DuplexConnection, Child]:
        era = self._era
        remembered, until = _verdicts.get(self._identity, (None, 0.0))
        if era == "auto" and remembered == "session" and time.monotonic() < until:
            try:
                return await self._attempt(host, tasks, "session")
            except UpstreamError as problem:
                # The server has changed: its package may have been updated.
                _verdicts.pop(self._identity, None)  # Another connection may have removed it.
                if isinstance(problem, UpstreamUnavailable):
                    raise  # No such program, or a timeout; the next connection probes again.
        until = math.inf
        try:
            link, child = await self._attempt(host, tasks, era)
        except UpstreamClosed:
            if era != "auto":
                raise
            # Some session-era servers exit at any request before initialize.
            link, child = await self._attempt(host, tasks, "session")
            until = time.monotonic() + CRASH_COUNTS
        if era == "auto":  # A configured era says nothing about the server.
            _verdicts[self._identity] = link.era, until
        return link, child

    async def _attempt(self, host: Host, tasks: TaskScope, era: Era) -> tuple[DuplexConnection, Child]:
        link = DuplexConnection(self._name, host, tasks, self._skipped, ceiling=self._ceiling)
        stderr = StderrLog(self._name, self._redactor.values, self._on_lines)
        launched, self._launched = self._launched, None
        child = await Child.open(
            self._command,
            link,
            env=self._env,
            cwd=self._cwd,
            stop_grace=self._stop_grace,
            on_stderr=stderr.received,
            on_gone=stderr.ended,
            launched=launched,
        )
        link.describe_end = child.describe_exit
        link.last_words = lambda: stderr.last_words(child.stderr_tail)
        try:
            async with AsyncExitStack() as on_failure:
                on_failure.push_async_callback(child.aclose)
                on_failure.callback(tasks.cancel, link)
                await link.open(child, era, probe_timeout=self._probe_timeout, open_timeout=self._open_timeout)
                on_failure.pop_all()
        except UpstreamClosed as problem:
            details = link.last_words() or "; run its command in a shell to see why"
            raise UpstreamClosed(problem.message, details=details, delivered="no") from None
        if era == "auto" and link.era == "session":
            stderr.explain_probe()
        return link, child


class _SessionProcess:
    """The second process of a server, for session-era callers."""

    def __init__(self, link: DuplexConnection, child: Child) -> None:
        self.wait_closed = link.wait_closed
        self._link = link
        self._child = child

    @property
    def discovery(self) -> Discovery:
        return self._link.discovery

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        """The reply to an exchange."""
        return self._link(exchange)

    async def aclose(self) -> None:
        """Stop the process."""
        self._link.close()
        await self._child.aclose()

    async def reap(self) -> None:
        """Clean up after the process when it has ended by itself."""
        await self._link.wait_closed()
        await self._child.aclose()


_RUNNERS: Final = frozenset({"python", "node", "npx", "uv", "uvx", "deno", "bun", "bash", "sh"})


def _name_of(command: Sequence[str]) -> str:
    """The default name of a server: its program, and the script if the program is an interpreter."""
    program = os.path.basename(command[0]) if command else ""
    if program.removesuffix(".exe").rstrip("0123456789.") in _RUNNERS:
        for word in command[1:]:
            if word in ("-c", "-e"):
                break  # Code, which is no name.
            if not word.startswith("-") and word not in ("run", "exec"):
                return f"{program} {os.path.basename(word)}"
    return program or "The server"


def stdio(
    program: str | os.PathLike[str],
    *arguments: str | os.PathLike[str],
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    era: Eras = "auto",
    open_timeout: float = 30.0,
) -> Upstream:
    """A server that is a command, started for each connection: `stdio("mcp-server-filesystem", "/srv/share")`.

    Args:
        program: run without a shell; a bare `python` is the interpreter of this process.
        era: with "both", a server of 2026-07-28 is started a second time for session-era callers.
        env: additional variables. Of this process's environment, only what programs generally need is passed on.
        open_timeout: seconds for the handshake, including the detection of the server's era.
    """
    words = [os.fspath(word) for word in (program, *arguments)]
    if words[0] == "python":
        words[0] = sys.executable
    return StdioUpstream(words, env=env, cwd=cwd, era=era, open_timeout=open_timeout)
