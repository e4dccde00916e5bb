"""A demo server. `sluicegate serve` offers it as `demo` when no servers are configured."""

import asyncio
from datetime import UTC, datetime
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sluicegate.activations.call import Call
from sluicegate.activations.values import Log, Progress, ToolError
from sluicegate.server import Server

server = Server("demo", version="1.0", title="Demo", instructions="Harmless tools for trying out a gateway.")


@server.tool(annotations={"readOnlyHint": True})
def echo(text: str, times: Annotated[int, Meta(ge=1, le=100)] = 1) -> str:
    """Repeat the text.

    Args:
        text: what to repeat
        times: how often
    """
    return "\n".join([text] * times)


@server.tool(annotations={"readOnlyHint": True})
async def count(to: Annotated[int, Meta(ge=1, le=10_000)], pause: Annotated[float, Meta(ge=0, le=10)] = 0.1):
    """Count aloud, one number at a time, with progress.

    Args:
        to: the last number
        pause: seconds between two numbers
    """
    for number in range(1, to + 1):
        yield Progress(number, total=to, message=f"{number} of {to}")
        await asyncio.sleep(pause)
    yield f"counted to {to}"


@server.tool(annotations={"readOnlyHint": True})
def clock(form: Literal["iso", "unix"] = "iso") -> str:
    """Tell the time of this machine, in UTC.

    Args:
        form: a date with its time, or the seconds since 1970
    """
    now = datetime.now(UTC)
    return now.isoformat(timespec="seconds") if form == "iso" else f"{now.timestamp():.0f}"


class Person(msgspec.Struct):
    """The form that `greet` asks the user to fill in."""

    name: str


@server.tool(annotations={"readOnlyHint": True})
async def greet(call: Call):
    """Ask for your name during the call, and greet you."""
    yield Log("info", "asking for a name")
    answer = await call.elicit("Who are you?", Person)
    yield "Hello, whoever you are." if answer.content is None else f"Hello, {answer.content.name}."


@server.tool(annotations={"readOnlyHint": True})
def fail(reason: str = "you asked for it") -> str:
    """Fail, to show what an error looks like.

    Args:
        reason: what the error says
    """
    raise ToolError(f"This tool always fails: {reason}.")


@server.resource("demo://about", mime_type="text/plain")
def about() -> str:
    """About this server."""
    return "A demo server in the gateway's own process. It disappears when you configure servers of your own."


@server.prompt
def summarise(text: str) -> str:
    """Ask a model for a summary."""
    return f"Summarise this in three sentences:\n\n{text}"
