"""The table in docs/activations.md of what a method may yield is what clients receive."""

import asyncio
import re
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Final

import msgspec
import pytest

import sluicegate
from sluicegate.activations.values import Data, Error, Log, Progress, Structured, ToolUse
from sluicegate.protocol.types import TextContent

PAGE: Final = (Path(__file__).parents[2] / "docs" / "activations.md").read_text(encoding="utf-8")
SECTION: Final = PAGE.partition("### What a method may yield\n")[2].partition("\n### ")[0]
ROWS: Final = re.findall(r"^\| `(.*)` \| (.*?) ?\| (.*) \|$", SECTION, re.MULTILINE)


class Counted(msgspec.Struct, tag="counted"):
    number: int


class Line(msgspec.Struct, tag="line"):
    text: str


class Tick(msgspec.Struct, tag="tick"):
    symbol: str
    price: float


class Warned(msgspec.Struct, tag="warned"):
    text: str

    def __str__(self) -> str:
        return f"[warning] {self.text}"


NAMES: Final[Mapping[str, object]] = {
    kind.__name__: kind for kind in (Data, Error, Log, Progress, Structured, ToolUse, Counted, Line, Tick, Warned)
}


def test_the_table_has_rows() -> None:
    assert len(ROWS) == SECTION.count("\n| `") > 8


@pytest.mark.parametrize(("yielded", "progress", "blocks"), ROWS)
async def test_clients_receive_what_the_table_says(yielded: str, progress: str, blocks: str) -> None:
    server = sluicegate.Server("documented", version="1")

    @server.tool
    async def run() -> AsyncIterator[object]:
        for value in eval(f"({yielded},)", dict(NAMES)):
            yield value

    messages: list[str | None] = []
    async with asyncio.timeout(5), sluicegate.connect(server) as client:
        async for event in client.stream("run"):
            if isinstance(event, sluicegate.ProgressEvent):
                messages.append(event.message)
            elif isinstance(event, sluicegate.ToolResult):
                texts = [block.text for block in event.content if isinstance(block, TextContent)]
                assert texts == re.findall(r"`([^`]*)`", blocks.replace("⏎", "\n"))
                assert event.is_error == ("Error(" in yielded)
                assert (event.structured_content is not msgspec.UNSET) == ("Structured(" in yielded)
    assert messages == re.findall(r"`(.*?)`", progress)
