"""Clients that come back: with the answers to a question, known ahead or late, or for the rest of a stream."""

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from typing import cast

import pytest

import sluicegate
from sluicegate import questions
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.downstream.modern_client import ClientRetry, ModernSink, Parked, binding_of
from sluicegate.exchange import NOBODY, Caller, Exchange
from sluicegate.http1 import serve
from sluicegate.protocol.input_required import Question
from sluicegate.protocol.message import Notification, Reply, Result, opened
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.runtime.task_scope import TaskScope
from tests.downstream.raw_client import Json, error_of, modern, raw_client, result_of

server = sluicegate.Server("demo")
waiting: list[asyncio.Event] = []


@server.tool
async def greet(call: sluicegate.Call) -> str:
    """Ask for a name, twice."""
    form = {"type": "object", "properties": {"name": {"type": "string"}}}
    first = await call.ask_all({"name": questions.form_by_schema("Your name?", form)})
    second = await call.ask_all({"name": questions.form_by_schema("And again?", form)})
    return f"{(first['name'].content or {})['name']}, {(second['name'].content or {})['name']}"


@server.tool
async def linger(call: sluicegate.Call) -> str:
    """Let go, and go on when told to."""
    call.end_response_early()
    await waiting[0].wait()
    return "done"


def params(answers: object = None, state: object = None) -> Json:
    stamped = modern({"name": "greet", "arguments": {}}, capabilities={"elicitation": {}})
    return stamped | {key: v for key, v in (("inputResponses", answers), ("requestState", state)) if v is not None}


def name(value: object) -> Json:
    return {"name": {"action": "accept", "content": {"name": value}}, "unknown": {"action": "cancel"}}


async def test_answers_that_come_ahead_are_taken_once() -> None:
    async with raw_client(server) as client:
        asked = result_of(await client.request(1, "tools/call", params(name("Ada"))))
        # The first question was answered before it was asked; the second has the same name and is another.
        assert asked["resultType"] == "input_required"
        assert "And again?" in json.dumps(asked)
        answer = result_of(await client.request(2, "tools/call", params(name("Eve"), asked["requestState"])))
        assert "Ada, Eve" in json.dumps(answer)


async def test_progress_goes_out_under_the_token_of_the_request_that_is_open_now() -> None:
    # The hub, say, and whatever else stands between: they know the token that the call began with.
    async def handler(exchange: Exchange) -> Reply:
        token = exchange.profile.progress_token
        await exchange.request_input({"name": Question("elicitation/create", {"mode": "form", "message": "Name?"})})
        await exchange.emit(Notification("notifications/progress", {"progressToken": token, "progress": 1}))
        return Result({"resultType": "complete", "content": []})

    def call(token: str | None, **more: object) -> Json:
        stamped = modern({"name": "greet", "arguments": {}, **more}, capabilities={"elicitation": {}})
        meta = cast(Json, stamped["_meta"])
        return {**stamped, "_meta": meta if token is None else {**meta, "progressToken": token}}

    for token in ("second", None):
        async with raw_client(handler) as client:
            asked = result_of(await client.request(1, "tools/call", call("first")))
            again = call(token, requestState=asked["requestState"], inputResponses=name("Ada"))
            client.send(id=2, method="tools/call", params=again)
            if token is not None:
                assert (await client.next())["params"] == {"progressToken": token, "progress": 1}
            assert result_of(await client.next())["resultType"] == "complete"


class Returning:
    """The stream of a client that comes back just after its call ended."""

    def __init__(self, parked: Parked, tasks: TaskScope) -> None:
        self.id = 1
        self.replies: list[Reply] = []
        self.back: Returning | None = None
        self._parked = parked
        self._tasks = tasks

    async def send(self, message: bytes) -> None:
        raise AssertionError

    def send_now(self, message: bytes) -> None:
        raise AssertionError

    def reply(self, reply: Reply) -> None:
        self.replies.append(reply)
        if isinstance(reply, Result) and "requestState" in opened(reply):
            state = str(opened(reply)["requestState"])
            self.back = Returning(self._parked, self._tasks)
            loop = asyncio.get_running_loop()
            retry = ClientRetry(self.back, ClientProfile(), {"name": ADA}, loop.create_future())
            loop.call_soon(self._parked.resume, state, BOUND, retry, self._tasks)


ADA: Json = {"action": "accept", "content": {"name": "Ada"}}
BOUND = binding_of(Caller(), "tools/call", {})


@pytest.mark.parametrize("stopping", [False, True])
async def test_a_retry_that_comes_as_the_time_runs_out_is_answered(stopping: bool) -> None:
    async with TaskScope() as tasks:
        parked = Parked()
        first = Returning(parked, tasks)
        exchange = Exchange("tools/call", {}, NOBODY, ClientProfile(capabilities={"elicitation": {}}))
        # Without any time to wait, the time runs out in the same turn of the loop, behind the retry.
        sink = ModernSink(exchange, first, tasks, parked, 60.0 if stopping else 0.0)
        question = {"name": Question("elicitation/create", {"mode": "form", "message": "?", "requestedSchema": {}})}

        async def ask() -> None:
            if stopping:
                asyncio.get_running_loop().call_soon(asyncio.get_running_loop().call_soon, tasks.cancel_all)
                with pytest.raises(asyncio.CancelledError):
                    await sink.ask(question)
            else:
                async with asyncio.timeout(10):
                    assert await sink.ask(question) == {"name": ADA}
            assert first.back is not None and sink.stream is first.back
            assert not len(parked)

        tasks.start(ask(), key=first)


@pytest.mark.parametrize("answers", [{}, {"other": {"action": "accept"}}, {"name": 12345}, {"name": None}, [], "x"])
async def test_answers_ahead_that_answer_nothing_are_as_none(answers: object) -> None:
    async with raw_client(server) as client:
        asked = result_of(await client.request(1, "tools/call", params(answers)))
        assert "Your name?" in json.dumps(asked)


async def test_answers_with_a_state_that_is_not_ours_are_refused() -> None:
    async with raw_client(server) as client:
        assert error_of(await client.request(1, "tools/call", params(name("Ada"), "forged")))["code"] == -32602


# ----------------------------------------------------------------------------------------------- the rest of a stream


class Door:
    """An endpoint on a port of its own, spoken to with a connection for each request."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.go_on = asyncio.Event()
        waiting[:] = [self.go_on]

    async def visit(self, method: str, message: Json | None = None, **headers: str) -> str:
        """The whole answer to a request, as it was sent."""
        body = b"" if message is None else json.dumps({"jsonrpc": "2.0", **message}).encode()
        fields = {"host": "localhost", "accept": "application/json, text/event-stream", "connection": "close"}
        fields |= {"content-type": "application/json", "content-length": str(len(body))} | headers
        lines = [f"{method} /mcp HTTP/1.1", *(f"{name.replace('_', '-')}: {v}" for name, v in fields.items()), "", ""]
        async with asyncio.timeout(10):
            reader, writer = await asyncio.open_connection("127.0.0.1", self._port)
            writer.write("\r\n".join(lines).encode() + body)
            answer = await reader.read()
            writer.close()
        assert answer.startswith((b"HTTP/1.1 200", b"HTTP/1.1 202")), answer
        return answer.decode()

    async def session(self, version: str) -> str:
        """The id of a new session."""
        info: Json = {"protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "raw", "version": "1"}}
        opened = await self.visit("POST", {"id": 0, "method": "initialize", "params": info})
        (session,) = re.findall(r"(?i)\r\nmcp-session-id: (\S+)\r\n", opened)
        await self.visit("POST", {"method": "notifications/initialized"}, mcp_session_id=session)
        return session


@pytest.fixture
async def door() -> AsyncGenerator[Door]:
    async with HttpEndpoint(server) as endpoint, serve(endpoint) as listener:
        yield Door(listener.addresses[0][1])


LINGER: Json = {"id": 1, "method": "tools/call", "params": {"name": "linger", "arguments": {}}}


def last_event(stream: str) -> str:
    return re.findall(r"id: (\S+)", stream)[-1]


async def test_a_client_of_2025_11_25_that_was_let_go_comes_back_for_the_result(door: Door) -> None:
    session = await door.session("2025-11-25")
    cut = await door.visit("POST", LINGER, mcp_session_id=session)
    assert "retry: " in cut and "done" not in cut
    async with asyncio.TaskGroup() as tasks:
        rest = tasks.create_task(door.visit("GET", mcp_session_id=session, last_event_id=last_event(cut)))
        door.go_on.set()
    assert rest.result().count("done") == 1


async def test_the_result_waits_for_a_client_that_comes_back_late(door: Door) -> None:
    session = await door.session("2025-11-25")
    cut = await door.visit("POST", LINGER, mcp_session_id=session)
    door.go_on.set()
    await door.visit("POST", {"id": 2, "method": "ping"}, mcp_session_id=session)
    rest = await door.visit("GET", mcp_session_id=session, last_event_id=last_event(cut))
    assert rest.count("done") == 1


@pytest.mark.parametrize(("version", "accept"), [("2025-06-18", "*/*"), ("2025-11-25", "application/json")])
async def test_a_client_that_would_not_come_back_is_not_let_go(door: Door, version: str, accept: str) -> None:
    session = await door.session(version)
    door.go_on.set()
    assert "done" in await door.visit("POST", LINGER, mcp_session_id=session, accept=accept)
