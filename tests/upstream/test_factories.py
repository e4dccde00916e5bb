"""A hub inside one's own program: commands, URLs and servers of this process, mounted side by side."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

import sluicegate
from sluicegate import http1
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.testing import MemoryUpstream

DEMO = Path(__file__).parents[2] / "examples" / "demo.py"


def server_of(name: str) -> sluicegate.Server:
    server = sluicegate.Server(name)

    @server.tool
    def who() -> str:  # pyright: ignore[reportUnusedFunction]
        return name

    return server


@asynccontextmanager
async def at_url(server: sluicegate.Server) -> AsyncGenerator[str]:
    async with HttpEndpoint(server) as endpoint, http1.serve(endpoint) as listener:
        yield "http://{}:{}/mcp".format(*listener.addresses[0])


async def test_a_hub_of_ones_own_offers_all_that_is_mounted_in_it() -> None:
    async with asyncio.timeout(30), at_url(server_of("there")) as url:
        hub = sluicegate.Hub("team")
        hub.mount("child", sluicegate.stdio("python", DEMO))
        hub.mount("far", sluicegate.http(url))
        hub.mount("near", server_of("here"))
        async with hub, sluicegate.connect(MemoryUpstream(hub)) as client:
            await hub.settled()
            names = [tool.name for tool in await client.tools()]
            assert {name.partition("__")[0] for name in names} == {"child", "far", "near"}
            assert (await client.call("far__who")).text == "there"
            assert (await client.call("near__who")).text == "here"
            assert (await client.call("child__count", to=2)).text == "counted to 2"


async def test_factories_can_be_connected_directly() -> None:
    async with asyncio.timeout(30), sluicegate.connect(sluicegate.stdio("python", DEMO, era="modern")) as client:
        assert "count" in [tool.name for tool in await client.tools()]


def test_a_url_that_is_none_is_refused_at_once() -> None:
    with pytest.raises(sluicegate.ConfigError, match="http:// or https://"):
        sluicegate.http("search.example/mcp")
