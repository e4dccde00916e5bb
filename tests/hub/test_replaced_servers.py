"""A server is replaced, or removed and mounted again: calls and subscriptions continue (threats R32)."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from sluicegate.errors import UpstreamClosed, UpstreamError
from sluicegate.exchange import Exchange, Host
from sluicegate.hub import hub as hubs
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.message import Params, Reply, Result, opened
from sluicegate.runtime.task_scope import TaskScope
from tests.hub.scripted import Connected, Scripted, tools, until
from tests.hub.test_subscriptions import Library
from tests.upstream.raw_server import Recorder

SETTINGS = MountSettings(prefix="s", queue_wait=5)


class Slow:
    """A server whose one tool says which it is, once `release` is set and unless its connection ends before."""

    def __init__(self, name: str, version: str = "2026-07-28") -> None:
        self.name = name
        self.release = asyncio.Event()
        self.release.set()
        self.upstream = Scripted(self._answer, {"tools": {}}, version)
        self._is_closed = asyncio.Event()

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Connected]:
        async with self.upstream.connect(host) as connection:
            try:
                yield connection
            finally:
                self._is_closed.set()

    async def _answer(self, exchange: Exchange) -> Reply:
        if exchange.method == "tools/list":
            return tools("who")
        async with TaskScope() as tasks:
            over = asyncio.Event()
            for event in (self.release, self._is_closed):
                tasks.start(then(event, over))
            await over.wait()
            tasks.cancel_all()
        if self._is_closed.is_set():
            raise UpstreamClosed(f"{self.name} is gone.")
        return Result({"content": [{"type": "text", "text": self.name}], "resultType": "complete"})


async def then(event: asyncio.Event, other: asyncio.Event) -> None:
    await event.wait()
    other.set()


class Calls:
    """What came of each call of `who`, by its number."""

    def __init__(self, hub: Hub, tasks: TaskScope) -> None:
        self.ends: dict[int, object] = {}
        self._hub = hub
        self._tasks = tasks
        self._begun = 0

    def start(self) -> int:
        self._begun += 1
        self._tasks.start(self._call(self._begun))
        return self._begun

    async def _call(self, number: int) -> None:
        try:
            reply = await self._hub(Exchange("tools/call", {"name": "s__who", "arguments": {}}, Recorder()))
        except UpstreamError as problem:
            self.ends[number] = problem.message
        else:
            assert isinstance(reply, Result)
            self.ends[number] = opened(reply)["content"]

    async def end(self, number: int) -> object:
        await until(lambda: number in self.ends)
        return self.ends[number]


def said_by(name: str) -> object:
    return [{"type": "text", "text": name}]


@asynccontextmanager
async def serving(first: Slow) -> AsyncGenerator[tuple[Hub, Calls]]:
    hub = Hub()
    hub.mount("s", first, SETTINGS)
    async with asyncio.timeout(10), hub, TaskScope() as tasks:
        await hub.settled()
        yield hub, Calls(hub, tasks)
        tasks.cancel_all()


async def busy(hub: Hub) -> None:
    """Wait until a call is under way."""
    mount = hub.find("s")
    assert mount is not None
    await until(lambda: mount.in_flight == 1)


@pytest.mark.parametrize("is_replaced", [True, False])
async def test_a_call_under_way_finishes_however_long_it_takes_when_the_entry_of_its_server_changes(
    is_replaced: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hubs, "DRAIN", 0.01)
    old, new = Slow("old"), Slow("new")
    async with serving(old) as (hub, calls):
        old.release.clear()
        call = calls.start()
        await busy(hub)
        if is_replaced:
            hub.replace("s", new, SETTINGS)
            assert await calls.end(calls.start()) == said_by("new")
        else:
            hub.dismiss("s")
        await asyncio.sleep(0.1)  # Longer than DRAIN.
        assert call not in calls.ends
        old.release.set()
        assert await calls.end(call) == said_by("old")


async def test_a_call_under_way_has_no_more_time_than_calls_have_when_its_server_is_replaced() -> None:
    old, new = Slow("old"), Slow("new")
    async with serving(old) as (hub, calls):
        mount = hub.find("s")
        assert mount is not None
        hub.adjust({"s": MountSettings(prefix="s", longest_call=0.1)})
        old.release.clear()
        call = calls.start()
        await busy(hub)
        hub.replace("s", new, SETTINGS)
        await mount.gone()
        assert (
            await calls.end(call)
            == "s did not answer within 0.1 s, the longest time for a call (`longest_call`); the call may have run."
        )


async def test_of_many_that_are_replaced_with_calls_under_way_the_oldest_is_ended(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hubs, "MAX_DRAINING", 2)
    servers = [Slow(str(number)) for number in range(4)]
    async with serving(servers[0]) as (hub, calls):
        under_way: list[int] = []
        mounts = hub.mounts[:]
        for server, following in zip(servers, servers[1:], strict=False):
            server.release.clear()
            under_way.append(calls.start())
            await busy(hub)
            mounts = [*mounts, hub.replace("s", following, SETTINGS)]
            await hub.settled()
        await mounts[0].gone()
        for server in servers[1:]:
            server.release.set()
        assert [await calls.end(call) for call in under_way[1:]] == [said_by("1"), said_by("2")]
        assert await calls.end(under_way[0]) == "0 is gone; the call may have run."


async def test_an_unmount_waits_for_calls_only_for_a_limited_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hubs, "DRAIN", 0.01)
    old = Slow("old")
    async with serving(old) as (hub, calls):
        old.release.clear()
        call = calls.start()
        await busy(hub)
        await hub.unmount("s")
        assert await calls.end(call) == "old is gone; the call may have run."


@pytest.mark.parametrize("version", ["2026-07-28", "2025-11-25"])
async def test_a_call_that_waits_for_a_starting_server_is_answered_by_its_replacement(version: str) -> None:
    first, second, third = Slow("first"), Slow("second"), Slow("third", version)
    async with serving(first) as (hub, calls):
        second.upstream.way.clear()
        third.upstream.way.clear()
        hub.replace("s", second, SETTINGS)
        call = calls.start()
        await until(lambda: second.upstream.attempts == 1)
        hub.replace("s", third, SETTINGS)
        await until(lambda: third.upstream.attempts == 1)
        assert call not in calls.ends
        third.upstream.way.set()
        assert await calls.end(call) == said_by("third")


async def test_a_call_that_waits_for_a_server_that_is_removed_is_refused() -> None:
    first, second = Slow("first"), Slow("second")
    async with serving(first) as (hub, calls):
        second.upstream.way.clear()
        hub.replace("s", second, SETTINGS)
        call = calls.start()
        await until(lambda: second.upstream.attempts == 1)
        hub.dismiss("s")
        assert await calls.end(call) == "s was removed."


async def test_a_subscription_continues_when_a_removed_server_is_mounted_again() -> None:
    hub, heard, libraries = Hub(), Recorder(), [Library() for _ in range(3)]
    capabilities: Params = {"resources": {"subscribe": True}}
    hub.mount("s", Scripted(libraries[0], capabilities), SETTINGS)
    async with asyncio.timeout(10), hub, TaskScope() as tasks:
        await hub.settled()

        async def listen() -> None:
            wanted: Params = {"notifications": {"resourceSubscriptions": ["s+x://1"]}}
            await hub(Exchange("subscriptions/listen", wanted, heard))

        tasks.start(listen(), key="listen")
        await until(lambda: len(heard.notices) == 1)
        for library in libraries[1:]:  # Twice: it is remembered by whoever came in between, too.
            hub.dismiss("s")
            await until(lambda: not any(each.listening for each in libraries))
            hub.mount("s", Scripted(library, capabilities), SETTINGS)
            heard.notices.clear()
            await until(lambda: bool(heard.notices))  # Anything may have happened meanwhile.
            await library.update("x://1")
            await until(lambda: len(heard.notices) == 2)
            assert [notice.params for notice in heard.notices] == [{"uri": "s+x://1"}] * 2
        tasks.cancel("listen")
        await until(lambda: not libraries[2].listening)
        hub.dismiss("s")
        hub.mount("s", Scripted(libraries[0], capabilities), SETTINGS)
        await hub.settled()
        await asyncio.sleep(0)
        assert libraries[0].asked == 1, "nobody listens any more"
