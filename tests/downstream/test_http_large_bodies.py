"""Large bodies are checked and parsed in many turns of the loop, and other clients are answered meanwhile (T4)."""

import asyncio
from typing import cast

import pytest

from sluicegate.downstream import http
from sluicegate.downstream.http_guard import LARGE_BODY
from sluicegate.protocol import server_connection
from sluicegate.protocol.json_limits import Steps
from sluicegate.protocol.parse_request import parse_in_steps
from tests.downstream.http_client import HttpClient, http_client, notification, request
from tests.downstream.http_stage import Stage, call, texts
from tests.downstream.raw_client import Json, error_of, result_of
from tests.downstream.test_legacy_sse import connect

LONG = "x" * 2 * LARGE_BODY


class Pace:
    """Holds up the checks of large bodies until it is told to go on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun = asyncio.Event()
        self.go = False
        for module in (http, server_connection):
            monkeypatch.setattr(module, "parse_in_steps", self._parse)

    def _parse(self, data: bytes, *limits: object) -> Steps[object]:
        if len(data) > LARGE_BODY:
            self.begun.set()
            while not self.go:
                yield
        return (yield from parse_in_steps(data))


async def echoed(client: HttpClient, text: str) -> object:
    answer = await client.modern("tools/call", call("echo", text=text))
    return texts(result_of(await answer.json()))[0]


async def test_other_clients_are_answered_while_a_large_body_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace(monkeypatch)
    async with http_client(Stage().server) as client, asyncio.timeout(20), asyncio.TaskGroup() as group:
        large = [group.create_task(echoed(client, f"{n}{LONG}")) for n in range(3)]
        await pace.begun.wait()
        for n in range(10):
            assert await echoed(client, str(n)) == str(n)
        assert not any(task.done() for task in large)
        pace.go = True
        assert await asyncio.gather(*large) == [f"{n}{LONG}" for n in range(3)]


async def test_a_large_body_of_a_session_is_taken_and_a_hostile_one_is_refused() -> None:
    async with http_client(Stage().server) as client:
        session = await client.initialize()
        answer = await session.request(1, "tools/call", call("echo", text=LONG))
        assert texts(result_of(await answer.json())) == [LONG]
        for body, code in ((b"[" * 4_000_000, -32600), (b'{"jsonrpc":"2.0","id":7,"x":"' + LONG.encode(), -32700)):
            refused = await client.post(body)
            assert refused.status == 400 and error_of(await refused.json())["code"] == code


async def test_a_large_body_that_is_being_checked_gets_503_when_we_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace(monkeypatch)
    async with http_client(Stage().server) as client, asyncio.timeout(20), asyncio.TaskGroup() as group:
        large = group.create_task(client.modern("tools/call", call("echo", text=LONG)))
        await pace.begun.wait()
        client.endpoint.give_up()
        answer = await large
        assert answer.status == 503
        assert cast(Json, error_of(await answer.json())["data"])["reason"] == "shutting_down"


async def test_a_large_message_of_a_channel_is_accepted_once_it_is_checked(monkeypatch: pytest.MonkeyPatch) -> None:
    pace = Pace(monkeypatch)
    async with http_client(Stage().server) as client, asyncio.timeout(20), asyncio.TaskGroup() as group:
        channel = await connect(client)
        await channel.initialize()
        large = group.create_task(channel.post(request(1, "tools/call", call("echo", text=LONG))))
        await pace.begun.wait()
        assert (await channel.request("small", "ping"))["id"] == "small"
        assert not large.done()
        pace.go = True
        await large
        assert texts(result_of(await channel.next())) == [LONG]
        await channel.post(notification("notifications/cancelled", {"requestId": 1}))
