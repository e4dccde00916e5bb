"""Tools that can only be called as tasks are called like any other tool; only their server sees the task."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import cast

import msgspec
import pytest

from sluicegate.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    URL_ELICITATION_REQUIRED,
    ErrorObject,
    Truncated,
    UpstreamClosed,
    UpstreamProtocolError,
    UpstreamTimeout,
)
from sluicegate.exchange import Caller, Exchange
from sluicegate.hub import calls
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import Mount, MountSettings
from sluicegate.hub.tasks import run_legacy as tasks
from sluicegate.protocol.input_required import Answers, Question, Questions
from sluicegate.protocol.message import Notification, Params, Reply, Result, opened
from sluicegate.protocol.modern_era import ClientProfile, complete
from sluicegate.runtime import deadlines
from sluicegate.runtime.task_scope import forever
from tests.hub.scripted import Scripted, until

V11 = "2025-11-25"
TASKS: Params = {"cancel": {}, "requests": {"tools": {"call": {}}}}
RELATED = "io.modelcontextprotocol/related-task"
DONE = b'{"resultType":"complete","content":[],"_meta":{"%b":{"taskId":"t1"},"own":1.5}}' % RELATED.encode()


def ticket(**more: object) -> Result:
    """What such a tool answers a call with."""
    return Result(complete({"task": {"taskId": "t1", "status": "working", "ttl": 1, "pollInterval": 1, **more}}))


class Person:
    """The way back to a caller, who hears and answers."""

    def __init__(self) -> None:
        self.asked: list[Question] = []
        self.heard: list[Notification] = []

    async def emit(self, notification: Notification) -> None:
        self.heard.append(notification)

    async def ask(self, questions: Questions) -> Answers:
        self.asked += questions.values()
        return {key: {"action": "accept", "content": {}} for key in questions}


Play = Callable[[Exchange], Awaitable[Reply]]


class Server:
    """A server whose tool `dig` needs a task. It notes all that it is asked; what is not played, it does well."""

    def __init__(self, **plays: Play | Reply) -> None:
        self.plays = {method.replace("_", "/"): play for method, play in plays.items()}
        self.asked: list[Exchange] = []
        self.ended: list[str] = []
        """What it was asked and nobody waited for any more."""
        self.tools: list[Params] = [
            {"name": "dig", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}},
            {"name": "may", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "optional"}},
            {"name": "plain", "inputSchema": {"type": "object"}},
        ]

    @property
    def methods(self) -> list[str]:
        """What it was asked, in order."""
        return [exchange.method for exchange in self.asked]

    async def __call__(self, exchange: Exchange) -> Reply:
        if exchange.method == "tools/list":
            return Result(complete({"tools": self.tools}))
        if exchange.method == "ping":  # After a cancelled call.
            return Result({})
        self.asked.append(exchange)
        play = self.plays.get(exchange.method)
        try:
            if play is not None:
                return await play(exchange) if callable(play) else play
        except asyncio.CancelledError:
            self.ended.append(exchange.method)
            raise
        if exchange.method == "tools/call" and "task" in exchange.params:
            return ticket()
        return Result(msgspec.Raw(DONE))


@asynccontextmanager
async def mounted(
    server: Server,
    *,
    announces: Params | None = TASKS,
    version: str = V11,
    settings: MountSettings | None = None,
) -> AsyncGenerator[tuple[Hub, Mount, Scripted]]:
    capabilities: Params = {"tools": {}, **({"tasks": announces} if announces is not None else {})}
    upstream = Scripted(server, capabilities, version)
    hub = Hub()
    mount = hub.mount("s", upstream, settings or MountSettings(prefix="s"))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        yield hub, mount, upstream


def call(tool: str = "s__dig", sink: Person | None = None, caller: str = "local", **more: object) -> Exchange:
    params: Params = {"name": tool, "arguments": {"depth": 3}, **more}
    profile = ClientProfile(capabilities={"elicitation": {"form": {}, "url": {}}})
    return Exchange("tools/call", params, sink or Person(), profile, Caller(caller))


async def never(exchange: Exchange) -> Reply:
    await forever()
    raise AssertionError


def playing(*replies: Reply | Exception) -> Play:
    """Gives one reply after the other."""
    left = list(replies)

    async def play(exchange: Exchange) -> Reply:
        reply = left.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply

    return play


# ------------------------------------------------------------------------------------------------------- it looks plain


async def test_the_caller_gets_the_result_and_never_hears_of_a_task() -> None:
    server = Server()
    async with mounted(server, settings=MountSettings(prefix="s", longest_call=90.0)) as (hub, mount, _):
        reply = await hub(call())
        assert mount.calls.limit.in_use == 0 and not mount.calls.losses
    assert isinstance(reply, Result) and isinstance(reply.value, msgspec.Raw)
    assert bytes(reply.value) == b'{"resultType":"complete","content":[],"_meta":{"own":1.5}}'
    made, asked = server.asked
    assert msgspec.to_builtins(made.params) == {"name": "dig", "arguments": {"depth": 3}, "task": {"ttl": 90_000}}
    assert (asked.method, asked.params) == ("tasks/result", {"taskId": "t1"})


async def test_no_definition_says_anything_of_tasks() -> None:
    async with mounted(Server()) as (hub, _, _):
        listed = await hub(Exchange("tools/list", {}, Person()))
    assert isinstance(listed, Result)
    shown = cast(list[Params], opened(listed)["tools"])
    assert [tool["name"] for tool in shown] == ["s__dig", "s__may", "s__plain"]
    assert all(tool.keys() == {"name", "inputSchema"} for tool in shown)


@pytest.mark.parametrize("tool", ["s__may", "s__plain"])
async def test_a_tool_that_can_be_called_plainly_is_whatever_the_client_wants(tool: str) -> None:
    server = Server()
    async with mounted(server) as (hub, _, _):
        await hub(call(tool, task={"ttl": 5}))
    assert server.methods == ["tools/call"]
    assert "task" not in server.asked[0].params


@pytest.mark.parametrize(
    ("version", "announces"),
    [
        (V11, None),
        (V11, {"requests": {}}),
        (V11, {"requests": {"tools": {}}}),
        (V11, {"list": {}, "cancel": {}}),
        (V11, "all"),
        ("2025-06-18", TASKS),
    ],
)
async def test_without_the_servers_word_for_it_no_tool_is_called_as_a_task(version: str, announces: object) -> None:
    server = Server()
    async with mounted(server, version=version, announces=cast(Params | None, announces)) as (hub, _, _):
        await hub(call(task={}))
    assert server.methods == ["tools/call"]
    assert "task" not in server.asked[0].params


async def test_a_server_that_answers_at_once_has_answered() -> None:
    refused, done = ErrorObject(INVALID_PARAMS, "How deep?"), Result(complete({"content": []}))
    for reply in (refused, done):
        server = Server(tools_call=reply)
        async with mounted(server) as (hub, _, _):
            assert await hub(call()) == reply
        assert server.methods == ["tools/call"]


@pytest.mark.parametrize("answer", [ticket(taskId=3), Result(msgspec.Raw(b'{"task": 1e999}'))])
async def test_a_ticket_that_cannot_be_read_is_the_servers_fault(answer: Result) -> None:
    async with mounted(Server(tools_call=answer)) as (hub, _, _):
        with pytest.raises(UpstreamProtocolError, match="^s"):
            await hub(call())


# -------------------------------------------------------------------------------------------------------- how it fails


async def test_a_result_that_says_of_a_failure_passes_and_is_counted() -> None:
    failed = Result(complete({"content": [{"type": "text", "text": "rock"}], "isError": True}))
    async with mounted(Server(tasks_result=failed)) as (hub, mount, _):
        assert await hub(call()) == failed
        assert mount.calls.figures.errors == 1


@pytest.mark.parametrize(
    ("state", "code", "message"),
    [
        (
            {"status": "failed", "statusMessage": "hit a rock"},
            -32602,
            "No result. The task of this call failed: hit a rock",
        ),
        ({"status": "failed", "statusMessage": "No result"}, -32602, "No result."),
        ({"status": "failed"}, -32602, "No result."),
        ({"status": "cancelled"}, INTERNAL_ERROR, "s cancelled the task of this call."),
        (
            {"status": "cancelled", "statusMessage": "closing time"},
            INTERNAL_ERROR,
            "s cancelled the task of this call: closing time",
        ),
        (None, -32602, "No result."),
    ],
)
async def test_an_error_says_what_became_of_the_task(state: Params | None, code: int, message: str) -> None:
    told = Result(complete(state)) if state is not None else ErrorObject(INVALID_PARAMS, "Task not found")
    server = Server(tasks_result=ErrorObject(-32602, "No result."), tasks_get=told)
    async with mounted(server) as (hub, mount, _):
        reply = await hub(call())
        assert mount.calls.figures.errors == 1
    assert isinstance(reply, ErrorObject)
    assert (reply.code, reply.message) == (code, message)


async def gone(exchange: Exchange) -> Reply:
    raise UpstreamClosed("gone")


@pytest.mark.parametrize("play", [never, gone, Result(msgspec.Raw(b'{"status": 1e999}'))])
async def test_an_error_passes_whatever_the_server_does_when_it_is_asked_why(
    play: Play | Reply, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tasks, "TASK_ANSWERS_WITHIN", 0.02)
    refused = ErrorObject(INVALID_PARAMS, "No result.")
    async with mounted(Server(tasks_result=refused, tasks_get=play)) as (hub, _, _):
        assert await hub(call()) == refused


@pytest.mark.parametrize(
    ("state", "sentence"),
    [
        ({"status": "failed", "statusMessage": "hit a rock"}, "The task of this call failed: hit a rock"),
        ({"status": "cancelled"}, "s cancelled the task of this call."),
    ],
)
async def test_a_result_with_nothing_in_it_is_not_taken_for_success(state: Params, sentence: str) -> None:
    empty = Result(msgspec.Raw(b'{"resultType":"complete","_meta":{"%b":{"taskId":"t1"}}}' % RELATED.encode()))
    async with mounted(Server(tasks_result=empty, tasks_get=Result(complete(state)))) as (hub, mount, _):
        reply = await hub(call())
        assert mount.calls.figures.errors == 1
    assert isinstance(reply, Result)
    assert opened(reply)["isError"] is True
    assert opened(reply)["content"] == [{"type": "text", "text": sentence}]


async def test_a_result_that_is_cut_on_its_way_is_asked_for_again() -> None:
    server = Server(tasks_result=playing(Truncated("cut"), Truncated("cut"), Result(msgspec.Raw(DONE))))
    async with mounted(server) as (hub, _, _):
        assert isinstance(await hub(call()), Result)
    assert server.methods == ["tools/call", *["tasks/result"] * 3]


@pytest.mark.parametrize("problem", [UpstreamClosed("gone", delivered="no"), UpstreamClosed("gone")])
async def test_a_call_that_was_made_is_not_made_again_for_want_of_its_result(problem: UpstreamClosed) -> None:
    server = Server(tasks_result=playing(problem))
    async with mounted(server) as (hub, _, _):
        with pytest.raises(UpstreamClosed) as caught:
            await hub(call())
        assert caught.value.delivered == "unknown"
        await until(lambda: "tasks/cancel" in server.methods)
    assert server.methods == ["tools/call", "tasks/result", "tasks/cancel"]


async def test_a_call_that_did_not_arrive_is_made_again_as_a_task() -> None:
    server = Server(tools_call=playing(UpstreamClosed("gone", delivered="no"), ticket()))
    async with mounted(server) as (hub, _, _):
        assert isinstance(await hub(call()), Result)
    assert server.methods == ["tools/call", "tools/call", "tasks/result"]
    assert all("task" in exchange.params for exchange in server.asked[:2])


# ----------------------------------------------------------------------------------------------------- how it is ended


async def cancelled(hub: Hub, server: Server, method: str) -> None:
    """Make a call, and leave when the server is asked this."""
    calling = asyncio.gather(hub(call()))
    await until(lambda: method in server.methods)
    calling.cancel()
    with pytest.raises(asyncio.CancelledError):
        await calling


async def test_a_cancelled_call_cancels_its_task_on_the_server() -> None:
    server = Server(tasks_result=never)
    async with mounted(server) as (hub, mount, _):
        await cancelled(hub, server, "tasks/result")
        assert mount.calls.limit.in_use == 0
        await until(lambda: "tasks/cancel" in server.methods)
    assert server.methods == ["tools/call", "tasks/result", "tasks/cancel"]
    assert server.asked[-1].params == {"taskId": "t1"}
    assert server.ended == ["tasks/result"]


async def test_a_server_that_does_not_cancel_tasks_is_not_asked_to() -> None:
    server = Server(tasks_result=never)
    async with mounted(server, announces={"requests": TASKS["requests"]}) as (hub, mount, _):
        await cancelled(hub, server, "tasks/result")
        await until(lambda: server.ended == ["tasks/result"])
        mount.restart()
        await until(lambda: mount.is_ready)
    assert server.methods == ["tools/call", "tasks/result"]


async def test_a_server_that_does_not_answer_a_cancellation_delays_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "TASK_ANSWERS_WITHIN", 0.02)
    server = Server(tasks_result=never, tasks_cancel=never)
    async with mounted(server) as (hub, _, _):
        await cancelled(hub, server, "tasks/result")
        await until(lambda: server.ended == ["tasks/result", "tasks/cancel"])


# ------------------------------------------------------------------------------------------------------------ its time


class Clock:
    """The time, as a test tells it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (calls, deadlines):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)


async def test_a_task_has_the_time_of_a_call_and_is_cancelled_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def work(exchange: Exchange) -> Reply:
        clock.now += 61
        return await never(exchange)

    server = Server(tasks_result=work)
    async with mounted(server, settings=MountSettings(prefix="s", timeout=60)) as (hub, mount, _):
        with pytest.raises(UpstreamTimeout, match="within 60 s"):
            await hub(call())
        await until(lambda: "tasks/cancel" in server.methods)
        assert mount.calls.figures.errors == 1 and mount.calls.limit.in_use == 0


async def test_what_a_server_says_of_a_task_is_a_sign_of_life_of_that_one_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = Clock(monkeypatch)
    server = Server(tasks_result=never)
    async with mounted(server, settings=MountSettings(prefix="s", timeout=60)) as (hub, _, upstream):
        calling = asyncio.gather(hub(call()))
        await until(lambda: "tasks/result" in server.methods)
        say = upstream.connections[0].host.sink.emit
        deadline = cast(deadlines.Deadline, server.asked[-1].sink)
        for _ in range(3):
            await say(Notification("notifications/tasks/status", {"taskId": "t1", "status": "working"}))
            await until(lambda: not deadline.is_renewed)
            clock.now += 59
        assert not calling.done()
        for other in ("t2", None, ["t1"]):
            await say(Notification("notifications/tasks/status", {"taskId": other}))
        clock.now += 2
        with pytest.raises(UpstreamTimeout):
            await calling


# ------------------------------------------------------------------------------------------------- what comes meanwhile


async def test_a_question_during_a_task_goes_to_the_caller_of_the_task() -> None:
    answered: list[Params] = []

    async def work(exchange: Exchange) -> Reply:
        question = Question("elicitation/create", {"mode": "form", "message": "Which way?", "requestedSchema": {}})
        answered.append((await exchange.request_input({"q": question}))["q"])
        return Result(msgspec.Raw(DONE))

    ada, bob = Person(), Person()
    server = Server(tasks_result=work)
    async with mounted(server) as (hub, _, _):
        await hub(call(sink=ada, caller="ada"))
        await hub(call("s__plain", sink=bob, caller="bob"))
    assert [question.params["message"] for question in ada.asked] == ["[s] Which way?"]
    assert answered == [{"action": "accept", "content": {}}] and not bob.asked
    assert {exchange.caller.id for exchange in server.asked[:2]} == {"ada"}


async def test_a_page_that_a_task_wants_visited_is_and_then_there_is_another_task() -> None:
    page: Params = {"mode": "url", "message": "Sign in.", "url": "https://example.com/in"}
    wanted = ErrorObject(URL_ELICITATION_REQUIRED, "Sign in first.", {"elicitations": [page]})
    server = Server(tasks_result=playing(wanted, Result(msgspec.Raw(DONE))), tasks_get=ErrorObject(-32602, "gone"))
    person = Person()
    async with mounted(server) as (hub, _, _):
        assert isinstance(await hub(call(sink=person)), Result)
    assert [question.params["url"] for question in person.asked] == ["https://example.com/in"]
    assert server.methods == ["tools/call", "tasks/result", "tasks/get", "tools/call", "tasks/result"]
    assert all("task" in exchange.params for exchange in server.asked if exchange.method == "tools/call")


async def test_lost_progress_is_counted_for_calls_with_a_progress_token() -> None:
    async with mounted(Server()) as (hub, mount, _):
        await hub(call())
        assert not mount.calls.losses
        exchange = call()
        exchange.profile = msgspec.structs.replace(exchange.profile, progress_token="p")
        await hub(exchange)
        assert mount.calls.losses == {tasks.LOST_PROGRESS: 1}
