"""Tool calls: notifications, results and failures."""

import asyncio
import dataclasses
import json
import logging
import sqlite3
import threading
from collections.abc import AsyncIterator, Iterator
from decimal import Decimal
from fractions import Fraction
from typing import Any, cast

import msgspec
import pytest

from sluicegate.activations.call import Call
from sluicegate.activations.values import (
    Audio,
    Data,
    EmbeddedResource,
    Error,
    Image,
    Log,
    Progress,
    ResourceLink,
    Structured,
    Text,
    ToolError,
    ToolUse,
)
from sluicegate.errors import InvalidParams, LimitExceeded, RpcError, UnknownTarget
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Params, Response, Result, encode, opened
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.server import Server
from tests.activations.helpers import EAGER, Recorder, ask, call, failure, text


@pytest.fixture
def server() -> Server:
    return Server("demo")


async def test_tool_may_be_written_in_five_ways(server: Server) -> None:
    @server.tool
    def plain(n: int) -> str:
        return f"plain {n}"

    @server.tool
    async def coroutine(n: int) -> str:
        return f"coroutine {n}"

    @server.tool
    async def stream(n: int) -> AsyncIterator[str]:
        yield f"stream {n}"
        yield "and more"

    @server.tool
    def steps(n: int) -> Iterator[str]:
        yield f"steps {n}"
        return "and an end"  # noqa: B901 - what is returned comes last

    class Adder:
        async def __call__(self, n: int) -> str:
            return f"object {n}"

    server.add_tool(Adder(), name="object")
    assert text(await call(server, "plain", {"n": 1})) == "plain 1"
    assert text(await call(server, "coroutine", {"n": 2})) == "coroutine 2"
    assert text(await call(server, "stream", {"n": 3})) == "stream 3\nand more"
    assert text(await call(server, "steps", {"n": 4})) == "steps 4\nand an end"
    assert text(await call(server, "object", {"n": 5})) == "object 5"


# ------------------------------------------------------------------------------------------------------- what is in
# the result


async def test_result_is_complete_and_names_the_server(server: Server) -> None:
    server.add_tool(lambda: "hello", name="greet")
    assert await call(server, "greet") == {
        "resultType": "complete",
        "_meta": {"io.modelcontextprotocol/serverInfo": {"name": "demo", "version": "0"}},
        "content": [{"type": "text", "text": "hello"}],
    }


async def test_every_kind_of_content_has_its_block(server: Server) -> None:
    server.add_tool(
        lambda: [
            "caption",
            Text("noted", annotations={"audience": ["user"]}, meta={"a/b": 1}),
            Image(b"png", "image/png"),
            Audio(b"wav", "audio/wav"),
            ResourceLink("note://1", "one", mime_type="text/plain", size=3),
            EmbeddedResource("note://2", text="two"),
            EmbeddedResource("note://3", blob=b"\x00", mime_type="application/x"),
        ],
        name="all",
    )
    assert (await call(server, "all"))["content"] == [
        {"type": "text", "text": "caption"},
        {"type": "text", "text": "noted", "annotations": {"audience": ["user"]}, "_meta": {"a/b": 1}},
        {"type": "image", "data": "cG5n", "mimeType": "image/png"},
        {"type": "audio", "data": "d2F2", "mimeType": "audio/wav"},
        {"type": "resource_link", "uri": "note://1", "name": "one", "mimeType": "text/plain", "size": 3},
        {"type": "resource", "resource": {"uri": "note://2", "mimeType": "text/plain", "text": "two"}},
        {"type": "resource", "resource": {"uri": "note://3", "mimeType": "application/x", "blob": "AA=="}},
    ]


@dataclasses.dataclass
class Point:
    x: int
    y: float


class Place(msgspec.Struct):
    name: str


@pytest.mark.parametrize(
    ("value", "shown", "structured"),
    [
        ({"a": 1}, '{"a":1}', {"a": 1}),
        (Point(1, 2.5), '{"x":1,"y":2.5}', {"x": 1, "y": 2.5}),
        (Place("here"), '{"name":"here"}', {"name": "here"}),
        (Structured({"b": 2}), '{"b":2}', {"b": 2}),
        ([1, "two"], '[1,"two"]', None),
        (42, "42", None),
        (True, "true", None),
        (None, "", None),
        ({"n": float("nan"), "i": float("inf")}, '{"n":null,"i":null}', {"n": None, "i": None}),
    ],
)
async def test_values_are_json_text_and_objects_are_structured_too(
    server: Server, value: object, shown: str, structured: object
) -> None:
    server.add_tool(lambda: value, name="value")
    result = await call(server, "value")
    assert (text(result), result.get("structuredContent")) == (shown, structured)
    assert "isError" not in result


async def test_half_characters_are_replaced_so_that_any_answer_can_be_encoded(server: Server) -> None:
    @server.tool
    async def cut() -> AsyncIterator[object]:
        yield Progress(1, message="p\udc80")
        yield Log("info", {"\ud83d": "l\udc80"})
        yield Data("d\udc80 \ud83d")
        yield Data("\ude00")
        yield "pair \ud83d\ude00 lone \ud83d."
        yield {"k\udc80": ["v\udc80"]}
        raise ToolError("e\udc80")

    sink = Recorder()
    result = await call(server, "cut", sink=sink)
    for notification in sink.seen:
        encode(notification)
    assert json.loads(encode(Response(1, Result(result))))["result"] == result
    assert [block["text"] for block in result["content"]] == [
        "d\ufffd \U0001f600",
        "pair \U0001f600 lone \ufffd.",
        '{"k\ufffd":["v\ufffd"]}',
        "e\ufffd",
    ]


async def test_bytes_are_refused_because_they_do_not_say_what_they_are(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.add_tool(lambda: b"what", name="raw")
    assert failure(await call(server, "raw")) == "The tool 'raw' failed (TypeError)."
    assert "use Image, Audio or EmbeddedResource" in caplog.text


# ------------------------------------------------------------------------------------------------------- what leaves
# before it


async def test_progress_leaves_while_the_tool_runs(server: Server) -> None:
    seen_in_time = asyncio.Event()

    @server.tool
    async def count(to: int) -> AsyncIterator[object]:
        yield Progress(1, total=to, message="one")
        await seen_in_time.wait()
        yield Progress(2, total=to)
        yield f"counted to {to}"

    sink = Recorder()
    async with asyncio.TaskGroup() as tasks:
        answer = tasks.create_task(call(server, "count", {"to": 2}, sink))
        await sink.wait_for(1)
        seen_in_time.set()
    assert sink.params("notifications/progress") == [
        {"progressToken": 0, "progress": 1, "total": 2, "message": "one"},
        {"progressToken": 0, "progress": 2, "total": 2},
    ]
    assert text(answer.result()) == "counted to 2"


async def test_only_growing_progress_is_sent(server: Server) -> None:
    @server.tool
    async def waver() -> AsyncIterator[Progress]:
        for n in (1, 1, 3, 2, float("nan"), float("inf"), 3.5):
            yield Progress(n)

    sink = Recorder()
    await call(server, "waver", sink=sink)
    assert [params["progress"] for params in sink.params("notifications/progress")] == [1, 3, 3.5]


async def test_events_may_be_of_the_authors_own_kind_and_returned_as_a_list(server: Server) -> None:
    class Step(Progress, frozen=True):
        """Progress in steps of a hundred."""

    class Note(Text, frozen=True):
        """A text with a name."""

    server.add_tool(lambda: [Step(1, 100), "and", Note("noted")], name="returned")

    @server.tool
    async def yielded() -> AsyncIterator[object]:
        yield (Step(1, 100), "and")
        yield Note("noted")

    for name in ("returned", "yielded"):
        sink = Recorder()
        assert text(await call(server, name, sink=sink)) == "and\nnoted"
        assert sink.params("notifications/progress") == [{"progressToken": 0, "progress": 1, "total": 100}]


async def test_progress_may_be_any_kind_of_number(server: Server) -> None:
    class Metres(float):
        pass

    @server.tool
    async def measure(call: Call) -> AsyncIterator[object]:
        yield Progress(Fraction(1, 2), total=Metres(2.5))  # pyright: ignore[reportArgumentType]
        await call.progress(Decimal(1))  # pyright: ignore[reportArgumentType]
        yield Data("part")

    sink = Recorder()
    await call(server, "measure", sink=sink)
    sent = [json.loads(encode(notification))["params"] for notification in sink.seen]
    assert [(params["progress"], params.get("total")) for params in sent] == [(0.5, 2.5), (1, None), (1.000001, None)]


async def test_nothing_is_sent_to_a_client_that_did_not_ask_for_it(server: Server) -> None:
    @server.tool
    async def chatty() -> AsyncIterator[object]:
        yield Progress(1)
        yield Data("part")
        yield Log("emergency", "!")

    sink = Recorder()
    result = await call(server, "chatty", sink=sink, capabilities={})
    assert sink.seen == []
    assert text(result) == "part"


async def test_nothing_is_sent_after_the_end(server: Server) -> None:
    calls: list[Call] = []

    @server.tool
    async def keep(call: Call) -> str:
        calls.append(call)
        await call.progress(1)
        return "done"

    sink = Recorder()
    await call(server, "keep", sink=sink)
    await calls[0].progress(2)
    await calls[0].log("error", "late")
    await calls[0].data("late")
    assert len(sink.seen) == 1


async def test_log_lines_below_the_wanted_level_are_kept_back(server: Server) -> None:
    @server.tool
    async def grumble(call: Call) -> AsyncIterator[Log]:
        yield Log("info", "no")
        yield Log("warning", {"why": object}, "me")
        await call.log("error", [1])

    sink = Recorder()
    await call(server, "grumble", sink=sink, log_level="warning")
    assert sink.params("notifications/message") == [
        {"level": "warning", "logger": "me", "data": "{'why': <class 'object'>}"},
        {"level": "error", "data": [1]},
    ]


async def test_data_after_the_last_step_does_not_exceed_the_total(server: Server) -> None:
    @server.tool
    async def tell() -> AsyncIterator[object]:
        yield Progress(1, total=2)
        yield Data("a")
        yield Progress(2, total=2)
        yield Data("b")
        yield Data("c")

    sink = Recorder()
    await call(server, "tell", sink=sink)
    sent = sink.params("notifications/progress")
    numbers = [params["progress"] for params in sent]
    assert len(sent) == 5 and numbers == sorted(set(numbers))
    assert all(params["progress"] <= params["total"] for params in sent)
    assert sent[1]["total"] == 2


async def test_data_leaves_at_once_and_is_in_the_result_too(server: Server) -> None:
    @server.tool
    async def tell() -> AsyncIterator[object]:
        yield Data("Once ")
        yield Data("upon")
        yield Progress(1, total=2)
        yield Data({"a": 1})
        yield Progress(2, total=2)
        yield "The end."

    sink = Recorder()
    result = await call(server, "tell", sink=sink)
    sent = sink.params("notifications/progress")
    assert [(p["progress"], p.get("message"), p.get("_meta", {}).get("dev.sluicegate/data")) for p in sent] == [
        (1, "Once ", "Once "),
        (2, "upon", "upon"),
        (3, None, None),
        (3.000001, '{"a":1}', {"a": 1}),
        (4, None, None),
    ]
    assert [params.get("total") for params in sent] == [None, None, 4, 4, 4], "the tool's own numbers follow the count"
    assert [block["text"] for block in result["content"]] == ["Once upon", '{"a":1}', "The end."]


@pytest.mark.parametrize(
    ("own", "expected"),
    [
        ((50, 100), [1, 2, 50, 100]),
        ((0, 1), [1, 2, 3, 4]),
        ((0.25, 0.5), [1, 2, 3, 3.25]),
        ((-1, 1), [1, 2, 3, 5]),
        ((1, 1), [1, 2, 3]),
    ],
)
async def test_own_numbers_after_events_grow_and_keep_their_distances(
    server: Server, own: tuple[float, float], expected: list[float]
) -> None:
    @server.tool
    async def late() -> AsyncIterator[object]:
        yield Data("a")
        yield Data("b")
        for number in own:
            yield Progress(number)

    sink = Recorder()
    await call(server, "late", sink=sink)
    assert [params["progress"] for params in sink.params("notifications/progress")] == expected


# ------------------------------------------------------------------------------------------------------ two kinds of
# failure


async def test_unknown_tool_and_wrong_params_are_protocol_errors(server: Server) -> None:
    server.add_tool(lambda: None, name="known")
    with pytest.raises(UnknownTarget, match=r"^Unknown tool: x$") as unknown:
        await call(server, "x")
    assert unknown.value.code == -32602
    wrong: list[dict[str, Any]] = [
        {},
        {"name": 1},
        {"name": "known", "arguments": []},
        {"name": "known", "arguments": None},
    ]
    for params in wrong:
        with pytest.raises(InvalidParams, match="Invalid params: (name|arguments) is missing or not"):
            await ask(server, "tools/call", params)
    assert await ask(server, "tools/call", {"name": "known", "surplus": 1})


async def test_bad_arguments_are_a_result_that_names_the_field_and_the_tool_does_not_run(server: Server) -> None:
    ran = False

    @server.tool
    def add(a: int, b: int = 0) -> int:
        nonlocal ran
        ran = True
        return a + b

    assert failure(await call(server, "add", {"a": "1"})) == (
        "Invalid arguments for the tool 'add': argument 'a' should be integer, got string."
    )
    assert "missing required argument 'a'" in failure(await call(server, "add"))
    assert "unknown argument 'c'" in failure(await call(server, "add", {"a": 1, "c": 2}))
    assert not ran
    assert text(await call(server, "add", {"a": 1})) == "1"


async def test_stream_is_closed_where_nothing_can_be_made_of_what_it_brings(server: Server) -> None:
    closed = False

    @server.tool
    async def stream() -> AsyncIterator[object]:
        nonlocal closed
        try:
            yield "so far so good"
            yield b"bytes"
        finally:
            closed = True

    assert failure(await call(server, "stream")) == "so far so good\nThe tool 'stream' failed (TypeError)."
    assert closed


async def test_an_exception_is_a_result_that_shows_only_its_kind(
    server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    @server.tool
    async def leak() -> AsyncIterator[str]:
        yield "so far so good"
        raise ValueError("password=hunter2")

    with caplog.at_level(logging.ERROR, "sluicegate"):
        result = await call(server, "leak")
    assert failure(result) == "so far so good\nThe tool 'leak' failed (ValueError)."
    assert "hunter2" in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize(
    ("error", "shown"),
    [
        (ToolError("No such note; try list_notes."), "No such note; try list_notes."),
        (LimitExceeded("Too many notes."), "Too many notes."),
        (SystemExit(1), "The tool 'fail' failed (SystemExit)."),
        (asyncio.CancelledError(), "The tool 'fail' failed (CancelledError)."),
        (StopIteration(), "The tool 'fail' failed (RuntimeError)."),
    ],
)
@pytest.mark.parametrize("is_async", [False, True])
async def test_the_shown_text_depends_on_the_class_of_the_exception(
    server: Server, error: BaseException, shown: str, is_async: bool
) -> None:
    def fail() -> None:
        raise error

    async def fail_async() -> None:
        raise error

    server.add_tool(fail_async if is_async else fail, name="fail")
    assert failure(await call(server, "fail")) == shown


async def test_error_of_another_server_is_not_shown_as_ours(server: Server) -> None:
    from sluicegate.errors import ErrorObject

    @server.tool
    async def relay() -> None:
        raise RpcError(ErrorObject(-32603, "their secret"))

    assert failure(await call(server, "relay")) == "The tool 'relay' failed (RpcError)."


async def test_yielded_error_marks_the_result_and_keeps_the_rest(server: Server) -> None:
    @server.tool
    async def half() -> AsyncIterator[object]:
        yield Structured({"done": 1})
        yield Error("The second half is missing.")
        yield "but look"

    result = await call(server, "half")
    assert failure(result) == "The second half is missing.\nbut look"
    assert result["structuredContent"] == {"done": 1}


async def test_result_that_breaks_its_own_schema_is_a_failure(server: Server) -> None:
    @server.tool
    def numbers(wrong: bool) -> dict[str, int]:
        return {"a": "x"} if wrong else {"a": 1}  # pyright: ignore[reportReturnType]

    server.add_tool(lambda: "text", name="silent", output_schema={"type": "object"})
    assert (await call(server, "numbers", {"wrong": False}))["structuredContent"] == {"a": 1}
    broken = await call(server, "numbers", {"wrong": True})
    assert failure(broken) == (
        "The tool 'numbers' failed: its result does not match its output schema:"
        " field 'a' should be integer, got string."
    )
    assert "structuredContent" not in broken
    assert "returned no structured result" in failure(await call(server, "silent"))


async def test_schema_of_the_authors_own_is_checked_and_arguments_pass_unconverted(server: Server) -> None:
    schema: dict[str, Any] = {"type": "object", "properties": {"n": {"minimum": 3}}, "required": ["n"]}

    @server.tool(input_schema=schema, description="Takes what it is told.")
    async def own(n: object, call: Call) -> str:
        return f"{n!r} {type(call).__name__}"

    @server.tool(input_schema={"type": "object"})
    def everything(**values: object) -> list[str]:
        return sorted(values)

    # What the function does not take is dropped, and nobody can pass for us.
    assert text(await call(server, "own", {"n": 4.5, "call": "mine", "other": 1})) == "4.5 Call"
    assert "argument 'n' should be >= 3" in failure(await call(server, "own", {"n": 2}))
    assert text(await call(server, "everything", {"b": 1, "a-b": 2})) == '["a-b","b"]'
    with pytest.raises(TypeError, match="parameter 'm' has no default, so input_schema should require it"):
        server.add_tool(lambda m: m, name="loose", input_schema=schema)  # pyright: ignore


# ------------------------------------------------------------------------------------------------- threads and
# cancellation


async def test_blocking_function_does_not_block_the_loop(server: Server) -> None:
    release = threading.Event()

    @server.tool
    def block() -> str:
        return "released" if release.wait(20) else "stuck"

    @server.tool
    async def free() -> None:
        release.set()

    async with asyncio.TaskGroup() as tasks:
        blocked = tasks.create_task(call(server, "block"))
        await asyncio.sleep(0)
        await call(server, "free")
    assert text(blocked.result()) == "released"


async def test_plain_generator_makes_all_its_steps_in_one_thread(server: Server) -> None:
    @server.tool
    def rows() -> Iterator[object]:
        database = sqlite3.connect(":memory:")  # Refuses to be used by another thread.
        for n, (value,) in enumerate(database.execute("select 1 union select 2")):
            yield Progress(n)
            yield value
        database.close()

    sink = Recorder()
    assert text(await call(server, "rows", sink=sink)) == "1\n2"
    assert len(sink.seen) == 2


async def test_plain_generator_that_raises_is_a_failure_like_any_other(server: Server) -> None:
    @server.tool
    def steps() -> Iterator[str]:
        yield "one"
        raise ToolError("There is no two.")

    assert failure(await call(server, "steps")) == "one\nThere is no two."


async def test_a_plain_generator_is_closed_after_the_current_step(server: Server) -> None:
    started, release, cleaned = asyncio.Event(), threading.Event(), threading.Event()
    loop = asyncio.get_running_loop()

    @server.tool
    def steps() -> Iterator[str]:
        try:
            loop.call_soon_threadsafe(started.set)
            release.wait(20)
            yield "nobody wants this any more"
        finally:
            cleaned.set()

    async with asyncio.timeout(10):
        running = asyncio.create_task(call(server, "steps"))
        await started.wait()
        running.cancel()
        # The caller does not wait for the thread, which nothing can interrupt.
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not cleaned.is_set()
        release.set()
        await asyncio.to_thread(cleaned.wait, 20)
    assert cleaned.is_set()


@pytest.mark.parametrize("kind", ["at a yield", "inside", "plain"])
async def test_cancelling_a_call_closes_its_generator(server: Server, kind: str) -> None:
    started, cleaned = asyncio.Event(), threading.Event()

    async def at_a_yield() -> AsyncIterator[object]:
        try:
            yield Progress(1)
        finally:
            cleaned.set()

    async def inside() -> AsyncIterator[object]:
        try:
            started.set()
            await asyncio.Event().wait()
            yield "never"
        finally:
            cleaned.set()

    def plain() -> Iterator[object]:
        try:
            yield Progress(1)
        finally:
            cleaned.set()

    class Stuck(Recorder):
        async def emit(self, notification: object) -> None:
            started.set()
            await asyncio.Event().wait()

    server.add_tool({"at a yield": at_a_yield, "inside": inside, "plain": plain}[kind], name="long")
    exchange = Exchange("tools/call", {"name": "long"}, Stuck(), EAGER)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:

        async def run() -> None:
            await server(exchange)

        running = tasks.create_task(run())
        await started.wait()
        running.cancel()
    assert running.cancelled()
    assert cleaned.wait(20)


# ------------------------------------------------------------------------------------------------------ own events


class Seen(msgspec.Struct, tag="seen"):
    planet: str


class Moved(msgspec.Struct, tag="moved"):
    x: int
    y: int


async def test_own_events_are_progress_and_text_of_the_result() -> None:
    server = Server("solar")

    @server.tool
    async def watch() -> AsyncIterator[Seen | Moved]:  # pyright: ignore[reportUnusedFunction]
        yield Seen("mars")
        yield Moved(1, 2)

    sent, result = await streamed(server, "watch")
    assert [params["_meta"] for params in sent] == [
        {"dev.sluicegate/event": {"type": "seen", "planet": "mars"}},
        {"dev.sluicegate/event": {"type": "moved", "x": 1, "y": 2}},
    ]
    assert [params["message"] for params in sent] == ["mars", '{"type":"moved","x":1,"y":2}']
    assert result["content"] == [{"type": "text", "text": 'mars\n{"type":"moved","x":1,"y":2}'}]


async def test_text_that_was_sent_early_is_the_first_block_and_the_result_says_which_were() -> None:
    server = Server("solar")

    @server.tool
    async def mixed() -> AsyncIterator[object]:  # pyright: ignore[reportUnusedFunction]
        yield Text("a block")
        yield Data("one, ")
        yield Data({"n": 1})
        yield ToolUse("search", {"q": "x"})
        yield Data("two")
        yield Structured({"exit_code": 0})

    sent, result = await streamed(server, "mixed")
    texts = [block["text"] for block in cast(list[dict[str, str]], result["content"])]
    assert texts == ["one, two", "a block", '{"n":1}', '[Tool: search] {"q":"x"}']
    assert result["structuredContent"] == {"exit_code": 0}
    assert cast(Params, result["_meta"])["dev.sluicegate/streamed"] == [0, 2, 3]
    assert sent[2]["message"] == "Using tool: search"


async def test_without_a_progress_token_nothing_is_marked_as_sent() -> None:
    server = Server("solar")

    @server.tool
    async def one() -> AsyncIterator[object]:  # pyright: ignore[reportUnusedFunction]
        yield Data("text")

    result = await ask(server, "tools/call", {"name": "one", "arguments": {}}, log_level=None)
    assert "dev.sluicegate/streamed" not in cast(Params, result["_meta"])


async def streamed(server: Server, name: str) -> tuple[list[Params], Params]:
    """The params of all progress of a call, and its result."""
    sink = Recorder()
    exchange = Exchange("tools/call", {"name": name, "arguments": {}}, sink, ClientProfile(progress_token=1))
    reply = await server(exchange)
    assert isinstance(reply, Result)
    return [notification.params for notification in sink.seen], opened(reply)
