"""The lists of a connected server are fetched again when they change, at a limited rate."""

import asyncio

import pytest

import sluicegate
from sluicegate.errors import ErrorObject, MethodNotFound, UpstreamUnavailable
from sluicegate.exchange import Connection, Exchange
from sluicegate.hub.catalog import Offer, OfferLimits
from sluicegate.hub.fetch_catalog import LISTS, REST_FACTOR, fetch_offer
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountState
from sluicegate.hub.mount_settings import MountSettings
from sluicegate.protocol.message import Notification, Params, Reply, Result
from sluicegate.protocol.modern_era import complete
from sluicegate.runtime.task_scope import Turns
from tests.hub.scripted import Scripted, acknowledge, tools, until
from tests.polling import until_called


@pytest.mark.parametrize(("took", "expected"), [(0.0, 0.125), (0.01, 0.125), (7.0, 7.0 * REST_FACTOR)])
async def test_lists_that_took_long_are_not_asked_for_again_for_many_times_as_long(
    monkeypatch: pytest.MonkeyPatch, took: float, expected: float
) -> None:
    fetched, change, pauses, sleep = 0, asyncio.Event(), list[float](), asyncio.sleep

    async def answer(exchange: Exchange) -> Reply:
        nonlocal fetched
        if exchange.method == "tools/list":
            fetched += 1
            return tools(f"t{fetched}")
        if exchange.method != "subscriptions/listen":
            raise MethodNotFound(exchange.method)
        await acknowledge(exchange)
        await change.wait()
        await exchange.emit(Notification("notifications/tools/list_changed", {}))
        return await asyncio.Future[Reply]()

    async def taking_long(name: str, connection: Connection, limits: OfferLimits, turns: Turns, **_: object) -> Offer:
        offer = await fetch_offer(name, connection, limits)
        turns.seconds = took
        return offer

    async def paused(seconds: float) -> None:
        pauses.append(seconds)
        await sleep(0)

    monkeypatch.setattr("sluicegate.hub.fetch_catalog.fetch_offer", taking_long)
    hub = Hub()
    hub.mount("s", Scripted(answer, {"tools": {"listChanged": True}}), MountSettings(prefix="s", debounce=0.125))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        monkeypatch.setattr("sluicegate.hub.fetch_catalog.asyncio.sleep", paused)
        change.set()
        await until(lambda: "s__t2" in hub.catalog.tools)
    assert expected * 0.8 < max(pauses) <= expected, "less the time since the last fetch"


# ------------------------------------------------------------------------------------------------ one list that fails

ENTRIES: dict[str, Params] = {
    "tools": {"name": "t", "inputSchema": {"type": "object"}},
    "prompts": {"name": "p"},
    "resources": {"uri": "a:b", "name": "r"},
    "templates": {"uriTemplate": "a:{c}", "name": "r"},
}


class Ailing:
    """Has all lists, of which one fails in some way while `is_ill`."""

    def __init__(self, which: str, way: str) -> None:
        self.is_ill = True
        self.upstream = Scripted(self.answer, {"tools": {}, "prompts": {}, "resources": {}}, "2025-06-18")
        self._method, self._way = LISTS[which].method, way

    async def answer(self, exchange: Exchange) -> Reply:
        if exchange.method == "tools/call":
            return Result(complete({"content": []}))
        if exchange.method == self._method and self.is_ill:
            match self._way:
                case "error":
                    return ErrorObject(-32603, "TypeError: permission denied")
                case "status":
                    raise UpstreamUnavailable("s failed (status 500).", data={"status": 500})
                case "no list":
                    return Result(complete({"tools": 5, "prompts": 5, "resources": 5, "resourceTemplates": 5}))
                case _:
                    await asyncio.Event().wait()
        (which,) = (which for which, each in LISTS.items() if each.method == exchange.method)
        return Result(complete({LISTS[which].found_in: [ENTRIES[which]]}))


WAYS = [*((which, "error") for which in LISTS), ("prompts", "status"), ("tools", "no list"), ("resources", "silence")]


@pytest.mark.parametrize(("which", "way"), WAYS)
async def test_one_failing_list_is_missing_and_retried_while_all_else_works(
    monkeypatch: pytest.MonkeyPatch, which: str, way: str
) -> None:
    monkeypatch.setattr("sluicegate.hub.fetch_catalog.FIRST_RETRY", 0.01)
    server, hub = Ailing(which, way), Hub()
    mount = hub.mount("s", server.upstream, MountSettings(prefix="s", offer_timeout=0.1, debounce=0))
    async with asyncio.timeout(10), hub, sluicegate.connect(hub) as client:

        async def listed() -> set[str]:
            lists = {
                "tools": await client.tools(),
                "prompts": await client.prompts(),
                "resources": await client.resources(),
                "templates": await client.resource_templates(),
            }
            return {name for name, entries in lists.items() if entries}

        await hub.settled()
        await until(lambda: mount.condition().state is MountState.DEGRADED)
        condition = mount.condition()
        assert condition.sentence == (
            f"s did not return its {which}; everything else of it works."
            " Its lists stay as they were and are fetched again within 30 s."
        )
        assert condition.problem is not None and condition.problem.details
        await until_called(listed, lambda lists: lists == LISTS.keys() - {which})
        if which != "tools":
            assert not (await client.call("s__t")).is_error
        server.is_ill = False
        await until(lambda: mount.condition().state is MountState.READY)
        await until_called(listed, lambda lists: lists == set(LISTS))
        assert server.upstream.attempts == 1


async def test_a_list_that_fails_later_stays_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.hub.fetch_catalog.FIRST_RETRY", 0.01)
    server, hub = Ailing("prompts", "error"), Hub()
    server.is_ill = False
    mount = hub.mount("s", server.upstream, MountSettings(prefix="s", debounce=0))
    async with asyncio.timeout(10), hub, sluicegate.connect(hub) as client:
        await hub.settled()
        server.is_ill = True
        server.upstream.connections[0].host.on_session_lost()
        await until(lambda: mount.condition().state is MountState.DEGRADED)
        assert [prompt.name for prompt in await client.prompts()] == ["s__p"]
