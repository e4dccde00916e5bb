"""A server that lists more to clients that declare an extension: which clients see what, and what they can call."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from sluicegate.errors import ErrorObject, InvalidParams, Quarantined, UnknownTarget
from sluicegate.exchange import NOBODY, Exchange
from sluicegate.hub import variants
from sluicegate.hub.catalog import Patterns
from sluicegate.hub.catalog import Subset as View
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.message import Notification, Params, Reply, Result, as_array, as_object, opened
from sluicegate.protocol.modern_era import ClientProfile, complete
from sluicegate.runtime.task_scope import forever
from tests.hub.scripted import Scripted, acknowledge, tools, until
from tests.hub.test_governor import Judge
from tests.polling import until_called

PAGES = "com.example/pages"
CHANGED = Notification("notifications/tools/list_changed", {})


def declaring(*extensions: str, **settings: object) -> ClientProfile:
    return ClientProfile(capabilities={"extensions": {name: dict(settings) for name in extensions}})


class Varying(Scripted):
    """A server that has more tools for clients with its extension; it notes what lists were asked with."""

    def __init__(self, version: str = "2026-07-28") -> None:
        capabilities: Params = {"tools": {"listChanged": True}, "extensions": {PAGES: {}, "com.example/other": {}}}
        super().__init__(self._reply, capabilities, version)
        self.more: tuple[str, ...] = ("page",)
        self.called: list[object] = []
        self.asked: list[object] = []
        self.fails = False
        self._listener: Exchange | None = None

    async def _reply(self, exchange: Exchange) -> Reply:
        match exchange.method:
            case "tools/list":
                declared = exchange.profile.capabilities.get("extensions")
                self.asked.append(declared)
                if declared is not None and self.fails:
                    return ErrorObject(-32603, "no")
                return tools("one", *(self.more if PAGES in (as_object(declared) or {}) else ()), ttl_ms=1000)
            case "subscriptions/listen":
                await acknowledge(exchange)
                self._listener = exchange
                await forever()
            case _:
                self.called.append(exchange.params["name"])
        return Result(complete({"content": []}))

    async def announce(self) -> None:
        assert self._listener is not None
        await self._listener.emit(CHANGED)


@asynccontextmanager
async def mounted(server: Scripted, settings: MountSettings | None = None) -> AsyncGenerator[Hub]:
    hub = Hub()
    hub.mount("s", server, settings or MountSettings(prefix="s", debounce=0))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        yield hub


async def listed(hub: Hub, profile: ClientProfile, **params: object) -> list[object]:
    reply = await hub(Exchange("tools/list", params, NOBODY, profile))
    assert isinstance(reply, Result)
    return [(as_object(tool) or {})["name"] for tool in as_array(opened(reply)["tools"]) or []]


def call(name: str, profile: ClientProfile) -> Exchange:
    return Exchange("tools/call", {"name": name, "arguments": {}}, NOBODY, profile)


async def test_lists_are_asked_with_the_extensions_of_the_caller_that_the_server_offers() -> None:
    server = Varying()
    async with mounted(server) as hub:
        assert await listed(hub, ClientProfile()) == ["s__one"]
        assert await listed(hub, declaring("com.example/unknown")) == ["s__one"]
        assert await listed(hub, declaring("com.example/other", "com.example/unknown")) == ["s__one"]
        assert await listed(hub, declaring(PAGES, size=3)) == ["s__one", "s__page"]
        assert await listed(hub, declaring(PAGES, size=3)) == ["s__one", "s__page"]
    assert server.asked == [None, {"com.example/other": {}}, {PAGES: {"size": 3}}]


async def test_a_session_era_server_is_asked_once_for_all() -> None:
    server = Varying("2025-11-25")
    async with mounted(server) as hub:
        assert await listed(hub, declaring(PAGES)) == ["s__one"]
    assert server.asked == [None]


async def test_a_tool_that_only_some_clients_see_can_be_called_by_them_also_before_they_list() -> None:
    server = Varying()
    async with mounted(server) as hub:
        assert isinstance(await hub(call("s__page", declaring(PAGES))), Result)
        assert isinstance(await hub(call("s__one", declaring(PAGES))), Result)
        with pytest.raises(UnknownTarget):
            await hub(call("s__page", ClientProfile()))
    assert server.called == ["page", "one"]


async def scope_of(hub: Hub, profile: ClientProfile) -> object:
    reply = await hub(Exchange("tools/list", {}, NOBODY, profile))
    assert isinstance(reply, Result)
    return opened(reply)["cacheScope"]


async def test_t11_what_a_server_with_extensions_lists_is_not_for_shared_caches() -> None:
    async with mounted(Varying()) as hub:
        for profile in (ClientProfile(), declaring(PAGES)):
            assert await scope_of(hub, profile) == "private"


async def test_no_list_depends_on_tasks() -> None:
    tasks = "io.modelcontextprotocol/tasks"
    asked: list[object] = []

    async def answer(exchange: Exchange) -> Reply:
        asked.append(exchange.profile.capabilities)
        return tools("one", ttl_ms=1000)

    async with mounted(Scripted(answer, {"tools": {}, "extensions": {tasks: {}}})) as hub:
        assert await scope_of(hub, declaring(tasks)) == "public" and asked == [{}]


async def test_lists_that_cannot_be_fetched_are_those_of_all_others() -> None:
    server = Varying()
    server.fails = True
    async with mounted(server) as hub:
        assert await listed(hub, declaring(PAGES)) == ["s__one"]
        assert await listed(hub, declaring(PAGES)) == ["s__one"]
    assert len(server.asked) == 2, "it is not asked again with each request"


async def test_a_change_of_lists_that_only_some_clients_see_reaches_them() -> None:
    server = Varying()
    async with mounted(server) as hub:
        assert await listed(hub, declaring(PAGES)) == ["s__one", "s__page"]
        server.more = ("sheet",)
        before = len(server.asked)
        await server.announce()
        await until(lambda: len(server.asked) > before)  # The lists of all others are fetched first.
        names = await until_called(lambda: listed(hub, declaring(PAGES)), lambda seen: seen != ["s__one", "s__page"])
        assert names == ["s__one", "s__sheet"]


async def test_profiles_hide_tools_from_these_clients_too() -> None:
    server = Varying()
    async with mounted(server) as hub:
        router = hub.router("few", View(tools=Patterns(hide=("page",))))
        reply = await router(Exchange("tools/list", {}, NOBODY, declaring(PAGES)))
        assert isinstance(reply, Result) and len(as_array(opened(reply)["tools"]) or []) == 1
        with pytest.raises(UnknownTarget):
            await router(call("s__page", declaring(PAGES)))
        hub.router("few", View())
        assert isinstance(await router(call("s__page", declaring(PAGES))), Result)


async def test_t16_rules_and_quarantine_hold_for_tools_that_only_some_clients_see() -> None:
    server, judge = Varying(), Judge()
    async with mounted(server) as hub:
        hub.govern(judge)
        assert isinstance(await hub(call("s__page", declaring(PAGES))), Result)
        ((_, target),) = judge.passed
        assert (target.kind, target.name, len(target.definition)) == ("tool", "page", 64)
        judge.quarantined = {"page": "It is new."}
        hub.review()
        assert await listed(hub, declaring(PAGES)) == ["s__one"]
        with pytest.raises(Quarantined):
            await hub(call("s__page", declaring(PAGES)))
        judge.quarantined, judge.hidden = {}, {"local": {"page"}}
        hub.review()
        assert await listed(hub, declaring(PAGES)) == ["s__one"]
        with pytest.raises(UnknownTarget):
            await hub(call("s__page", declaring(PAGES)))
    assert server.called == ["page"]


async def test_a_cursor_is_of_the_lists_that_it_was_given_for() -> None:
    async with mounted(Varying()) as hub:
        hub.page_size = 1
        reply = await hub(Exchange("tools/list", {}, NOBODY, declaring(PAGES)))
        assert isinstance(reply, Result)
        cursor = opened(reply)["nextCursor"]
        assert await listed(hub, declaring(PAGES), cursor=cursor) == ["s__page"]
        with pytest.raises(InvalidParams):
            await listed(hub, ClientProfile(), cursor=cursor)


async def test_t4_a_client_with_ever_other_settings_takes_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "MAX_VARIANTS", 2)
    server = Varying()
    async with mounted(server) as hub:
        for number in (*range(4), 3, 2, 0):
            assert await listed(hub, declaring(PAGES, n=number)) == ["s__one", "s__page"]
    assert [(as_object(asked) or {}).get(PAGES) for asked in server.asked[1:]] == [{"n": n} for n in (0, 1, 2, 3, 0)]
