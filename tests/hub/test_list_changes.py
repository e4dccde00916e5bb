"""Notices of a server that its lists changed are not lost, whatever happens to the connection."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import msgspec
import pytest

from sluicegate.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, ErrorObject, UpstreamUnavailable
from sluicegate.exchange import Exchange
from sluicegate.hub import fetch_catalog as lists
from sluicegate.hub import subscriptions as listening
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings, MountState
from sluicegate.protocol.message import Notification, Reply, Result
from sluicegate.runtime.task_scope import forever
from tests.hub.scripted import Scripted, acknowledge, tools, until
from tests.polling import until_steady

CHANGED = Notification("notifications/tools/list_changed", {})


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listening, lists):
        monkeypatch.setattr(module, "FIRST_RETRY", 0.01)


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


async def test_what_changes_as_soon_as_the_lists_were_fetched_for_the_first_time_is_not_missed() -> None:
    names, listeners = ["one"], list[Exchange]()

    async def answer(exchange: Exchange) -> Reply:
        if exchange.method == "tools/list":
            found = tools(*names)
            if len(names) == 1:
                names.append("two")
                for listener in listeners:
                    await listener.emit(CHANGED)
            return found
        listeners.append(exchange)
        await acknowledge(exchange)
        await forever()
        raise AssertionError

    async with running(Scripted(answer, {"tools": {"listChanged": True}})) as hub:
        await listed(hub, "a__one", "a__two")


async def test_a_server_that_takes_long_to_listen_is_not_waited_for_and_its_lists_are_fetched_again_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(lists, "LISTENS_WITHIN", 0.01)
    names, listens = ["one"], asyncio.Event()

    async def answer(exchange: Exchange) -> Reply:
        if exchange.method == "tools/list":
            return tools(*names)
        await listens.wait()
        await acknowledge(exchange)
        await forever()
        raise AssertionError

    async with running(Scripted(answer, {"tools": {"listChanged": True}})) as hub:
        await listed(hub, "a__one")
        names.append("two")
        listens.set()
        await listed(hub, "a__one", "a__two")


@pytest.mark.parametrize("code", [METHOD_NOT_FOUND, INTERNAL_ERROR])
async def test_a_server_that_refuses_to_tell_of_changes_is_not_waited_for(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lists, "LISTENS_WITHIN", 60)

    async def answer(exchange: Exchange) -> Reply:
        return tools("one") if exchange.method == "tools/list" else ErrorObject(code, "no")

    async with running(Scripted(answer, {"tools": {"listChanged": True}})) as hub:
        await listed(hub, "a__one")


async def test_lists_are_fetched_once_where_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lists, "LISTENS_WITHIN", 60)
    fetched, listens = 0, asyncio.Event()

    async def answer(exchange: Exchange) -> Reply:
        nonlocal fetched
        if exchange.method == "tools/list":
            fetched += 1
            return tools("one")
        await acknowledge(exchange)
        listens.set()
        await forever()
        raise AssertionError

    async with running(Scripted(answer, {"tools": {"listChanged": True}})) as hub:
        await listens.wait()
        await listed(hub, "a__one")
        await until_steady(lambda: fetched)
    assert fetched == 1


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
        assert found.state is MountState.READY
