"""Endpoints come and go with the profiles of the configuration."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

import pytest
from msgspec.structs import replace

import sluicegate
from sluicegate import http1
from sluicegate.config.model import GatewayConfig, HttpFront, LimitsConfig, ProfileConfig, PythonFile, ServerConfig
from sluicegate.exchange import Upstream
from sluicegate.gateway.gateway import Gateway
from sluicegate.serve.endpoints import Endpoints
from sluicegate.testing import MemoryUpstream
from tests.polling import until


class Stage:
    """A gateway with its endpoints, and a server whose calls end when they are let."""

    def __init__(self, gateway: Gateway, endpoints: Endpoints, address: str) -> None:
        self.gateway = gateway
        self.endpoints = endpoints
        self.address = address
        self.begun = asyncio.Event()
        self.release = asyncio.Event()

    async def take(self, **changes: object) -> None:
        """Have another configuration."""
        self.gateway.apply(replace(self.gateway.config, **changes))
        await self.endpoints.follow()


@asynccontextmanager
async def staged(drain: float, path: str = "/mcp") -> AsyncGenerator[Stage]:
    def load(file: str) -> Upstream:
        server = sluicegate.Server("holder")

        @server.tool
        async def hold() -> str:  # pyright: ignore[reportUnusedFunction]
            stage.begun.set()
            await stage.release.wait()
            return "held to the end"

        return MemoryUpstream(server)

    a = ServerConfig(name="a", key="a", source=PythonFile(file="a.py"))
    config = GatewayConfig(
        root="/",
        servers={"a": a},
        profiles={"one": ProfileConfig()},
        limits=LimitsConfig(drain=drain),
        http=HttpFront(port=0, path=path),
    )
    gateway = Gateway(config, load_file=load)
    async with asyncio.timeout(30), gateway, Endpoints(gateway) as endpoints:
        async with http1.serve(endpoints) as listener:
            stage = Stage(gateway, endpoints, "http://{}:{}{}".format(*listener.addresses[0], path.rstrip("/")))
            await gateway.hub.settled()
            yield stage


async def status_of(url: str, *, host: str = "localhost") -> int:
    """How a request that says nothing is answered, by its status."""
    parts = urlsplit(url)
    reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
    writer.write(f"PUT {parts.path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n".encode())
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    return int(answer.split()[1])


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_a_profile_that_is_gone_finishes_what_it_has_begun_and_is_closed(era: sluicegate.Era) -> None:
    async with staged(drain=3) as stage:
        async with sluicegate.connect(f"{stage.address}/one", era=era) as client:
            held = asyncio.ensure_future(client.call("a__hold"))
            await stage.begun.wait()
            assert len(stage.endpoints) == 2
            await stage.take(profiles={})
            with pytest.raises(sluicegate.UpstreamError):
                async with sluicegate.connect(f"{stage.address}/one", era="modern"):
                    pass
            stage.release.set()
            assert (await held).text == "held to the end"
            await until(lambda: len(stage.endpoints) == 1)


async def test_a_call_that_takes_too_long_gets_an_error() -> None:
    async with staged(drain=0.1) as stage, sluicegate.connect(f"{stage.address}/one", era="modern") as client:
        held = asyncio.ensure_future(client.call("a__hold"))
        await stage.begun.wait()
        await stage.take(profiles={})
        with pytest.raises(sluicegate.RpcError, match="cancelled and may have run in part") as cut:
            await held
        assert cut.value.delivered == "unknown"
        await until(lambda: len(stage.endpoints) == 1)


async def test_a_profile_that_comes_back_is_served_again_while_the_old_one_finishes() -> None:
    async with staged(drain=20) as stage, sluicegate.connect(f"{stage.address}/one", era="modern") as client:
        held = asyncio.ensure_future(client.call("a__hold"))
        await stage.begun.wait()
        await stage.take(profiles={})
        await stage.take(profiles={"one": ProfileConfig()})
        assert len(stage.endpoints) == 3
        async with sluicegate.connect(f"{stage.address}/one", era="modern") as other:
            assert [tool.name for tool in await other.tools()] == ["a__hold"]
        stage.release.set()
        assert (await held).text == "held to the end"


async def test_a_later_profile_has_the_same_guards_as_earlier_ones() -> None:
    async with staged(drain=0) as stage:
        other = HttpFront(port=0, allowed_hosts=("other.example",))
        changed = stage.gateway.apply(replace(stage.gateway.config, profiles={"new": ProfileConfig()}, http=other))
        assert changed.restart == ("http.allowed_hosts",)
        await stage.endpoints.follow()
        statuses = [await status_of(stage.address + path, host="other.example") for path in ("", "/new", "/none")]
        assert statuses == [421, 421, 421]
        assert await status_of(f"{stage.address}/new") == 405


async def test_a_profile_whose_path_has_another_use_keeps_no_other_away() -> None:
    async with staged(drain=0, path="/") as stage:
        stage.gateway.apply(
            replace(stage.gateway.config, profiles={"healthz": ProfileConfig(), "two": ProfileConfig()})
        )
        (sentence,) = await stage.endpoints.follow()
        assert sentence.startswith("The profile 'healthz': /healthz cannot be the MCP endpoint")
        async with sluicegate.connect(f"{stage.address}/two", era="modern") as client:
            assert [tool.name for tool in await client.tools()] == ["a__hold"]


async def test_a_gateway_does_not_start_with_a_profile_whose_path_has_another_use() -> None:
    config = GatewayConfig(root="/", profiles={"sse": ProfileConfig()}, http=HttpFront(port=0, path="/"))
    gateway = Gateway(config)
    async with asyncio.timeout(30), gateway:
        with pytest.raises(sluicegate.ConfigError, match="The profile 'sse': /sse cannot be the MCP endpoint"):
            async with Endpoints(gateway):
                pass


async def test_many_reloads_leave_nothing_open() -> None:
    async with staged(drain=0) as stage:
        for number in range(20):
            await stage.take(profiles={f"p{number}": ProfileConfig()})
        await until(lambda: len(stage.endpoints) == 2)
