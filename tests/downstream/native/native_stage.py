"""Activations that the tests of the native view call, and what happened to them."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import msgspec

import sluicegate
from sluicegate.activations.values import Data, Error, Log, Progress, Structured, ToolUse
from sluicegate.server import Server, activated, activation

Json = dict[str, Any]


class Seen(msgspec.Struct, tag="seen"):
    planet: str


class Pair(msgspec.Struct, tag="pair"):
    a: int
    b: int


class Name(msgspec.Struct):
    name: str


class Stage:
    """The server; its events tell when something happened."""

    def __init__(self) -> None:
        self.said = 0
        self.started = asyncio.Event()
        self.closed = asyncio.Event()
        stage = self

        @activation("act")
        class Act:
            """What the tests call."""

            async def pieces(self) -> AsyncIterator[Data | Structured]:
                """Texts, a value, and a structured end."""
                yield Data("a\n")
                yield Data({"n": 1})
                yield Data("b")
                yield Structured({"exit_code": 0})

            async def own(self) -> AsyncIterator[Seen | Pair]:
                """Events of its own."""
                yield Seen("mars")
                yield Pair(1, 2)

            async def mixed(self) -> AsyncIterator[Progress | Log | ToolUse | str]:
                """Progress, a line of a log, the use of a tool, and text."""
                yield Progress(1, total=2, message="half")
                yield Log("info", "a line")
                yield ToolUse("search", {"q": 1})
                yield "text"

            async def fails(self) -> AsyncIterator[Data | Error]:
                """A text, then an error."""
                yield Data("so far")
                yield Error("no further")

            async def raises(self) -> str:
                """Fail."""
                raise sluicegate.ToolError("broken")

            async def mass(self, factor: float = 1.0) -> float:
                """One number."""
                return 1.5 * factor

            async def facts(self) -> dict[str, int]:
                """One object."""
                return {"moons": 2}

            async def count(self, to: int, size: int = 0) -> AsyncIterator[Data]:
                """Many events."""
                stage.started.set()
                try:
                    for stage.said in range(1, to + 1):
                        yield Data({"n": stage.said, "pad": "x" * size} if size else stage.said)
                finally:
                    stage.closed.set()

            async def greet(self, call: sluicegate.Call) -> str:
                """Ask for a name."""
                answer = await call.elicit("Your name?", Name)
                return f"{answer.action} {answer.content.name if answer.content else '-'}"

        self.server: Server = activated("act", Act())
