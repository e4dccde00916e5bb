"""Gateways that mount each other: lists and requests pass a limited number of them."""

import asyncio

import pytest

from sluicegate.errors import InvalidParams
from sluicegate.exchange import NOBODY, Exchange
from sluicegate.hub import router
from sluicegate.hub.catalog import HOPS, MAX_HOPS
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.message import Params, Reply, Result
from sluicegate.protocol.modern_era import complete
from tests.hub.scripted import Scripted, tools, until
from tests.polling import until_steady

BOTH: Params = {"tools": {"listChanged": True}, "resources": {"subscribe": True}}


async def plain_server(exchange: Exchange) -> Reply:
    if exchange.method == "tools/list":
        return tools("t")
    return Result(complete({"resources": [], "resourceTemplates": []}, ttl_ms=0))


async def test_two_gateways_that_mount_each_other_list_each_others_tools_a_limited_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router, "LISTS_PACE", 0.0)
    first, second = Hub("first"), Hub("second")
    first.mount("own", Scripted(plain_server, {"tools": {}}))
    first.mount("b", Scripted(second, BOTH), MountSettings(prefix="b", debounce=0.0))
    second.mount("a", Scripted(first, BOTH), MountSettings(prefix="a", debounce=0.0))
    async with asyncio.timeout(20), first, second:
        await until(lambda: len(first.catalog.tools) == 1 + MAX_HOPS // 2)
        await until_steady(lambda: len(first.catalog.tools), looks=60)
        assert len(first.catalog.tools) == 1 + MAX_HOPS // 2
        assert len(second.catalog.tools) == MAX_HOPS // 2


async def test_a_request_that_two_gateways_pass_to_each_other_is_refused_in_the_end() -> None:
    first, second = Hub("first"), Hub("second")
    first.mount("own", Scripted(plain_server, {"tools": {}}))
    first.mount("b", Scripted(second, BOTH), MountSettings(prefix=""))
    second.mount("a", Scripted(first, BOTH), MountSettings(prefix=""))
    async with asyncio.timeout(20), first, second:
        await until(lambda: all(mount.is_gateway for mount in (first.mounts[1], second.mounts[0])))
        with pytest.raises(InvalidParams, match="passed through 8 gateways already"):
            await first(Exchange("resources/read", {"uri": "x://nowhere"}, NOBODY))


async def test_a_plain_server_gets_no_hop_count() -> None:
    asked: list[Params] = []

    async def server(exchange: Exchange) -> Reply:
        asked.append(exchange.params)
        return await plain_server(exchange)

    hub = Hub()
    hub.mount("s", Scripted(server, {"tools": {}}))
    async with asyncio.timeout(20), hub:
        await hub.settled()
        await hub(Exchange("tools/call", {"name": "s__t", "arguments": {}}, NOBODY))
    assert HOPS not in str(asked)
