"""A server on the official SDK from 2.0 on. It serves both eras; the low-level parts are for the older one."""

import asyncio
import os
import sys
import warnings
from collections import defaultdict
from typing import Annotated

import mcp_types as types
from mcp.server.lowlevel import NotificationOptions
from mcp.server.mcpserver import (
    AssistantMessage,
    Context,
    Elicit,
    ElicitationResult,
    ListRoots,
    MCPServer,
    Resolve,
    Sample,
    UserMessage,
)
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.stdio import stdio_server
from mcp.shared.exceptions import MCPDeprecationWarning
from pydantic import BaseModel

warnings.simplefilter("ignore", MCPDeprecationWarning)

server = MCPServer("stranger", version="2.1", title="A stranger", instructions="Be gentle.")
texts = {"first": "one", "second": "two"}
ends = defaultdict(asyncio.Event)
subscriptions = set()
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]

PICTURE = "iVBORw0KGgoA/w=="


class Sum(BaseModel):
    total: int
    terms: list[int]


class Choice(BaseModel):
    colour: str
    amount: int


@server.tool(title="Add two numbers", annotations=types.ToolAnnotations(read_only_hint=True))
def add(a: int, b: int) -> Sum:
    """Add two numbers."""
    return Sum(total=a + b, terms=[a, b])


@server.tool()
def echo(text: str) -> str:
    """Say the same again."""
    return text


@server.tool(structured_output=False)
def everything() -> list:
    """Content of every kind."""
    inner = types.TextResourceContents(uri="text://second", mime_type="text/plain", text="two")
    return [
        types.TextContent(type="text", text="words", annotations=types.Annotations(audience=["user"], priority=0.5)),
        types.ImageContent(type="image", data=PICTURE, mime_type="image/png"),
        types.AudioContent(type="audio", data=PICTURE, mime_type="audio/wav"),
        types.ResourceLink(type="resource_link", uri="text://first", name="first"),
        types.EmbeddedResource(type="resource", resource=inner),
    ]


@server.tool()
def fail() -> str:
    """Fail."""
    raise ToolError("There is no more of it.")


@server.tool()
async def count(to: int, ctx: Context) -> str:
    """Count aloud."""
    for n in range(1, to + 1):
        await ctx.report_progress(n, to, f"at {n}")
    return f"counted to {to}"


@server.tool()
async def mutter(ctx: Context) -> str:
    """Write a line of each of two levels."""
    for level in ("debug", "warning"):
        await ctx.log(level, f"a line of {level}", logger_name="mutter")
    return "muttered"


@server.tool()
async def hang(ticket: str, ctx: Context) -> str:
    """Say that it is at work, then work until it is cancelled."""
    try:
        await ctx.report_progress(1)
        await asyncio.Event().wait()
    finally:
        ends[ticket].set()


@server.tool()
async def ended(ticket: str) -> str:
    """Wait until the call with this ticket has ended."""
    await ends[ticket].wait()
    return "ended"


# ------------------------------------------------------------------------------------- questions, asked in either era


def form(message: str):
    return Elicit(message, Choice)


def model(question: str):
    said = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=question))
    return Sample([said], max_tokens=50, system_prompt="Be brief.")


def folders():
    return ListRoots()


@server.tool()
async def choose(message: str, answer: Annotated[ElicitationResult[Choice], Resolve(form)]) -> str:
    """Show the user a form."""
    return f"{answer.action} {answer.data.colour} {answer.data.amount}" if answer.action == "accept" else answer.action


@server.tool()
async def ponder(question: str, answer: Annotated[types.CreateMessageResult, Resolve(model)]) -> str:
    """Ask the client's model."""
    return f"{answer.model}: {answer.content.text}"


@server.tool()
async def places(answer: Annotated[types.ListRootsResult, Resolve(folders)]) -> str:
    """Ask where the client wants us to work."""
    return " ".join(str(root.uri) for root in answer.roots)


def second_form(first: Annotated[Choice, Resolve(form)]):
    return Elicit(f"accept {first.colour} again", Choice)


@server.tool()
async def insist(message: str, second: Annotated[Choice, Resolve(second_form)]) -> str:
    """Ask twice, the second question made of the first answer."""
    return f"{second.colour} {second.amount}"


@server.tool(structured_output=False)
async def visit(url: str, ctx: Context) -> list | types.InputRequiredResult:
    """Send the user to a page."""
    if ctx.protocol_version < "2026":
        return [(await ctx.elicit_url("Please look at this page.", url, "visit-1")).action]
    if ctx.input_responses is None:
        page = types.ElicitRequestURLParams(message="Please look at this page.", url=url)
        question = types.ElicitRequest(params=page)
        return types.InputRequiredResult(input_requests={"page": question}, request_state="asked")
    return [ctx.input_responses["page"].action]


@server.tool()
async def choose_at_once(message: str, ctx: Context) -> str:
    """Show the user a form, in the way that only the older era has."""
    return (await ctx.elicit(message, Choice)).action


@server.prompt()
async def asking(ctx: Context) -> list | types.InputRequiredResult:
    """A prompt that asks before it speaks, which only the newer era has."""
    if ctx.input_responses is None:
        schema = {"type": "object", "properties": {"colour": {"type": "string"}}}
        params = types.ElicitRequestFormParams(message="accept", requested_schema=schema)
        return types.InputRequiredResult(input_requests={"form": types.ElicitRequest(params=params)})
    return [UserMessage(f"Paint it {ctx.input_responses['form'].content['colour']}.")]


# ----------------------------------------------------------------------------------------------- resources and changes


@server.tool()
async def rewrite(name: str, value: str, ctx: Context) -> str:
    """Change a text, and tell those who subscribed to it, in the way of their era."""
    texts[name] = value
    await ctx.notify_resource_updated(f"text://{name}")
    if f"text://{name}" in subscriptions:
        await ctx.session.send_resource_updated(f"text://{name}")
    return "rewritten"


@server.tool()
async def learn(name: str, ctx: Context) -> str:
    """Offer one more tool from now on."""
    server.add_tool(lambda: f"{name} was learned", name=name)
    await ctx.notify_tools_changed()
    if ctx.protocol_version < "2026":
        await ctx.session.send_tool_list_changed()
    return "learned"


@server.tool()
def crash() -> str:
    """End without a word."""
    print("the end is near", file=sys.stderr, flush=True)
    os._exit(3)


@server.resource("text://{name}", mime_type="text/plain")
def text(name: str) -> str:
    """A text by its name."""
    return texts[name]


@server.resource("memory://bytes", mime_type="image/png")
def some_bytes() -> bytes:
    """A few bytes that are no text."""
    return b"\x89PNG\r\n\x1a\n\x00\xff"


@server.prompt()
def letter(to: str, tone: str = "kind") -> list:
    """A letter to somebody."""
    return [UserMessage(f"Write a {tone} letter to {to}."), AssistantMessage("Gladly. What about?")]


@server.completion()
async def complete(ref, argument, context):
    tone = context.arguments.get("tone") if context and context.arguments else None
    known = ["Admiral Hopper"] if tone == "formal" else ["Ada", "Alan", "first"]
    return types.Completion(values=[name for name in known if name.startswith(argument.value)], has_more=False)


for number in range(25):
    server.add_tool(lambda number=number: str(number), name=f"numbered_{number:02}")

# -------------------------------------------------------------------------------- what the low-level server can do more


async def list_tools(ctx, params: types.PaginatedRequestParams) -> types.ListToolsResult:
    tools = await server.list_tools()
    start = int(params.cursor or 0)
    following = str(start + 10) if start + 10 < len(tools) else None
    return types.ListToolsResult(tools=tools[start : start + 10], next_cursor=following)


async def subscribe(ctx, params: types.SubscribeRequestParams) -> types.EmptyResult:
    subscriptions.add(str(params.uri))
    return types.EmptyResult()


async def unsubscribe(ctx, params: types.UnsubscribeRequestParams) -> types.EmptyResult:
    subscriptions.discard(str(params.uri))
    return types.EmptyResult()


def enriched():
    """The low-level server, with all it can do."""
    low = server._lowlevel_server
    low.add_request_handler("tools/list", types.PaginatedRequestParams, list_tools)
    low.add_request_handler("resources/subscribe", types.SubscribeRequestParams, subscribe)
    low.add_request_handler("resources/unsubscribe", types.UnsubscribeRequestParams, unsubscribe)
    options = low.create_initialization_options(NotificationOptions(True, True, True))
    low.create_initialization_options = lambda: options  # asked for by the transports, which say nothing of changes
    return low


async def run():
    low = enriched()
    async with stdio_server() as streams:
        await low.run(*streams, low.create_initialization_options())


if __name__ == "__main__":
    asyncio.run(run())
