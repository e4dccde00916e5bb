"""Servers that are unavailable, starting or replaced: what lists and calls report meanwhile."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

import sluicegate
from sluicegate.errors import InputRefused, UnknownTarget, UpstreamUnavailable
from sluicegate.exchange import Exchange, Host
from sluicegate.hub import mount as mounts
from sluicegate.hub import supervise as plan
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings, MountState
from sluicegate.hub.supervise import MAX_RESTARTS
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, Reply, Result, as_object, opened
from sluicegate.protocol.modern_era import complete
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.testing import MemoryUpstream
from tests.hub.scripted import Connected, Scripted, tools, until

STATES = "dev.sluicegate/servers"


class Heard:
    """A sink that hands out what it gets, in order."""

    def __init__(self) -> None:
        self._notices: asyncio.Queue[Notification] = asyncio.Queue()

    async def emit(self, notification: Notification) -> None:
        self._notices.put_nowait(notification)

    async def ask(self, questions: Questions) -> Answers:
        raise InputRefused("nobody is there")

    async def next(self) -> Notification:
        async with asyncio.timeout(10):
            return await self._notices.get()


async def listed(hub: Hub) -> Params:
    reply = await hub(Exchange("tools/list", {}, Heard()))
    assert isinstance(reply, Result)
    return opened(reply)


async def told_of(hub: Hub) -> object:
    """The servers that are said to be away, with the tools."""
    return (as_object((await listed(hub)).get("_meta")) or {}).get(STATES)


async def one_tool(exchange: Exchange) -> Reply:
    return tools("one", ttl_ms=60_000)


async def becomes(hub: Hub, name: str, state: MountState) -> None:
    await until(lambda: (mount := hub.find(name)) is not None and mount.state is state)


async def test_a_list_names_a_degraded_server_only_while_it_is_degraded() -> None:
    async def answer(exchange: Exchange) -> Reply:
        return tools("one")

    hub, server = Hub(), Scripted(answer, {"tools": {}})
    hub.mount("a", server)
    async with asyncio.timeout(10), hub:
        await hub.settled()
        assert await told_of(hub) is None
        server.way.clear()
        server.connections[-1].hang_up()
        await becomes(hub, "a", MountState.DEGRADED)
        assert await told_of(hub) == {"a": "degraded"}
        server.way.set()
        await becomes(hub, "a", MountState.READY)
        assert await told_of(hub) is None


async def test_a_list_names_a_server_that_is_starting_and_may_not_be_cached() -> None:
    hub, new = Hub(), Scripted(one_tool, {"tools": {}})
    hub.mount("a", Scripted(one_tool, {"tools": {}}))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        assert (await listed(hub))["ttlMs"] == 60_000
        new.way.clear()
        hub.mount("b", new)
        await until(lambda: "b" in hub.catalog.prefixes)
        assert await told_of(hub) == {"b": "starting"}
        assert (await listed(hub))["ttlMs"] == 0


async def test_subscriptions_to_a_server_that_is_away_wait_for_it_all_together() -> None:
    async def answer(exchange: Exchange) -> Reply:
        member = {"resources/list": "resources"}.get(exchange.method, "resourceTemplates")
        return Result(
            {member: [{"uri": f"x://{n}", "name": str(n)} for n in range(40)] if member == "resources" else []}
        )

    hub, server, heard = Hub(), Scripted(answer, {"resources": {}}), Heard()
    hub.mount("a", server, MountSettings(prefix="a", queue_wait=0.2))
    async with asyncio.timeout(10), hub, TaskScope() as tasks:
        await hub.settled()
        server.way.clear()
        server.connections[-1].hang_up()
        await becomes(hub, "a", MountState.DEGRADED)
        uris = [f"a+x://{n}" for n in range(40)]
        wanted: Params = {"notifications": {"resourceSubscriptions": uris}}
        tasks.start(answered(hub, Exchange("subscriptions/listen", wanted, heard)))
        assert (await heard.next()).params == {"notifications": {}}  # One after another it would take eight seconds.
        tasks.cancel_all()


async def answered(hub: Hub, exchange: Exchange) -> None:
    await hub(exchange)


# -------------------------------------------------------------------------------------------- one in another's place


@asynccontextmanager
async def holding(server: sluicegate.Server) -> AsyncGenerator[tuple[Hub, MemoryUpstream]]:
    hub, upstream = Hub(), MemoryUpstream(server)
    hub.mount("n", upstream)
    async with asyncio.timeout(10), hub:
        await hub.settled()
        yield hub, upstream


async def test_a_subscription_continues_on_the_server_that_replaces_another() -> None:
    server, heard = sluicegate.Server("notes"), Heard()
    server.add_resource("note://one", lambda: "1", name="one")
    async with holding(server) as (hub, upstream), TaskScope() as tasks:
        wanted: Params = {"notifications": {"resourceSubscriptions": ["n+note://one"]}}
        tasks.start(answered(hub, Exchange("subscriptions/listen", wanted, heard)))
        assert (await heard.next()).params == wanted
        mount = hub.replace("n", upstream, MountSettings(prefix="n"))
        await mount.settled()
        # Anything may have happened between the two, so it is told of as changed; and then of what really changes.
        assert (await heard.next()).params == {"uri": "n+note://one"}
        server.resource_updated("note://one")
        assert (await heard.next()).params == {"uri": "n+note://one"}
        tasks.cancel_all()


async def test_lists_stay_as_they_are_until_the_server_in_the_others_place_is_there_and_calls_wait_for_it() -> None:
    server = sluicegate.Server("greeter")
    server.add_tool(lambda: "hello", name="greet")
    late = Scripted(one_tool, {"tools": {}})
    late.way.clear()
    async with holding(server) as (hub, upstream):
        hub.replace("n", late, MountSettings(prefix="n"))
        await asyncio.sleep(0)
        assert list(hub.catalog.tools) == ["n__greet"]
        hub.replace("n", upstream, MountSettings(prefix="n"))
        async with sluicegate.connect(MemoryUpstream(hub)) as client:
            assert (await client.call("n__greet")).text == "hello"


async def test_a_server_is_unmounted_though_the_wait_for_that_was_cancelled() -> None:
    server, release = sluicegate.Server("slow"), asyncio.Event()

    @server.tool
    async def hold() -> str:  # pyright: ignore[reportUnusedFunction]
        await release.wait()
        return "held"

    async with holding(server) as (hub, _), sluicegate.connect(MemoryUpstream(hub)) as client, TaskScope() as tasks:
        mount, texts = hub.find("n"), list[str]()
        assert mount is not None

        async def call() -> None:
            texts.append((await client.call("n__hold")).text)

        tasks.start(call())
        await until(lambda: mount.in_flight == 1)
        tasks.start(hub.unmount("n"), key="unmount")
        await until(lambda: hub.find("n") is None)
        tasks.cancel("unmount")
        release.set()
        await mount.gone()
        assert (mount.state, mount.sentence) == (MountState.DISABLED, "n was removed.")
        await until(lambda: texts == ["held"])


async def test_a_server_that_hangs_while_it_starts_is_restarted_at_once_on_request() -> None:
    hub, server = Hub(), Scripted(one_tool, {"tools": {}})
    server.way.clear()
    mount = hub.mount("a", server)
    async with asyncio.timeout(10), hub:
        await until(lambda: server.attempts == 1)
        mount.restart()
        await until(lambda: server.attempts == 2)
        assert mount.state is MountState.STARTING
        server.way.set()
        await until(lambda: mount.is_ready)
        assert (server.attempts, len(server.connections)) == (2, 1)


async def test_a_tool_of_a_server_that_never_started_is_unknown_with_the_reason() -> None:
    hub = Hub()
    hub.mount("ghost", sluicegate.stdio("no-such-program-anywhere"), MountSettings(prefix="ghost"))
    async with asyncio.timeout(20), hub:
        await hub.settled()
        for name, said in (
            ("ghost__x", "ghost: The server's command"),
            ("mcp__ghost__x", "was not found"),
            ("other__x", ""),
        ):
            with pytest.raises(UnknownTarget) as caught:
                await hub(Exchange("tools/call", {"name": name, "arguments": {}}, Heard()))
            assert caught.value.message.startswith(f"Unknown tool: {name}") and said in caught.value.message
            assert bool(said) == ("again in" in caught.value.message)


# ---------------------------------------------------------------------------------------- asked for while it is away


class Late(Scripted):
    """A server that nobody finds until it is there."""

    is_there = False

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Connected]:
        if not self.is_there:
            self.attempts += 1
            raise UpstreamUnavailable("late could not be reached.")
        async with super().connect(host) as connection:
            yield connection


@asynccontextmanager
async def hub_with_late(patch: pytest.MonkeyPatch, settings: MountSettings) -> AsyncGenerator[tuple[Hub, Late]]:
    """A hub whose one server has failed so often that it is tried once a minute."""
    patch.setattr(plan, "MIN_PAUSE", 0.001)

    async def answer(exchange: Exchange) -> Reply:
        return tools("one") if exchange.method == "tools/list" else Result(complete({"content": []}))

    hub, late = Hub(), Late(answer, {"tools": {}})
    hub.mount("late", late, settings)
    async with asyncio.timeout(10), hub:
        await becomes(hub, "late", MountState.FAILED)
        yield hub, late


def call_of_one() -> Exchange:
    return Exchange("tools/call", {"name": "late__one", "arguments": {}}, Heard())


async def test_a_call_to_a_failed_server_at_a_url_reconnects_it_once_it_is_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mounts, "REQUESTED_RETRY_PAUSE", 0.0)
    async with hub_with_late(monkeypatch, MountSettings(prefix="late", is_light=True)) as (hub, late):
        with pytest.raises(UnknownTarget, match="tried once a minute now, and when one of its tools is called"):
            await hub(call_of_one())
        assert late.attempts == MAX_RESTARTS + 1
        late.is_there = True
        assert isinstance(await hub(call_of_one()), Result)


async def test_calls_to_a_failed_server_cause_one_attempt_per_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mounts, "REQUESTED_RETRY_PAUSE", 3600.0)
    async with hub_with_late(monkeypatch, MountSettings(prefix="late", is_light=True)) as (hub, late):
        for _ in range(10):
            with pytest.raises(UnknownTarget):
                await hub(call_of_one())
        assert late.attempts == MAX_RESTARTS


async def test_a_command_that_failed_is_started_by_no_call_and_says_what_starts_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(mounts, "REQUESTED_RETRY_PAUSE", 0.0)
    settings = MountSettings(prefix="late", restarted_by="sluicegate restart late")
    async with hub_with_late(monkeypatch, settings) as (hub, late):
        late.is_there = True
        told = r"once a minute now, the last time \d s ago; `sluicegate restart late` tries it at once\.$"
        with pytest.raises(UnknownTarget, match=told):
            await hub(call_of_one())
        assert late.attempts == MAX_RESTARTS
