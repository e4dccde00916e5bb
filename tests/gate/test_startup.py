"""During start-up, lists wait for all servers, and calls for their own."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal, cast

import pytest

import sluicegate
from sluicegate.config.model import CatalogConfig, GatewayConfig, PythonFile, ServerConfig
from sluicegate.exchange import NOBODY, Connection, Exchange, Handler, Host, Upstream
from sluicegate.gateway.gateway import Gateway
from sluicegate.protocol.message import Params, Reply, Result, opened
from sluicegate.protocol.modern_era import ClientProfile, complete
from sluicegate.testing import MemoryUpstream
from tests.hub.scripted import Scripted, tools

PATIENCE = 20.0


class Late:
    """A server that can be connected to when it is let."""

    def __init__(self, upstream: Upstream, may_come: asyncio.Event) -> None:
        self._upstream = upstream
        self._may_come = may_come

    def connect(self, host: Host) -> AbstractAsyncContextManager[Connection]:
        return self._connect(host)

    @asynccontextmanager
    async def _connect(self, host: Host) -> AsyncGenerator[Connection]:
        await self._may_come.wait()
        async with self._upstream.connect(host) as connection:
            yield connection


class Stage:
    """A gateway of two servers that come when they are let, and a client of its beginning."""

    def __init__(self, start_wait: float = 10 * PATIENCE) -> None:
        """By default the start-up outlasts the test, unless all servers have connected."""
        self.start_wait = start_wait
        self.may_come = {"quick": asyncio.Event(), "slow": asyncio.Event()}
        self.of_others: dict[str, Upstream] = {}
        """Servers that are not our own."""

    def load(self, file: str) -> Upstream:
        server = sluicegate.Server(file)
        server.add_tool(lambda: file, name="who")

        @server.prompt
        def about(topic: str) -> str:
            return topic

        @server.complete("about", "topic")
        def complete_topic(value: str) -> list[str]:
            return [f"{value}t"]

        return Late(self.of_others.get(file) or MemoryUpstream(server), self.may_come[file])

    @asynccontextmanager
    async def gateway(self) -> AsyncGenerator[Gateway]:
        servers = {name: ServerConfig(name=name, key=name, source=PythonFile(file=name)) for name in self.may_come}
        config = GatewayConfig(root="/", servers=servers, catalog=CatalogConfig(start_wait=self.start_wait))
        async with asyncio.timeout(PATIENCE), Gateway(config, load_file=self.load) as gateway:
            yield gateway

    @asynccontextmanager
    async def client(self) -> AsyncGenerator[sluicegate.Client]:
        async with self.gateway() as gateway:
            async with sluicegate.connect(MemoryUpstream(gateway.handler())) as client:
                yield client


async def test_a_call_waits_for_its_own_server_and_no_other() -> None:
    stage = Stage()
    async with stage.client() as client:
        call = asyncio.ensure_future(client.call("quick__who"))
        done, _ = await asyncio.wait([call], timeout=0.1)
        assert not done, "it waits"
        stage.may_come["quick"].set()
        assert (await call).text == "quick"
        assert (await client.call("quick__who")).text == "quick"


async def test_a_list_waits_for_all_servers() -> None:
    stage = Stage()
    async with stage.client() as client:
        listed = asyncio.ensure_future(client.tools())
        stage.may_come["quick"].set()
        assert (await client.call("quick__who")).text == "quick"
        assert not listed.done()
        stage.may_come["slow"].set()
        assert [tool.name for tool in await listed] == ["quick__who", "slow__who"]


async def test_what_completes_an_argument_is_waited_for() -> None:
    stage = Stage()
    ref = {"type": "ref/prompt", "name": "quick__about"}
    params: Params = {"ref": ref, "argument": {"name": "topic", "value": "tha"}}
    async with stage.gateway() as gateway:
        asked = asyncio.ensure_future(
            _replied(gateway.handler(), Exchange("completion/complete", params, NOBODY, ClientProfile()))
        )
        for may_come in stage.may_come.values():
            await asyncio.wait([asked], timeout=0.1)
            assert not asked.done()
            may_come.set()
        assert cast(Params, opened(await asked)["completion"])["values"] == ["that"]


async def _replied(handler: Handler, exchange: Exchange) -> Result:
    reply = await handler(exchange)
    assert isinstance(reply, Result), reply
    return reply


async def test_discovery_by_a_client_that_knows_tasks_waits_for_all_servers() -> None:
    tasks: Params = {"extensions": {"io.modelcontextprotocol/tasks": {}}}

    async def answer(exchange: Exchange) -> Reply:
        return tools("dig")

    stage = Stage()
    stage.of_others["slow"] = Scripted(answer, {"tools": {}, **tasks})

    async def ask(handler: Handler, capabilities: Params) -> object:
        asked = Exchange("server/discover", {}, NOBODY, ClientProfile(capabilities=capabilities))
        reply = await _replied(handler, asked)
        return cast(Params, opened(reply)["capabilities"]).get("extensions")

    async with stage.gateway() as gateway:
        handler = gateway.handler()
        asked = asyncio.ensure_future(ask(handler, tasks))
        assert await ask(handler, {}) is None, "a client that does not know tasks does not wait"
        stage.may_come["quick"].set()
        await asyncio.wait([asked], timeout=0.1)
        assert not asked.done()
        stage.may_come["slow"].set()
        assert await asked == tasks["extensions"]


@pytest.mark.parametrize("era", ["session", "modern"])
async def test_a_client_that_declares_an_extension_learns_of_it_also_from_a_server_that_starts_late(
    era: Literal["session", "modern"],
) -> None:
    skills: Params = {"extensions": {"com.example/skills": {}}}

    async def answer(exchange: Exchange) -> Reply:
        listed = Result(complete({"skills": []}))
        return tools("one") if exchange.method == "tools/list" else listed

    stage = Stage()
    stage.of_others["slow"] = Scripted(answer, {"tools": {}, **skills})

    async def connected(handler: Handler) -> Params:
        host = Host(skills, {"name": "c", "version": "1"}, NOBODY)
        async with MemoryUpstream(handler, era=era).connect(host) as client:
            return client.discovery.capabilities

    async with stage.gateway() as gateway:
        asked = asyncio.ensure_future(connected(gateway.handler()))
        listing = asyncio.ensure_future(_replied(gateway.handler(), Exchange("skills/list", {}, NOBODY)))
        stage.may_come["quick"].set()
        await asyncio.wait([asked, listing], timeout=0.1)
        assert not asked.done() and not listing.done()
        stage.may_come["slow"].set()
        assert (await asked)["extensions"] == skills["extensions"]
        assert opened(await listing)["skills"] == []


async def test_when_time_is_up_clients_get_what_there_is() -> None:
    stage = Stage(start_wait=2)  # In which the one that may come has come.
    async with stage.client() as client:
        stage.may_come["quick"].set()
        assert [tool.name for tool in await client.tools()] == ["quick__who"]
        with pytest.raises(sluicegate.RpcError, match="slow__who"):
            await client.call("slow__who")


async def test_a_client_that_leaves_ends_the_wait_of_no_other() -> None:
    stage = Stage()
    async with stage.client() as client:
        leaving = asyncio.ensure_future(client.tools())
        staying = asyncio.ensure_future(client.tools())
        await asyncio.wait([leaving], timeout=0.1)
        leaving.cancel()
        stage.may_come["quick"].set()
        await asyncio.wait([staying], timeout=0.1)
        assert not staying.done()
        stage.may_come["slow"].set()
        assert len(await staying) == 2
