"""A server with the tools that the tests over HTTP call, and what happened to them."""

import asyncio
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import cast

import sluicegate
from tests.downstream.raw_client import Json, modern

MIRRORED: Json = {
    "type": "object",
    "properties": {
        "region": {"type": "string", "x-mcp-header": "Region"},
        "size": {"type": "integer", "x-mcp-header": "Size"},
        "dry": {"type": "boolean", "x-mcp-header": "Dry"},
    },
}
TOKEN: Json = {"progressToken": "p"}


@dataclass
class Form:
    name: str


class Stage:
    """The server; its events tell when something happened, `go` lets it happen."""

    def __init__(self) -> None:
        self.server = server = sluicegate.Server("stage", version="1")
        self.ran: list[str] = []
        self.said = 0
        self.started = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.gave_up = asyncio.Event()
        self.go = asyncio.Event()

        @server.tool
        async def echo(text: str) -> str:
            """Say it again."""
            self.ran.append(text)
            return text

        @server.tool
        async def wait() -> str:
            """Wait until told to go on."""
            self.started.set()
            try:
                await self.go.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "waited"

        @server.tool
        async def count(to: int) -> AsyncGenerator[sluicegate.Progress | str]:
            """Count aloud."""
            for n in range(1, to + 1):
                yield sluicegate.Progress(n, total=to)
            yield "done"

        @server.tool
        async def halves() -> AsyncGenerator[sluicegate.Progress | str]:
            """Say one thing, and two more when told to go on."""
            yield sluicegate.Progress(1)
            self.started.set()
            await self.go.wait()
            yield sluicegate.Progress(2)
            yield "done"

        @server.tool
        async def flood(call: sluicegate.Call) -> str:
            """Never wait, never end."""
            self.started.set()
            try:
                for self.said in range(1, 1 << 40):
                    await call.progress(self.said)
            finally:
                self.cancelled.set()
            return "never"

        @server.tool
        async def stubborn() -> str:
            """Answer although it was cancelled."""
            self.started.set()
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                self.cancelled.set()
            return "stubborn"

        @server.tool
        async def greet(call: sluicegate.Call) -> str:
            """Ask for a name, then greet."""
            try:
                answer = await call.elicit("Your name?", Form)
            except sluicegate.InputRefused:
                self.gave_up.set()
                raise
            return f"{answer.action} {answer.content.name if answer.content else '-'}"

        @server.tool
        async def greet_two(call: sluicegate.Call) -> str:
            """Ask twice."""
            first = await call.elicit("Your name?", Form)
            second = await call.elicit("And yours?", Form)
            return " and ".join(a.content.name for a in (first, second) if a.content)

        @server.tool
        async def slip(call: sluicegate.Call) -> AsyncGenerator[sluicegate.Progress | str]:
            """Let the client go in between."""
            yield sluicegate.Progress(1)
            call.end_response_early()
            self.started.set()
            await self.go.wait()
            yield sluicegate.Progress(2)
            yield "done"

        @server.tool(input_schema=MIRRORED)
        async def mirrored(region: str | None = None, size: int | None = None, dry: bool | None = None) -> str:
            """Take arguments that travel as headers, too."""
            self.ran.append("mirrored")
            return f"{region} {size} {dry}"

        @server.resource("note://a")
        def note() -> str:
            return "a"


def call(name: str, **arguments: object) -> Json:
    return {"name": name, "arguments": arguments}


def heard(name: str, **arguments: object) -> Json:
    """A session-era call that wants to hear of progress."""
    return {**call(name, **arguments), "_meta": TOKEN}


def stamped(name: str, capabilities: Json | None = None, **arguments: object) -> Json:
    """A call of 2026-07-28 that wants to hear of progress."""
    return modern(call(name, **arguments), capabilities=capabilities, **TOKEN)


def texts(result: Json) -> list[object]:
    return [block["text"] for block in cast(list[Json], result["content"])]


def progress(message: Json) -> object:
    assert message["method"] == "notifications/progress", message
    return cast(Json, message["params"])["progress"]
