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


async def test_two_gateways_that_mount_each_other_list_each_others_tools_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(router, "LISTS_PACE", 0.0)
    first, second = Hub("first"), Hub("second")
    first.mount("own", Scripted(plain_server, {"tools": {}}))
    second.mount("other", Scripted(plain_server, {"tools": {}}))
    first.mount("b", Scripted(second, BOTH), MountSettings(prefix="b", debounce=0.0))
    second.mount("a", Scripted(first, BOTH), MountSettings(prefix="a", debounce=0.0))
    async with asyncio.timeout(20), first, second:
        await until(lambda: {*first.catalog.tools} == {"own__t", "b__other__t"})
        await until(lambda: {*second.catalog.tools} == {"other__t", "a__own__t"})
        await until_steady(lambda: (len(first.catalog.tools), len(second.catalog.tools)), looks=60)
        assert (len(first.catalog.tools), len(second.catalog.tools)) == (2, 2)


async def test_three_gateways_in_a_ring_list_each_others_tools_a_limited_number_of_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(router, "LISTS_PACE", 0.0)
    hubs = [Hub(name) for name in "abc"]
    hubs[0].mount("own", Scripted(plain_server, {"tools": {}}))
    for number, hub in enumerate(hubs):
        hub.mount("next", Scripted(hubs[(number + 1) % 3], BOTH), MountSettings(prefix="next", debounce=0.0))
    async with asyncio.timeout(20), hubs[0], hubs[1], hubs[2]:
        await until(lambda: len(hubs[0].catalog.tools) == 1 + MAX_HOPS // 3)
        await until_steady(lambda: len(hubs[0].catalog.tools), looks=60)
        assert len(hubs[0].catalog.tools) == 1 + MAX_HOPS // 3


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
