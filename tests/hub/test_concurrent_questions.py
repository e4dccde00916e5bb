"""Many calls at once to a session-era server that asks: each caller gets its own questions, and guesses are counted."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Literal

import pytest

import sluicegate
from sluicegate import Client
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.testing import MemoryUpstream

Era = Literal["session", "modern"]
GUESSED = "questions whose call was guessed"


class Office:
    """A server whose tool waits for the word, or asks the client's model at once."""

    def __init__(self) -> None:
        self.begun: asyncio.Queue[str] = asyncio.Queue()
        self.go = asyncio.Event()
        self.server = sluicegate.Server("office")
        self.server.tool(self.insist)
        self.server.tool(self.wait)

    async def insist(self, about: str, call: sluicegate.Call) -> str:
        await self.begun.put(about)
        return (await call.sample(about, max_tokens=10)).text

    async def wait(self) -> str:
        await self.begun.put("waits")
        await self.go.wait()
        return "waited"


@asynccontextmanager
async def hub_before(office: Office) -> AsyncGenerator[Hub]:
    hub = Hub()
    hub.mount("s", MemoryUpstream(office.server, era="session"), MountSettings(prefix=""))
    async with asyncio.timeout(20), hub:
        await hub.settled()
        await asyncio.sleep(0)  # The catalog is built once for all that changed in one turn of the loop.
        yield hub


def model(name: str) -> Callable[[sluicegate.SampleRequest], Awaitable[str]]:
    """A client's model, which takes a turn of the loop and says who it is and what it was asked."""

    async def answer(request: sluicegate.SampleRequest) -> str:
        await asyncio.sleep(0)
        return f"{name} on {request.messages[0].text}"

    return answer


def lost(hub: Hub) -> dict[str, int]:
    mount = hub.find("s")
    assert mount is not None
    return dict(mount.calls.losses)


@pytest.mark.parametrize("era", ["session", "modern"])
async def test_callers_that_are_asked_at_the_same_moment_are_each_asked_their_own(
    era: Era, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sluicegate.upstream.attribution.TOGETHER", 5.0)  # However busy the machine is.
    async with hub_before(Office()) as hub, AsyncExitStack() as stack:
        clients: list[Client] = []
        for n in range(10):
            upstream = MemoryUpstream(hub, era=era)
            clients.append(await stack.enter_async_context(sluicegate.connect(upstream, sample=model(f"c{n}"))))
        calls = (client.call("insist", about=f"q{n}") for n, client in enumerate(clients))
        results = await asyncio.gather(*calls)
        assert [result.text for result in results] == [f"c{n} on q{n}" for n in range(10)]
        assert lost(hub)[GUESSED] > 0


@pytest.mark.parametrize("era", ["session", "modern"])
async def test_a_caller_that_cannot_be_asked_does_not_fail_the_call_of_another(era: Era) -> None:
    async with (
        hub_before(office := Office()) as hub,
        sluicegate.connect(MemoryUpstream(hub, era=era)) as unable,
        sluicegate.connect(MemoryUpstream(hub, era=era), sample=model("able")) as able,
        asyncio.TaskGroup() as tasks,
    ):

        async def wait() -> str:
            return (await unable.call("wait")).text

        waiting = tasks.create_task(wait())
        assert await office.begun.get() == "waits"
        assert (await able.call("insist", about="q")).text == "able on q"
        office.go.set()
        assert await waiting == "waited"
        assert lost(hub) == {GUESSED: 1}


async def test_a_caller_of_one_call_alone_is_no_guess() -> None:
    async with hub_before(Office()) as hub, sluicegate.connect(MemoryUpstream(hub), sample=model("one")) as one:
        assert (await one.call("insist", about="q")).text == "one on q"
        assert lost(hub) == {}
