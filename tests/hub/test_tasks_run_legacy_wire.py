"""A tool that needs a task, of a real server of 2025-11-25 behind a pipe and by HTTP."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import cast

import pytest

from sluicegate.exchange import Caller, Exchange, Upstream
from sluicegate.http1 import serve
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, Result, opened
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream.http import HttpUpstream
from sluicegate.upstream.stdio import StdioUpstream
from tests.bridge.http_servers import StreamablePeer
from tests.hub.digger import Digger

ROOT = Path(__file__).parents[2]


class Person:
    """The way back to a caller, who says left to everything."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def emit(self, notification: Notification) -> None:
        raise AssertionError(notification)

    async def ask(self, questions: Questions) -> Answers:
        self.asked += (str(question.params["message"]) for question in questions.values())
        return {key: {"action": "accept", "content": {"way": "left"}} for key in questions}


@asynccontextmanager
async def behind_a_pipe() -> AsyncGenerator[Upstream]:
    env = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    yield StdioUpstream([sys.executable, "-m", "tests.hub.digger"], env=env, cwd=ROOT, era="session")


@asynccontextmanager
async def by_http() -> AsyncGenerator[Upstream]:
    async with TaskScope() as tasks:
        async with serve(StreamablePeer(Digger(tasks))) as listener:
            host, port = listener.addresses[0][:2]
            yield HttpUpstream(f"http://{host}:{port}/mcp", era="session")
        tasks.cancel_all()


Way = Callable[[], AbstractAsyncContextManager[Upstream]]
each_way = pytest.mark.parametrize("way", [behind_a_pipe, by_http])


@asynccontextmanager
async def mounted(way: Way) -> AsyncGenerator[Hub]:
    hub = Hub()
    async with asyncio.timeout(20), way() as upstream:
        hub.mount("s", upstream, MountSettings(prefix="s"))
        async with hub:
            await hub.settled()
            yield hub


async def said(hub: Hub, tool: str, person: Person | None = None, caller: str = "ada") -> str:
    """What a tool says."""
    profile = ClientProfile(capabilities={"elicitation": {"form": {}}}, progress_token=7)
    params: Params = {"name": f"s__{tool}", "arguments": {}}
    reply = await hub(Exchange("tools/call", params, person or Person(), profile, Caller(caller)))
    assert isinstance(reply, Result)
    value = opened(reply)
    assert "_meta" not in value
    (block,) = cast(list[Params], value["content"])
    return str(block["text"])


async def seen(hub: Hub, *wanted: str) -> list[str]:
    """What the server has been asked since the first call, once that includes all of these."""
    while True:
        asked = cast(list[str], json.loads(await said(hub, "seen")))
        found = asked[asked.index("tools/call") :]
        if all(found.count(method) >= wanted.count(method) for method in wanted):
            return found


@each_way
async def test_it_is_called_as_any_other(way: Way) -> None:
    async with mounted(way) as hub:
        assert "execution" not in hub.catalog.tools["s__dig"].definition
        assert await said(hub, "dig") == "ttl 60000"
        assert await seen(hub) == ["tools/call", "tasks/result", "tools/call"]


@each_way
async def test_it_asks_its_caller(way: Way) -> None:
    ada = Person()
    async with mounted(way) as hub:
        assert await said(hub, "asks", ada) == "left"
    assert ada.asked == ["[s] Which way?"]


@each_way
async def test_it_never_asks_anybody_else(way: Way) -> None:
    ada, bob = Person(), Person()
    async with mounted(way) as hub:
        lingering = asyncio.gather(said(hub, "linger", bob, "bob"))
        await seen(hub, "tools/call", "tools/call")
        answer = await said(hub, "asks", ada)
        lingering.cancel()
    assert not bob.asked
    assert answer == "left", "the question says which task it is about, on a pipe as well"
    assert ada.asked


@each_way
async def test_a_cancelled_call_cancels_its_task_once(way: Way) -> None:
    async with mounted(way) as hub:
        calling = asyncio.gather(said(hub, "endless"))
        await seen(hub, "tasks/result")
        calling.cancel()
        found = await seen(hub, "tasks/cancel")
        assert found.count("tasks/cancel") == 1
