"""Calls to one server: their time, when they are made again, and what is counted of them."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Mapping
from contextlib import asynccontextmanager
from typing import Literal, cast

import msgspec
import pytest

from sluicegate.errors import (
    ErrorObject,
    InputRefused,
    InvalidParams,
    SluicegateError,
    UpstreamClosed,
    UpstreamProtocolError,
    UpstreamTimeout,
)
from sluicegate.exchange import Exchange
from sluicegate.hub import call_sink, calls
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import Mount, MountSettings
from sluicegate.protocol.input_required import Question
from sluicegate.protocol.message import Notification, Params, Reply, Result, ToolText, opened
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.runtime import deadlines
from sluicegate.runtime.task_scope import TaskScope, forever
from sluicegate.upstream.http import HttpUpstream
from tests.hub.scripted import Answer, Scripted, tools, until
from tests.upstream.http_server import Asked, message, scripted, session

DONE = Result(msgspec.Raw(b'{"resultType":"complete","content":[]}'))
PASSED = Result(ToolText(resultType="complete", content=[]))


class Mute:
    """The way back to a client that hears nothing and is asked nothing."""

    async def emit(self, notification: object) -> None:
        pass

    async def ask(self, questions: object) -> dict[str, Params]:
        raise InputRefused("nobody is there")


class Clock:
    """The time, as a test tells it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (call_sink, calls, deadlines):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)


@asynccontextmanager
async def mounted(answer: Answer, settings: MountSettings | None = None) -> AsyncGenerator[tuple[Hub, Mount]]:
    async def answer_all(exchange: Exchange) -> Reply:
        if exchange.method == "server/discover":  # A ping, after silence.
            return Result({})
        return tools("one", "two") if exchange.method == "tools/list" else await answer(exchange)

    hub = Hub()
    mount = hub.mount("s", Scripted(answer_all, {"tools": {}}), settings or MountSettings(prefix="s"))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        yield hub, mount


def call(tool: str = "s__one") -> Exchange:
    return Exchange("tools/call", {"name": tool, "arguments": {}}, Mute())


def read() -> Exchange:
    return Exchange("resources/read", {"uri": "s+note://one"}, Mute())


# ----------------------------------------------------------------------------------------------------------- their size


SIZES: list[tuple[list[int], Reply, bool]] = [
    ([], ErrorObject(7, "x" * 20), True),
    ([], ErrorObject(7, "x" * 200), False),
    ([], Result(msgspec.Raw(b'{"content":[],"x":"%b"}' % (b"x" * 100))), False),
    ([10], DONE, True),
    ([10] * 10, DONE, False),
    ([200], DONE, False),
]


@pytest.mark.parametrize(("progress", "reply", "fits"), SIZES)
async def test_errors_and_progress_count_as_the_result_does(progress: list[int], reply: Reply, fits: bool) -> None:
    ended = asyncio.Event()

    async def answer(exchange: Exchange) -> Reply:
        try:
            for number, size in enumerate(progress):
                params: Params = {"progressToken": 1, "progress": number, "message": "x" * size}
                await exchange.emit(Notification("notifications/progress", params))
            return reply
        finally:
            ended.set()

    async with mounted(answer) as (hub, mount):
        exchange = call()
        exchange.max_result = 100
        if fits:
            assert type(await mount.calls.call(exchange, {"name": "one"})) is type(reply)
        else:
            with pytest.raises(UpstreamProtocolError, match="s sent more than `max_result` allows"):
                await mount.calls.call(exchange, {"name": "one"})
        assert ended.is_set() and hub.is_open


@pytest.mark.parametrize("stream", ["GET", "other"])
async def test_too_much_progress_on_the_stream_of_others_ends_its_own_call_only(stream: str) -> None:
    requests: dict[object, Asked] = {}

    def hold(name: object, asked: Asked) -> Awaitable[None]:
        requests[name] = asked
        asked.stream()
        return forever()

    def answer(asked: Asked) -> Awaitable[None] | None:
        if asked.called == "tools/call":
            return hold(cast(Params, asked.body["params"])["name"], asked)
        if asked.called == "tools/list":
            listed = [{"name": name, "inputSchema": {"type": "object"}} for name in ("one", "other")]
            asked.result({"tools": listed})
        else:
            asked.result({})
        return None

    inner = session(answer, tools={})

    def handle(asked: Asked) -> Awaitable[None] | None:
        return hold("GET", asked) if asked.method == "GET" else inner(asked)

    hub = Hub()
    async with asyncio.timeout(10), scripted(handle) as script:
        mount = hub.mount("s", HttpUpstream(script.url, name="s", era="session"), MountSettings(prefix="s"))
        async with hub:
            await hub.settled()
            one, other = call(), call("s__other")
            one.profile, one.max_result = ClientProfile(progress_token="mine"), 100
            calling = asyncio.ensure_future(mount.calls.call(one, {"name": "one"}))
            others = asyncio.ensure_future(mount.calls.call(other, {"name": "other"}))
            await until(lambda: len(requests) == 3)
            params: Params = {"progressToken": requests["one"].id, "progress": 1, "message": "x" * 200}
            requests[stream].event(message(method="notifications/progress", params=params))
            with pytest.raises(UpstreamProtocolError, match="s sent more than `max_result` allows"):
                await calling
            requests["other"].event(message(id=requests["other"].id, result={"content": []}))
            assert isinstance(await others, Result)
            assert script.methods().count("GET") == 1, "its stream was not dropped"


# ----------------------------------------------------------------------------------------------------------- their time


async def test_a_read_that_is_made_again_has_what_is_left_of_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, attempts = Clock(monkeypatch), 0

    async def answer(exchange: Exchange) -> Reply:
        nonlocal attempts
        attempts += 1
        if attempts == 1:
            clock.now += 119
            raise UpstreamClosed("gone")
        clock.now += 2
        await forever()
        raise AssertionError

    async with mounted(answer, MountSettings(prefix="s", timeout=120)) as (hub, _):
        with pytest.raises(UpstreamTimeout, match="s did not answer within 120 s"):
            await hub(read())
    assert attempts == 2


async def test_a_tool_has_the_time_that_is_given_to_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def answer(exchange: Exchange) -> Reply:
        clock.now += 60
        # Longer than the interval between two looks at the deadlines.
        await (forever() if exchange.params.get("name") == "two" else asyncio.sleep(0.15))  # See above.
        return DONE

    async with mounted(answer, MountSettings(prefix="s", tool_timeouts=[("tw*", 30), ("*", 90)])) as (hub, mount):
        with pytest.raises(UpstreamTimeout, match="within 30 s"):
            await hub(call("s__two"))
        assert await hub(call("s__one")) == PASSED
        assert (mount.calls.figures.calls, mount.calls.figures.errors) == (2, 1)
        # Not the time of the one that ran into its time-out.
        assert list(mount.calls.figures.recent) == [60]


async def test_the_time_that_a_person_takes_to_answer_is_not_the_servers(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def answer(exchange: Exchange) -> Reply:
        clock.now += 2
        await exchange.request_input({"q": Question("elicitation/create", {"message": "Sure?"})})
        clock.now += 1
        return DONE

    class Slow(Mute):
        async def ask(self, questions: object) -> dict[str, Params]:
            clock.now += 50
            return {key: {"action": "accept"} for key in cast("Mapping[str, object]", questions)}

    async with mounted(answer) as (hub, mount):
        able = ClientProfile("2026-07-28", {"elicitation": {"form": {}}})
        assert await hub(Exchange("tools/call", {"name": "s__one"}, Slow(), able)) == PASSED
        assert list(mount.calls.figures.recent) == [3]


async def test_no_call_lasts_longer_than_the_longest(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(monkeypatch)

    async def answer(exchange: Exchange) -> Reply:
        clock.now += 60
        await forever()
        raise AssertionError

    async with mounted(answer, MountSettings(prefix="s", timeout=120, longest_call=50)) as (hub, _):
        with pytest.raises(
            UpstreamTimeout, match=r"within 50 s, the longest time for a call \(`longest_call`\); the call"
        ):
            await hub(call())


# ------------------------------------------------------------------------------------------------------ when made again


@pytest.mark.parametrize(
    ("exchange", "delivered", "resend", "is_made_again"),
    [
        (read(), "unknown", [], True),
        (call(), "unknown", [], False),
        (call(), "no", [], True),
        (call(), "unknown", ["o*"], True),
        (call(), "unknown", ["s__o*"], False),
    ],
    ids=["a read", "a tool", "undelivered", "a tool that may run twice", "only by its own name"],
)
async def test_what_does_no_harm_is_made_once_more(
    exchange: Exchange, delivered: str, resend: list[str], is_made_again: bool
) -> None:
    attempts = 0

    async def answer(exchange: Exchange) -> Reply:
        nonlocal attempts
        attempts += 1
        raise UpstreamClosed("gone", delivered="no" if delivered == "no" else "unknown")

    async with mounted(answer, MountSettings(prefix="s", resend=resend)) as (hub, _):
        with pytest.raises(UpstreamClosed):
            await hub(exchange)
    assert attempts == 1 + is_made_again


@pytest.mark.parametrize(
    ("exchange", "delivered", "told"),
    [
        (call(), "unknown", "s went away; the call may have run."),
        (call(), "no", "s went away."),
        (read(), "unknown", "s went away."),
    ],
    ids=["a call", "a call that was not sent", "a read"],
)
async def test_a_call_that_ends_with_its_server_reports_whether_it_may_have_run(
    exchange: Exchange, delivered: Literal["no", "unknown"], told: str
) -> None:
    gone = UpstreamClosed("s went away.", delivered=delivered)

    async def answer(exchange: Exchange) -> Reply:
        raise gone

    async with mounted(answer) as (hub, _):
        with pytest.raises(UpstreamClosed) as refused:
            await hub(exchange)
    assert refused.value.message == told
    assert refused.value.delivered == delivered
    assert gone.message == "s went away.", "it is not for whoever else waits for the same server"


async def test_a_server_that_fails_call_after_call_is_left_alone_for_a_while(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, is_well, attempts = Clock(monkeypatch), False, 0

    async def answer(exchange: Exchange) -> Reply:
        nonlocal attempts
        attempts += 1
        if not is_well:
            raise UpstreamClosed("gone")
        return DONE

    async with mounted(answer) as (hub, mount):
        for _ in range(5):
            with pytest.raises(UpstreamClosed):
                await hub(call())
        for _ in range(3):
            with pytest.raises(SluicegateError, match="failed call after call"):
                await hub(call())
        assert (attempts, mount.calls.circuit.is_open) == (5, True)
        clock.now += 11
        is_well = True
        assert await hub(call()) == PASSED
        assert not mount.calls.circuit.is_open
        assert mount.calls.limit.in_use == 0


# ------------------------------------------------------------------------------------------------------ what comes back


async def replied(result: bytes) -> tuple[Reply, Mount]:
    """The reply to a call that a server answers in these words."""

    async def answer(exchange: Exchange) -> Reply:
        return Result(msgspec.Raw(result))

    async with mounted(answer) as (hub, mount):
        return await hub(call()), mount


@pytest.mark.parametrize(
    "result",
    [
        b'{"content": [], "_meta": {"later": 1.50}}',
        b'{"content": [], "structuredContent": {"resultType": "complete"}}',
        b'{"structuredContent":{"resultType":"input_required"},"content":[]}',
        b'{"content":[{"type":"text","text":"\\"resultType\\":"}]}',
        b'{"content":[{"type":"text","text":"resultType"}]}',
    ],
)
async def test_a_result_without_a_type_of_its_own_gets_one_and_keeps_all_else(result: bytes) -> None:
    reply, _ = await replied(result)
    assert isinstance(reply, Result)
    assert opened(reply) == {"resultType": "complete", **msgspec.json.decode(result)}


@pytest.mark.parametrize(
    "result",
    [
        b'{"resultType":"complete","content":[]}',
        b' {\n "resultType" : "complete", "content": []}',
        b'{"content":[{"type":"text","text":"x"}],"resultType":"complete"}',
        b'{"_meta":{"resultType":1},"r\\u0065sultType":"complete","content":[]}',
    ],
)
async def test_a_result_with_its_type_passes_as_it_is(result: bytes) -> None:
    reply, mount = await replied(result)
    assert isinstance(reply, Result)
    assert opened(reply) == msgspec.json.decode(result)
    assert mount.calls.figures.errors == 0


@pytest.mark.parametrize("result", [b'{"content":' + b"[" * 50_000 + b"]" * 50_000 + b"}", b"[]"])
async def test_a_result_that_cannot_be_read_is_an_error_of_the_server(result: bytes) -> None:
    with pytest.raises(UpstreamProtocolError, match="cannot be decoded"):
        await replied(result)


@pytest.mark.parametrize(
    ("result", "errors"),
    [
        (b'{"resultType":"complete","content":[],"isError":true}', 1),
        (b'{"resultType":"complete","isError": true,"content":[]}', 1),
        (b'{"resultType":"complete","content":[],"isError":false}', 0),
        (b'{"resultType":"complete","content":[],"structuredContent":{"isError":true}}', 0),
    ],
)
async def test_a_tool_that_says_that_it_failed_is_counted_as_an_error(result: bytes, errors: int) -> None:
    _, mount = await replied(result)
    assert mount.calls.figures.errors == errors


@pytest.mark.parametrize(
    "words",
    [
        '{"resultType":"complete","content":[],"resultType":"task","taskId":"own-1","status":"working"}',
        '{"resultType":"complete","content":[],"resultType":"strange"}',
        '{"resultType":"complete","content":[],"result\\u0054ype":"strange"}',
    ],
)
async def test_a_result_that_says_two_types_is_held_to_the_last(words: str) -> None:
    async def answer(exchange: Exchange) -> Reply:
        return Result(msgspec.Raw(words.encode()))

    async with mounted(answer, MountSettings(prefix="s")) as (hub, _):
        with pytest.raises(UpstreamProtocolError, match="unknown result type"):
            await hub(call())


async def test_a_question_that_says_at_last_that_it_is_none_passes_as_one_thing() -> None:
    words = (
        b'{"resultType":"input_required","inputRequests":{},"requestState":"own","resultType":"complete","content":[]}'
    )

    async def answer(exchange: Exchange) -> Reply:
        return Result(msgspec.Raw(words))

    async with mounted(answer, MountSettings(prefix="s")) as (hub, _):
        reply = await hub(call())
        assert isinstance(reply, Result) and opened(reply)["resultType"] == "complete"
        assert msgspec.json.encode(reply.value).count(b"resultType") == 1


@pytest.mark.parametrize(
    ("exchange", "told"),
    [
        (call(), "s did not answer within 5 s (`timeout`); the call may have run."),
        (read(), "s did not answer within 5 s (`timeout`)."),
    ],
    ids=["a call", "a read"],
)
async def test_a_call_that_times_out_reports_whether_it_may_have_run(
    monkeypatch: pytest.MonkeyPatch, exchange: Exchange, told: str
) -> None:
    clock = Clock(monkeypatch)

    async def answer(exchange: Exchange) -> Reply:
        clock.now += 6
        await forever()
        raise AssertionError

    async with mounted(answer, MountSettings(prefix="s", timeout=5)) as (hub, _):
        with pytest.raises(UpstreamTimeout) as refused:
            await hub(exchange)
    assert refused.value.message == told


async def test_an_error_of_an_upstream_of_ones_own_stays_what_it_is() -> None:
    class Dropped(UpstreamClosed):
        def __init__(self, line: int, port: str) -> None:
            super().__init__(f"line {line} to {port} was dropped.")
            self.line = line

    async def answer(exchange: Exchange) -> Reply:
        raise Dropped(7, "ttyS0")

    async with mounted(answer) as (hub, _):
        with pytest.raises(Dropped) as refused:
            await hub(call())
    assert refused.value.message == "line 7 to ttyS0 was dropped; the call may have run."
    assert refused.value.line == 7


@pytest.mark.parametrize("arguments", [[1], "x", 5, True])
async def test_arguments_that_are_no_object_never_reach_a_server(arguments: object) -> None:
    """T1, T17."""
    reached: list[Params] = []

    async def answer(exchange: Exchange) -> Reply:
        reached.append(exchange.params)
        return DONE

    async with mounted(answer) as (hub, _):
        with pytest.raises(InvalidParams, match="arguments must be a JSON object"):
            await hub(Exchange("tools/call", {"name": "s__one", "arguments": arguments}, Mute()))
        assert not reached
        await hub(Exchange("tools/call", {"name": "s__one"}, Mute()))
        assert len(reached) == 1


class Undecided:
    """The way back to people who take their time."""

    def __init__(self) -> None:
        self.asked = 0
        self.decide = asyncio.Event()

    async def emit(self, notification: object) -> None:
        pass

    async def ask(self, questions: Mapping[str, Question]) -> dict[str, Params]:
        self.asked += 1
        await self.decide.wait()
        return {key: {"action": "accept"} for key in questions}


async def test_calls_that_wait_for_a_person_leave_their_places_to_others() -> None:
    """R24."""

    async def answer(exchange: Exchange) -> Reply:
        if exchange.params["name"] == "one":
            await exchange.request_input({"q": Question("elicitation/create", {"message": "Sure?"})})
        return DONE

    people = Undecided()
    settings = MountSettings(prefix="s", concurrency=2, queue=3, queue_wait=5)
    async with mounted(answer, settings) as (hub, mount), TaskScope() as tasks:
        able = ClientProfile("2026-07-28", {"elicitation": {"form": {}}})
        replies: list[Reply] = []

        async def ask() -> None:
            replies.append(await hub(Exchange("tools/call", {"name": "s__one"}, people, able)))

        for _ in range(3):
            tasks.start(ask())
        await until(lambda: people.asked == 3)
        assert mount.calls.limit.in_use == 3  # Whatever waits for them to end still does.
        assert await hub(call("s__two")) == PASSED
        people.decide.set()
        await until(lambda: replies == [PASSED] * 3)
        assert (mount.calls.limit.in_use, mount.calls.limit.waiting) == (0, 0)
        assert await hub(call("s__two")) == PASSED
