"""Native methods are found by name: without `tools/list` where the handler can describe its tools."""

from collections.abc import Mapping
from typing import cast

import msgspec
import pytest

import sluicegate
from sluicegate import Caller, Exchange, Handler
from sluicegate.downstream.native.tools import NativeTools, ToolCall, Value
from sluicegate.exchange import Target, chain, send
from sluicegate.protocol.message import Params, Reply, Result
from tests.downstream.http_client import http_client, request
from tests.downstream.native.native_stage import Stage

ADA = Caller("ada")


class Counted:
    """A step that records the methods that pass it."""

    def __init__(self) -> None:
        self.methods: list[str] = []

    async def __call__(self, exchange: Exchange, proceed: Handler) -> Reply:
        self.methods.append(exchange.method)
        return await proceed(exchange)


@pytest.mark.parametrize("method", ["act.mass", "act_mass", "mcp__act__mass"])
async def test_a_tool_of_a_server_is_found_by_all_spellings(method: str) -> None:
    tools = NativeTools(Stage().server)
    assert await tools.plan(ADA, method, [2.0]) == ToolCall({"name": "act.mass", "arguments": {"factor": 2.0}})


async def test_a_call_of_a_server_needs_no_list() -> None:
    counted = Counted()
    async with http_client(chain((counted,), Stage().server)) as client:
        for _ in range(2):
            answer = await client.post(request(1, "act.mass"))
            assert answer.status == 200
    assert counted.methods == ["tools/call", "tools/call"]


@pytest.mark.parametrize("method", ["act.mass", "act__act.mass"])
async def test_a_call_of_a_hub_needs_no_list(method: str) -> None:
    counted = Counted()
    hub = sluicegate.Hub("hub")
    hub.mount("planets", Stage().server)
    async with hub:
        await hub.settled()
        (name,) = [name for name in hub.catalog.tools if name.endswith("mass")]
        async with http_client(chain((counted,), hub)) as client:
            native = name.replace("__", ".", 1) if method == "act.mass" else name
            assert (await client.post(request(1, native))).status == 200
    assert counted.methods == ["tools/call"]


class Hiding:
    """A governor that hides one tool from Eve."""

    version: object = 0
    allows_unlisted = False
    can_hide = True

    async def decide(self, exchange: Exchange) -> Reply:
        return await send(exchange)

    def class_of(self, caller: Caller) -> str:
        return caller.id

    def hides(self, caller: Caller, target: Target) -> bool:
        return caller.id == "eve" and target.name == "act.mass"

    async def review(self, definitions: Mapping[Target, Params]) -> Mapping[Target, str]:
        return {}

    def reviewed(self, definitions: Mapping[Target, Params]) -> Mapping[Target, str]:
        return {}


async def test_a_tool_that_rules_hide_from_a_caller_is_unknown_to_it() -> None:
    hub = sluicegate.Hub("hub")
    hub.govern(Hiding())
    hub.mount("planets", Stage().server)
    async with hub, http_client(hub) as client:
        await hub.settled()
        (native,) = [name.replace("__", ".", 1) for name in hub.catalog.tools if name.endswith("mass")]
        assert (await client.post(request(1, native), [("Authorization", "ada")])).status == 200
        refused = await client.post(request(1, native), [("Authorization", "eve")])
        assert refused.status == 404
        assert native not in str(cast(Params, (await refused.json())["error"])["data"])


async def test_a_handler_that_describes_nothing_is_asked_for_its_list() -> None:
    server, counted = Stage().server, Counted()

    async def plain(exchange: Exchange) -> Reply:
        return await server(exchange)

    tools = NativeTools(chain((counted,), plain))
    assert isinstance(await tools.plan(ADA, "act.mass", None), ToolCall)
    assert counted.methods == ["tools/list"]


async def test_a_changed_definition_counts_for_the_next_call() -> None:
    server = Stage().server
    tools = NativeTools(server)
    with pytest.raises(sluicegate.RpcError, match="Method not found"):
        await tools.plan(ADA, "later", None)

    def later(text: str) -> str:
        return text

    server.add_tool(later)
    assert isinstance(await tools.plan(ADA, "later", ["a"]), ToolCall)
    with pytest.raises(sluicegate.RpcError, match="Invalid params"):
        await tools.plan(ADA, "later", [1])

    def number(number: int) -> int:
        return number

    server.remove_tool("later")
    server.add_tool(number, name="later")
    assert isinstance(await tools.plan(ADA, "later", [1]), ToolCall)


async def test_unknown_methods_name_those_that_exist() -> None:
    with pytest.raises(sluicegate.RpcError) as refusal:
        await NativeTools(Stage().server).plan(ADA, "act.mas", None)
    data = cast(Params, refusal.value.error.data)
    assert refusal.value.error.code == -32601
    assert cast(list[str], data["did_you_mean"])[0] == "act.mass" and "act.mass" in cast(list[str], data["available"])


async def test_schemas_come_from_the_list() -> None:
    tools = NativeTools(Stage().server)
    schema = cast(Value, await tools.plan(ADA, "act.schema", None))
    assert await tools.plan(ADA, "act.hash", None) == Value(cast(Params, schema.value)["hash"])


async def test_a_result_that_cannot_be_decoded_ends_the_stream_with_an_error() -> None:
    server = Stage().server

    async def broken(exchange: Exchange) -> Reply:
        if exchange.method == "tools/call":
            return Result(msgspec.Raw(b'{"content":[],"n":1e999}'))
        return await server(exchange)

    async with http_client(broken) as client:
        answer = await client.post(request(1, "act.mass"), accept="text/event-stream")
        *_, last, _ = await answer.events()
        assert cast(Params, cast(Params, last.message["params"])["result"])["type"] == "error"
