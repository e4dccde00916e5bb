"""What a session-era client sees over Streamable HTTP: its session, its streams, what it missed while it was away."""

import asyncio
import gc
import json
import tracemalloc
from collections.abc import Callable
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.downstream import http_response, resumable_stream
from sluicegate.downstream.http import caller_by_address
from sluicegate.downstream.http_guard import HttpLimits
from sluicegate.downstream.http_session import HttpSession
from sluicegate.downstream.http_sessions import Sessions
from sluicegate.downstream.resumable_stream import ReplayBuffer, ReplayMemory
from sluicegate.errors import ErrorObject
from sluicegate.exchange import Exchange
from sluicegate.http1 import Limits
from sluicegate.protocol.message import Reply
from tests.downstream.http_client import (
    BOTH,
    Answer,
    HttpClient,
    Session,
    http_client,
    initialize,
    notification,
    request,
    response,
)
from tests.downstream.http_stage import Stage, call, heard, progress, texts
from tests.downstream.raw_client import Json, error_of, result_of

VERSIONS = ["2025-03-26", "2025-06-18", "2025-11-25"]
ADA: Json = {"action": "accept", "content": {"name": "Ada"}}


async def refused(answer: Answer, status: int, code: int) -> Json:
    """The error of an answer that must have this status and this code."""
    message = await answer.json()
    assert (answer.status, error_of(message)["code"]) == (status, code), message
    return message


async def reason(answer: Answer, status: int) -> object:
    """The reason that a refusal with this status gives."""
    message = await answer.json()
    assert answer.status == status, message
    return cast(Json, error_of(message)["data"])["reason"]


async def events_of(answer: Answer) -> list[Json]:
    """All messages of a stream, without the priming event."""
    return [event.message for event in await answer.events() if event.data]


async def echoed(session: Session, text: str = "on") -> bool:
    """Whether the session is served."""
    answer = await session.request(f"echo {text}", "tools/call", call("echo", text=text))
    return texts(result_of(await answer.json())) == [text]


def live(client: HttpClient) -> Sessions:
    return client.endpoint._sessions  # pyright: ignore[reportPrivateUsage]


def only(client: HttpClient) -> HttpSession:
    (session,) = live(client)._sessions.values()  # pyright: ignore[reportPrivateUsage]
    return session


# -------------------------------------------------------------------------------------------------- the handshake


@pytest.mark.parametrize("version", ["2024-11-05", *VERSIONS])
async def test_initialize_gives_a_session_id_that_cannot_be_guessed(version: str) -> None:
    async with http_client(Stage().server) as client:
        first, second = await client.initialize(version), await client.initialize(version)
        assert first.welcome["protocolVersion"] == version
        assert first.id != second.id
        assert len(first.id) * 6 >= 128 and all(0x21 <= ord(letter) <= 0x7E for letter in first.id)
        assert await echoed(first) and await echoed(second)


async def test_sessions_keep_little_of_their_clients_descriptions() -> None:
    """T4: a megabyte of clientInfo is not kept for each session."""
    async with http_client(Stage().server) as client:
        await client.initialize()
        gc.collect()
        tracemalloc.start()
        try:
            for _ in range(8):
                message = initialize("2025-11-25")
                cast(Json, message["params"])["clientInfo"] = {"name": "n" * 1_000_000, "version": "1"}
                assert (await client.post(message)).status == 200
            gc.collect()
            assert tracemalloc.get_traced_memory()[0] < 3_000_000
        finally:
            tracemalloc.stop()


async def test_initialize_is_answered_as_an_event_to_a_client_that_takes_nothing_else() -> None:
    async with http_client(Stage().server) as client:
        answer = await client.post(initialize("2025-06-18"), accept="text/event-stream")
        assert "mcp-session-id" in answer.headers
        (event,) = await answer.events()
        assert result_of(event.message)["protocolVersion"] == "2025-06-18"


async def test_a_message_without_a_session_is_refused_with_the_reason() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        for message in (
            request(1, "tools/call", call("echo", text="x")),
            request(1, "ping"),
            notification("notifications/initialized"),
            notification("initialize"),
            response(1),
            [request(1, "ping")],
        ):
            assert await reason(await client.post(message), 400) == "session_required"
        assert stage.ran == []


async def test_a_request_that_finds_no_session_is_refused_under_its_own_id() -> None:
    async with http_client(Stage().server, places=HttpLimits(sessions=1)) as client:
        session = await client.initialize()
        versions = [("MCP-Protocol-Version", "2025-03-26"), ("MCP-Protocol-Version", "2025-11-25")]
        ping = request("mine", "ping")
        for message, headers, status in (
            (ping, [], 400),
            (ping, [("Mcp-Session-Id", "made-up")], 404),
            (ping, [("Mcp-Session-Id", session.id), *versions], 400),
            (request("mine", "ping", {"_meta": 5}), [], 400),
        ):
            answer = await client.post(message, headers)
            assert answer.status == status and (await answer.json())["id"] == "mine"
        await (await session.listen()).event()
        full = await client.post(initialize(id=7))
        assert full.status == 503 and (await full.json())["id"] == 7


@pytest.mark.parametrize(
    "message",
    [notification("notifications/initialized"), response(1), [request(1, "ping")], request("x" * 300, "ping"), 5],
)
async def test_messages_without_a_usable_id_are_refused_without_one(message: object) -> None:
    async with http_client(Stage().server) as client:
        answer = await client.post(message)
        assert answer.status == 400 and (await answer.json())["id"] is None


@pytest.mark.parametrize("id", ["made-up", "", "x" * 4000])
async def test_an_unknown_session_is_not_found(id: str) -> None:
    async with http_client(Stage().server) as client:
        headers = [("Mcp-Session-Id", id), ("Accept", "text/event-stream")]
        assert await reason(await client.post(request(1, "ping"), headers[:1]), 404) == "unknown_session"
        for method in ("GET", "DELETE"):
            assert await reason(await client.open(method, "/mcp", headers), 404) == "unknown_session"


async def test_a_session_id_that_stands_twice_is_none() -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize()
        twice = [("Mcp-Session-Id", session.id)] * 2
        assert (await client.post(request(1, "ping"), twice)).status == 404


async def test_the_session_of_another_caller_looks_unknown() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        mine = await client.initialize(headers=[("Authorization", "mine")])
        for theirs in ([("Authorization", "theirs")], []):
            fields = [("Mcp-Session-Id", mine.id), ("Accept", "text/event-stream"), *theirs]
            made_up = [("Mcp-Session-Id", "made-up"), *fields[1:]]
            for method in ("POST", "GET", "DELETE"):
                body = json.dumps(request(1, "tools/call", call("echo", text="stolen"))).encode()
                kind = [("Content-Type", "application/json")]
                foreign = await client.open(method, "/mcp", [*kind, *fields], body)
                unknown = await client.open(method, "/mcp", [*kind, *made_up], body)
                assert foreign.status == unknown.status == 404
                assert await foreign.body() == await unknown.body()
        assert await echoed(mine)
        assert stage.ran == ["on"]


async def test_a_caller_cannot_take_over_the_stream_of_another() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        mine = await client.initialize(headers=[("Authorization", "mine")])
        stream = await mine.listen()
        assert (await stream.event()).data == ""
        thief = Session(client, mine.id, "2025-11-25", [("Authorization", "theirs")], "text/event-stream")
        assert (await thief.listen()).status == 404
        assert (await thief.listen("0-0")).status == 404
        stage.server.remove_tool("count")
        assert (await stream.message())["method"] == "notifications/tools/list_changed"


async def test_a_deleted_session_is_not_found_any_more() -> None:
    async with http_client(Stage().server) as client:
        session, other = await client.initialize(), await client.initialize()
        stream = await session.listen()
        assert (await session.delete()).status == 204
        assert len(await stream.events()) == 1  # the priming event, and the end
        for answer in (await session.request(1, "ping"), await session.listen(), await session.delete()):
            assert await reason(answer, 404) == "unknown_session"
        assert await echoed(other)


async def test_deleting_a_session_cancels_its_calls_and_ends_their_posts() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize()
        streaming = await session.request(1, "tools/call", heard("halves"))
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(session.request(2, "tools/call", call("wait")))
            await stage.started.wait()
            stage.started.clear()
            await stage.started.wait()
            await session.delete()
        assert waiting.result().status == 404
        assert (await waiting.result().json())["id"] == 2
        await stage.cancelled.wait()
        assert [progress(message) for message in await events_of(streaming)] == [1]


async def test_a_second_initialize_in_a_live_session_is_an_invalid_request_and_the_session_goes_on() -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize()
        message = await refused(await session.post(initialize(id="again")), 400, -32600)
        assert message["id"] == "again"
        assert await echoed(session)


async def test_initialize_with_a_stale_session_id_opens_a_fresh_one() -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize()
        await session.delete()
        for stale in (session.id, "made-up"):
            answer = await client.post(initialize(), [("Mcp-Session-Id", stale)])
            fresh = answer.headers["mcp-session-id"]
            assert answer.status == 200 and fresh != stale
            assert (await client.post(request(1, "ping"), [("Mcp-Session-Id", fresh)])).status == 200


@pytest.mark.parametrize(
    ("message", "status", "code"),
    [
        (request(1, "initialize", {}), 200, -32602),
        (request(None, "initialize", {"protocolVersion": "2025-11-25"}), 400, -32600),
        (request(1, "initialize", {"protocolVersion": "2025-11-25", "capabilities": []}), 200, -32602),
    ],
)
async def test_an_initialize_that_is_refused_opens_nothing(message: Json, status: int, code: int) -> None:
    async with http_client(Stage().server) as client:
        answer = await client.post(message)
        await refused(answer, status, code)
        assert "mcp-session-id" not in answer.headers
        await none_live(client)


async def none_live(client: HttpClient) -> None:
    """Wait until no session is left."""
    async with asyncio.timeout(10):
        while live(client)._sessions:  # pyright: ignore[reportPrivateUsage] # noqa: ASYNC110
            await asyncio.sleep(0)


async def test_initialize_is_refused_and_opens_nothing_if_discovery_fails() -> None:
    async def handler(exchange: Exchange) -> Reply:
        return ErrorObject(-32603, "not today")

    async with http_client(handler) as client:
        answer = await client.post(initialize())
        assert error_of(await answer.json())["message"] == "not today"
        assert "mcp-session-id" not in answer.headers
        await none_live(client)


# ------------------------------------------------------------------------------------------------------- versions


@pytest.mark.parametrize("version", VERSIONS)
async def test_without_a_version_header_the_session_s_own_version_holds(version: str) -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize(version)
        session.headers = [("Mcp-Session-Id", session.id)]
        assert await echoed(session)


@pytest.mark.parametrize("other", ["2024-11-05", "2025-03-26", "2025-11-25"])
async def test_another_supported_version_is_accepted_and_the_negotiated_one_holds(other: str) -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize("2025-06-18")
        session.headers = [("Mcp-Session-Id", session.id), ("MCP-Protocol-Version", other)]
        assert await echoed(session)
        await refused(await session.post([request(1, "ping")]), 400, -32600)  # 2025-06-18 has no batches
        assert (await session.listen()).status == 200
        assert (await session.delete()).status == 204


async def test_two_versions_in_one_request_are_refused() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        session = await client.initialize("2025-06-18")
        good, session.headers = session.headers, [("Mcp-Session-Id", session.id)]
        session.headers += [("MCP-Protocol-Version", "2025-06-18"), ("MCP-Protocol-Version", "2025-11-25")]
        message = request(1, "tools/call", call("echo", text="x"))
        assert await reason(await session.post(message), 400) == "unsupported_version"
        assert (await session.listen()).status == 400
        assert (await session.delete()).status == 400
        assert stage.ran == []
        session.headers = good
        assert await echoed(session)


@pytest.mark.parametrize("other", ["1999-01-01", "garbage", ""])
async def test_an_unknown_version_is_refused_whatever_is_posted(other: str) -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        session = await client.initialize("2025-06-18")
        headers = [("Mcp-Session-Id", session.id), ("MCP-Protocol-Version", other)]
        for message in (
            request(1, "tools/call", call("echo", text="x")),
            notification("notifications/unknown"),
            response(1),
        ):
            assert (await session.post(message, headers)).status == 400
        assert stage.ran == []


# ------------------------------------------------------------------------------------------------------- messages


async def test_notifications_and_responses_are_accepted_with_nothing_to_say() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        session = await client.initialize()
        for answer in (
            await session.notify("notifications/unknown"),
            await session.notify("notifications/cancelled", {"requestId": 99}),
            await session.notify("tools/call", call("echo", text="not run")),
            await session.respond(99, {"action": "accept"}),
            await session.respond("never asked", {}),
        ):
            assert (answer.status, await answer.body()) == (202, b"")
        assert stage.ran == []


@pytest.mark.parametrize("id", [None, True, 1.5, {}])
async def test_a_bad_id_is_owed_an_error_and_nothing_is_run(id: object) -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        session = await client.initialize()
        await refused(await session.request(id, "tools/call", call("echo", text="x")), 400, -32600)
        assert stage.ran == []


@pytest.mark.parametrize(
    ("method", "params", "status", "code"),
    [
        ("no/such", {}, 200, -32601),
        ("server/discover", {}, 200, -32601),
        ("tools/call", {"name": "nobody"}, 200, -32602),
        ("logging/setLevel", {"level": "loud"}, 200, -32602),
    ],
)
async def test_the_session_era_sends_most_errors_with_status_200(
    method: str, params: Json, status: int, code: int
) -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize()
        assert (await refused(await session.request(7, method, params), status, code))["id"] == 7


@pytest.mark.parametrize(
    ("code", "status"), [(-32603, 200), (1001, 200), (1003, 429), (1004, 503), (1030, 503), (1031, 503)]
)
async def test_an_answer_has_the_status_of_its_code(code: int, status: int) -> None:
    async def handler(exchange: Exchange) -> Reply:
        if exchange.method == "server/discover":
            return await Stage().server(exchange)
        return ErrorObject(code, "no")

    async with http_client(handler) as client:
        session = await client.initialize()
        answer = await session.request(1, "tools/list")
        assert answer.status == status and ("retry-after" in answer.headers) == (status != 200)


async def test_a_parse_error_has_no_id_and_the_session_goes_on() -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize()
        assert (await refused(await session.post(b"{"), 400, -32700))["id"] is None
        assert await echoed(session)


async def test_an_id_in_use_is_refused_and_its_first_request_is_answered() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(session.request(1, "tools/call", call("wait")))
            await stage.started.wait()
            await refused(await session.request(1, "tools/call", call("echo", text="x")), 400, -32600)
            assert await echoed(session)
            stage.go.set()
        assert texts(result_of(await first.result().json())) == ["waited"]
        assert texts(result_of(await (await session.request(1, "tools/call", call("wait"))).json())) == ["waited"]


async def test_the_same_id_in_two_sessions_is_two_requests() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        one, other = await client.initialize(), await client.initialize()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(one.request(1, "tools/call", call("wait")))
            await stage.started.wait()
            answer = await other.request(1, "tools/call", call("echo", text="mine"))
            assert texts(result_of(await answer.json())) == ["mine"]
            await other.notify("notifications/cancelled", {"requestId": 1})
            stage.go.set()
        assert texts(result_of(await first.result().json())) == ["waited"]


# -------------------------------------------------------------------------------------------------------- batches


async def test_a_batch_is_answered_as_one_array_by_2025_03_26() -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize("2025-03-26")
        batch = [
            request(1, "ping"),
            notification("notifications/unknown"),
            request("2", "tools/call", call("echo", text="b")),
            7,
        ]
        answers = json.loads(await (await session.post(batch)).body())
        assert {repr(answer["id"]) for answer in answers} == {"1", "'2'", "None"}
        assert await echoed(session)


async def test_a_batch_with_nothing_to_answer_is_accepted() -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize("2025-03-26")
        batch = [notification("notifications/unknown"), response(9)]
        assert (await session.post(batch)).status == 202


@pytest.mark.parametrize("version", ["2024-11-05", "2025-06-18", "2025-11-25"])
async def test_other_revisions_refuse_a_batch_and_its_ids_stay_free(version: str) -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize(version)
        await refused(await session.post([request(1, "tools/call", call("wait"))]), 400, -32600)
        answer = await session.request(1, "tools/call", call("echo", text="free"))
        assert texts(result_of(await answer.json())) == ["free"]
        assert only(client).idle


@pytest.mark.parametrize("batch", [[], [initialize()], [request(1, "ping"), initialize()]])
async def test_an_empty_batch_and_one_with_initialize_are_invalid_requests(batch: list[Json]) -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize("2025-03-26")
        await refused(await session.post(batch), 400, -32600)
        assert (await session.request(1, "ping")).status == 200


async def test_a_batch_may_stream_and_ends_with_all_its_answers() -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize("2025-03-26")
        batch = [request(1, "tools/call", heard("count", to=3)), request(2, "tools/call", call("echo", text="b"))]
        *notices, last = await (await session.post(batch)).events()
        assert [progress(event.message) for event in notices] == [1, 2, 3]
        assert {answer["id"] for answer in json.loads(last.data)} == {1, 2}


async def test_a_batch_whose_last_open_call_is_cancelled_is_answered_with_the_rest() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize("2025-03-26")
        batch = [
            request(1, "tools/call", call("echo", text="b")),
            request(2, "tools/call", call("wait")),
            request(3, "tools/call", call("wait")),
        ]
        async with asyncio.TaskGroup() as group:
            posted = group.create_task(session.post(batch))
            await stage.started.wait()
            for id in (3, 2):
                answer = await session.notify("notifications/cancelled", {"requestId": id})
                assert (answer.status, await answer.body()) == (202, b"")
        answers = json.loads(await posted.result().body())
        assert [answer["id"] for answer in answers] == [1]
        assert await echoed(session)


async def test_a_batch_whose_calls_are_all_cancelled_still_ends() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize("2025-03-26")
        async with asyncio.TaskGroup() as group:
            posted = group.create_task(session.post([request(1, "tools/call", call("wait"))]))
            await stage.started.wait()
            batch = [notification("notifications/cancelled", {"requestId": 1})]
            answer = await session.post([*batch, request(1, "ping")])
            assert [each["id"] for each in json.loads(await answer.body())] == [1]
        assert posted.result().status == 200
        assert await echoed(session)


async def test_a_call_that_is_cancelled_and_made_again_in_one_batch_is_answered_once() -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize("2025-03-26")
        cancel = notification("notifications/cancelled", {"requestId": 1})
        batch = [request(1, "tools/call", call("wait")), cancel, request(1, "tools/call", call("echo", text="b"))]
        (answer,) = json.loads(await (await session.post(batch)).body())
        assert texts(result_of(answer)) == ["b"]


async def test_a_call_that_another_batch_cancels_and_makes_again_leaves_nothing_behind() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize("2025-03-26")
        async with asyncio.TaskGroup() as group:
            first = group.create_task(session.request(1, "tools/call", call("wait")))
            await stage.started.wait()
            cancel = notification("notifications/cancelled", {"requestId": 1})
            again = request(1, "tools/call", call("wait"))
            batch = [cancel, again, cancel, request(1, "tools/call", call("echo", text="b"))]
            (answer,) = json.loads(await (await session.post(batch)).body())
        assert texts(result_of(answer)) == ["b"]
        assert error_of(await first.result().json())["code"] == -32800
        assert only(client).idle


async def test_a_request_that_is_cancelled_behind_the_handshake_ends_its_post(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_response, "KEEP_ALIVE", 0.0)
    go = asyncio.Event()
    server = Stage().server

    async def handler(exchange: Exchange) -> Reply:
        await go.wait()
        return await server(exchange)

    async with http_client(handler) as client, asyncio.timeout(10):
        opening = await client.post(initialize())  # so slow that its answer became a stream, with the session's id
        session = Session(client, opening.headers["mcp-session-id"], "2025-11-25", (), BOTH)
        behind = await session.request(1, "tools/list")
        assert (await session.notify("notifications/cancelled", {"requestId": 1})).status == 202
        assert [event.data for event in await behind.events()] == [""]
        go.set()
        await opening.events()
        assert only(client).idle


# ------------------------------------------------------------------------------------------------- JSON or events


@pytest.mark.parametrize("version", VERSIONS)
async def test_progress_comes_in_order_before_the_answer_and_each_event_has_its_own_id(version: str) -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize(version)
        events = await (await session.request(1, "tools/call", heard("count", to=1000))).events()
        if version == "2025-11-25":
            assert (events[0].data, events[0].retry) == ("", "1000") and events[0].id
        assert len({event.id for event in events}) == len(events)
        assert [event.retry for event in events if event.data] == [None] * 1001
        *notices, last = [event.message for event in events if event.data]
        assert [progress(notice) for notice in notices] == list(range(1, 1001))
        assert texts(result_of(last)) == ["done"]


async def test_a_client_that_takes_no_events_gets_one_json_body() -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize()
        answer = await session.request(1, "tools/call", heard("count", to=100), accept="application/json")
        assert texts(result_of(await answer.json())) == ["done"]


async def test_a_client_that_takes_no_events_is_not_asked_and_the_call_does_not_wait_for_it() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        session = await client.initialize(elicitation={})
        answer = await session.request(1, "tools/call", call("greet"), accept="application/json")
        message = await answer.json()
        assert "error" in message or result_of(message)["isError"] is True


async def test_a_silent_call_becomes_a_stream_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_response, "KEEP_ALIVE", 0.0)
    stage = Stage()
    async with http_client(stage.server) as client:
        session = await client.initialize(accept="application/json")
        answer = await session.request(1, "tools/call", call("wait"), accept="text/event-stream")
        assert (await answer.event()).data == ""
        monkeypatch.setattr(http_response, "KEEP_ALIVE", 15.0)
        stage.go.set()
        assert texts(result_of(await answer.message())) == ["waited"]


async def test_a_tool_that_never_waits_does_not_keep_others_from_being_served() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session, other = await client.initialize(), await client.initialize()
        answer = await session.request(1, "tools/call", heard("flood"))
        await answer.event()
        assert await echoed(other)
        assert (await session.notify("notifications/cancelled", {"requestId": 1})).status == 202
        await stage.cancelled.wait()


# ---------------------------------------------------------------------------------------------------- cancellation


async def test_a_cancelled_call_still_ends_its_post() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize()
        async with asyncio.TaskGroup() as group:
            posted = group.create_task(session.request(1, "tools/call", call("wait")))
            await stage.started.wait()
            await session.notify("notifications/cancelled", {"requestId": 1})
        await stage.cancelled.wait()
        assert error_of(await posted.result().json())["code"] == -32800
        assert await echoed(session)


async def test_a_cancelled_call_that_streams_ends_its_stream_without_an_answer() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize()
        answer = await session.request(1, "tools/call", heard("halves"))
        await stage.started.wait()
        await session.notify("notifications/cancelled", {"requestId": 1})
        assert [progress(message) for message in await events_of(answer)] == [1]
        assert await echoed(session)


async def test_resuming_the_stream_of_a_cancelled_call_is_refused() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize()
        answer = await session.request(1, "tools/call", heard("halves"))
        await stage.started.wait()
        await session.notify("notifications/cancelled", {"requestId": 1})
        last = (await answer.events())[-1].id
        # An empty stream would bring the official TypeScript SDK back again, without an id: for the stream of all that
        # belongs to no call, which it has already. It would take that from itself, and be told everything twice.
        assert await reason(await session.listen(last), 405) == "stream_ended"
        assert await echoed(session)


async def test_a_tool_that_answers_although_it_was_cancelled_answers_no_other_call() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize()
        async with asyncio.TaskGroup() as group:
            first = group.create_task(session.request(1, "tools/call", call("stubborn")))
            await stage.started.wait()
            await session.notify("notifications/cancelled", {"requestId": 1})
            second = group.create_task(session.request(1, "tools/call", call("wait")))
            await stage.cancelled.wait()
            stage.go.set()
        assert error_of(await first.result().json())["code"] == -32800
        assert texts(result_of(await second.result().json())) == ["waited"]


# ------------------------------------------------------------------------------------ hanging up and coming back


async def test_hanging_up_does_not_cancel_and_a_client_that_comes_back_gets_the_rest_of_its_stream() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize()
        cut = await session.request("cut", "tools/call", heard("halves"))
        other = await session.request("other", "tools/call", heard("count", to=5))
        await other.events()
        priming, first = await cut.event(), await cut.event()
        assert progress(first.message) == 1
        cut.hang_up()
        stage.go.set()
        rest = await (await session.listen(first.id)).events()
        assert progress(rest[0].message) == 2
        assert rest[1].message["id"] == "cut" and texts(result_of(rest[1].message)) == ["done"]
        again = await (await session.listen(priming.id)).events()
        assert [event.id for event in again] == [first.id, *(event.id for event in rest)]
        assert await reason(await session.listen(rest[-1].id), 405) == "stream_ended"


async def test_a_stream_that_is_resumed_while_it_goes_on_leaves_its_first_connection() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        session = await client.initialize()
        first = await session.request(1, "tools/call", heard("halves"))
        await first.event()
        seen = await first.event()
        second = await session.listen(seen.id)
        assert await first.events() == []
        stage.go.set()
        rest = await second.events()
        assert [event.message.get("method") for event in rest] == ["notifications/progress", None]


async def test_a_client_that_hangs_up_before_the_first_event_frees_its_connection_when_the_call_ends() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize()
        await client.aclose()
        await client.all_closed()
        connection = await session.start(1, "tools/call", heard("wait"))
        await stage.started.wait()
        connection.close()
        stage.go.set()
        await client.all_closed()
        assert not stage.cancelled.is_set()
        assert await echoed(session)


async def test_streams_without_a_reader_leave_no_connection_behind() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize()
        posted, listening = await session.request(1, "tools/call", heard("halves")), await session.listen()
        await posted.event()
        await listening.event()
        await client.aclose()
        await client.all_closed()
        stage.go.set()
        assert await echoed(session)


async def test_a_call_may_end_its_response_early_and_sends_the_rest_when_the_client_resumes() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize()
        before = await (await session.request(1, "tools/call", heard("slip"))).events()
        assert [event.retry for event in before] == ["1000", None]
        assert progress(before[-1].message) == 1
        stage.go.set()
        after = await (await session.listen(before[-1].id)).events()
        assert progress(after[0].message) == 2
        assert texts(result_of(after[1].message)) == ["done"]


@pytest.mark.parametrize("accept", ["application/json", "text/event-stream"])
async def test_a_client_that_would_not_come_back_is_not_let_go(accept: str) -> None:
    stage = Stage()
    stage.go.set()
    async with http_client(stage.server) as client:
        version = "2025-11-25" if accept == "application/json" else "2025-06-18"
        session = await client.initialize(version)
        answer = await session.request(1, "tools/call", heard("slip"), accept=accept)
        last = await answer.json() if accept == "application/json" else (await answer.events())[-1].message
        assert texts(result_of(last)) == ["done"]


async def test_a_client_that_reads_nothing_is_cut_off_and_its_buffer_stays_bounded() -> None:
    stage = Stage()
    limits = Limits(unsent=65536, blocked_time=0.05)
    async with http_client(stage.server, limits=limits) as client, asyncio.timeout(10):
        session = await client.initialize()
        await session.start(1, "tools/call", heard("flood"))
        await stage.started.wait()
        kept = only(client)
        streams = kept._streams  # pyright: ignore[reportPrivateUsage]
        while not streams or kept.carried:  # noqa: ASYNC110 - nobody else wants to know
            await asyncio.sleep(0)
        assert kept.buffer is not None and len(kept.buffer) <= resumable_stream.MAX_REMEMBERED
        assert not stage.cancelled.is_set()
        await session.notify("notifications/cancelled", {"requestId": 1})
        await stage.cancelled.wait()


@pytest.mark.parametrize("event", ["99-1", "1", "-", "a-b", "-1-1", "1-", "²-1", "1" * 40 + "-1", ""])
async def test_an_event_that_was_never_sent_resumes_nothing(event: str) -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize()
        assert await reason(await session.listen(event), 400) == "unknown_event"


async def test_an_event_of_another_session_resumes_nothing() -> None:
    async with http_client(Stage().server) as client:
        one, other = await client.initialize(), await client.initialize()
        events = await (await one.request(1, "tools/call", heard("count", to=3))).events()
        assert (await other.listen(events[1].id)).status == 400


# ------------------------------------------------------------------------------------------------- the GET stream


@pytest.mark.parametrize("version", VERSIONS)
async def test_only_2025_11_25_gets_a_priming_event_and_a_time_to_retry(version: str) -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        session = await client.initialize(version)
        stream = await session.listen()
        assert stream.headers["content-type"] == "text/event-stream"
        assert stream.headers["x-accel-buffering"] == "no"
        if version == "2025-11-25":
            priming = await stream.event()
            assert priming.data == "" and priming.id is not None and priming.retry == "1000"
        stage.server.remove_tool("count")
        event = await stream.event()
        assert event.message["method"] == "notifications/tools/list_changed"
        assert event.retry is None and event.id is not None


async def test_get_needs_a_client_that_takes_events() -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize()
        answer = await client.open("GET", "/mcp", [*session.headers, ("Accept", "application/json")])
        assert answer.status == 406


async def subscribed(client: HttpClient, version: str = "2025-11-25") -> Session:
    """A session that hears of `note://a`."""
    session = await client.initialize(version)
    assert (await session.request("sub", "resources/subscribe", {"uri": "note://a"})).status == 200
    return session


async def updated(stage: Stage, client: HttpClient, times: int = 1) -> None:
    """Let the resource change, and wait until the session has taken note each time."""
    session = only(client)
    for _ in range(times):
        before = session.pushes._sent  # pyright: ignore[reportPrivateUsage]
        stage.server.resource_updated("note://a")
        async with asyncio.timeout(10):
            while session.pushes._sent == before:  # pyright: ignore[reportPrivateUsage] # noqa: ASYNC110
                await asyncio.sleep(0)


async def test_changes_without_a_listener_are_delivered_once() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        session = await subscribed(client)
        await updated(stage, client, 3)
        stream = await session.listen()
        assert (await stream.event()).data == ""
        assert [(await stream.message())["params"] for _ in range(3)] == [{"uri": "note://a"}] * 3
        stream.hang_up()
        again = await session.listen()
        await again.event()
        await updated(stage, client)
        ids = [event.id for event in (await again.event(),)]
        await session.delete()
        assert await again.events() == [] and len(ids) == 1


async def test_a_second_get_replaces_the_first_and_no_event_is_lost_or_sent_twice() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        session = await subscribed(client, "2025-06-18")
        first = await session.listen()
        await updated(stage, client, 2)
        second = await session.listen()
        await updated(stage, client, 2)
        before = [event.id for event in await first.events()]
        after = [(await second.event()).id for _ in range(2)]
        assert before == ["0-1", "0-2"] and after == ["0-3", "0-4"]
        assert await echoed(session)


async def test_a_get_that_was_cut_goes_on_behind_the_last_event_seen() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        session = await subscribed(client)
        stream = await session.listen()
        priming = await stream.event()
        await updated(stage, client, 3)
        seen = await stream.event()
        stream.hang_up()
        await updated(stage, client, 1)
        resumed = await session.listen(seen.id)
        assert [(await resumed.event()).id for _ in range(3)] == ["0-2", "0-3", "0-4"]
        from_start = await session.listen(priming.id)
        assert [(await from_start.event()).id for _ in range(4)] == ["0-1", "0-2", "0-3", "0-4"]
        assert await resumed.events() == []


async def test_a_silent_stream_sends_keepalive_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await subscribed(client, "2025-06-18")
        monkeypatch.setattr(http_response, "KEEP_ALIVE", 0.001)
        stream = await session.listen()
        while not stream.comments:
            stage.server.resource_updated("note://a")
            assert (await stream.message())["method"] == "notifications/resources/updated"


async def test_about_to_stop_ends_listening_and_nothing_else() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        session = await client.initialize()
        listening, calling = await session.listen(), await session.request(1, "tools/call", heard("halves"))
        assert (await listening.event()).data == ""
        client.endpoint.stop_taking()
        assert await listening.events() == []
        stage.go.set()
        assert texts(result_of((await events_of(calling))[-1])) == ["done"]


# ------------------------------------------------------------------------------------------------------ questions


async def question_of(answer: Answer) -> Json:
    """The question that comes on the stream of a call."""
    event = await answer.event()
    question = (event if event.data else await answer.event()).message
    assert question["method"] == "elicitation/create"
    return question


@pytest.mark.parametrize("version", ["2025-06-18", "2025-11-25"])
async def test_a_question_comes_on_the_stream_of_its_call_and_the_answer_by_a_post(version: str) -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize(version, elicitation={})
        listening = await session.listen()
        answer = await session.request(1, "tools/call", call("greet"))
        question = await question_of(answer)
        posted = await session.respond(question["id"], ADA)
        assert (posted.status, await posted.body()) == (202, b"")
        assert texts(result_of(await answer.message())) == ["accept Ada"]
        await session.delete()
        assert all(event.data == "" for event in await listening.events())


async def test_a_question_is_answered_by_its_own_session_only() -> None:
    async with http_client(Stage().server) as client:
        session, other = await client.initialize(elicitation={}), await client.initialize(elicitation={})
        answer = await session.request(1, "tools/call", call("greet"))
        question = await question_of(answer)
        eve: Json = {"action": "accept", "content": {"name": "Eve"}}
        assert (await other.respond(question["id"], eve)).status == 202
        assert (await session.respond(str(question["id"]) + "x", eve)).status == 202
        await session.respond(question["id"], ADA)
        assert texts(result_of(await answer.message())) == ["accept Ada"]


async def test_a_question_survives_a_cut_connection() -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize(elicitation={})
        answer = await session.request(1, "tools/call", call("greet"))
        priming = await answer.event()
        answer.hang_up()
        resumed = await session.listen(priming.id)
        question = await question_of(resumed)
        await session.respond(question["id"], ADA)
        assert texts(result_of(await resumed.message())) == ["accept Ada"]


async def test_a_cancelled_call_takes_its_question_back_on_the_get_stream() -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize("2025-06-18", elicitation={})
        listening = await session.listen()
        answer = await session.request(1, "tools/call", call("greet"))
        question = await question_of(answer)
        await session.notify("notifications/cancelled", {"requestId": 1})
        assert await answer.events() == []
        withdrawal = await listening.message()
        assert withdrawal["method"] == "notifications/cancelled"
        assert cast(Json, withdrawal["params"])["requestId"] == question["id"]


async def test_a_question_without_an_answer_in_time_is_withdrawn_and_the_call_ends() -> None:
    stage = Stage()
    async with http_client(stage.server, hold=0.01) as client, asyncio.timeout(10):
        session = await client.initialize(elicitation={})
        answer = await session.request(1, "tools/call", call("greet"))
        *_, withdrawal, last = await events_of(answer)
        assert withdrawal["method"] == "notifications/cancelled"
        assert last["id"] == 1
        assert stage.gave_up.is_set()


# --------------------------------------------------------------------------------------------------------- limits


async def test_an_idle_session_expires_and_one_in_use_does_not() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        idle, listening, calling = [await client.initialize() for _ in range(3)]
        stream = await listening.listen()
        await stream.event()
        async with asyncio.TaskGroup() as group:
            waiting = group.create_task(calling.request(1, "tools/call", call("wait")))
            await stage.started.wait()
            now = asyncio.get_running_loop().time()
            live(client).expire(now + HttpLimits().session_idle - 1)
            assert len(live(client)._sessions) == 3  # pyright: ignore[reportPrivateUsage]
            live(client).expire(now + HttpLimits().session_idle + 1)
            assert await reason(await idle.request(1, "ping"), 404) == "unknown_session"
            assert await echoed(listening)
            stage.go.set()
        assert texts(result_of(await waiting.result().json())) == ["waited"]


async def test_no_session_lives_longer_than_a_day_whatever_it_does() -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize()
        stream = await session.listen()
        live(client).expire(asyncio.get_running_loop().time() + HttpLimits().session_lifetime + 1)
        assert len(await stream.events()) == 1
        assert (await session.request(1, "ping")).status == 404


async def test_idle_time_begins_when_the_last_stream_is_cut() -> None:
    async with http_client(Stage().server) as client, asyncio.timeout(10):
        session = await client.initialize()
        stream = await session.listen()
        await stream.event()
        only(client).last_used -= HttpLimits().session_idle
        await client.aclose()
        await client.all_closed()
        live(client).expire(asyncio.get_running_loop().time() + 1)
        assert await echoed(session)


async def test_too_many_sessions_make_the_one_give_way_that_was_idle_longest() -> None:
    stage = Stage()
    async with http_client(stage.server, places=HttpLimits(sessions=2)) as client:
        first, second = await client.initialize(), await client.initialize()
        assert await echoed(first)
        third = await client.initialize()
        assert (await second.request(1, "ping")).status == 404
        streams = [await each.listen() for each in (first, third)]
        assert [(await stream.event()).data for stream in streams] == ["", ""]
        full = await client.post(initialize())
        assert full.status == 503 and full.headers["retry-after"] == "1"
        assert await echoed(first) and await echoed(third)


async def test_of_the_local_user_s_idle_sessions_only_the_last_ones_are_kept() -> None:
    """T4: for this caller the limit of one caller does not hold, and many clients never end their sessions."""
    places = HttpLimits(sessions_idle=3)
    async with http_client(Stage().server, places=places, identify=caller_by_address) as client:
        first = await client.initialize()
        stream = await first.listen()
        assert (await stream.event()).data == ""
        others = [await client.initialize() for _ in range(5)]
        assert [(await each.request(1, "ping")).status for each in others] == [404, 404, 200, 200, 200]
        assert await echoed(first)  # A session whose stream is read is in use.


async def test_sessions_that_take_much_memory_make_those_give_way_that_were_idle_longest() -> None:
    """T4: each takes 8 KiB, and thirty times what its client says about itself."""
    async with http_client(Stage().server, places=HttpLimits(session_bytes=950_000)) as client:
        small = [await client.initialize() for _ in range(3)]
        assert await echoed(small[0])
        large = await client.initialize(experimental={"x": "x" * 15_000})
        await client.initialize(experimental={"x": "x" * 15_000})
        assert [(await each.request(1, "ping")).status for each in (small[1], small[2])] == [404, 404]
        stream = await large.listen()
        assert (await stream.event()).data == ""
        assert await echoed(await client.initialize(experimental={"x": "x" * 15_000}))
        assert (await small[0].request(1, "ping")).status == 404  # All that were idle.
        assert await echoed(large)
        stream.hang_up()


async def test_sessions_that_are_opened_faster_than_there_is_room_are_all_answered() -> None:
    async with http_client(Stage().server, places=HttpLimits(sessions=2)) as client, asyncio.timeout(10):
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(client.post(initialize())) for _ in range(50)]
        assert {task.result().status for task in tasks} <= {200, 404, 503}
        assert len(live(client)._sessions) <= 2  # pyright: ignore[reportPrivateUsage]


async def test_too_many_calls_of_one_session_are_refused_and_the_others_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.protocol.server_connection.MAX_IN_PROGRESS", 2)
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        session = await client.initialize()
        streams = [await session.request(id, "tools/call", heard("halves")) for id in (1, 2)]
        await refused(await session.request(3, "tools/call", call("echo", text="x")), 503, 1004)
        stage.go.set()
        for stream in streams:
            assert texts(result_of((await events_of(stream))[-1])) == ["done"]
        assert await echoed(session)


def test_the_journal_forgets_the_oldest_by_number_and_by_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resumable_stream, "MAX_REMEMBERED", 3)
    monkeypatch.setattr(resumable_stream, "MAX_REMEMBERED_BYTES", 10)
    forgotten: list[int] = []
    memory = ReplayMemory(1 << 20)
    kept = ReplayBuffer(memory, forgotten.append)
    for stream, place, message in ((1, 1, b"a"), (2, 1, b"b"), (2, 2, b"c")):
        kept.add(stream, place, message)
    assert forgotten == []
    kept.add(2, 3, b"d")
    assert forgotten == [1]
    assert kept.of(1, 0) == [] and kept.of(2, 1) == [(2, b"c"), (3, b"d")]
    kept.add(3, 1, b"x" * 100)
    assert forgotten == [1, 2]
    assert kept.of(3, 0) == [(1, b"x" * 100)], "the newest is always remembered"
    kept.add(3, 2, b"y")
    assert forgotten == [1, 2]
    assert kept.of(3, 0) == [(2, b"y")] and len(kept) == 1
    kept.clear()
    assert forgotten == [1, 2, 3] and not len(kept) and memory.size == 0


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 4), st.integers(0, 800)), max_size=60),
    st.integers(0, 5000),
)
def test_journals_that_share_a_memory_forget_before_it_is_full(events: list[tuple[int, int, int]], most: int) -> None:
    memory = ReplayMemory(most)
    forgotten: list[tuple[int, int]] = []

    def noting(owner: int) -> Callable[[int], None]:
        return lambda stream: forgotten.append((owner, stream))

    kept = [ReplayBuffer(memory, noting(owner)) for owner in range(4)]
    for place, (owner, stream, size) in enumerate(events, 1):
        forgotten.clear()
        kept[owner].add(stream, place, b"x" * size)
        assert kept[owner].of(stream, place - 1) == [(place, b"x" * size)], "what was said last is remembered"
        assert memory.size <= most or sum(map(len, kept)) == 1
        assert all(stream not in kept[owner] for owner, stream in forgotten)
    for each in kept:
        each.clear()
    assert memory.size == 0


async def test_the_session_that_sent_nothing_for_longest_loses_its_events_first() -> None:
    async with http_client(Stage().server, places=HttpLimits(remembered=8000)) as client, asyncio.timeout(10):
        old, new = await client.initialize(), await client.initialize()
        first = await (await old.request(1, "tools/call", heard("count", to=5))).events()
        again = await (await old.listen(first[0].id)).events()
        assert [event.data for event in again] == [event.data for event in first[1:]]
        calls = [await (await new.request(id, "tools/call", heard("count", to=5))).events() for id in range(20)]
        assert await reason(await old.listen(first[0].id), 400) == "unknown_event"
        assert len(await (await new.listen(calls[-1][0].id)).events()) == 6
        memory = live(client)._memory  # pyright: ignore[reportPrivateUsage]
        assert 0 < memory.size <= 8000
        assert await echoed(old) and (await old.delete()).status == (await new.delete()).status == 204
        assert memory.size == 0


async def test_a_stream_that_is_over_and_forgotten_cannot_be_resumed_and_takes_no_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(resumable_stream, "MAX_REMEMBERED", 10)
    async with http_client(Stage().server) as client:
        session = await client.initialize()
        old = await (await session.request(1, "tools/call", heard("count", to=5))).events()
        for id in range(50):
            await (await session.request(f"more {id}", "tools/call", heard("count", to=5))).events()
        assert await reason(await session.listen(old[1].id), 400) == "unknown_event"
        kept = only(client)
        assert kept.buffer is not None and len(kept.buffer) == 10
        assert len(kept._streams) <= 4  # pyright: ignore[reportPrivateUsage]


async def test_a_session_that_ends_while_it_is_opened_affects_no_other() -> None:
    entered, go = asyncio.Event(), asyncio.Event()

    async def handler(exchange: Exchange) -> Reply:
        entered.set()
        await go.wait()
        return await Stage().server(exchange)

    async with http_client(handler) as client, asyncio.timeout(10):
        async with asyncio.TaskGroup() as group:
            opening = group.create_task(client.post(initialize()))
            await entered.wait()
            go.set()
            live(client).close()
        assert (await refused(opening.result(), 503, 1031))["id"] == "init"
        assert (await client.open("GET", "/healthz")).status == 200
