"""Connections of our client to servers of others, each shared by the tests of a module: to start one takes a second."""

import asyncio
from collections.abc import Awaitable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal, TypeVar

import pytest

import sluicegate
from sluicegate.protocol.types import LogEvent

DEADLINE: Final = 20.0
"""Seconds for anything that a server does, on a machine with much else to do."""

Era = Literal["auto", "session", "modern"]
T = TypeVar("T")


async def soon(event: Awaitable[T]) -> T:
    """What is waited for, before the deadline."""
    async with asyncio.timeout(DEADLINE):
        return await event


class Visit:
    """One connection, and what the server asked and said on it. The questions' own words say how they are answered."""

    def __init__(self) -> None:
        self.forms: list[sluicegate.ElicitRequest] = []
        self.samplings: list[sluicegate.SampleRequest] = []
        self.logs: asyncio.Queue[LogEvent] = asyncio.Queue()
        self._begun: asyncio.Future[sluicegate.Client] = asyncio.get_running_loop().create_future()

    async def begun(self) -> sluicegate.Client:
        """The client, once it is connected."""
        return await soon(asyncio.shield(self._begun))

    async def last(
        self,
        until: asyncio.Event,
        server: Sequence[str] | str,
        *,
        era: Era = "auto",
        env: Mapping[str, str] | None = None,
        roots: Sequence[Path] = (Path("/tmp/here"),),
    ) -> None:
        """Stay connected until the event."""
        try:
            async with sluicegate.connect(
                server,
                era=era,
                env=env,
                timeout=DEADLINE,
                max_timeout=DEADLINE,
                elicit=self._elicit,
                sample=self._sample,
                roots=list(roots),
                on_log=self.logs.put_nowait,
            ) as client:
                self._begun.set_result(client)
                await until.wait()
        except Exception as problem:
            if self._begun.done():
                raise
            self._begun.set_exception(problem)

    def forget(self) -> None:
        """Begin anew with what is kept here, for the next test."""
        self.forms.clear()
        self.samplings.clear()
        while not self.logs.empty():
            self.logs.get_nowait()

    def _elicit(self, request: sluicegate.ElicitRequest) -> sluicegate.ElicitAnswer:
        self.forms.append(request)
        wish = request.message if request.url is None else request.url.rpartition("/")[2]
        if wish in ("decline", "cancel"):
            return sluicegate.ElicitAnswer("decline" if wish == "decline" else "cancel")
        return sluicegate.ElicitAnswer("accept", {"colour": "green", "amount": 3, "name": "Ada", "check": True})

    def _sample(self, request: sluicegate.SampleRequest) -> str | None:
        self.samplings.append(request)
        asked = request.messages[0].text
        return None if asked.endswith("refuse") else f"{asked} Indeed."


class Visits:
    """The visits of a module, begun when they are first asked for, all ended together.

    Each is held by a task of its own: fixtures are set up in one task and torn down in another.
    """

    def __init__(self) -> None:
        self._visits: dict[str, Visit] = {}
        self._holders: list[asyncio.Task[None]] = []
        self._over = asyncio.Event()

    async def to(
        self, name: str, server: Sequence[str] | str, *, era: Era = "auto", env: Mapping[str, str] | None = None
    ) -> Visit:
        """The visit of that name, to a server by its command or by its URL."""
        visit = self._visits.get(name)
        if visit is None:
            visit = self._visits[name] = Visit()
            self._holders.append(asyncio.create_task(visit.last(self._over, server, era=era, env=env)))
        await visit.begun()
        visit.forget()
        return visit

    async def aclose(self) -> None:
        """End all visits."""
        self._over.set()
        await soon(asyncio.gather(*self._holders))


needs_proc = pytest.mark.skipif(not Path("/proc/self/cmdline").exists(), reason="this system has no /proc")


def processes_with(word: str) -> list[str]:
    """The command lines of all running processes that have the word in theirs."""

    def command_lines() -> Iterator[str]:
        for place in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                yield place.read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                pass  # it has ended in the meantime

    return [line for line in command_lines() if word in line]
