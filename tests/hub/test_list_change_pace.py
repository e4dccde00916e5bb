"""Clients over HTTP get the first list change at once, and later ones at a limited rate."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest

import sluicegate
from sluicegate.hub import router as view
from sluicegate.hub.hub import Hub
from tests.downstream.http_client import Answer, HttpClient, http_client
from tests.downstream.raw_client import Json
from tests.downstream.test_legacy_sse import connect

TOOLS = "notifications/tools/list_changed"
PROMPTS = "notifications/prompts/list_changed"


async def modern(client: HttpClient) -> Answer:
    """The stream of one who listens in the way of 2026-07-28."""
    wanted: Json = {"notifications": {"toolsListChanged": True, "promptsListChanged": True}}
    stream = await client.modern("subscriptions/listen", wanted)
    assert (await stream.message())["method"] == "notifications/subscriptions/acknowledged"
    return stream


async def session(client: HttpClient) -> Answer:
    """That of one with a session."""
    stream = await (await client.initialize()).listen()
    assert (await stream.event()).data == ""
    return stream


async def sse(client: HttpClient) -> Answer:
    """That of one over the oldest transport."""
    channel = await connect(client)
    await channel.initialize()
    assert (await channel.request(1, "ping"))["id"] == 1
    return channel.stream


class Stage:
    """A hub before a server whose lists change, and its clients."""

    def __init__(self, server: sluicegate.Server, client: HttpClient) -> None:
        self.client = client
        self._server = server
        self._number = 0

    def change(self, method: str) -> None:
        self._number += 1
        if method == TOOLS:
            self._server.add_tool(lambda: None, name=f"t{self._number}")
        else:
            self._server.add_prompt(lambda: "", name=f"p{self._number}")

    async def heard(self, stream: Answer) -> object:
        return (await stream.message())["method"]


@asynccontextmanager
async def staged(monkeypatch: pytest.MonkeyPatch, pace: float) -> AsyncGenerator[Stage]:
    monkeypatch.setattr(view, "LISTS_PACE", pace)
    server, hub = sluicegate.Server("restless"), Hub()
    server.add_tool(lambda: None, name="first")
    server.add_prompt(lambda: "", name="first")
    hub.mount("s", server)
    async with asyncio.timeout(30), hub:
        await hub.settled()
        await asyncio.sleep(0)  # The catalog is built once for all that changed in one turn of the loop.
        async with http_client(hub) as client:
            yield Stage(server, client)


transports = pytest.mark.parametrize("listen", [modern, session, sse], ids=["2026-07-28", "session", "HTTP+SSE"])
Listen = Callable[[HttpClient], Awaitable[Answer]]


@transports
async def test_the_first_change_of_each_kind_is_sent_at_once_and_the_next_is_delayed(
    monkeypatch: pytest.MonkeyPatch, listen: Listen
) -> None:
    async with staged(monkeypatch, pace=3600.0) as stage:
        streams = [await listen(stage.client) for _ in range(3)]
        stage.change(TOOLS)
        assert [await stage.heard(stream) for stream in streams] == [TOOLS] * 3
        stage.change(TOOLS)
        stage.change(PROMPTS)
        assert [await stage.heard(stream) for stream in streams] == [PROMPTS] * 3  # What is told at once is behind.


@transports
async def test_a_later_listener_has_its_own_pace(monkeypatch: pytest.MonkeyPatch, listen: Listen) -> None:
    async with staged(monkeypatch, pace=3600.0) as stage:
        stream = await listen(stage.client)
        stage.change(TOOLS)
        assert await stage.heard(stream) == TOOLS
        other = await modern(stage.client)
        stage.change(TOOLS)
        assert await stage.heard(other) == TOOLS


@transports
async def test_many_changes_are_coalesced_and_the_last_is_sent(monkeypatch: pytest.MonkeyPatch, listen: Listen) -> None:
    async with staged(monkeypatch, pace=0.2) as stage:
        stream = await listen(stage.client)
        stage.change(TOOLS)
        assert await stage.heard(stream) == TOOLS
        before = asyncio.get_running_loop().time()
        for _ in range(50):
            stage.change(TOOLS)
            await asyncio.sleep(0)
        assert await stage.heard(stream) == TOOLS
        stage.change(PROMPTS)
        # Behind one more at most, if the changes took so long to make: none is told for each of them.
        told = 1
        while await stage.heard(stream) != PROMPTS:
            told += 1
        assert told <= 1 + (asyncio.get_running_loop().time() - before) / 0.2
