"""The lists of a connected server are fetched again when they change, at a limited rate."""

import asyncio

import pytest

from sluicegate.errors import MethodNotFound
from sluicegate.exchange import Connection, Exchange
from sluicegate.hub.catalog import Offer, OfferLimits
from sluicegate.hub.fetch_catalog import REST_FACTOR, fetch_offer
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount_settings import MountSettings
from sluicegate.protocol.message import Notification, Reply
from sluicegate.runtime.task_scope import Turns
from tests.hub.scripted import Scripted, acknowledge, tools, until


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

    async def taking_long(name: str, connection: Connection, limits: OfferLimits, turns: Turns) -> Offer:
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
    assert expected in pauses
