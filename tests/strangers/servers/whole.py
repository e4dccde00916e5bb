"""A server of ours with something of everything, for the clients of others. Written with the public API only.

With the argument "http" it is served over HTTP. What a client did to it is told by a later call (`ended`, `meet`), so
that nobody has to wait for a time to pass.
"""

import asyncio
import os
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import sluicegate

server = sluicegate.Server(
    "whole", version="1.2.3", title="A whole server", instructions="Try everything.", description="Of everything one."
)

PICTURE = b"\x89PNG\r\n\x1a\n\x00\xff"
SOUND = b"RIFF\x00\x80\xff"

texts = {"first": "one", "second": "two"}
ends: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
releases: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
fates: dict[str, str] = {}
meetings: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)

# ------------------------------------------------------------------------------------------------------------- results


@dataclass
class Sum:
    total: int
    terms: list[int]


@dataclass
class Choice:
    colour: Literal["red", "green"]
    amount: int
    gift: bool = False


@server.tool(title="Add two numbers", annotations={"readOnlyHint": True, "idempotentHint": True})
def add(a: int, b: int) -> Sum:
    """Add two numbers.

    Args:
        a: the first.
        b: the second.
    """
    return Sum(a + b, [a, b])


@server.tool
def echo(text: str) -> str:
    """Say the same again."""
    return text


@server.tool
def chatter(text: str) -> str:
    """Print to where the protocol is not to be disturbed."""
    print("printed:", text)
    os.write(1, b"written: not JSON\n")
    return "undisturbed"


@server.tool
def everything():
    """Content of every kind."""
    yield sluicegate.Text("words", annotations={"audience": ["user"], "priority": 0.5})
    yield sluicegate.Image(PICTURE, "image/png")
    yield sluicegate.Audio(SOUND, "audio/wav")
    yield sluicegate.ResourceLink("text://first", "first", description="The first text", mime_type="text/plain")
    yield sluicegate.EmbeddedResource("text://second", text="two", mime_type="text/plain")
    yield sluicegate.EmbeddedResource("memory://bytes", blob=PICTURE, mime_type="image/png")


@server.tool
def fail(secretly: bool) -> str:
    """Fail, with a message for the caller or with one that is none of its business."""
    if secretly:
        raise RuntimeError("the password is swordfish")
    raise sluicegate.ToolError("There is no more of it.")


# ----------------------------------------------------------------------------------------------------------- streaming


@server.tool
async def count(to: int):
    """Count aloud, with progress and a line of each of two levels."""
    for n in range(1, to + 1):
        yield sluicegate.Progress(n, total=to, message=f"at {n}")
        yield sluicegate.Log("debug", f"counted {n}", logger="count")
    yield sluicegate.Log("warning", {"counted": to}, logger="count")
    yield f"counted to {to}"


@server.tool
async def greet():
    """Say hello, bit by bit."""
    for part in ("Hel", "lo, ", "world."):
        yield sluicegate.Data(part)


@server.tool
async def hang(ticket: str, call: sluicegate.Call) -> str:
    """Say once that it is at work, then work until it is cancelled or released."""
    try:
        await call.progress(1, message="hanging")
        await releases[ticket].wait()
        fates[ticket] = "released"
    except asyncio.CancelledError:
        fates[ticket] = "cancelled"
        raise
    finally:
        ends[ticket].set()
    return "released"


@server.tool
def release(ticket: str) -> str:
    """Let the call with this ticket end by itself."""
    releases[ticket].set()
    return "so be it"


@server.tool
async def ended(ticket: str) -> str:
    """Wait until the call with this ticket has ended, and tell how."""
    await ends[ticket].wait()
    return fates[ticket]


@server.tool
async def meet(place: str, other: str) -> str:
    """Wait at a place for the one who waits at another: two calls that end only if they run at the same time."""
    meetings[place].set()
    await meetings[other].wait()
    return f"met at {place}"


# -------------------------------------------------------------------------------------------------------------- asking


@server.tool
async def choose(message: str, call: sluicegate.Call) -> dict[str, object]:
    """Show the user a form."""
    answer = await call.elicit(message, Choice)
    content = answer.content
    return {"action": answer.action, "content": content and [content.colour, content.amount, content.gift]}


@server.tool
async def visit(url: str, call: sluicegate.Call) -> str:
    """Send the user to a page."""
    return (await call.elicit_url("Please look at this page.", url)).action


@server.tool
async def ponder(question: str, call: sluicegate.Call) -> dict[str, object]:
    """Ask the client's model."""
    answer = await call.sample(question, max_tokens=50, system_prompt="Be brief.", temperature=0.5)
    return {"text": answer.text, "model": answer.model, "role": answer.role, "stop": answer.stop_reason}


@server.tool
async def places(call: sluicegate.Call) -> list[str]:
    """Ask where the client wants us to work."""
    return [root.uri for root in await call.roots()]


@server.tool
async def interview(call: sluicegate.Call) -> str:
    """Ask several things, one after the other, with progress in between."""
    await call.progress(1, total=3)
    first = await call.elicit("accept", Choice)
    await call.progress(2, total=3)
    second = await call.sample("What next?", max_tokens=5)
    await call.progress(3, total=3)
    third = await call.elicit("decline", Choice)
    return f"{first.action}, {second.text}, {third.action}"


# ----------------------------------------------------------------------------------------------- resources and changes


@server.resource("text://{name}", mime_type="text/plain", title="A text")
def text(name: str) -> str | None:
    """A text by its name."""
    return texts.get(name)


@server.resource("memory://bytes", mime_type="image/png", size=len(PICTURE), name="bytes")
def some_bytes() -> bytes:
    """A few bytes that are no text."""
    return PICTURE


@server.resource("memory://motd", mime_type="text/plain", name="motd")
def message_of_the_day() -> str:
    """The message of the day."""
    return texts.get("motd", "Hello.")


@server.tool
def rewrite(name: str, value: str, uri: str) -> str:
    """Change a text, and tell those who listen to the URI."""
    texts[name] = value
    server.resource_updated(uri)
    return "rewritten"


@server.tool
def learn(name: str) -> str:
    """Offer one more tool, resource and prompt from now on."""

    def learned() -> str:
        return f"{name} was learned"

    server.add_tool(learned, name=name)
    server.add_resource(f"learned://{name}", learned, name=name)
    server.add_prompt(learned, name=name)
    return "learned"


@server.prompt(title="A letter")
def letter(to: str, tone: str = "kind"):
    """A letter to somebody.

    Args:
        to: who gets it.
        tone: how it sounds.
    """
    return [
        sluicegate.UserMessage(f"Write a {tone} letter to {to}."),
        sluicegate.AssistantMessage("Gladly. What about?"),
        sluicegate.UserMessage(sluicegate.EmbeddedResource("text://first", text="one", mime_type="text/plain")),
    ]


@server.complete("letter", "to")
@server.complete("text://{name}", "name")
def names(value: str, others: dict[str, str]) -> list[str]:
    known = ["Ada", "Alan", "Grace"] if others.get("tone") != "formal" else ["Admiral Hopper"]
    return [name for name in (*known, *sorted(texts)) if name.startswith(value)]


# ----------------------------------------------------------------------------------------------------- more than a page


def numbered(number: int) -> None:
    def tool() -> str:
        return str(number)

    server.add_tool(tool, name=f"numbered_{number:03}", description=f"One of many: {number}.")
    server.add_resource(f"numbered://{number:03}", tool, name=f"numbered {number}")


for number in range(120):
    numbered(number)

if __name__ == "__main__":
    sluicegate.run(server, http="http" in sys.argv[1:], port=0)
    if farewell := os.environ.get("FAREWELL"):
        # Reached only if the server ended of its own accord: its client hung up, or it was told to stop.
        Path(farewell).write_text("ended in order")
