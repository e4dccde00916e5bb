"""Gateways that hold each other, or themselves: each shows what the others have of their own, and no circle."""

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, asynccontextmanager

import pytest

from sluicegate import Hub, RpcError, Server, connect
from sluicegate.config import GatewayConfig
from sluicegate.exchange import Exchange
from sluicegate.gateway import Gateway
from sluicegate.hub.circles import GATEWAY, MOST_GATEWAYS, THROUGH, gateway_of, not_from
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.message import Params, Reply
from sluicegate.testing import MemoryUpstream
from sluicegate.upstream.link import Era
from tests.hub.scripted import until


class Logged(logging.Handler):
    """Waits for what is logged."""

    def __init__(self) -> None:
        super().__init__()
        self._lines: dict[str, asyncio.Event] = defaultdict(asyncio.Event)

    def emit(self, record: logging.LogRecord) -> None:
        self._lines[record.getMessage()].set()

    async def __call__(self, line: str) -> None:
        await self._lines[line].wait()


@pytest.fixture
def logged() -> Generator[Logged]:
    handler = Logged()
    logging.getLogger("sluicegate").addHandler(handler)
    yield handler
    logging.getLogger("sluicegate").removeHandler(handler)


def plain(name: str) -> Server:
    server = Server(name)

    @server.tool
    def own() -> str:  # pyright: ignore[reportUnusedFunction]
        return f"of {name}"

    @server.resource("own://it")
    def it() -> str:  # pyright: ignore[reportUnusedFunction]
        return f"it of {name}"

    return server


@asynccontextmanager
async def ring(era: Era, *names: str) -> AsyncGenerator[dict[str, Hub]]:
    """Gateways, each with a server of its own and the next one behind it, and the last with the first."""
    hubs = {name: Hub(name) for name in names}
    for name, after in zip(names, [*names[1:], names[0]], strict=True):
        hubs[name].mount("plain", plain(name))
        hubs[name].mount(after, MemoryUpstream(hubs[after], era=era))
    async with asyncio.timeout(30), AsyncExitStack() as stack:
        for hub in hubs.values():
            await stack.enter_async_context(hub)
        yield hubs


async def listed(hub: Hub, wanted: list[str]) -> None:
    """Return when the hub lists these tools; never has it others."""
    async with connect(hub) as client, client.listen(tools=True) as changes:
        while (tools := {tool.name for tool in await client.tools()}) != set(wanted):
            assert tools < set(wanted), tools
            await anext(changes)


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_two_that_hold_each_other_show_each_others_own(era: Era, logged: Logged) -> None:
    async with ring(era, "a", "b") as hubs:
        await listed(hubs["a"], ["plain__own", "b__plain__own"])
        await listed(hubs["b"], ["plain__own", "a__plain__own"])
        async with connect(hubs["a"]) as client:
            assert (await client.call("b__plain__own")).text == "of b"
            assert [resource.uri for resource in await client.resources()] == ["plain+own://it", "b+plain+own://it"]
        for name, other in (("a", "b"), ("b", "a")):
            sentence = f"{other} is a gateway that leads back to this one; what it has from here is left out."
            await logged(sentence)
            assert list(hubs[name].catalog.findings) == [sentence]


async def test_a_longer_way_back_is_seen_too() -> None:
    async with ring("modern", "a", "b", "c") as hubs:
        await listed(hubs["a"], ["plain__own", "b__plain__own", "b__c__plain__own"])
        await listed(hubs["c"], ["plain__own", "a__plain__own", "a__b__plain__own"])


async def test_one_that_holds_itself_shows_its_own_once() -> None:
    async with ring("modern", "a") as hubs:
        await listed(hubs["a"], ["plain__own"])


async def test_two_ways_to_the_same_server_are_no_circle() -> None:
    shared, one, other, top = (Hub(name) for name in ("shared", "one", "other", "top"))
    shared.mount("plain", plain("shared"))
    for middle in (one, other):
        middle.mount("shared", MemoryUpstream(shared))
        top.mount(str(middle.info["name"]), MemoryUpstream(middle))
    async with asyncio.timeout(30), shared, one, other, top:
        await listed(top, ["one__shared__plain__own", "other__shared__plain__own"])
        assert top.catalog.findings == []


class Bare:
    """Two gateways without prefixes that hold each other, and what they ask each other."""

    def __init__(self) -> None:
        self.one, self.other = Hub("one"), Hub("other")
        self.asked: Counter[str] = Counter()
        for hub, behind in ((self.one, self.other), (self.other, self.one)):
            hub.mount("behind", self._counted(behind), MountSettings(prefix="", debounce=0.01))
            hub.mount(hub.name, plain(hub.name))

    def _counted(self, hub: Hub) -> MemoryUpstream:
        async def count(exchange: Exchange) -> Reply:
            self.asked[exchange.method] += 1
            return await hub(exchange)

        return MemoryUpstream(count)

    async def know_each_other(self) -> None:
        for hub in (self.one, self.other):
            await listed(hub, ["one__own", "other__own"])
        await until(lambda: bool(self.one.catalog.leading_back and self.other.catalog.leading_back))


async def test_two_without_prefixes_do_not_tell_each_other_of_changes_for_ever() -> None:
    bare = Bare()
    async with asyncio.timeout(30), bare.one, bare.other:
        await bare.know_each_other()
        before = -1
        while (asked := bare.asked["tools/list"]) != before:  # until nobody asks any more
            before = asked
            await asyncio.sleep(0.2)
        assert asked > 0


def test_what_others_say_of_the_way_is_bounded() -> None:
    assert gateway_of({"_meta": {GATEWAY: "x" * 65}}) == gateway_of({"_meta": 1}) == gateway_of({}) == ""
    far: Params = {"name": "far", "_meta": {THROUGH: ["x"] * MOST_GATEWAYS}}
    near: Params = {"name": "near", "_meta": {THROUGH: ["x"], "kept": 1}}
    odd: Params = {"name": "odd", "_meta": {THROUGH: "x"}}
    kept: list[Params] = [
        {"name": "near", "_meta": {THROUGH: ["it", "x"], "kept": 1}},
        {"name": "odd", "_meta": {THROUGH: ["it"]}},
    ]
    assert not_from("us", "it", [far, near, odd]) == (kept, False)
    assert not_from("x", "it", [near]) == ([], True)


async def test_what_nobody_has_does_not_go_round_in_a_circle_without_prefixes() -> None:
    bare = Bare()
    async with asyncio.timeout(30), bare.one, bare.other:
        await bare.know_each_other()
        async with connect(bare.one) as client:
            with pytest.raises(RpcError, match="nowhere"):
                await client.read("nowhere://7")
            assert not bare.asked["resources/read"]
            assert (await client.read("other+own://it")).contents[0].text == "it of other"


async def test_instructions_do_not_go_round_in_a_circle() -> None:
    words = "Ask me about the weather."
    hubs = {name: Hub(name) for name in ("a", "b")}
    for hub, after in ((hubs["a"], "b"), (hubs["b"], "a")):
        server = Server("plain", instructions=words)
        server.add_tool(lambda: "own", name="own")
        hub.mount("plain", server)
        hub.mount(after, MemoryUpstream(hubs[after]))
    async with asyncio.timeout(30), hubs["a"], hubs["b"]:
        mounts = [mount for hub in hubs.values() for mount in hub.mounts if mount.name != "plain"]
        await until(lambda: all(hub.catalog.leading_back for hub in hubs.values()))
        for _ in range(3):
            for mount in mounts:
                await until(lambda mount=mount: mount.is_ready)
                before = mount.connection
                mount.restart()
                await until(lambda mount=mount, before=before: mount.connection not in (None, before))
        async with connect(hubs["a"]) as client:
            assert client.instructions is not None and client.instructions.count(words) == 1


def test_a_gateway_knows_itself_again_after_a_restart_and_no_other() -> None:
    here, elsewhere = GatewayConfig(root="/here"), GatewayConfig(root="/elsewhere")
    assert Gateway(here).hub.instance == Gateway(here).hub.instance != Gateway(elsewhere).hub.instance
    assert Hub().instance != Hub().instance
