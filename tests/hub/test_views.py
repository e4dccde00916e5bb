"""A view of the hub for one client: pages, names, routes of requests and notices of changes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import cast

import pytest

import sluicegate
from sluicegate.errors import InvalidParams, MethodNotFound, UnknownTarget
from sluicegate.exchange import Caller, Exchange
from sluicegate.hub.call_sink import STRUCTURED
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, Reply, Result, opened
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.testing import MemoryUpstream

ACKNOWLEDGED = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"


class Listener:
    """A sink that hands out what it gets, in order."""

    def __init__(self) -> None:
        self._notices: asyncio.Queue[Notification] = asyncio.Queue()

    async def emit(self, notification: Notification) -> None:
        self._notices.put_nowait(notification)

    async def ask(self, questions: Questions) -> Answers:
        raise AssertionError(questions)

    async def next(self) -> Notification:
        async with asyncio.timeout(10):
            return await self._notices.get()


def notes() -> sluicegate.Server:
    server = sluicegate.Server("notes")
    texts = {"one": "1"}

    @server.tool
    def total() -> dict[str, int]:  # pyright: ignore[reportUnusedFunction]
        return {"total": 3}

    @server.tool
    def touch(call: sluicegate.Call) -> str:  # pyright: ignore[reportUnusedFunction]
        server.resource_updated("note://one")
        return "touched"

    @server.resource("note://one")
    def one() -> str:  # pyright: ignore[reportUnusedFunction]
        return texts["one"]

    @server.prompt
    def letter(to: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return f"To {to}"

    return server


@asynccontextmanager
async def running(*names: str, page_size: int = 1000) -> AsyncGenerator[Hub]:
    hub = Hub(page_size=page_size)
    for name in names:
        hub.mount(name, MemoryUpstream(notes()), MountSettings(prefix=name, debounce=0))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        await asyncio.sleep(0)  # The catalog is built once for all that changed in one turn of the loop.
        yield hub


async def ask(
    hub: Hub, method: str, params: Params | None = None, *, version: str = "2026-07-28", caller: str = "ada"
) -> Reply:
    return await hub(Exchange(method, params or {}, Listener(), ClientProfile(version), Caller(caller)))


async def result(hub: Hub, method: str, params: Params | None = None, *, version: str = "2026-07-28") -> Params:
    reply = await ask(hub, method, params, version=version)
    assert isinstance(reply, Result), reply
    return opened(reply)


# ------------------------------------------------------------------------------------------------------------- lists


async def test_a_list_comes_in_pages_that_together_are_all_of_it() -> None:
    async with running("a", "b", "c", page_size=2) as hub:
        names: list[str] = []
        params: Params = {}
        for _ in range(3):
            page = await result(hub, "tools/list", params)
            names += [tool["name"] for tool in cast(list[dict[str, str]], page["tools"])]
            params = {"cursor": page.get("nextCursor")}
        assert params == {"cursor": None}
        assert names == [f"{server}__{tool}" for server in "abc" for tool in ("total", "touch")]


async def test_pages_that_were_begun_go_on_as_the_list_was_then() -> None:
    async with running("a", "b", page_size=2) as hub:
        first = await result(hub, "tools/list")
        await hub.unmount("b")
        second = await result(hub, "tools/list", {"cursor": first["nextCursor"]})
        assert [tool["name"] for tool in cast(list[dict[str, str]], second["tools"])] == ["b__total", "b__touch"]


@pytest.mark.parametrize("cursor", ["", "nowhere", 7])
async def test_a_cursor_that_we_never_gave_is_refused(cursor: object) -> None:
    async with running("a") as hub:
        with pytest.raises(InvalidParams, match="cursor"):
            await ask(hub, "tools/list", {"cursor": cursor})


async def test_a_cursor_is_of_no_use_to_another_caller_nor_for_another_list() -> None:
    async with running("a", "b", page_size=1) as hub:
        cursor = (await result(hub, "tools/list"))["nextCursor"]
        with pytest.raises(InvalidParams):
            await ask(hub, "prompts/list", {"cursor": cursor})
        reply = await ask(hub, "tools/list", caller="ada")
        assert isinstance(reply, Result)
        with pytest.raises(InvalidParams):
            await ask(hub, "tools/list", {"cursor": opened(reply)["nextCursor"]}, caller="eve")


# ------------------------------------------------------------------------------------------------------------- calls


async def test_unknown_tools_prompts_resources_and_methods_are_refused() -> None:
    async with running("a") as hub:
        with pytest.raises(UnknownTarget, match="Unknown tool: total"):
            await ask(hub, "tools/call", {"name": "total"})
        with pytest.raises(UnknownTarget, match="Unknown prompt"):
            await ask(hub, "prompts/get", {"name": 7})
        with pytest.raises(UnknownTarget) as missing:
            await ask(hub, "resources/read", {"uri": "b+note://one"})
        assert missing.value.data == {"uri": "b+note://one"}
        with pytest.raises(MethodNotFound):
            await ask(hub, "tasks/get")


async def test_a_resource_is_read_under_the_gateways_name_or_its_own_and_answers_under_the_gateways() -> None:
    async with running("a") as hub:
        for uri in ("a+note://one", "note://one"):
            read = await result(hub, "resources/read", {"uri": uri})
            (contents,) = cast(list[Params], read["contents"])
            assert contents["uri"] == "a+note://one" and contents["text"] == "1"


async def test_a_uri_that_two_servers_have_is_not_guessed() -> None:
    async with running("a", "b") as hub:
        with pytest.raises(UnknownTarget):
            await ask(hub, "resources/read", {"uri": "note://one"})


async def test_what_an_old_caller_cannot_hold_is_counted_with_the_server_it_came_from() -> None:
    async with running("a", "b") as hub:
        await ask(hub, "tools/call", {"name": "a__total"}, version="2024-11-05")
        await ask(hub, "tools/call", {"name": "b__total"}, version="2025-06-18")
        losses = {mount.name: dict(mount.calls.losses) for mount in hub.mounts}
        assert losses == {"a": {STRUCTURED: 1}, "b": {}}


@pytest.mark.parametrize(
    "reference",
    [{"type": "ref/prompt", "name": "nobody's"}, {"type": "ref/prompt"}, {"type": "ref/resource", "uri": "x://y"}],
)
async def test_completion_for_an_unknown_reference_is_refused(reference: Params) -> None:
    async with running("a") as hub:
        with pytest.raises(UnknownTarget):
            await ask(hub, "completion/complete", {"ref": reference, "argument": {"name": "to", "value": ""}})


async def test_completion_of_a_server_that_has_none_is_empty() -> None:
    async with running("a") as hub:
        reference = {"type": "ref/prompt", "name": "a__letter"}
        said = await result(hub, "completion/complete", {"ref": reference, "argument": {"name": "to", "value": ""}})
        assert said["completion"] == {"values": []}


# ----------------------------------------------------------------------------------------------------------- changes


@asynccontextmanager
async def listening(hub: Hub, wanted: Params) -> AsyncGenerator[Listener]:
    listener = Listener()

    async def listen() -> None:
        await hub(Exchange("subscriptions/listen", {"notifications": wanted}, listener))

    async with TaskScope() as tasks:
        tasks.start(listen())
        yield listener
        tasks.cancel_all()


async def test_an_update_is_sent_once_under_the_subscribed_name() -> None:
    async with running("a") as hub:
        for uri in ("a+note://one", "note://one"):
            async with listening(hub, {"resourceSubscriptions": [uri], "toolsListChanged": True}) as listener:
                said = {"resourceSubscriptions": [uri], "toolsListChanged": True}
                assert await listener.next() == Notification(ACKNOWLEDGED, {"notifications": said})
                await ask(hub, "tools/call", {"name": "a__touch"})
                assert await listener.next() == Notification(UPDATED, {"uri": uri})
                await hub.unmount("a")
                hub.mount("a", MemoryUpstream(notes()), MountSettings(prefix="a", debounce=0))
                assert (await listener.next()).method == "notifications/tools/list_changed", "and nothing before it"
            await hub.settled()
            await asyncio.sleep(0)


async def test_only_what_is_honoured_is_acknowledged() -> None:
    async with running("a") as hub:
        wanted: Params = {"resourceSubscriptions": ["b+note://one", "a+note://one"], "strange": True}
        async with listening(hub, wanted) as listener:
            said = {"resourceSubscriptions": ["a+note://one"]}
            assert await listener.next() == Notification(ACKNOWLEDGED, {"notifications": said})


async def test_a_list_that_is_as_before_is_no_news() -> None:
    async with running("a") as hub:
        async with listening(hub, {"toolsListChanged": True, "promptsListChanged": True}) as listener:
            await listener.next()
            hub.router("").set_catalog(hub.catalog)
            await hub.unmount("a")
            methods = {(await listener.next()).method for _ in range(2)}
            assert methods == {"notifications/tools/list_changed", "notifications/prompts/list_changed"}
