"""Native methods by POST: one JSON body, or the same notifications as on a socket with the response last."""

import asyncio
from typing import cast

import pytest

from tests.downstream.http_client import Answer, HttpClient, http_client, request
from tests.downstream.native.native_stage import Json, Stage
from tests.downstream.native.test_peer import START, STREAMS

AT_ONCE = ("act.mass", "act.facts", "act.raises")
"""Those that send nothing before their result."""


async def post(client: HttpClient, method: str, params: object = None, **options: str) -> Answer:
    return await client.post(request(7, method, cast(Json, params)), **options)  # type: ignore[arg-type]


async def events(answer: Answer, method: str) -> tuple[list[Json], Json]:
    """The events of a stream, and the response that ends it."""
    *messages, last = [event.message for event in await answer.events()]
    assert all(message["method"] == method for message in messages)
    return [cast(Json, message["params"])["result"] for message in messages], last


@pytest.mark.parametrize("method", STREAMS)
async def test_early_events_make_a_stream_and_other_results_are_one_body(method: str) -> None:
    async with http_client(Stage().server) as client:
        whole = await (await post(client, method, accept="application/json")).json()
        answer = await post(client, method)
        assert answer.status == 200
        if method in AT_ONCE:
            assert await answer.json() == whole
        else:
            found, last = await events(answer, method)
            assert found == [START, *STREAMS[method]]
            result, buffered = cast(Json, last["result"]), cast(Json, whole["result"])
            result.pop("_meta", None)
            buffered.pop("_meta", None)
            assert (last["id"], result) == (7, buffered)


@pytest.mark.parametrize("method", AT_ONCE)
async def test_a_client_that_accepts_events_only_gets_all_of_them(method: str) -> None:
    async with http_client(Stage().server) as client:
        found, last = await events(await post(client, method, accept="text/event-stream"), method)
        assert found == [START, *STREAMS[method]]
        assert "result" in last


async def test_a_schema_and_its_hash_are_plain_results() -> None:
    async with http_client(Stage().server) as client:
        schema = cast(Json, (await (await post(client, "act.schema")).json())["result"])
        assert (await (await post(client, "act.hash")).json())["result"] == schema["hash"]


@pytest.mark.parametrize(
    ("method", "params", "status", "code"),
    [
        ("act.nope", None, 404, -32601),
        ("nope", None, 404, -32601),
        ("act.mass", {"factor": "x"}, 400, -32602),
        ("act.mass", [1, 2], 400, -32602),
        ("unsubscribe", [1], 404, -32601),
        ("respond", {"id": 1}, 404, -32601),
    ],
)
async def test_errors_have_a_status(method: str, params: object, status: int, code: int) -> None:
    async with http_client(Stage().server) as client:
        answer = await post(client, method, params)
        message = await answer.json()
        assert (answer.status, cast(Json, message["error"])["code"], message["id"]) == (status, code, 7)


async def test_a_client_that_hangs_up_closes_the_generator() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        answer = await post(client, "act.count", {"to": 1 << 40})
        await answer.message()
        answer.hang_up()
        async with asyncio.timeout(10):
            await stage.closed.wait()


async def test_a_client_by_post_cannot_be_asked() -> None:
    async with http_client(Stage().server) as client:
        message = await (await post(client, "act.greet")).json()
        assert "error" in message or cast(Json, message["result"])["isError"] is True


async def test_methods_of_mcp_are_answered_as_before() -> None:
    async with http_client(Stage().server) as client:
        assert (await (await client.modern("tools/list")).json())["result"]
        session = await client.initialize()
        assert "error" in await (await session.request(1, "act.facts")).json()
        assert (await client.post(request(1, "tools/list"))).status == 400


async def test_ten_thousand_events_arrive_in_order() -> None:
    async with http_client(Stage().server) as client:
        found, _ = await events(await post(client, "act.count", {"to": 10_000}), "act.count")
        assert [each["data"] for each in found[1:-1]] == list(range(1, 10_001))


@pytest.mark.parametrize("headers", [[("Origin", "https://evil.example")], [("Host", "evil.example")]])
async def test_foreign_pages_may_not_call(headers: list[tuple[str, str]]) -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        answer = await client.post(request(1, "act.count", {"to": 1}), headers)
        assert answer.status in (403, 421)
        assert not stage.started.is_set()
