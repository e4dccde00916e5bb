"""A session-era server asks a caller of 2026-07-28 that does not come back with the answer: the loss is counted."""

import asyncio
from itertools import count
from typing import cast

import pytest

import sluicegate
from sluicegate.hub.call_sink import ABANDONED
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.testing import MemoryUpstream
from tests.downstream.raw_client import Json, modern, raw_client, result_of
from tests.hub.scripted import until

WANTED: Json = modern({"name": "ponder", "arguments": {}}, capabilities={"sampling": {}})
ANSWER: Json = {"role": "assistant", "model": "m", "content": {"type": "text", "text": "42"}}


@pytest.mark.parametrize("patience", [None, 0.01], ids=["waits", "goes on without"])
async def test_a_caller_that_does_not_come_back_is_counted_once_and_one_that_does_is_not(
    patience: float | None,
) -> None:
    server = sluicegate.Server("office")

    @server.tool
    async def ponder(call: sluicegate.Call) -> str:
        async with asyncio.timeout(patience):
            return (await call.sample("How many?", max_tokens=10)).text

    hub, ids = Hub(), count(1)
    mount = hub.mount("s", MemoryUpstream(server, era="session"), MountSettings(prefix=""))
    async with asyncio.timeout(20), hub:
        await hub.settled()
        if patience is None:
            async with raw_client(hub) as client:
                asked = result_of(await client.request(next(ids), "tools/call", WANTED))
                (key,) = cast(Json, asked["inputRequests"])
                back: Json = {"requestState": asked["requestState"], "inputResponses": {key: ANSWER}}
                result_of(await client.request(next(ids), "tools/call", {**WANTED, **back}))
        assert not mount.calls.losses
        async with raw_client(hub, hold=0.2) as client:
            result_of(await client.request(next(ids), "tools/call", WANTED))
            await until(lambda: bool(mount.calls.losses))
    assert mount.calls.losses == {ABANDONED: 1}
