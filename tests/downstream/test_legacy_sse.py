"""HTTP+SSE of 2024-11-05: a stream that says where to post, and all answers on it."""

import asyncio
import json
from typing import cast

import pytest

import sluicegate
from sluicegate.downstream import http_response
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.downstream.http_guard import HttpLimits
from sluicegate.http1 import serve
from tests.downstream.http_client import (
    Answer,
    Headers,
    HttpClient,
    http_client,
    initialize,
    notification,
    request,
    response,
)
from tests.downstream.http_stage import Stage, call, heard, progress, texts
from tests.downstream.raw_client import Json, error_of, result_of

ADA: Json = {"action": "accept", "content": {"name": "Ada"}}


class Channel:
    """An open stream and the place to post to."""

    def __init__(self, client: HttpClient, stream: Answer, endpoint: str, headers: Headers = ()) -> None:
        self.client = client
        self.stream = stream
        self.endpoint = endpoint
        self.headers = headers

    async def post(self, message: object) -> None:
        answer = await self.client.post(message, self.headers, path=self.endpoint)
        assert answer.status == 202

    async def request(self, id: object, method: str, params: Json | None = None) -> Json:
        await self.post(request(id, method, params))
        return await self.next()

    async def next(self) -> Json:
        event = await self.stream.event()
        assert event.event == "message" and event.id is None and event.retry is None
        return event.message

    async def initialize(self, version: str = "2024-11-05", **capabilities: object) -> Json:
        await self.post(initialize(version, **capabilities))
        welcome = result_of(await self.next())
        await self.post(notification("notifications/initialized"))
        return welcome


async def connect(client: HttpClient, headers: Headers = ()) -> Channel:
    stream = await client.open("GET", "/sse", [("Accept", "text/event-stream"), *headers])
    assert stream.status == 200
    event = await stream.event()
    assert event.event == "endpoint"
    return Channel(client, stream, event.data, headers)


async def test_the_first_event_has_a_relative_url_that_cannot_be_guessed() -> None:
    async with http_client(Stage().server) as client:
        first, second = await connect(client), await connect(client)
        assert first.endpoint.startswith("/messages?session_id=") and first.endpoint != second.endpoint
        assert len(first.endpoint.partition("=")[2]) * 6 >= 128
        assert first.stream.headers["x-accel-buffering"] == "no"
        assert first.stream.headers["cache-control"] == "no-cache, no-transform"


async def test_a_posted_message_is_accepted_and_answered_on_the_stream() -> None:
    async with http_client(Stage().server) as client:
        channel = await connect(client)
        assert (await channel.initialize())["protocolVersion"] == "2024-11-05"
        answer = await channel.request(1, "tools/call", call("echo", text="x"))
        assert answer["id"] == 1 and texts(result_of(answer)) == ["x"]


async def test_progress_comes_in_order_before_the_answer() -> None:
    async with http_client(Stage().server) as client:
        channel = await connect(client)
        await channel.initialize()
        await channel.post(request(1, "tools/call", heard("count", to=1000)))
        assert [progress(await channel.next()) for _ in range(1000)] == list(range(1, 1001))
        assert texts(result_of(await channel.next())) == ["done"]


async def test_a_client_is_asked_on_the_stream_and_answers_by_a_post() -> None:
    async with http_client(Stage().server) as client:
        channel = await connect(client)
        await channel.initialize("2025-06-18", elicitation={})
        question = await channel.request(1, "tools/call", call("greet"))
        assert question["method"] == "elicitation/create"
        await channel.post(response(question["id"], ADA))
        assert texts(result_of(await channel.next())) == ["accept Ada"]


async def test_changes_are_sent_on_the_stream() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        channel = await connect(client)
        await channel.initialize()
        assert result_of(await channel.request(1, "ping")) == {}
        stage.server.remove_tool("count")
        assert (await channel.next())["method"] == "notifications/tools/list_changed"


async def test_a_cancelled_call_is_answered_by_nothing() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        channel = await connect(client)
        await channel.initialize()
        await channel.post(request(1, "tools/call", call("wait")))
        await stage.started.wait()
        await channel.post(notification("notifications/cancelled", {"requestId": 1}))
        await stage.cancelled.wait()
        assert (await channel.request(2, "ping"))["id"] == 2


async def test_a_pretty_printed_body_is_one_message_and_a_broken_one_is_answered_on_the_stream() -> None:
    async with http_client(Stage().server) as client:
        channel = await connect(client)
        await channel.initialize()
        await channel.post(json.dumps(request(1, "ping"), indent=2).encode())
        assert (await channel.next())["id"] == 1
        for body in (b"{", b"nonsense\n" + json.dumps(request(2, "ping")).encode()):
            await channel.post(body)
            assert error_of(await channel.next())["code"] == -32700
        assert (await channel.request(3, "ping"))["id"] == 3


@pytest.mark.parametrize(
    "query", ["", "?session_id=", "?session_id=made-up", "?sessionId={}", "?session_id={0}&session_id={0}", "?x={}"]
)
async def test_an_unknown_token_is_not_found(query: str) -> None:
    async with http_client(Stage().server) as client:
        channel = await connect(client)
        token = channel.endpoint.partition("=")[2]
        answer = await client.post(request(1, "ping"), path="/messages" + query.format(token))
        assert answer.status == 404
        assert cast(Json, error_of(await answer.json())["data"])["reason"] == "unknown_session"


async def test_the_token_of_another_caller_looks_unknown() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        mine = await connect(client, [("Authorization", "mine")])
        await mine.initialize()
        message = request(1, "tools/call", call("echo", text="stolen"))
        foreign = await client.post(message, [("Authorization", "theirs")], path=mine.endpoint)
        unknown = await client.post(message, path="/messages?session_id=made-up")
        assert foreign.status == unknown.status == 404
        assert await foreign.body() == await unknown.body()
        assert stage.ran == []
        assert (await mine.request(1, "ping"))["id"] == 1


async def test_closing_the_stream_ends_the_session_and_its_requests() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        channel, other = await connect(client), await connect(client)
        await channel.initialize()
        await other.initialize()
        await channel.post(request(1, "tools/call", call("wait")))
        await stage.started.wait()
        channel.stream.hang_up()
        await stage.cancelled.wait()
        await gone(client, channels=1)
        assert (await client.post(request(1, "ping"), path=channel.endpoint)).status == 404
        assert (await other.request(1, "ping"))["id"] == 1


async def test_a_stream_that_is_closed_before_the_first_event_leaves_nothing_behind() -> None:
    async with http_client(Stage().server) as client:
        for _ in range(10):
            channel = await connect(client)
            channel.stream.hang_up()
        await gone(client, channels=0)
        await client.all_closed()


async def gone(client: HttpClient, *, channels: int) -> None:
    """Wait until only so many channels are left."""
    open_ones = client.endpoint._channels._channels  # pyright: ignore[reportPrivateUsage]
    async with asyncio.timeout(10):
        while len(open_ones) != channels:  # noqa: ASYNC110 - nobody else wants to know, so there is no event
            await asyncio.sleep(0)


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_message_without_the_json_content_type_is_refused(content_type: str) -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        channel = await connect(client)
        await channel.initialize()
        body = json.dumps(request(1, "tools/call", call("echo", text="x"))).encode()
        answer = await client.open("POST", channel.endpoint, [("Content-Type", content_type)], body)
        assert answer.status == 415
        assert (await channel.request(2, "ping"))["id"] == 2
        assert stage.ran == []


async def test_the_stream_needs_a_client_that_takes_events() -> None:
    async with http_client(Stage().server) as client:
        assert (await client.open("GET", "/sse", [("Accept", "application/json")])).status == 406
        assert (await client.open("GET", "/sse")).status == 200


@pytest.mark.parametrize(("method", "path", "allowed"), [("POST", "/sse", "GET"), ("GET", "/messages", "POST")])
async def test_each_place_has_one_method(method: str, path: str, allowed: str) -> None:
    async with http_client(Stage().server) as client:
        answer = await client.open(method, path)
        assert (answer.status, answer.headers["allow"]) == (405, allowed)


async def test_too_many_streams_are_refused_and_the_others_go_on() -> None:
    async with http_client(Stage().server, places=HttpLimits(streams=1)) as client:
        channel = await connect(client)
        full = await client.open("GET", "/sse", [("Accept", "text/event-stream")])
        assert full.status == 503 and full.headers["retry-after"] == "1"
        await channel.initialize()


@pytest.mark.parametrize("break_", ["\n", "\r", "\r\n"])
async def test_a_string_with_a_bare_line_break_is_no_json_and_nothing_runs(break_: str) -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        channel = await connect(client)
        await channel.initialize()
        body = json.dumps(request(1, "tools/call", call("echo", text="a|b"))).replace("|", break_)
        await channel.post(body.encode())
        assert error_of(await channel.next())["code"] == -32700
        # Between members it is as good as a blank.
        await channel.post(json.dumps(request(2, "tools/call", call("echo", text="c")), indent=1).encode())
        assert texts(result_of(await channel.next())) == ["c"]
        assert stage.ran == ["c"]


async def test_a_silent_stream_sends_keepalive_comments(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_response, "KEEP_ALIVE", 0.001)
    async with http_client(Stage().server) as client, asyncio.timeout(10):
        channel = await connect(client)
        await channel.initialize()
        while not channel.stream.comments:
            await channel.request("fence", "ping")


async def test_about_to_stop_ends_idle_streams_and_lets_calls_finish() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        idle, busy = await connect(client), await connect(client)
        await busy.initialize()
        await busy.post(request(1, "tools/call", call("wait")))
        await stage.started.wait()
        client.endpoint.stop_taking()
        assert await idle.stream.events() == []
        stage.go.set()
        assert texts(result_of(await busy.next())) == ["waited"]


async def test_stopping_answers_the_calls_that_it_cancels() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, asyncio.timeout(10):
        channel = await connect(client)
        await channel.initialize()
        await channel.post(request("a", "tools/call", call("wait")))
        await stage.started.wait()
        client.endpoint.stop_taking()
        client.endpoint.give_up()
        (last,) = await channel.stream.events()
        assert last.message["id"] == "a" and error_of(last.message)["code"] == 1031
        await stage.cancelled.wait()


async def test_the_end_of_the_endpoint_ends_the_stream() -> None:
    endpoint = HttpEndpoint(Stage().server)
    async with serve(endpoint) as listener:
        client = HttpClient(endpoint, listener)
        async with endpoint:
            channel = await connect(client)
        assert await channel.stream.events() == []
        await client.aclose()


async def test_where_the_oldest_transport_is_switched_off_there_is_nothing() -> None:
    async with http_client(Stage().server, sse=False) as client:
        assert (await client.open("GET", "/sse", [("Accept", "text/event-stream")])).status == 404
        assert (await client.post(initialize("2024-11-05"), path="/messages?session_id=x")).status == 404


async def test_messages_of_a_client_that_does_not_read_its_stream_are_refused() -> None:
    """R24."""
    server = sluicegate.Server("large")

    @server.tool
    def large() -> str:
        return "x" * 1_000_000

    async with http_client(server) as client:
        channel = await connect(client)
        await channel.initialize()
        sent = 0
        while True:
            answer = await client.post(request(sent, "tools/call", call("large")), path=channel.endpoint)
            if answer.status != 202:
                break
            sent += 1
            assert sent < 100
        assert answer.status == 503 and "retry-after" in answer.headers
        assert cast(Json, error_of(await answer.json())["data"])["reason"] == "overloaded"
        # In any order: the tool runs in threads.
        assert {(await channel.next())["id"] for _ in range(sent)} == set(range(sent))
        assert (await channel.request("again", "ping"))["result"] == {}
