"""A server as a child process, spoken to over its stdin and stdout."""

import hashlib
import os
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Final

from sluicegate.concurrency import TaskScope
from sluicegate.errors import UpstreamClosed, UpstreamError, UpstreamUnavailable
from sluicegate.exchange import Host
from sluicegate.upstream.link import Era, Link
from sluicegate.upstream.process import Child

_TAIL: Final = 800
"""Characters of a dead server's stderr that are told with an error."""

_SHORTEST_SECRET: Final = 6
"""Shorter values of variables are words like "debug", which would be blotted out everywhere."""

_verdicts: Final[dict[bytes, Era]] = {}
"""The era of every command probed so far: to probe again would cost a slow server its time-out again."""


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
    ) -> None:
        self._command = list(command)
        self._env = dict(env or {})
        self._cwd = cwd
        self._era: Era = era
        self._name = name or os.path.basename(self._command[0]) if self._command else "server"
        self._probe_timeout = probe_timeout
        self._open_timeout = open_timeout
        self._stop_grace = stop_grace
        identity = [self._command, sorted(self._env.items()), str(cwd)]
        # Variables may hold secrets: only a digest of them is kept. `ascii` takes what is no UTF-8, as the system does.
        self._identity = hashlib.blake2b(ascii(identity).encode()).digest()

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Link]:
        """A running server that has been made acquainted, for as long as the `async with` lasts."""
        async with TaskScope() as tasks:
            link, child = await self._start(host, tasks)
            try:
                yield link
            finally:
                link.close()
                tasks.cancel_all()
                await child.aclose()

    async def _start(self, host: Host, tasks: TaskScope) -> tuple[Link, Child]:
        era = self._era
        remembered = _verdicts.get(self._identity) if era == "auto" else None
        if remembered == "session":
            try:
                return await self._attempt(host, tasks, "session")
            except UpstreamError as problem:
                # It stopped being true: the package behind the command may have been updated.
                _verdicts.pop(self._identity, None)  # Another connection may have found out as well.
                if isinstance(problem, UpstreamUnavailable):
                    raise  # There is no such program, or all the time has passed; the next connection begins anew.
        try:
            link, child = await self._attempt(host, tasks, era)
        except UpstreamClosed:
            if era != "auto":
                raise
            # Some session-era servers take any request before initialize for a reason to exit.
            link, child = await self._attempt(host, tasks, "session")
        if era == "auto":  # What an operator insists on says nothing about the server.
            _verdicts[self._identity] = link.era
        return link, child

    async def _attempt(self, host: Host, tasks: TaskScope, era: Era) -> tuple[Link, Child]:
        link = Link(self._name, host, tasks)
        child = await Child.open(self._command, link, env=self._env, cwd=self._cwd, stop_grace=self._stop_grace)
        link.describe_end = child.describe_exit
        link.last_words = lambda: self._last_words(child)
        try:
            await link.open(child, era, probe_timeout=self._probe_timeout, open_timeout=self._open_timeout)
        except BaseException as problem:
            tasks.cancel(link)
            await child.aclose()
            if isinstance(problem, UpstreamClosed):
                way_out = "" if link.last_words() else "; run its command in a shell to see why"
                raise UpstreamClosed(problem.message + way_out, delivered="no") from None
            raise
        return link, child

    def _last_words(self, child: Child) -> str:
        text = child.stderr_tail
        # Servers like to complain of a key by printing it.
        for value in sorted(self._env.values(), key=len, reverse=True):
            if len(value) >= _SHORTEST_SECRET:
                text = text.replace(value, "***")
        text = " | ".join(line.strip() for line in text.splitlines() if line.strip())
        return f"; its last words: {text[-_TAIL:]}" if text else ""
