"""`Server` as a whole: what it says of itself, its lists, and that its results are what the specification says."""

import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from sluicegate.activations.values import Data, Image, Progress, ToolError
from sluicegate.errors import InvalidParams, MethodNotFound
from sluicegate.exchange import Host, Upstream
from sluicegate.protocol.message import Params, Request, Result, encode
from sluicegate.protocol.modern_era import CAPABILITIES_KEY, VERSION_KEY, Discovery, judge_probe
from sluicegate.protocol.server_connection import Outgoing, ServerConversation
from sluicegate.server import Server
from tests.activations.helpers import Recorder, ask, call, text
from tests.protocol.schemas import needs_schemas, problems


@pytest.fixture
def server() -> Server:
    server = Server("demo", version="1.0", title="Demo", instructions="Count.", website_url="https://demo.example")

    @server.tool
    async def count(to: int) -> AsyncIterator[object]:
        """Count aloud, one number at a time."""
        for n in range(1, to + 1):
            yield Progress(n, total=to)
        yield f"counted to {to}"

    return server


async def test_server_says_its_name_and_what_it_offers(server: Server) -> None:
    assert await ask(server, "server/discover") == {
        "resultType": "complete",
        "supportedVersions": ["2026-07-28", "2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"],
        "capabilities": {"tools": {"listChanged": True}, "logging": {}},
        "instructions": "Count.",
        "ttlMs": 60_000,
        "cacheScope": "public",
        "_meta": {
            "io.modelcontextprotocol/serverInfo": {
                "name": "demo",
                "version": "1.0",
                "title": "Demo",
                "websiteUrl": "https://demo.example",
            }
        },
    }


async def test_capabilities_grow_with_what_is_offered_and_stay(server: Server) -> None:
    server.add_resource("a://b", lambda: "", name="b")
    server.add_prompt(lambda: "", name="p")
    server.complete("p", "x")(lambda value: [])  # pyright: ignore
    server.remove_prompt("p")
    assert server.discovery.capabilities == {
        "tools": {"listChanged": True},
        "resources": {"listChanged": True, "subscribe": True},
        "prompts": {"listChanged": True},
        "completions": {},
        "logging": {},
    }
    assert (await ask(server, "prompts/list"))["prompts"] == []


@pytest.mark.parametrize("method", ["resources/list", "prompts/get", "ping", "logging/setLevel", "no/such"])
async def test_a_method_without_its_capability_is_unknown(server: Server, method: str) -> None:
    with pytest.raises(MethodNotFound, match=f"Method not found: {method}"):
        await ask(server, method)


@pytest.mark.parametrize("modern", [False, True])
def test_long_name_of_a_method_that_is_not_found_is_not_sent_back_whole(modern: bool) -> None:
    conversation = ServerConversation()
    params: Params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "c", "version": "1"}}
    conversation.receive(encode(Request(0, "initialize", params)) + b"\n")
    meta: Params = {VERSION_KEY: "2026-07-28", CAPABILITIES_KEY: {}}
    request = Request(1, "x" * 100_000, {"_meta": meta} if modern else {})
    match conversation.receive(encode(request) + b"\n"):
        case [Outgoing(data)]:
            assert json.loads(data)["error"]["message"] == f"Method not found: {'x' * 100}"
        case other:
            pytest.fail(f"it should be refused, not {other}")


async def test_server_is_its_own_connection(server: Server) -> None:
    upstream: Upstream = server
    async with upstream.connect(Host({}, {}, Recorder())) as connection:
        assert connection is server
        reply = Result(await ask(server, "server/discover"))
        # What it says in this process is what a client across a wire would read.
        assert judge_probe(reply) == connection.discovery
        assert isinstance(connection.discovery, Discovery)


async def test_a_definition_has_all_declared_values(server: Server) -> None:
    @server.tool(
        name="odd.name",
        title="Odd",
        annotations={"readOnlyHint": True},
        icons=[{"src": "https://demo.example/i.png"}],
        meta={"dev.example/x": 1},
    )
    def odd(a: int) -> dict[str, int]:
        """Return it.

        Args:
            a: what to return
        """
        return {"a": a}

    assert odd(1) == {"a": 1}, "a tool stays a function"
    assert (await ask(server, "tools/list"))["tools"][1] == {
        "name": "odd.name",
        "title": "Odd",
        "description": "Return it.",
        "inputSchema": {
            "type": "object",
            "properties": {"a": {"type": "integer", "description": "what to return"}},
            "required": ["a"],
            "additionalProperties": False,
        },
        "outputSchema": {"type": "object", "additionalProperties": {"type": "integer"}},
        "annotations": {"readOnlyHint": True},
        "icons": [{"src": "https://demo.example/i.png"}],
        "_meta": {"dev.example/x": 1},
    }


def test_names_are_checked_when_they_are_given(server: Server) -> None:
    with pytest.raises(ValueError, match="there is already a tool 'count'"):
        server.add_tool(lambda: None, name="count")
    with pytest.raises(ValueError, match="has no name"):
        server.add_tool(lambda: None)
    with pytest.raises(ValueError, match="not a valid tool name"):
        server.add_tool(lambda: None, name="with space")
    with pytest.raises(KeyError):
        server.remove_tool("unknown")
    with pytest.raises(TypeError, match="output_schema should have"):
        server.add_tool(lambda: None, name="list", output_schema={"type": "array"})
    with pytest.raises(ValueError, match="page_size"):
        Server("demo", page_size=0)


def test_option_that_there_is_not_is_named(server: Server) -> None:
    slip: Any = {"descripton": "A slip of the pen."}
    with pytest.raises(TypeError, match="a tool has no option 'descripton'; the options are name, .*description"):
        server.tool(**slip)(lambda: None)
    with pytest.raises(TypeError, match="a resource has no option 'descripton'"):
        server.resource("a://b", **slip)(lambda: None)
    with pytest.raises(TypeError, match="a prompt has no option 'descripton'"):
        server.prompt(**slip)(lambda: None)


@pytest.mark.parametrize("uri", ["", "note", "/srv/share", "://x", "1a://b", "a:", "note://two words", "{kind}://x"])
def test_resource_needs_a_uri_with_a_scheme(server: Server, uri: str) -> None:
    with pytest.raises(ValueError, match="not a URI of a resource: it should begin with a scheme"):
        server.add_resource(uri, lambda: "", name="r")
    server.add_resource("urn:isbn:1", lambda: "", name="r")


async def test_lists_come_in_pages_in_the_order_of_registration() -> None:
    server = Server("demo", page_size=2)
    for n in (3, 1, 2, 5, 4):
        server.add_tool(lambda: None, name=f"t{n}")
    names: list[str] = []
    sizes: list[int] = []
    params: dict[str, Any] = {}
    while True:
        result = await ask(server, "tools/list", params)
        names += [tool["name"] for tool in result["tools"]]
        sizes.append(len(result["tools"]))
        assert (result["ttlMs"], result["cacheScope"]) == (5_000, "public")
        if "nextCursor" not in result:
            break
        params = {"cursor": result["nextCursor"]}
    assert (names, sizes) == (["t3", "t1", "t2", "t5", "t4"], [2, 2, 1])
    server.add_prompt(lambda: "", name="p")
    for method, cursor in (("tools/list", "x"), ("tools/list", 1), ("prompts/list", params["cursor"])):
        with pytest.raises(InvalidParams, match="cursor"):
            await ask(server, method, {"cursor": cursor})


async def test_state_that_is_not_ours_is_refused(server: Server) -> None:
    params = {"name": "count", "arguments": {"to": 1}, "requestState": "x"}
    with pytest.raises(InvalidParams, match="requestState was not issued by this server"):
        await ask(server, "tools/call", params)
    del params["requestState"]
    assert text(await ask(server, "tools/call", {**params, "inputResponses": {}})) == "counted to 1"


async def test_removed_tool_is_gone_and_a_new_one_is_there(server: Server) -> None:
    server.remove_tool("count")
    server.add_tool(lambda: "new", name="count")
    assert text(await call(server, "count")) == "new"


@needs_schemas
async def test_results_and_notifications_are_what_the_specification_says(server: Server) -> None:
    server.add_tool(lambda: [Image(b"x", "image/png"), Data({"a": [None]}), {"b": 1}], name="mixed")
    server.add_resource("a://b", lambda: "text", name="b", mime_type="text/plain")
    server.add_resource("a://{c}/d", lambda c: b"bytes", name="d")  # pyright: ignore
    server.add_prompt(lambda q: f"{q}?", name="p")  # pyright: ignore
    server.complete("p", "q")(lambda value: ["a"])  # pyright: ignore

    @server.tool
    async def fail() -> None:
        raise ToolError("no")

    def check(name: str, value: object) -> None:
        assert problems("2026-07-28", name, value, by_letter=True) == []

    sink = Recorder()
    check("DiscoverResult", await ask(server, "server/discover"))
    check("ListToolsResult", await ask(server, "tools/list"))
    check("CallToolResult", await call(server, "count", {"to": 3}, sink))
    check("CallToolResult", await call(server, "mixed", sink=sink))
    check("CallToolResult", await call(server, "fail"))
    check("ListResourcesResult", await ask(server, "resources/list"))
    check("ListResourceTemplatesResult", await ask(server, "resources/templates/list"))
    check("ReadResourceResult", await ask(server, "resources/read", {"uri": "a://b"}))
    check("ReadResourceResult", await ask(server, "resources/read", {"uri": "a://c/d"}))
    check("ListPromptsResult", await ask(server, "prompts/list"))
    check("GetPromptResult", await ask(server, "prompts/get", {"name": "p", "arguments": {"q": "a"}}))
    ref = {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "q", "value": ""}}
    check("CompleteResult", await ask(server, "completion/complete", ref))
    for params in sink.params("notifications/progress"):
        check("ProgressNotificationParams", params)
    assert len(sink.seen) == 4
