"""A server's word that its lists changed: never lost for good, whatever comes between."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from sluicegate.concurrency import forever
from sluicegate.errors import UpstreamUnavailable
from sluicegate.exchange import Exchange
from sluicegate.hub import listening, mount
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings, State
from sluicegate.protocol.message import Notification, Reply, Result
from tests.hub.scripted import Scripted, acknowledge, tools, until

CHANGED = Notification("notifications/tools/list_changed", {})


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listening, mount):
        monkeypatch.setattr(module, "SHORTEST_PAUSE", 0.01)


@asynccontextmanager
async def running(server: Scripted) -> AsyncGenerator[Hub]:
    hub = Hub()
    hub.mount("a", server, MountSettings(prefix="a", debounce=0))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        yield hub


async def listed(hub: Hub, *names: str) -> None:
    """Wait until exactly these tools are there."""
    await until(lambda: list(hub.catalog.tools) == list(names))


async def test_what_changes_while_a_server_has_let_go_of_a_subscription_is_found_when_it_listens_again() -> None:
    names, fetched, let_go, again = ["one"], asyncio.Semaphore(0), asyncio.Event(), asyncio.Event()
    subscriptions = 0

    async def answer(exchange: Exchange) -> Reply:
        nonlocal subscriptions
        if exchange.method == "tools/list":
            fetched.release()
            return tools(*names)
        subscriptions += 1
        if subscriptions == 1:
            await acknowledge(exchange)
            await let_go.wait()
            return Result({})
        await again.wait()
        await acknowledge(exchange)
        await forever()
        raise AssertionError

    async with running(Scripted(answer, {"tools": {"listChanged": True}})) as hub:
        await fetched.acquire()
        let_go.set()
        await fetched.acquire()  # It looks when the server lets go; what comes after that nobody tells.
        names.append("two")
        again.set()
        await listed(hub, "a__one", "a__two")


async def test_lists_that_could_not_be_fetched_are_fetched_later() -> None:
    names, failures, change = ["one"], 0, asyncio.Event()

    async def answer(exchange: Exchange) -> Reply:
        nonlocal failures
        if exchange.method == "tools/list":
            if failures:
                failures -= 1
                raise UpstreamUnavailable("not now")
            return tools(*names)
        await acknowledge(exchange)
        await change.wait()
        await exchange.emit(CHANGED)
        await forever()
        raise AssertionError

    async with running(Scripted(answer, {"tools": {"listChanged": True}})) as hub:
        failures = 2
        names.append("two")
        change.set()
        await listed(hub, "a__one", "a__two")


async def test_a_list_that_cannot_be_read_does_not_cost_the_connection() -> None:
    is_broken, change, broken = False, asyncio.Event(), asyncio.Event()

    async def answer(exchange: Exchange) -> Reply:
        nonlocal is_broken
        if exchange.method == "tools/list":
            if is_broken:
                is_broken = False
                broken.set()
                return Result(msgspec.Raw(b'{"tools":' + b"[" * 100_000 + b"]" * 100_000 + b"}"))
            return tools("one", "two") if broken.is_set() else tools("one")
        await acknowledge(exchange)
        await change.wait()
        await exchange.emit(CHANGED)
        await forever()
        raise AssertionError

    server = Scripted(answer, {"tools": {"listChanged": True}})
    async with running(server) as hub:
        is_broken = True
        change.set()
        await listed(hub, "a__one", "a__two")
        assert len(server.connections) == 1
        found = hub.find("a")
        assert found is not None
        assert found.state is State.READY
