"""The log level of a session-era server: it holds for all callers, so the lowest wanted level is set."""

from typing import cast

import pytest

from sluicegate.protocol.message import Result
from sluicegate.upstream import session_server
from tests.upstream.raw_server import Bench, Json, Recorder, exchange, session_bench


async def told(table: Bench) -> object:
    """The level that the server is told next."""
    request = await table.server.answer("logging/setLevel", {})
    return cast(Json, request["params"])["level"]


async def call_under_way(table: Bench) -> object:
    """The id of the next call that the server gets."""
    return (await table.server.next("tools/call"))["id"]


async def test_the_log_level_is_the_lowest_that_a_waiting_caller_wants() -> None:
    async with session_bench() as table:
        curious = table.start(exchange(log_level="debug"))
        assert await told(table) == "debug"
        first = await call_under_way(table)
        modest = table.start(exchange(log_level="error"))
        second = await call_under_way(table)  # and nothing was said of the level: debug it stays
        for request_id, outcome in ((first, curious), (second, modest)):
            table.server.send(id=request_id, result={"content": []})
            assert isinstance(await outcome, Result)
        table.start(exchange(log_level="error"))
        assert await told(table) == "error"


async def test_a_later_call_does_not_undo_a_lower_log_level_that_is_being_set() -> None:
    async with session_bench() as table:
        curious = table.start(exchange(log_level="debug"))
        setting = await table.server.next("logging/setLevel")
        modest = table.start(exchange(log_level="error"))
        second = await call_under_way(table)
        table.server.send(id=setting["id"], result={})
        first = await call_under_way(table)
        for request_id, outcome in ((first, curious), (second, modest)):
            table.server.send(id=request_id, result={"content": []})
            assert isinstance(await outcome, Result)


async def test_a_listener_without_a_level_keeps_the_level_of_others() -> None:
    async with session_bench() as table:
        sink = Recorder()
        table.start(exchange("subscriptions/listen", {"notifications": {}}, sink, log_level="debug"), key="listening")
        await sink.heard.wait()
        table.start(exchange(log_level="error"), key="call")
        assert await told(table) == "debug"
        await call_under_way(table)
        for key in ("call", "listening"):
            table.tasks.cancel(key)
        await table.server.next("notifications/cancelled")
        table.start(exchange(log_level="error"))
        assert await told(table) == "error"


async def test_a_server_without_logging_gets_no_level() -> None:
    async with session_bench(tools={}) as table:
        outcome = table.start(exchange(log_level="debug"))
        await table.server.answer("tools/call", {"content": []})
        assert isinstance(await outcome, Result)


async def test_a_kept_level_is_the_minimum_until_its_listener_leaves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session_server, "QUIETS_AFTER", 0.01)
    async with session_bench() as table:
        kept = table.start(exchange("logging/setLevel", {"level": "debug"}))
        assert await told(table) == "debug"
        assert isinstance(await kept, Result)
        modest = table.start(exchange(log_level="error"))
        request_id = await call_under_way(table)  # and nothing was said of the level: debug it stays
        table.server.send(id=request_id, result={"content": []})
        assert isinstance(await modest, Result)
        unwanted = table.start(exchange("logging/setLevel", {}))
        assert await told(table) == "emergency"  # The nearest to silence that there is a word for.
        assert isinstance(await unwanted, Result)
        table.start(exchange(log_level="error"))
        assert await told(table) == "error"


async def test_without_listeners_the_level_is_that_of_the_waiting_callers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_server, "QUIETS_AFTER", 0.01)
    async with session_bench() as table:
        table.start(exchange("logging/setLevel", {"level": "debug"}))
        assert await told(table) == "debug"
        table.start(exchange(log_level="error"))
        await call_under_way(table)
        table.start(exchange("logging/setLevel", {}))
        assert await told(table) == "error"


async def test_no_level_is_sent_for_a_listener_that_another_has_replaced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_server, "QUIETS_AFTER", 0.01)
    async with session_bench() as table:
        table.start(exchange("logging/setLevel", {"level": "debug"}))
        assert await told(table) == "debug"
        gone = table.start(exchange("logging/setLevel", {}))
        come = table.start(exchange("logging/setLevel", {"level": "debug"}))
        for outcome in (gone, come):
            assert isinstance(await outcome, Result)
        table.start(exchange())
        assert (await table.server.next())["method"] == "tools/call"


async def test_a_listener_that_comes_while_the_level_is_raised_lowers_it_after_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(session_server, "QUIETS_AFTER", 0.01)
    async with session_bench() as table:
        table.start(exchange("logging/setLevel", {"level": "debug"}))
        assert await told(table) == "debug"
        table.start(exchange("logging/setLevel", {}))
        quieting = await table.server.next("logging/setLevel")
        table.start(exchange("logging/setLevel", {"level": "info"}))
        table.start(exchange())
        assert (await table.server.next())["method"] == "tools/call"  # Else it would have been told by now.
        table.server.send(id=quieting["id"], result={})
        assert await told(table) == "info"


async def test_a_level_that_a_call_sets_while_the_level_is_raised_is_sent_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Over HTTP one may overtake the other, and the call's lines would be lost."""
    monkeypatch.setattr(session_server, "QUIETS_AFTER", 0.01)
    async with session_bench() as table:
        table.start(exchange("logging/setLevel", {"level": "info"}))
        assert await told(table) == "info"
        table.start(exchange("logging/setLevel", {}))
        quieting = await table.server.next("logging/setLevel")
        assert quieting["params"] == {"level": "emergency"}
        table.start(exchange(log_level="debug"))
        loud = await table.server.next("logging/setLevel")
        assert loud["params"] == {"level": "debug"}
        table.server.send(id=loud["id"], result={})
        await table.server.next("tools/call")
        table.server.send(id=quieting["id"], result={})
        assert await told(table) == "debug"
