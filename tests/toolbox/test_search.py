"""Models search for tools when there are many: with the API's own search, or with two tools of ours."""

import asyncio
import json
from typing import Any

import pytest

import sluicegate
from sluicegate.config.model import CatalogConfig, GatewayConfig, PythonFile, ServerConfig
from sluicegate.gateway.gateway import Gateway
from sluicegate.testing import MemoryUpstream
from sluicegate.toolbox.view import View
from tests.toolbox.box import Folder, folder

__all__ = ["folder"]


def weather(city: str, day: str = "today") -> str:
    """The weather forecast for a city."""
    return f"sun in {city} {day}"


def secret() -> str:
    """The weather forecast that nobody may know."""
    return "hail"


def many(count: int) -> sluicegate.Server:
    server = sluicegate.Server("many")
    for number in range(count):
        server.add_tool(lambda: "done", name=f"job{number}", description="A job.")
    return server


def names(view: View, api: str, strict: bool = False) -> list[str]:
    found: list[Any] = view.definitions(api, strict)
    return [tool.get("name") or tool["function"]["name"] for tool in found if tool.get("type") != "tool_search"]


@pytest.mark.parametrize("api", ["anthropic", "openai"])
async def test_an_api_with_a_search_gets_tools_to_load_later(folder: Folder, api: str) -> None:
    async with folder.load(many(40), weather, on_permission="allow", pinned=["weather"]) as box:
        tools = box.definitions(api)
        later = [tool["name"] for tool in tools if tool.get("defer_loading")]
        assert len(later) == 40 and "search" in str(tools[0]["type"])
        assert "mcp__functions__weather" not in later and "ReadMcpResource" not in later
        assert (await box.execute("mcp__many__job7")).text == "done"


@pytest.mark.parametrize(
    ("api", "strict"), [("openai-chat", False), ("openai-chat", True), ("gemini", False), ("mcp", False)]
)
async def test_other_apis_get_two_tools(folder: Folder, api: str, strict: bool) -> None:
    folder.settings('[[permissions]]\ntool = "mcp__functions__secret"\naction = "deny"\n')
    async with folder.load(many(40), weather, secret, on_permission="allow") as box:
        listed = names(box, api, strict)
        assert listed[:2] == ["search_tools", "call_tool"] and len(listed) == 8
        found = await box.execute("search_tools", {"query": "forecast", "limit": None if strict else 3.0})
        [definition] = json.loads(found.text)
        assert "mcp__functions__weather" in str(definition)
        call: dict[str, object] = {"name": "mcp__functions__weather", "arguments": {"city": "Oslo"}}
        assert (await box.execute("call_tool", call)).text == "sun in Oslo today"
        assert (await box.execute("search_tools", {"query": ""})).is_error
        assert (await box.execute("call_tool", {"name": "call_tool"})).is_error
        hidden = await box.execute("call_tool", {"name": "mcp__functions__secret"})
        assert hidden.is_error and "no tool" in hidden.text


async def test_a_tool_that_went_away_is_searched_as_before(folder: Folder) -> None:
    server = many(40)
    async with asyncio.timeout(30), folder.load(server, on_permission="allow") as box:
        before = names(box, "gemini")
        server.remove_tool("job7")
        while "mcp__many__job7" in box.gateway.hub.catalog.tools:
            await box.gateway.hub.wait_change()
        assert names(box, "openai-chat") == names(box, "gemini") == before


async def test_few_tools_are_all_defined(folder: Folder) -> None:
    async with folder.load(many(29), on_permission="allow") as box:
        assert "search_tools" not in names(box, "gemini")
    async with folder.load(many(29), search=True) as box:
        assert "search_tools" in names(box, "gemini")
    async with folder.load(many(50), search=False) as box:
        assert "search_tools" not in names(box, "gemini")


async def test_many_tokens_are_searched_as_well(folder: Folder) -> None:
    server = sluicegate.Server("wordy")
    for number in range(4):
        server.add_tool(lambda: "done", name=f"job{number}", description="word " * 2500)
    async with folder.load(server) as box:
        assert "search_tools" in names(box, "gemini")


async def test_a_call_through_the_search_is_judged_as_the_tool_it_calls(folder: Folder) -> None:
    asked: list[str] = []

    def decide(ask: Any) -> sluicegate.Deny:
        asked.append(ask.tool)
        return sluicegate.Deny()

    async with folder.load(weather, on_permission=decide, search=True) as box:
        box.definitions("gemini")
        call = {"name": "mcp__functions__weather", "arguments": {"city": "Oslo"}}
        assert (await box.execute("call_tool", call)).is_error
    assert asked == ["mcp__functions__weather"]


async def test_a_gateway_shows_two_tools_in_place_of_all() -> None:
    server = ServerConfig(name="many", key="many", source=PythonFile(file="many.py"))
    config = GatewayConfig(root="/", servers={"many": server}, catalog=CatalogConfig(search=True))
    async with asyncio.timeout(30), Gateway(config, load_file=lambda file: many(3)) as gateway:
        await gateway.hub.settled()
        async with sluicegate.connect(MemoryUpstream(gateway.handler())) as client:
            assert [tool.name for tool in await client.tools()] == ["search_tools", "call_tool"]
            [found] = json.loads((await client.call("search_tools", query="job2", limit=1)).text)
            assert found["name"] == "many__job2"
            assert (await client.call("call_tool", name="many__job2")).text == "done"
            with pytest.raises(sluicegate.RpcError, match="query"):
                await client.call("search_tools")
