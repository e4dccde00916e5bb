"""A stream that is too long for one result: its head is in the result, the rest is a resource for its caller."""

import asyncio
import os
import tracemalloc
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from sluicegate.activations.tool_call import MAX_STREAM
from sluicegate.activations.values import Data, Structured, ToolUse
from sluicegate.downstream.duplex import serve_duplex
from sluicegate.downstream.native.peer import NativePeer
from sluicegate.errors import UnknownTarget
from sluicegate.exchange import Caller, Exchange
from sluicegate.hub.hub import Hub
from sluicegate.protocol.message import Result, opened
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.server import Server, activated
from sluicegate.testing import MemoryWire
from tests.activations.helpers import Recorder, ask, call

LINE = "a line with an é\n"
EVENTS = 20_000
COUNT = 2 * MAX_STREAM // len(LINE)


class Line(msgspec.Struct, tag="line"):
    data: str


class Long:
    def __init__(self) -> None:
        self.is_long = asyncio.Event()

    async def text(self) -> AsyncIterator[Data]:
        for _ in range(COUNT):
            yield Data(LINE)
        yield Data({"n": 1})
        yield Structured({"lines": COUNT})  # pyright: ignore[reportReturnType]

    async def events(self) -> AsyncIterator[Line]:
        for _ in range(COUNT):
            yield Line(LINE)

    async def blocks(self) -> AsyncIterator[Data | ToolUse]:
        yield Data("x")
        yield Data(["y" * MAX_STREAM])
        yield ToolUse("other", {"a": 1})

    async def endless(self) -> AsyncIterator[Data]:
        for _ in range(COUNT):
            yield Data(LINE)
        self.is_long.set()
        await asyncio.Event().wait()

    async def failing(self) -> AsyncIterator[Data]:
        yield Data("x" * MAX_STREAM + "rest")
        raise ValueError("lost")


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    return tmp_path / "sluicegate" / "kept"


async def read_all(server: Server, uri: str) -> str:
    """All pages of the rest."""
    found: list[str] = []
    head = uri.rpartition("/")[0]
    while True:
        try:
            page: Any = await ask(server, "resources/read", {"uri": f"{head}/{len(found) + 1}"})
        except UnknownTarget:
            return "".join(found)
        found.append(page["contents"][0]["text"])


@pytest.mark.parametrize("tool", ["text", "events"])
async def test_the_head_is_in_the_result_and_the_rest_is_read_in_pages(tool: str) -> None:
    server = activated("long", Long())
    sink = Recorder()
    result = await call(server, f"long.{tool}", sink=sink)
    text, link = result["content"]
    assert MAX_STREAM - 2 <= len(text["text"].encode()) <= MAX_STREAM
    rest = await read_all(server, link["uri"])
    assert text["text"] + rest == LINE * COUNT + ('{"n":1}\n' if tool == "text" else "")
    assert (link["type"], link["size"]) == ("resource_link", len(rest.encode()))
    assert len(sink.params("notifications/progress")) == COUNT + (tool == "text")
    assert result["_meta"]["dev.sluicegate/streamed"] == [0]
    assert result.get("structuredContent") == ({"lines": COUNT} if tool == "text" else None)


async def test_blocks_that_do_not_fit_are_lines_of_the_rest() -> None:
    server = activated("long", Long())
    result = await call(server, "long.blocks")
    assert [block["type"] for block in result["content"]] == ["text", "resource_link"]
    first, second, end = (await read_all(server, result["content"][1]["uri"])).split("\n")
    assert (len(first), second, end) == (MAX_STREAM + 4, '[Tool: other] {"a":1}', "")


async def test_a_failure_after_the_head_keeps_both() -> None:
    server = activated("long", Long())
    result = await call(server, "long.failing")
    assert result["isError"] is True and [block["type"] for block in result["content"]][-1] == "resource_link"
    assert await read_all(server, result["content"][-1]["uri"]) == "rest"


async def test_a_cancelled_call_leaves_no_file(folder: Path) -> None:
    thing = Long()
    server = activated("long", thing)
    async with asyncio.timeout(30), TaskScope() as tasks:

        async def run() -> None:
            await call(server, "long.endless")

        tasks.start(run())
        await thing.is_long.wait()
        assert len(os.listdir(folder)) == 1
        tasks.cancel_all()
    assert os.listdir(folder) == []


async def test_only_its_caller_reads_it_also_behind_a_hub() -> None:
    hub = Hub()
    hub.mount("long", activated("long", Long()))
    hub.mount("other", activated("other", Long()))

    async def request(method: str, params: dict[str, Any], caller: str) -> dict[str, Any]:
        reply = await hub(Exchange(method, params, Recorder(), caller=Caller(caller)))
        assert isinstance(reply, Result), reply
        return opened(reply)

    async with asyncio.timeout(30), hub:
        await hub.settled()
        result: Any = await request("tools/call", {"name": "long.events", "arguments": {}}, "ann")
        uri = result["content"][1]["uri"]
        assert uri.startswith("long+kept://")
        page: Any = await request("resources/read", {"uri": uri}, "ann")
        assert "a line with an" in page["contents"][0]["text"] and page["contents"][0]["uri"] == uri
        with pytest.raises(UnknownTarget):
            await request("resources/read", {"uri": uri}, "bob")
        start = uri.removesuffix("/1")
        for other in (f"{start}/01", f"{start}/١", f"{start}/1/", uri.replace("long+", "other+"), start.upper() + "/1"):
            with pytest.raises(UnknownTarget):
                await request("resources/read", {"uri": other}, "ann")


async def test_without_a_place_for_files_all_is_in_the_result(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))
    result = await call(activated("long", Long()), "long.events")
    assert [block["text"] for block in result["content"]] == [LINE * COUNT]


class Mebibytes:
    async def many(self) -> AsyncIterator[Data]:
        for _ in range(EVENTS):
            yield Data("x" * 1023 + "\n")


class Reader:
    """A client's end of a wire, which counts events and keeps none."""

    def __init__(self, sent: list[bytes]) -> None:
        self.events = 0
        self.is_complete = asyncio.Event()
        self._sent = sent

    def received(self, data: bytes) -> None:
        self._sent.clear()  # The wire keeps for tests what was sent.
        self.events += data.count(b'"type":"content"')
        if b'"type":"complete"' in data:
            self.is_complete.set()

    def ended(self) -> None:
        pass


async def test_a_long_stream_to_a_native_client_takes_little_memory(folder: Path) -> None:
    ours, theirs = MemoryWire.pair()
    reader = Reader(theirs.sent)
    ours.attach(reader)
    async with asyncio.timeout(50), TaskScope() as tasks:
        server = activated("act", Mebibytes())
        tasks.start(serve_duplex(server, theirs, theirs.attach, hold=50.0, kind=NativePeer))
        tracemalloc.start()
        try:
            ours.write(b'{"jsonrpc":"2.0","id":1,"method":"act.many"}\n')
            await reader.is_complete.wait()
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
        ours.hang_up()
    assert reader.events == EVENTS
    (kept,) = os.listdir(folder)
    assert os.stat(folder / kept).st_size == EVENTS * 1024 - MAX_STREAM
    assert peak < EVENTS * 1024 // 2
