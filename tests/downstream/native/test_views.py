"""One table: the same tools in every view, transport and era, here and behind other gateways, give the same events."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

import sluicegate
from sluicegate.exchange import Handler
from sluicegate.hub.hub import Hub
from sluicegate.protocol.message import Notification, Result
from sluicegate.protocol.native import event_of, events_of
from tests.downstream.http_client import http_client
from tests.downstream.native import test_peer, test_post, test_websocket
from tests.downstream.native.native_stage import Json, Stage
from tests.downstream.native.test_peer import START, STREAMS
from tests.downstream.raw_client import modern, raw_client

# ------------------------------------------------------------------------------------------------ where the tools are


@asynccontextmanager
async def here() -> AsyncGenerator[tuple[Handler, str]]:
    yield Stage().server, "act."


@asynccontextmanager
async def in_a_hub() -> AsyncGenerator[tuple[Handler, str]]:
    async with Hub() as hub:
        await hub.mount("act", Stage().server).wait_until_ready()
        yield hub, "act."


@asynccontextmanager
async def far_away(era: sluicegate.Era) -> AsyncGenerator[tuple[Handler, str]]:
    async with http_client(Stage().server) as client, Hub() as hub:
        await hub.mount("far", sluicegate.http(f"http://{client.host}/mcp", era=era)).wait_until_ready()
        yield hub, "far.act."


PLACES = {
    "here": here,
    "in a hub": in_a_hub,
    "behind 2026-07-28": lambda: far_away("modern"),
    "behind a session": lambda: far_away("session"),
}

# ------------------------------------------------------------------------------------------------------- native views


async def by_channel(handler: Handler, method: str) -> list[Json]:
    async with test_peer.native_client(handler) as client:
        return await test_peer.events(client, method)


async def by_socket(handler: Handler, method: str) -> list[Json]:
    async with http_client(handler) as client, test_websocket.socket_to(client) as socket:
        return await test_websocket.events(socket, method)


async def by_post(handler: Handler, method: str) -> list[Json]:
    async with http_client(handler) as client:
        answer = await test_post.post(client, method, accept="text/event-stream")
        return (await test_post.events(answer, method))[0]


# ---------------------------------------------------------------------------------------------------------- MCP views

LEVEL: Any = {"io.modelcontextprotocol/logLevel": "debug"}


def as_events(messages: list[Json]) -> list[Json]:
    *notifications, response = messages
    found = [event_of(Notification(cast(str, each["method"]), cast(Json, each["params"]))) for each in notifications]
    last = events_of(Result(cast(Json, response["result"])))
    return [START, *(event for event in found if event is not None), *last]


def exposed(method: str) -> str:
    """The MCP name of a native one."""
    return method if method.count(".") == 1 else method.replace(".", "__", 1)


async def on_a_pipe_in_a_session(handler: Handler, method: str) -> list[Json]:
    async with raw_client(handler) as client:
        await client.initialize()
        await client.request(1, "logging/setLevel", {"level": "debug"})
        params: Json = {"name": exposed(method), "arguments": {}, "_meta": {"progressToken": 1}}
        messages = [await client.request(2, "tools/call", params)]
        while "id" not in messages[-1]:
            messages.append(await client.next())
        return as_events(messages)


async def on_a_pipe(handler: Handler, method: str) -> list[Json]:
    async with raw_client(handler) as client:
        params = modern({"name": exposed(method), "arguments": {}}, progressToken=1, **LEVEL)
        messages = [await client.request(2, "tools/call", params)]
        while "id" not in messages[-1]:
            messages.append(await client.next())
        return as_events(messages)


async def over_http(handler: Handler, method: str) -> list[Json]:
    async with http_client(handler) as client:
        params = modern({"name": exposed(method), "arguments": {}}, progressToken=1, **LEVEL)
        answer = await client.modern("tools/call", params, accept="text/event-stream")
        return as_events([event.message for event in await answer.events()])


async def over_http_in_a_session(handler: Handler, method: str) -> list[Json]:
    async with http_client(handler) as client:
        session = await client.initialize()
        await (await session.request(1, "logging/setLevel", {"level": "debug"})).json()
        params: Json = {"name": exposed(method), "arguments": {}, "_meta": {"progressToken": 1}}
        answer = await session.request(2, "tools/call", params, accept="text/event-stream")
        # A stream of a session begins with an event that has no message.
        return as_events([json.loads(event.data) for event in await answer.events() if event.data])


View = Callable[[Handler, str], Awaitable[list[Json]]]
VIEWS: list[View] = [
    by_channel,
    by_socket,
    by_post,
    on_a_pipe,
    on_a_pipe_in_a_session,
    over_http,
    over_http_in_a_session,
]


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("view", VIEWS)
async def test_a_tool_has_the_same_events_in_every_view(view: View, place: str) -> None:
    async with PLACES[place]() as (handler, prefix):
        for method, expected in STREAMS.items():
            name = prefix + method.removeprefix("act.")
            assert await view(handler, name) == [START, *expected], (method, name)


# ----------------------------------------------------------------------------------------------------------- one fold


Folded = tuple[str, list[object], object, bool]


def fold(events: list[Json]) -> Folded:
    """What a client of native events has in the end."""
    text, others = "", list[object]()
    structured: object = None
    is_error = False
    for event in events:
        match event:
            case {"type": "start" | "progress" | "log"}:
                pass
            case {"type": "content", "text": piece}:
                text += cast(str, piece)
            case {"type": "data", "data": value}:
                others.append(value)
            case {"type": "tool_use", "tool_name": name, "input": value}:
                others.append(f"[Tool: {name}] {msgspec.json.encode(value).decode()}")
            case {"type": "error", "message": message}:
                text, is_error = text + cast(str, message), True
            case {"type": "complete", **members}:
                structured = members or None
            case _:
                values = [value for name, value in event.items() if name != "type"]
                is_text = len(values) == 1 and isinstance(values[0], str)
                text += str(values[0]) if is_text else f"\n{msgspec.json.encode(event).decode()}"
    if not text and not others and structured is not None:
        others.append(structured)
    return text, others, structured, is_error


def folded(result: Json) -> Folded:
    """The same of a buffered result."""
    text, others = "", list[object]()
    for block in cast(list[Json], result["content"]):
        piece = cast(str, block["text"])
        if piece.startswith(("{", "[")):
            others.append(piece if piece.startswith("[Tool: ") else json.loads(piece))
        else:
            text += piece
    return text, others, result.get("structuredContent"), result.get("isError") is True


@pytest.mark.parametrize("place", PLACES)
async def test_the_fold_of_native_events_is_the_buffered_result(place: str) -> None:
    async with PLACES[place]() as (handler, prefix), http_client(handler) as client:
        session = await client.initialize()
        for method in STREAMS:
            name = prefix + method.removeprefix("act.")
            expected = fold(await by_channel(handler, name))
            params: Json = {"name": exposed(name), "arguments": {}}
            answers = (
                await client.modern("tools/call", params, accept="application/json"),
                await session.request(2, "tools/call", params, accept="application/json"),
                await test_post.post(client, name, accept="application/json"),
            )
            for answer in answers:
                assert folded(cast(Json, (await answer.json())["result"])) == expected, name


# ------------------------------------------------------------------------------------------- progress without a token


@pytest.mark.parametrize("place", PLACES)
async def test_a_session_that_accepts_events_gets_the_progress_of_streams_with_a_token_of_ours(place: str) -> None:
    async with PLACES[place]() as (handler, prefix), http_client(handler) as client:
        session = await client.initialize()
        params: Json = {"name": exposed(f"{prefix}own"), "arguments": {}}
        tokens: set[object] = set()
        for _ in range(2):
            answer = await session.request(2, "tools/call", params)
            *progress, response = [json.loads(event.data) for event in await answer.events() if event.data]
            assert [each["params"]["progress"] for each in progress] == [1, 2]
            assert [each["params"]["message"] for each in progress] == ["mars", '{"type":"pair","a":1,"b":2}']
            assert response["result"]["content"][0]["text"] == 'mars\n{"type":"pair","a":1,"b":2}'
            tokens |= {each["params"]["progressToken"] for each in progress}
        assert len(tokens) == 2 and all(isinstance(token, str) for token in tokens), "one for each call"
        # Clients that accept JSON only get one result, as do those of 2026-07-28 that did not ask.
        await (await session.request(3, "tools/call", params, accept="application/json")).json()
        await (await client.modern("tools/call", params)).json()
        # So do calls of tools that send nothing early.
        await (await session.request(4, "tools/call", {**params, "name": exposed(f"{prefix}mass")})).json()
