"""Many servers as one: what clients see of them, and what each of them hears of a client."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any, Final, Literal

import pytest

import sluicegate
from sluicegate import Client
from sluicegate.errors import ConfigError, RpcError
from sluicegate.exchange import Exchange, Upstream
from sluicegate.hub.catalog import Patterns, Subset
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.hub.naming import Naming
from sluicegate.protocol.message import Params, Reply, Result, as_object, opened
from sluicegate.protocol.modern_era import complete
from sluicegate.protocol.types import PromptsChanged, ToolsChanged
from sluicegate.testing import MemoryUpstream
from tests.hub.scripted import Scripted

Era = Literal["session", "modern"]
ERAS: Final[tuple[Era, ...]] = ("session", "modern")


def greeter(word: str = "hello", instructions: str | None = None) -> sluicegate.Server:
    server = sluicegate.Server("greeter", instructions=instructions)
    server.add_tool(lambda: word, name="greet", description="Greet.")
    return server


@asynccontextmanager
async def running(hub: Hub, mounts: Mapping[str, Upstream], *bare: str) -> AsyncGenerator[Hub]:
    for name, upstream in mounts.items():
        settings = MountSettings(prefix="" if name in bare else name, debounce=0)
        hub.mount(name, upstream, settings)
    async with asyncio.timeout(10), hub:
        await hub.settled()
        await asyncio.sleep(0)  # The catalog is built once for all that changed in one turn of the loop.
        yield hub


def client(hub: Hub, era: Era = "modern", *, is_able: bool = False) -> AbstractAsyncContextManager[Client]:
    """A client of the hub, which can be asked things or cannot."""
    upstream = MemoryUpstream(hub, era=era)
    return sluicegate.connect(upstream, elicit=yes if is_able else None, sample=says_yes if is_able else None)


def yes(question: sluicegate.ElicitRequest) -> dict[str, object]:
    return {}


def says_yes(request: sluicegate.SampleRequest) -> str:
    return "yes"


async def test_of_thousands_of_things_that_are_wrong_a_few_are_logged_and_each_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    listed = [{"uri": f"https://x/{number}", "name": "x"} for number in range(1500)]

    async def answer(exchange: Exchange) -> Reply:
        lists: Params = {"resources": listed} if exchange.method == "resources/list" else {"resourceTemplates": []}
        return Result(complete(lists, ttl_ms=0))

    servers: dict[str, Upstream] = {name: Scripted(answer, {"resources": {}}) for name in "ab"}
    async with running(Hub(), servers) as hub:
        assert len(hub.catalog.findings) == 1500
        told = [record.message for record in caplog.records]
        assert told == [*hub.catalog.findings[:5], "1495 more findings are not shown."]
        hub.mount("c", greeter())
        await hub.settled()
        assert "c__greet" in hub.catalog.tools and len(hub.catalog.findings) == 1500
        assert len(caplog.records) == 6


async def names(server: Client) -> list[str]:
    return [tool.name for tool in await server.tools()]


@pytest.mark.parametrize("era", ERAS)
async def test_tools_of_all_servers_are_listed_in_their_order_and_answer_under_their_names(era: Era) -> None:
    mounts = {"b": greeter("from b"), "a": greeter("from a"), "bare": greeter("from bare")}
    async with running(Hub(), mounts, "bare") as hub, client(hub, era) as server:
        assert await names(server) == ["b__greet", "a__greet", "greet"]
        assert [(await server.call(name)).text for name in await names(server)] == ["from b", "from a", "from bare"]
        with pytest.raises(RpcError, match="Unknown tool: c__greet"):
            await server.call("c__greet")


async def test_names_and_prefixes_are_given_once() -> None:
    hub = Hub()
    hub.mount("a", greeter())
    with pytest.raises(ConfigError, match="There is a server 'a' already"):
        hub.mount("a", greeter())
    with pytest.raises(ConfigError, match="b and a both have the prefix 'a'"):
        hub.mount("b", greeter(), MountSettings(prefix="a"))
    hub.mount("c", greeter(), MountSettings(prefix=""))
    with pytest.raises(ConfigError, match="d and c both have no prefix"):
        hub.mount("d", greeter(), MountSettings(prefix=""))


async def test_a_server_can_come_and_go_while_others_are_used() -> None:
    async with running(Hub(), {"a": greeter()}) as hub, client(hub) as server, server.listen(tools=True) as changes:
        await hub.mount("b", greeter()).settled()
        assert isinstance(await anext(changes), ToolsChanged)
        assert await names(server) == ["a__greet", "b__greet"]
        hub.arrange(["b", "a"])
        assert isinstance(await anext(changes), ToolsChanged)
        assert await names(server) == ["b__greet", "a__greet"]
        await hub.unmount("b")
        assert isinstance(await anext(changes), ToolsChanged)
        assert await names(server) == ["a__greet"]


async def test_a_server_that_never_connects_does_not_delay_others() -> None:
    class Never:
        @asynccontextmanager
        async def connect(self, host: object) -> AsyncGenerator[sluicegate.Server]:
            await asyncio.Event().wait()
            yield greeter()

    hub = Hub()
    hub.mount("never", Never())
    mount = hub.mount("a", greeter())
    async with asyncio.timeout(10), hub:
        await mount.settled()
        async with client(hub) as server:
            assert await names(server) == ["a__greet"]
            assert (await server.call("a__greet")).text == "hello"


async def test_instructions_of_several_servers_have_headings_and_those_of_one_stay_unchanged() -> None:
    async with running(Hub(), {"a": greeter(instructions="Be polite.")}, "a") as hub, client(hub) as server:
        assert server.instructions == "Be polite."
    mounts = {"a": greeter(instructions="Be polite."), "b": greeter(), "c": greeter(instructions="Be brief.")}
    async with running(Hub(), mounts) as hub, client(hub) as server:
        assert (server.instructions or "").endswith("## a\n\nBe polite.\n\n## c\n\nBe brief.")


async def test_a_profile_shows_a_part_and_answers_for_no_more() -> None:
    async with running(Hub(), {"a": greeter(), "b": greeter()}) as hub:
        view = hub.router("half", Subset(servers=("a",), tools=Patterns(hide=("secret*",))))
        async with sluicegate.connect(MemoryUpstream(view, era="modern")) as server:
            assert await names(server) == ["a__greet"]
            with pytest.raises(RpcError, match="Unknown tool"):
                await server.call("b__greet")


@pytest.mark.parametrize(
    ("naming", "rule"),
    [
        ("prefix", "The name of each tool and prompt begins with that of its server: SERVER__NAME."),
        ("claude", "The name of each tool and prompt begins with that of its server: mcp__SERVER__NAME."),
        (
            "collide",
            "Tools and prompts of several servers; where two have the same name, one is SERVER__NAME.",
        ),
    ],
)
async def test_instructions_explain_the_naming_with_and_without_those_of_servers(naming: Naming, rule: str) -> None:
    async with running(Hub(naming=naming), {"a": greeter(), "b": greeter()}) as hub, client(hub) as server:
        assert server.instructions == rule
    mounts = {"a": greeter(), "b": greeter(instructions="Be brief.")}
    async with running(Hub(naming=naming), mounts, "a") as hub, client(hub) as server:
        assert server.instructions == f"{rule} Those of a have no prefix.\n\n## b\n\nBe brief."


async def test_without_a_name_to_explain_there_are_no_instructions() -> None:
    async with running(Hub(), {"a": greeter()}, "a") as hub, client(hub) as server:
        assert server.instructions is None
    async with running(Hub(), {}) as hub, client(hub) as server:
        assert server.instructions is None


async def test_instructions_show_a_prefix_that_differs_from_the_name_of_the_server() -> None:
    hub = Hub()
    hub.mount("Note Book", greeter(instructions="Be brief."), MountSettings(prefix="notes"))
    async with running(hub, {}), client(hub) as server:
        assert (server.instructions or "").endswith("SERVER__NAME.\n\n## Note Book (notes__…)\n\nBe brief.")


# ------------------------------------------------------------------------------------------- a server's word on changes


def passing(server: sluicegate.Server) -> None:
    """Change the list of tools, and change it back: the server says so, and we find nothing."""
    server.add_tool(lambda: "", name="passing")
    server.remove_tool("passing")


@pytest.mark.parametrize("upstream_era", ERAS)
@pytest.mark.parametrize("era", ERAS)
async def test_the_word_of_a_server_without_a_prefix_passes_even_if_its_list_is_as_before(
    era: Era, upstream_era: Era
) -> None:
    behind = greeter()
    upstream = MemoryUpstream(behind, era=upstream_era)
    async with running(Hub(), {"a": upstream}, "a") as hub, client(hub, era) as server:
        async with server.listen(tools=True, prompts=True) as changes:
            passing(behind)
            assert isinstance(await anext(changes), ToolsChanged)


async def test_the_word_of_any_other_server_passes_only_if_the_list_changed() -> None:
    behind = greeter()
    behind.add_prompt(lambda: "", name="first")
    async with running(Hub(), {"a": behind}) as hub, client(hub) as server:
        async with server.listen(tools=True, prompts=True) as changes:
            passing(behind)
            behind.add_prompt(lambda: "", name="second")
            # The notice of the tools would have come first.
            assert isinstance(await anext(changes), PromptsChanged)


# --------------------------------------------------------------------------------------------- what travels with a call


@pytest.mark.parametrize("era", ERAS)
async def test_each_callers_capabilities_reach_a_server_of_2026_with_its_calls(era: Era) -> None:
    behind = sluicegate.Server("s")

    @behind.tool
    def capabilities(call: sluicegate.Call) -> str:  # pyright: ignore[reportUnusedFunction]
        return " ".join(sorted(call.client.capabilities))

    async with (
        running(Hub(), {"s": MemoryUpstream(behind, era="modern")}) as hub,
        client(hub, era) as silent,
        client(hub, era, is_able=True) as able,
    ):
        said = await asyncio.gather(silent.call("s__capabilities"), able.call("s__capabilities"))
        assert [result.text for result in said] == ["", "elicitation sampling"]


class Strange:
    """A server of a later day: members that nobody here knows, wherever there is room for one."""

    tool: Params = {
        "name": "odd",
        "description": "Odd.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/thing"}},
            "$defs": {"thing": {"$anchor": "thing", "type": "string", "x-future": [1, {"deep": None}]}},
        },
        "future": {"member": 12345678901234567890},
        "_meta": {"example.org/mark": True},
    }

    def __init__(self) -> None:
        self.heard: Params = {}

    async def __call__(self, exchange: Exchange) -> Reply:
        match exchange.method:
            case "server/discover":
                return Result(
                    {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
                )
            case "tools/list":
                return Result({"resultType": "complete", "ttlMs": 5, "cacheScope": "public", "tools": [self.tool]})
            case _:
                self.heard = exchange.params
                block: Params = {"type": "text", "text": "done", "later": [1.50]}
                return Result({"resultType": "complete", "content": [block], "more": {"of": "it"}})


async def test_unknown_members_survive_in_both_directions() -> None:
    strange = Strange()
    async with running(Hub(), {"s": MemoryUpstream(strange, era="modern")}) as hub:
        lists = await hub(Exchange("tools/list", {}, _Silent()))
        assert isinstance(lists, Result)
        shown = opened(lists)
        assert shown["tools"] == [{**Strange.tool, "name": "s__odd"}]
        assert (shown["ttlMs"], shown["cacheScope"]) == (5, "public")
        params: Params = {"name": "s__odd", "arguments": {"a": "b"}, "future": [None], "_meta": {"example.org/x": 1}}
        called = await hub(Exchange("tools/call", params, _Silent()))
        assert isinstance(called, Result)
        assert opened(called)["more"] == {"of": "it"}
        assert opened(called)["content"] == [{"type": "text", "text": "done", "later": [1.5]}]
        assert strange.heard["future"] == [None]
        assert (as_object(strange.heard["_meta"]) or {})["example.org/x"] == 1


class _Silent:
    async def emit(self, notification: object) -> None:
        pass

    async def ask(self, questions: object) -> dict[str, Params]:
        raise AssertionError("nobody is to be asked here")


@pytest.mark.parametrize("target", ["python server.py", "https://search.example/mcp", 5])
def test_what_is_nothing_to_connect_to_is_refused_when_it_is_mounted(target: Any) -> None:
    with pytest.raises(ConfigError, match=r"^Mount a Server, stdio\(…\) or http\(…\) under 'files', not (str|int)\.$"):
        Hub().mount("files", target)


@pytest.mark.parametrize("name", ["", "a b", "a/b", "a\nb", "Ä", "x" * 32])
def test_a_name_that_would_spoil_those_of_the_tools_is_refused_with_the_rule(name: str) -> None:
    with pytest.raises(ConfigError, match=r"has 1 to 31 letters, digits, - and _; .* does not\.$"):
        Hub().mount(name, sluicegate.Server("x"))


@pytest.mark.parametrize("name", ["a", "Notes_2", "my-notes", "x" * 31])
def test_any_other_name_is_taken_as_it_is(name: str) -> None:
    assert Hub().mount(name, sluicegate.Server("x")).prefix == name
