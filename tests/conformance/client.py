"""The client that the conformance suite starts for each of its client scenarios: what a program of ours would do there.

`python client.py URL`. The scenario's name, and what else it wants to be known, come in environment variables.
"""

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable
from typing import Final, TypedDict, cast

import sluicegate
from sluicegate import Client, ElicitRequest, SampleRequest

MODERN: Final = "2026-07-28"
PROMPTLY: Final = 40  # seconds for a scenario, none of which takes two on an idle machine


class ToolCall(TypedDict):
    """A call that a scenario asks for."""

    name: str
    arguments: dict[str, object]


async def list_tools(server: Client) -> None:
    """Only look."""
    await server.tools()


async def add_numbers(server: Client) -> None:
    """Call the one tool with the numbers that it adds."""
    assert [tool.name for tool in await server.tools()] == ["add_numbers"]
    result = await server.call("add_numbers", a=2, b=3)
    assert result.text == "The sum of 2 and 3 is 5", result


async def call_every_tool(server: Client) -> None:
    """Call what is listed, with a word for each argument that is required."""
    for tool in await server.tools():
        required = cast(list[str], tool.input_schema.get("required", []))
        result = await server.call(tool.name, dict.fromkeys(required, "here"))
        assert not result.is_error, result


async def use_everything(server: Client) -> None:
    """Send each request that names its target, and each that lists such targets."""
    await call_every_tool(server)
    for resource in await server.resources():
        await server.read(resource.uri)
    for prompt in await server.prompts():
        await server.prompt(prompt.name)


async def call_what_is_asked_for(server: Client) -> None:
    """Call the tools that the scenario names, with its arguments, knowing their schemas."""
    await server.tools()
    calls: list[ToolCall] = json.loads(os.environ["MCP_CONFORMANCE_CONTEXT"])["toolCalls"]
    for call in calls:
        await server.call(call["name"], call["arguments"])


async def call_in_rounds(server: Client) -> None:
    """Answer questions in the middle of calls, while calls that ask nothing are under way, too."""
    names = ["test_mrtr_echo_state", "test_mrtr_unrelated", "test_mrtr_no_state", "test_mrtr_no_result_type"]
    assert sorted(tool.name for tool in await server.tools()) == sorted(names)
    results = await asyncio.gather(*(server.call(name) for name in names))
    said = [result.text for result in results]
    assert said == ["echo-state-ok", "unrelated-ok", "no-state-ok", "no-result-type-test-ok"], said


async def echo_schema(server: Client) -> None:
    """Give a tool's schema back as it came."""
    schemas = {tool.name: tool.input_schema for tool in await server.tools()}
    result = await server.call("json_schema_echo", schema=schemas["json_schema_2020_12_tool"])
    assert result.text == "echoed", result


SCENARIOS: Final[dict[str, Callable[[Client], Awaitable[None]]]] = {
    "elicitation-sep1034-client-defaults": call_every_tool,
    "http-custom-headers": call_what_is_asked_for,
    "http-invalid-tool-headers": call_every_tool,
    "http-standard-headers": use_everything,
    "initialize": list_tools,
    "json-schema-2020-12-preservation": echo_schema,
    "json-schema-ref-no-deref": list_tools,
    "request-metadata": list_tools,
    "sep-2322-client-request-state": call_in_rounds,
    "sse-retry": call_every_tool,
    "tools_call": add_numbers,
}


def elicit(question: ElicitRequest) -> dict[str, object]:
    """A user who says yes, and submits forms as they are."""
    return {"confirmed": True} | question.defaults


def sample(request: SampleRequest) -> str:
    """A model of few words."""
    return "yes"


async def main(scenario: str, wire: str, url: str) -> None:
    """Do what the scenario is about."""
    async with (
        asyncio.timeout(PROMPTLY),
        sluicegate.connect(url, elicit=elicit, sample=sample, roots=["file:///home"]) as server,
    ):
        # Without this a client that took the older era everywhere would pass some scenarios of the newer one.
        assert (server.version == MODERN) == (wire == MODERN), server.version
        await SCENARIOS[scenario](server)
    print("done")  # The suite keeps this, and does not tell with what status we ended.


if __name__ == "__main__":
    scenario, wire = os.environ["MCP_CONFORMANCE_SCENARIO"], os.environ["MCP_CONFORMANCE_PROTOCOL_VERSION"]
    asyncio.run(main(scenario, wire, sys.argv[1]))
