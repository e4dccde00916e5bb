"""A server on the official SDK before 2.0. With the argument "plain" as FastMCP leaves it, else with all it can do.

FastMCP pages nothing, offers no subscriptions and declares neither log lines nor changes that it sends; the low-level
server under it can do all of that.
"""

import asyncio
import os
import sys
from collections import defaultdict

import mcp.types as types
from mcp.server.fastmcp import Context, FastMCP
from mcp.server.fastmcp.exceptions import ToolError
from mcp.server.fastmcp.prompts.base import AssistantMessage, UserMessage
from mcp.server.lowlevel import NotificationOptions
from mcp.server.stdio import stdio_server
from pydantic import AnyUrl, BaseModel

server = FastMCP("stranger", instructions="Be gentle.")
texts = {"first": "one", "second": "two"}
ends = defaultdict(asyncio.Event)
subscriptions = set()
LEVELS = ["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
state = {"level": "debug"}

PICTURE = "iVBORw0KGgoA/w=="


class Sum(BaseModel):
    total: int
    terms: list[int]


class Choice(BaseModel):
    colour: str
    amount: int


@server.tool(title="Add two numbers", annotations=types.ToolAnnotations(readOnlyHint=True))
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
    inner = types.TextResourceContents(uri=AnyUrl("text://second"), mimeType="text/plain", text="two")
    return [
        types.TextContent(type="text", text="words", annotations=types.Annotations(audience=["user"], priority=0.5)),
        types.ImageContent(type="image", data=PICTURE, mimeType="image/png"),
        types.AudioContent(type="audio", data=PICTURE, mimeType="audio/wav"),
        types.ResourceLink(type="resource_link", uri=AnyUrl("text://first"), name="first"),
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
        if LEVELS.index(level) >= LEVELS.index(state["level"]):
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


@server.tool()
async def choose(message: str, ctx: Context) -> str:
    """Show the user a form."""
    answer = await ctx.elicit(message, Choice)
    return f"{answer.action} {answer.data.colour} {answer.data.amount}" if answer.action == "accept" else answer.action


@server.tool()
async def visit(url: str, ctx: Context) -> str:
    """Send the user to a page."""
    return (await ctx.elicit_url("Please look at this page.", url, "visit-1")).action


@server.tool()
async def ponder(question: str, ctx: Context) -> str:
    """Ask the client's model."""
    said = types.SamplingMessage(role="user", content=types.TextContent(type="text", text=question))
    answer = await ctx.session.create_message([said], max_tokens=50, system_prompt="Be brief.")
    return f"{answer.model}: {answer.content.text}"


@server.tool()
async def places(ctx: Context) -> str:
    """Ask where the client wants us to work."""
    return " ".join(str(root.uri) for root in (await ctx.session.list_roots()).roots)


@server.tool()
async def knock(ctx: Context) -> str:
    """Ping the client in the middle of a call."""
    await ctx.session.send_ping()
    return "somebody is there"


@server.tool()
async def rewrite(name: str, value: str, ctx: Context) -> str:
    """Change a text, and tell those who subscribed to it."""
    texts[name] = value
    if f"text://{name}" in subscriptions:
        await ctx.session.send_resource_updated(AnyUrl(f"text://{name}"))
    return "rewritten"


@server.tool()
async def learn(name: str, ctx: Context) -> str:
    """Offer one more tool from now on."""
    server.add_tool(lambda: f"{name} was learned", name=name)
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
    return types.Completion(values=[name for name in known if name.startswith(argument.value)], hasMore=False)


for number in range(25):
    server.add_tool(lambda number=number: str(number), name=f"numbered_{number:02}")

# -------------------------------------------------------------------------------- what the low-level server can do more


def enriched():
    """The low-level server, with all it can do."""
    low = server._mcp_server
    options = low.create_initialization_options(NotificationOptions(True, True, True))
    low.create_initialization_options = lambda: options  # asked for by the transports, which say nothing of changes

    @low.list_tools()
    async def list_tools(request: types.ListToolsRequest) -> types.ListToolsResult:
        tools = await server.list_tools()
        # Asked by itself, for its own checks, it gets no request but wants all.
        start, size = (
            (int(request.params.cursor), 10)
            if request and request.params and request.params.cursor
            else ((0, 10) if request else (0, len(tools)))
        )
        following = str(start + size) if start + size < len(tools) else None
        return types.ListToolsResult(tools=tools[start : start + size], nextCursor=following)

    @low.subscribe_resource()
    async def subscribe(uri: AnyUrl) -> None:
        subscriptions.add(str(uri))

    @low.unsubscribe_resource()
    async def unsubscribe(uri: AnyUrl) -> None:
        subscriptions.discard(str(uri))

    @low.set_logging_level()
    async def set_level(level: types.LoggingLevel) -> None:
        state["level"] = level

    return low


async def run():
    low = enriched()
    async with stdio_server() as streams:
        await low.run(*streams, low.create_initialization_options())


if __name__ == "__main__":
    if sys.argv[1:] == ["plain"]:
        server.run()
    else:
        asyncio.run(run())
