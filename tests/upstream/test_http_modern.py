"""The header marks in a list of tools: learned tool by tool, and others have their turn in between."""

import asyncio

import pytest

from sluicegate.protocol.message import Result, opened
from sluicegate.protocol.pagination import MAX_COMMAS
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream.http_modern import MAX_MARKED_BYTES
from tests.upstream.http_server import Asked, Json, modern
from tests.upstream.raw_server import exchange
from tests.upstream.test_http import TEXT, opened_to


def marked(name: str, kind: str = "string", **more: object) -> Json:
    schema: Json = {"type": "object", "properties": {"a": {"type": kind, "x-mcp-header": "A"}}}
    return {"name": name, "inputSchema": schema, **more}


async def test_others_get_their_turn_between_two_tools(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.runtime.task_scope.TURN", 0)
    tools = [marked(f"t{n}") for n in range(1000)]
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    async with opened_to(modern(lambda asked: asked.result({"tools": tools}))) as (connection, _, _):
        async with TaskScope() as tasks:
            tasks.start(others(), key="others")
            await connection(exchange("tools/list", {}))
            tasks.cancel_all()
    assert turns >= 1000


async def test_a_tool_too_large_to_look_at_has_no_marks_and_costs_the_others_nothing() -> None:
    deep: list[object] = []
    for _ in range(300):
        deep = [deep]
    tools = [
        marked("huge", title="x" * MAX_MARKED_BYTES),
        marked("deep", later=deep),
        marked("bad", "number"),
        marked("t"),
    ]

    def handle(asked: Asked) -> None:
        asked.result({"tools": tools, "ttlMs": 5} if asked.called == "tools/list" else TEXT)

    async with opened_to(modern(handle)) as (connection, script, _):
        reply = await connection(exchange("tools/list", {}))
        assert isinstance(reply, Result)
        page = opened(reply)
        assert page["tools"] == [tools[0], tools[1], tools[3]] and page["ttlMs"] == 5
        seen: list[str | None] = []
        for name in ("huge", "deep", "t"):
            await connection(exchange(params={"name": name, "arguments": {"a": "x"}}))
            seen.append(script.asked[-1].header("mcp-param-a"))
        assert seen == [None, None, "x"]


async def test_marks_that_a_tool_has_no_more_are_forgotten_beside_one_that_has_some() -> None:
    plain: Json = {"name": "t", "inputSchema": {"type": "object"}}
    lists = iter([[marked("t"), marked("u")], [plain, marked("u")]])

    def handle(asked: Asked) -> None:
        asked.result({"tools": next(lists)} if asked.called == "tools/list" else TEXT)

    async with opened_to(modern(handle)) as (connection, script, _):
        seen: list[str | None] = []
        for _ in range(2):
            await connection(exchange("tools/list", {}))
            for name in ("t", "u"):
                await connection(exchange(params={"name": name, "arguments": {"a": "x"}}))
                seen.append(script.asked[-1].header("mcp-param-a"))
        assert seen == ["x", "x", None, "x"]


async def test_a_list_of_millions_of_pieces_is_passed_on_unopened() -> None:
    tools = [marked("bad", "number"), *[1] * MAX_COMMAS]

    async with opened_to(modern(lambda asked: asked.result({"tools": tools}))) as (connection, _, _):
        reply = await connection(exchange("tools/list", {}))
        assert isinstance(reply, Result) and opened(reply)["tools"] == tools
