"""The typed client, against servers that are written inside the test."""

import asyncio
import gc
import re
import sys
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

import msgspec
import pytest

from sluicegate import client as client_package
from sluicegate.activations.values import Data, Progress
from sluicegate.client import Client, ElicitAnswer, ElicitRequest, SampleRequest, connect
from sluicegate.client.connect import command_words
from sluicegate.errors import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ConfigError,
    ErrorObject,
    InputRefused,
    InvalidParams,
    LimitExceeded,
    MethodNotFound,
    RpcError,
    SluicegateError,
    UnknownTarget,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
)
from sluicegate.exchange import Connection, Exchange, Host
from sluicegate.protocol.input_required import Question, input_required
from sluicegate.protocol.message import Notification, Params, Reply, Result
from sluicegate.protocol.modern_era import Discovery
from sluicegate.protocol.types import (
    DataEvent,
    LogEvent,
    ProgressEvent,
    PromptRef,
    ResourceRef,
    ResourceUpdated,
    Root,
    ToolResult,
    ToolsChanged,
)
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.server import Server
from sluicegate.testing import MemoryUpstream

Answer = Callable[[Exchange], Awaitable[Reply]]


class FakeServer:
    """A server that answers with one function, and remembers what it was asked."""

    def __init__(self, answer: Answer, discovery: Discovery | None = None) -> None:
        self.answer = answer
        self.discovery = discovery or Discovery(
            "2026-07-28", {"tools": {}}, {"name": "Fake", "version": "1"}, "Be kind."
        )
        self.asked: list[Exchange] = []
        self.host: Host | None = None
        self.is_open = False

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Connection, None]:
        self.host, self.is_open = host, True
        try:
            yield self
        finally:
            self.is_open = False

    async def __call__(self, exchange: Exchange) -> Reply:
        self.asked.append(exchange)
        return await self.answer(exchange)

    async def wait_closed(self) -> None:
        await asyncio.Event().wait()


def answering(*values: Mapping[str, object] | ErrorObject) -> FakeServer:
    """A server that gives these answers, one after the other."""
    replies = iter(values)

    async def answer(exchange: Exchange) -> Reply:
        value = next(replies)
        return value if isinstance(value, ErrorObject) else Result(value)

    return FakeServer(answer)


def text(words: str, **more: object) -> Params:
    return {"content": [{"type": "text", "text": words}], **more}


def progress(value: float, **more: object) -> Notification:
    return Notification("notifications/progress", {"progressToken": 1, "progress": value, **more})


def logged(level: str, data: object) -> Notification:
    return Notification("notifications/message", {"level": level, "data": data})


def acknowledged(**honoured: object) -> Notification:
    return Notification("notifications/subscriptions/acknowledged", {"notifications": honoured})


# --- Coming together --------------------------------------------------------------------------------------------------


async def test_the_client_has_the_info_of_its_server() -> None:
    async with connect(answering()) as server:
        assert server.info == {"name": "Fake", "version": "1"}
        assert (server.name, server.instructions, server.version) == ("Fake", "Be kind.", "2026-07-28")
        assert server.capabilities == {"tools": {}}


async def test_client_works_over_any_connection() -> None:
    async with TaskScope() as tasks:
        assert (await Client(answering(text("hi")), tasks).call("greet")).text == "hi"


async def test_error_in_the_body_leaves_as_itself_and_closes_the_connection() -> None:
    fake = answering()
    with pytest.raises(KeyError):
        async with connect(fake):
            raise KeyError
    assert not fake.is_open


def test_url_that_cannot_be_asked_is_refused_when_connect_is_called() -> None:
    with pytest.raises(ConfigError, match="URL of a server"):
        connect("HTTPS://user@example.com/mcp")


@pytest.mark.parametrize("scheme", ["ftp", "WSS", "git+ssh"])
def test_url_of_another_scheme_is_refused_with_the_supported_ones(scheme: str) -> None:
    with pytest.raises(ConfigError, match=f"^Connect to an http or https URL, .*{re.escape(scheme)}://"):
        connect(f" {scheme}://example.com/mcp")


def test_command_may_have_a_url_of_any_scheme_among_its_words() -> None:
    connect("some-proxy --to ws://example.com/mcp")


@pytest.mark.parametrize("target", ["", "  ", [], "python 'demo.py"])
def test_command_that_is_none_is_refused_when_connect_is_called(target: str | list[str]) -> None:
    with pytest.raises(ConfigError):
        connect(target)


@pytest.mark.parametrize("target", [None, 5, Path("demo.py"), b"python demo.py", ["python", 5], [b"python"]])
def test_target_that_is_none_is_refused_by_a_sentence(target: Any) -> None:
    with pytest.raises(ConfigError, match=r", not (to )?(NoneType|int|PosixPath|WindowsPath|bytes)\.$"):
        connect(target)


def test_era_that_there_is_not_is_refused() -> None:
    era: Any = "moderm"
    with pytest.raises(ConfigError, match=r"^era is one of auto, session, modern, not 'moderm'\.$"):
        connect("serve", era=era)


@pytest.mark.parametrize("env", [{"PORT": 80}, {"TOKEN": None}])
def test_variables_of_a_command_are_strings(env: Any) -> None:
    with pytest.raises(ConfigError, match=r"of the command is a string, not (int|NoneType)\.$"):
        connect("serve", env=env)


@pytest.mark.parametrize("name", ["elicit", "sample", "on_log", "on_notification"])
def test_callback_that_cannot_be_called_is_refused(name: str) -> None:
    callback: Any = {name: True}
    with pytest.raises(ConfigError, match=f"^{name} is a function, not bool\\.$"):
        connect("serve", **callback)


async def test_command_that_says_nothing_is_given_up_after_the_open_timeout() -> None:
    async with asyncio.timeout(30):
        with pytest.raises(UpstreamError):
            async with connect([sys.executable, "-c", "input(); input()"], era="session", open_timeout=0.1):
                pass


def test_settings_of_a_process_are_refused_for_what_is_none() -> None:
    with pytest.raises(ConfigError):
        connect(answering(), env={"A": "b"})


def test_command_line_is_split_without_a_shell() -> None:
    assert command_words("serve 'my file' $HOME && rm *") == ["serve", "my file", "$HOME", "&&", "rm", "*"]


def test_a_bare_python_is_the_interpreter_we_run_in() -> None:
    assert command_words("python demo.py") == [sys.executable, "demo.py"]
    assert command_words("python3 demo.py") == ["python3", "demo.py"]
    assert command_words("/usr/bin/python demo.py") == ["/usr/bin/python", "demo.py"]


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("serve 'my file'", ["serve", "my file"]),
        (["serve", "my file"], ["serve", "my file"]),
        (["python", Path("my file")], [sys.executable, "my file"]),
    ],
)
async def test_command_becomes_a_child_process(monkeypatch: pytest.MonkeyPatch, target: Any, words: list[str]) -> None:
    made: list[object] = []

    def make(command: object, **settings: object) -> FakeServer:
        made.append((command, settings))
        return answering(text("hi"))

    stdio = ModuleType("stdio")
    stdio.__dict__["StdioUpstream"] = make
    monkeypatch.setitem(sys.modules, "sluicegate.upstream.stdio", stdio)
    async with connect(target, env={"A": "b"}, cwd="/srv", era="session", open_timeout=3.0) as server:
        assert (await server.call("greet")).text == "hi"
    assert made == [(words, {"env": {"A": "b"}, "cwd": "/srv", "era": "session", "open_timeout": 3.0})]


def test_public_names_are_there() -> None:
    assert all(hasattr(client_package, name) for name in client_package.__all__)


# --- What a request carries -------------------------------------------------------------------------------------------


async def test_request_carries_a_profile_and_its_own_progress_token() -> None:
    fake = answering(text("a"), text("b"))
    async with connect(fake, roots=["/srv"], name="me", version="9") as server:
        await server.call("x")
        await server.call("x")
    first, second = (exchange.profile for exchange in fake.asked)
    assert first.version == "2026-07-28"
    assert first.capabilities == {"roots": {}}
    assert first.client_info == {"name": "me", "version": "9"}
    assert first.log_level is None
    assert first.progress_token is not None and first.progress_token != second.progress_token


async def test_request_to_a_session_era_server_has_the_newest_shape_too() -> None:
    fake = answering(text("a"))
    fake.discovery = Discovery("2024-11-05")
    async with connect(fake) as server:
        await server.call("x")
        assert server.version == "2024-11-05"
    assert fake.asked[0].profile.version == "2026-07-28"


async def test_level_goes_along_with_every_later_request() -> None:
    fake = answering(text("a"), text("b"))
    async with connect(fake) as server:
        await server.call("x")
        await server.set_level("debug")
        await server.call("x")
        with pytest.raises(InvalidParams):
            await server.set_level("loud")
    assert [exchange.profile.log_level for exchange in fake.asked] == [None, "debug"]


async def test_a_log_callback_requests_log_messages() -> None:
    fake = answering(text("a"))
    async with connect(fake, on_log=lambda event: None) as server:
        await server.call("x")
    assert fake.asked[0].profile.log_level == "info"


# --- Lists ------------------------------------------------------------------------------------------------------------


async def test_every_page_of_a_list_is_followed() -> None:
    fake = answering(
        {"tools": [{"name": "a"}], "nextCursor": ""}, {"tools": [{"name": "b"}], "nextCursor": "2"}, {"tools": []}
    )
    async with connect(fake) as server:
        assert [tool.name for tool in await server.tools()] == ["a", "b"]
    assert [exchange.params for exchange in fake.asked] == [{}, {"cursor": ""}, {"cursor": "2"}]


async def test_malformed_entry_is_skipped_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    async with connect(answering({"tools": [{"name": "a"}, {"description": "nameless"}, {"name": "c"}]})) as server:
        assert [tool.name for tool in await server.tools()] == ["a", "c"]
    assert "Fake: tools/list has a malformed entry, number 1" in caplog.text
    assert "`name`" in caplog.text


async def test_the_first_of_two_tools_with_one_name_is_kept(caplog: pytest.LogCaptureFixture) -> None:
    pair = [{"name": "a", "title": "1"}, {"name": "b"}, {"name": "a", "title": "2"}]
    async with connect(answering({"tools": pair})) as server:
        assert [(tool.name, tool.title) for tool in await server.tools()] == [("a", "1"), ("b", None)]
    assert "'a' twice" in caplog.text


@pytest.mark.parametrize(
    ("pages", "problem"),
    [
        (
            [{"tools": [{"name": "a"}], "nextCursor": "1"}, {"tools": [{"name": "b"}], "nextCursor": "1"}],
            "a cursor again",
        ),
        ([{"tools": [{"name": "a"}], "nextCursor": ""}, {"tools": [{"name": "a"}], "nextCursor": "x"}], "a page again"),
        ([{"tools": [{"name": "a"}], "nextCursor": 7}], "no string"),
    ],
)
async def test_list_that_goes_in_a_circle_ends(
    pages: list[Params], problem: str, caplog: pytest.LogCaptureFixture
) -> None:
    fake = answering(*pages)
    async with connect(fake) as server:
        assert (await server.tools())[0].name == "a"
    assert len(fake.asked) == len(pages)
    assert problem in caplog.text


async def test_list_without_end_is_cut(caplog: pytest.LogCaptureFixture) -> None:
    async def answer(exchange: Exchange) -> Reply:
        number = len(fake.asked)
        return Result({"tools": [{"name": f"t{number}"}], "nextCursor": str(number)})

    fake = FakeServer(answer)
    async with connect(fake) as server:
        assert len(await server.tools()) == 64
    assert "more than 64 pages" in caplog.text


async def test_list_that_is_none_is_a_protocol_error() -> None:
    async with connect(answering({"tools": {"a": 1}})) as server:
        with pytest.raises(UpstreamProtocolError, match="tools/list"):
            await server.tools()


async def test_list_that_a_server_does_not_offer_is_empty() -> None:
    unknown = ErrorObject(METHOD_NOT_FOUND, "Method not found")
    async with connect(answering(unknown, unknown)) as server:
        assert await server.prompts() == []
        with pytest.raises(RpcError):
            await server.tools()  # these it did offer


async def test_resources_templates_and_prompts_are_listed() -> None:
    fake = answering(
        {"resources": [{"uri": "a:b", "name": "b"}]},
        {"resourceTemplates": [{"uriTemplate": "a:{b}", "name": "b"}]},
        {"prompts": [{"name": "p", "arguments": [{"name": "x", "required": True}]}]},
    )
    async with connect(fake) as server:
        assert [resource.uri for resource in await server.resources()] == ["a:b"]
        assert [template.uri_template for template in await server.resource_templates()] == ["a:{b}"]
        assert (await server.prompts())[0].arguments[0].required
    assert [e.method for e in fake.asked] == ["resources/list", "resources/templates/list", "prompts/list"]


# --- Calls ------------------------------------------------------------------------------------------------------------


async def test_arguments_come_by_keyword_in_a_mapping_or_both() -> None:
    fake = answering(text("a"), text("b"), text("c"))
    async with connect(fake) as server:
        await server.call("add", a=1, b=2)
        await server.call("add", {"timeout": 1, "name": 2}, name=3)
        await server.call("add")
    assert [exchange.params["arguments"] for exchange in fake.asked] == [
        {"a": 1, "b": 2},
        {"timeout": 1, "name": 3},
        {},
    ]


async def test_tool_that_failed_is_a_result_and_a_refusal_is_an_error() -> None:
    refusal = ErrorObject(INVALID_PARAMS, "Unknown tool", {"name": "x"})
    async with connect(answering(text("no disk", isError=True), refusal)) as server:
        result = await server.call("x")
        assert (result.is_error, result.text) == (True, "no disk")
        with pytest.raises(RpcError) as caught:
            await server.call("x")
    assert (caught.value.code, caught.value.error) == (INVALID_PARAMS, refusal)


@pytest.mark.parametrize("arguments", ["x", "", 5, 0, ["x"]])
async def test_arguments_that_are_no_mapping_are_a_type_error(arguments: Any) -> None:
    fake = answering()
    async with connect(fake) as server:
        for wrong in (server.call("t", arguments), server.prompt("p", arguments), anext(server.stream("t", arguments))):
            with pytest.raises(TypeError, match="pass arguments by keyword or in a mapping, not as"):
                await wrong
    assert not fake.asked


async def test_resource_that_raises_is_the_same_error_here_and_across_a_wire() -> None:
    offering = Server("demo")

    @offering.resource("a://b")
    def broken() -> str:
        raise ValueError("secret")

    errors: list[ErrorObject] = []
    for upstream in (offering, MemoryUpstream(offering, era="modern"), MemoryUpstream(offering, era="session")):
        async with connect(upstream) as server:
            with pytest.raises(RpcError, match=r"^The resource a://b failed \(ValueError\)\.$") as caught:
                await server.read("a://b")
        errors.append(caught.value.error)
    assert errors[0] == errors[1] == errors[2]


@pytest.mark.parametrize("refusal", [UnknownTarget("Unknown tool: x"), MethodNotFound("No"), LimitExceeded("Later.")])
async def test_refusal_by_a_server_in_this_process_reads_like_one_from_afar(refusal: SluicegateError) -> None:
    async def answer(exchange: Exchange) -> Reply:
        raise refusal

    async with connect(FakeServer(answer)) as server:
        with pytest.raises(RpcError, match=refusal.message) as caught:
            await server.call("x")
    assert caught.value.code == refusal.code


async def test_result_that_is_still_bytes_is_read() -> None:
    raw = msgspec.Raw(b'{"content":[],"structuredContent":{"n":9007199254740993}}')

    async def answer(exchange: Exchange) -> Reply:
        return Result(raw)

    async with connect(FakeServer(answer)) as server:
        assert (await server.call("x")).structured_content == {"n": 9007199254740993}


@pytest.mark.parametrize(
    "value", [{"content": 7}, msgspec.Raw(b'{"a":1e999}'), msgspec.Raw(b'{"resultType":"input_required","a":1e999}')]
)
async def test_result_that_cannot_be_read_is_a_protocol_error(value: msgspec.Raw | Params) -> None:
    async def answer(exchange: Exchange) -> Reply:
        return Result(value)

    async with connect(FakeServer(answer)) as server:
        with pytest.raises(UpstreamProtocolError, match="tools/call"):
            await server.call("x")


async def test_resource_is_read_prompt_filled_in_and_argument_completed() -> None:
    fake = answering(
        {"contents": [{"uri": "a:b", "text": "hi"}]},
        {"messages": [{"role": "user", "content": {"type": "text", "text": "Do it."}}]},
        *[{"completion": {"values": ["python"]}}] * 4,
    )
    async with connect(fake) as server:
        assert (await server.read("a:b")).text == "hi"
        assert (await server.prompt("p", {"x": "1"}, name="2")).text == "Do it."
        assert (await server.complete("p", "language", "py", {"x": "1"})).values == ["python"]
        await server.complete("file:///{path}", "path", "")
        await server.complete(ResourceRef("urn:{id}"), "id", "")
        await server.complete(PromptRef("a://b"), "id", "")
    read, prompt, *completions = [exchange.params for exchange in fake.asked]
    assert read == {"uri": "a:b"}
    assert prompt == {"name": "p", "arguments": {"x": "1", "name": "2"}}
    assert completions[0] == {
        "ref": {"type": "ref/prompt", "name": "p"},
        "argument": {"name": "language", "value": "py"},
        "context": {"arguments": {"x": "1"}},
    }
    assert [completion["ref"] for completion in completions[1:]] == [
        {"type": "ref/resource", "uri": "file:///{path}"},
        {"type": "ref/resource", "uri": "urn:{id}"},
        {"type": "ref/prompt", "name": "a://b"},
    ]


async def test_cancelling_the_task_that_waits_cancels_the_call() -> None:
    begun, cancelled = asyncio.Event(), asyncio.Event()

    async def answer(exchange: Exchange) -> Reply:
        try:
            begun.set()
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with connect(FakeServer(answer)) as server, asyncio.timeout(10):
        task = asyncio.create_task(server.call("x"))
        await begun.wait()
        task.cancel()
        await cancelled.wait()
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_closed_client_refuses() -> None:
    async with connect(answering()) as server:
        pass
    with pytest.raises(UpstreamClosed):
        await server.call("x")
    with pytest.raises(UpstreamClosed):
        async for _ in server.stream("x"):
            pass


# --- Time -------------------------------------------------------------------------------------------------------------


async def test_call_that_is_not_answered_in_time_is_cancelled() -> None:
    cancelled = asyncio.Event()

    async def answer(exchange: Exchange) -> Reply:
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async with connect(FakeServer(answer), timeout=60) as server, asyncio.timeout(10):
        with pytest.raises(UpstreamTimeout, match=r"Fake did not answer tools/call 'x' within 0.01 s\.") as caught:
            await server.call("x", timeout=0.01)
    assert cancelled.is_set()
    assert caught.value.delivered == "unknown"


async def test_each_call_has_its_own_time_whichever_began_first() -> None:
    async def answer(exchange: Exchange) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    async with connect(FakeServer(answer), timeout=60) as server, asyncio.timeout(10):
        missed: list[float] = []

        async def call(seconds: float) -> None:
            with pytest.raises(UpstreamTimeout, match=f"within {seconds:g} s"):
                await server.call("x", timeout=seconds)
            missed.append(seconds)

        long = [asyncio.create_task(server.call("x", timeout=seconds)) for seconds in (60, 40)]
        async with asyncio.TaskGroup() as group:
            for seconds in (0.2, 0.1, 0.01):
                group.create_task(call(seconds))
        assert sorted(missed) == [0.01, 0.1, 0.2] and not any(waiting.done() for waiting in long)
        for waiting in long:
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting


async def test_time_out_around_a_call_is_not_taken_for_the_calls_own() -> None:
    async def answer(exchange: Exchange) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    async with connect(FakeServer(answer), timeout=60) as server, asyncio.timeout(10):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.01):
                await server.call("x")
        with pytest.raises(UpstreamTimeout):
            await server.call("x", timeout=0.01)
        task = asyncio.current_task()
        assert task is not None and task.cancelling() == 0


async def test_default_time_holds_for_every_request() -> None:
    async def answer(exchange: Exchange) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    async with connect(FakeServer(answer), timeout=0.01) as server, asyncio.timeout(10):
        with pytest.raises(UpstreamTimeout, match="tools/list"):
            await server.tools()
        with pytest.raises(UpstreamTimeout, match="resources/read 'a:b'"):
            await server.read("a:b")
        with pytest.raises(UpstreamTimeout, match="subscriptions/listen"):
            async with server.listen(tools=True):
                pass


async def test_progress_gives_the_server_its_time_again() -> None:
    async def answer(exchange: Exchange) -> Reply:
        time = asyncio.get_running_loop().time
        end = time() + 2.5
        while time() < end:
            await exchange.emit(progress(1))
            await asyncio.sleep(0.01)  # The pace of the progress.
        return Result(text("done"))

    async with connect(FakeServer(answer)) as server, asyncio.timeout(10):
        assert (await server.call("x", timeout=2)).text == "done"


async def test_progress_cannot_go_beyond_the_maximum() -> None:
    async def answer(exchange: Exchange) -> Reply:
        while True:
            await exchange.emit(progress(1))
            await asyncio.sleep(0)

    async with connect(FakeServer(answer), timeout=0.05, max_timeout=0.05) as server, asyncio.timeout(10):
        with pytest.raises(UpstreamTimeout, match=r"within 0.05 s, the maximum"):
            await server.call("x")


async def test_maximum_below_the_default_time_holds() -> None:
    async def answer(exchange: Exchange) -> Reply:
        await asyncio.Event().wait()
        raise AssertionError

    async with connect(FakeServer(answer), max_timeout=0.01) as server, asyncio.timeout(10):
        with pytest.raises(UpstreamTimeout, match=r"within 0.01 s"):
            await server.call("x")
        with pytest.raises(UpstreamTimeout, match=r"within 0.01 s"):
            async with server.listen(tools=True):
                pass


async def test_time_that_our_own_side_takes_does_not_count() -> None:
    async def slow_person(request: ElicitRequest) -> dict[str, object]:
        await asyncio.sleep(2.2)  # the time that passes is the subject
        return {}

    async def slow_callback(event: ProgressEvent) -> None:
        await asyncio.sleep(2.2)  # the time that passes is the subject

    async def answer(exchange: Exchange) -> Reply:
        if "inputResponses" not in exchange.params:
            return input_required({"q": Question("elicitation/create", {"message": "?"})}, None)
        await exchange.emit(progress(1))
        return Result(text("done"))

    async with connect(FakeServer(answer), timeout=2, max_timeout=2, elicit=slow_person) as server:
        assert (await server.call("x", on_progress=slow_callback)).text == "done"


async def test_time_out_that_is_the_servers_own_is_not_taken_for_ours() -> None:
    async def answer(exchange: Exchange) -> Reply:
        raise TimeoutError

    async with connect(FakeServer(answer)) as server:
        with pytest.raises(TimeoutError):
            await server.call("x")


async def test_progress_after_the_end_does_no_harm() -> None:
    async with connect(answer_and_keep := answering(text("a"))) as server:
        await server.call("x")
        await answer_and_keep.asked[0].emit(progress(9))


# --- Events -----------------------------------------------------------------------------------------------------------


async def busy(exchange: Exchange) -> Reply:
    await exchange.emit(progress(1, total=2, message="half"))
    await exchange.emit(logged("info", "tick"))
    await exchange.emit(Notification("notifications/progress", {"progress": "broken"}))
    return Result(text("done"))


async def test_progress_and_log_of_a_call_reach_their_callbacks() -> None:
    steps: list[ProgressEvent] = []
    lines: list[LogEvent] = []

    async def on_progress(event: ProgressEvent) -> None:
        steps.append(event)

    async with connect(FakeServer(busy), on_log=lines.append) as server:
        await server.call("x", on_progress=on_progress)
    assert steps == [ProgressEvent(1, 2, "half")]
    assert lines == [LogEvent("info", "tick")]


async def test_callback_that_fails_is_logged_and_the_call_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def on_progress(event: ProgressEvent) -> None:
        raise ValueError("mine")

    async with connect(FakeServer(busy)) as server:
        assert (await server.call("x", on_progress=on_progress)).text == "done"
    assert "The callback for ProgressEvent failed" in caplog.text


async def test_notices_without_a_call_reach_the_callbacks() -> None:
    lines: list[LogEvent] = []
    others: list[Notification] = []
    fake = answering()
    changed = Notification("notifications/tools/list_changed", {})
    async with connect(fake, on_log=lines.append, on_notification=others.append):
        assert fake.host is not None
        await fake.host.sink.emit(logged("error", "fire"))
        await fake.host.sink.emit(changed)
    assert lines == [LogEvent("error", "fire")]
    assert others == [changed]


# --- Streams ----------------------------------------------------------------------------------------------------------


async def test_stream_gives_events_as_they_come_and_the_result_as_the_last() -> None:
    lines: list[LogEvent] = []
    async with connect(FakeServer(busy), on_log=lines.append) as server, asyncio.timeout(10):
        events = [event async for event in server.stream("x", a=1)]
    *before, last = events
    assert before == [ProgressEvent(1, 2, "half"), LogEvent("info", "tick")]
    assert isinstance(last, ToolResult) and last.text == "done"
    assert lines == []


async def test_event_of_a_stream_is_seen_before_the_call_is_over() -> None:
    seen = asyncio.Event()

    async def answer(exchange: Exchange) -> Reply:
        await exchange.emit(progress(1))
        await seen.wait()
        return Result(text("done"))

    async with connect(FakeServer(answer)) as server, asyncio.timeout(10):
        async for event in server.stream("x"):
            if isinstance(event, ProgressEvent):
                seen.set()


async def test_stream_raises_what_the_call_would() -> None:
    async with connect(answering(ErrorObject(INVALID_PARAMS, "Unknown tool"))) as server, asyncio.timeout(10):
        with pytest.raises(RpcError):
            async for _ in server.stream("x"):
                pass


async def endless(exchange: Exchange, cancelled: asyncio.Event) -> Reply:
    try:
        step = 0
        while True:
            step += 1
            await exchange.emit(progress(step))
            await asyncio.sleep(0)
    finally:
        cancelled.set()


async def test_leaving_the_loop_of_a_stream_cancels_the_call() -> None:
    cancelled = asyncio.Event()
    async with connect(FakeServer(lambda exchange: endless(exchange, cancelled))) as server, asyncio.timeout(10):
        async for _ in server.stream("x"):
            break
        gc.collect()  # not needed by CPython, which counts references
        await cancelled.wait()
        assert server.name == "Fake"  # the connection goes on


async def test_closing_a_stream_cancels_the_call() -> None:
    cancelled = asyncio.Event()
    async with connect(FakeServer(lambda exchange: endless(exchange, cancelled))) as server, asyncio.timeout(10):
        with pytest.raises(KeyError):
            async with aclosing(server.stream("x")) as events:
                async for _ in events:
                    raise KeyError
        await cancelled.wait()


async def test_server_waits_for_a_slow_reader() -> None:
    emitted = 0

    async def answer(exchange: Exchange) -> Reply:
        nonlocal emitted
        for step in range(1000):
            await exchange.emit(progress(step))
            emitted += 1
        return Result(text("done"))

    async with connect(FakeServer(answer)) as server, asyncio.timeout(10):
        stream = server.stream("x")
        await anext(stream)
        for _ in range(500):
            await asyncio.sleep(0)  # every chance to run away
        assert emitted < 100
        rest = [event async for event in stream]
    assert len(rest) == 1000


async def test_the_reader_of_a_stream_gets_an_error_when_the_client_closes() -> None:
    begun = asyncio.Event()

    async def answer(exchange: Exchange) -> Reply:
        begun.set()
        await asyncio.Event().wait()
        raise AssertionError

    async def read(server: Client) -> None:
        async for _ in server.stream("x"):
            pass

    async with asyncio.timeout(10):
        async with connect(FakeServer(answer)) as server:
            task = asyncio.create_task(read(server))
            await begun.wait()
        with pytest.raises(UpstreamClosed):
            await task


# --- Changes ----------------------------------------------------------------------------------------------------------


class Listened:
    """A server that acknowledges a subscription and then says what the test tells it to."""

    def __init__(self, **honoured: object) -> None:
        self.honoured = honoured
        self.queue: asyncio.Queue[Notification | Reply] = asyncio.Queue()
        self.ended = asyncio.Event()
        self.server = FakeServer(self.answer)

    async def answer(self, exchange: Exchange) -> Reply:
        try:
            await exchange.emit(Notification("notifications/prompts/list_changed", {}))  # too early: not subscribed
            await exchange.emit(acknowledged(**self.honoured))
            while isinstance(item := await self.queue.get(), Notification):
                await exchange.emit(item)
                self.queue.task_done()
            return item
        finally:
            self.ended.set()

    async def say(self, *notifications: Notification) -> None:
        for notification in notifications:
            self.queue.put_nowait(notification)
        await self.queue.join()


TOOLS_CHANGED = Notification("notifications/tools/list_changed", {"_meta": {}})


def updated(uri: str) -> Notification:
    return Notification("notifications/resources/updated", {"uri": uri})


async def test_changes_come_after_the_acknowledgement_and_end_with_the_subscription() -> None:
    listened = Listened(toolsListChanged=True, resourceSubscriptions=["a:b"])
    async with connect(listened.server) as server, asyncio.timeout(10):
        async with server.listen(tools=True, uris=["a:b"]) as changes:
            await listened.say(TOOLS_CHANGED, updated("a:b/c"))
            listened.queue.put_nowait(Result({}))
            assert [change async for change in changes] == [ToolsChanged(), ResourceUpdated("a:b/c")]
    asked = listened.server.asked[0]
    assert asked.method == "subscriptions/listen"
    assert asked.params == {"notifications": {"toolsListChanged": True, "resourceSubscriptions": ["a:b"]}}
    assert asked.profile.progress_token is None


async def test_other_notices_of_a_subscription_reach_their_callbacks() -> None:
    listened = Listened(toolsListChanged=True)
    others: list[Notification] = []
    odd = Notification("notifications/odd", {})
    broken = Notification("notifications/resources/updated", {"uri": 7})
    async with connect(listened.server, on_notification=others.append) as server, asyncio.timeout(10):
        async with server.listen(tools=True) as changes:
            await listened.say(odd, broken, acknowledged(), TOOLS_CHANGED)
            assert await anext(changes) == ToolsChanged()
    assert others == [odd]


async def test_the_same_change_twice_before_it_is_read_is_one_change() -> None:
    listened = Listened(toolsListChanged=True)
    async with connect(listened.server) as server, asyncio.timeout(10):
        async with server.listen(tools=True) as changes:
            await listened.say(TOOLS_CHANGED, TOOLS_CHANGED, TOOLS_CHANGED)
            assert await anext(changes) == ToolsChanged()
            await listened.say(TOOLS_CHANGED)
            assert await anext(changes) == ToolsChanged()
            listened.queue.put_nowait(Result({}))
            assert [change async for change in changes] == []


async def test_unread_changes_are_bounded(caplog: pytest.LogCaptureFixture) -> None:
    listened = Listened(resourceSubscriptions=["a:b"])
    async with connect(listened.server) as server, asyncio.timeout(10):
        async with server.subscribe("a:b") as changes:
            await listened.say(*[updated(f"a:b/{number}") for number in range(1100)])
            listened.queue.put_nowait(Result({}))
            kept = [change async for change in changes]
    assert len(kept) == 1024
    assert kept[-1] == ResourceUpdated("a:b/1099")
    assert caplog.text.count("the oldest are dropped") == 1


async def test_leaving_a_subscription_ends_it() -> None:
    listened = Listened(resourceSubscriptions=["a:b"])
    async with connect(listened.server) as server, asyncio.timeout(10):
        async with server.subscribe("a:b"):
            assert not listened.ended.is_set()
        await listened.ended.wait()


async def test_subscription_to_a_uri_that_is_not_honoured_is_refused() -> None:
    listened = Listened(resourceSubscriptions=["a:b"])
    async with connect(listened.server) as server, asyncio.timeout(10):
        with pytest.raises(InvalidParams, match="'a:c'") as caught:
            async with server.subscribe("a:b", "a:c"):
                pass
        await listened.ended.wait()
    assert caught.value.data == {"uri": "a:c"}


async def test_a_server_may_refuse_some_of_several_lists_but_not_all() -> None:
    async with connect(Listened(toolsListChanged=True).server) as server, asyncio.timeout(10):
        async with server.listen(tools=True, prompts=True) as changes:
            assert changes.honoured == {"toolsListChanged": True}
        with pytest.raises(InvalidParams, match="none of these"):
            async with server.listen(prompts=True, resources=True):
                pass
        with pytest.raises(InvalidParams, match="needs a list"):
            async with server.listen():
                pass


async def test_subscription_that_fails_or_ends_before_it_begins_is_an_error() -> None:
    async with connect(answering(ErrorObject(METHOD_NOT_FOUND, "No"), {})) as server, asyncio.timeout(10):
        with pytest.raises(RpcError):
            async with server.listen(tools=True):
                pass
        with pytest.raises(UpstreamProtocolError):
            async with server.listen(tools=True):
                pass


async def test_subscription_that_breaks_raises_in_the_loop() -> None:
    listened = Listened(toolsListChanged=True)
    async with connect(listened.server) as server, asyncio.timeout(10):
        async with server.listen(tools=True) as changes:
            listened.queue.put_nowait(ErrorObject(INTERNAL_ERROR, "broken"))
            with pytest.raises(RpcError, match="broken"):
                await anext(changes)


# --- Questions --------------------------------------------------------------------------------------------------------


FORM: Params = {"mode": "form", "message": "Your name?", "requestedSchema": {"type": "object"}}
SAMPLING: Params = {
    "messages": [{"role": "user", "content": {"type": "text", "text": "Say hi."}}],
    "maxTokens": 9,
    "systemPrompt": "Be brief.",
}


def asking(method: str, params: Params) -> FakeServer:
    """A server that asks this before it answers, and answers with what it was told."""

    async def answer(exchange: Exchange) -> Reply:
        if "inputResponses" not in exchange.params:
            return input_required({"q": Question(method, params)}, "state")
        return Result(text("", structuredContent=exchange.params["inputResponses"]))

    return FakeServer(answer)


def test_capabilities_follow_the_callbacks() -> None:
    def declared(**callbacks: object) -> object:
        fake = answering()

        async def look() -> None:
            async with connect(fake, **callbacks):  # pyright: ignore[reportArgumentType]
                pass

        asyncio.run(look())
        assert fake.host is not None
        return fake.host.capabilities

    assert declared() == {}
    assert declared(elicit=lambda request: None) == {"elicitation": {"form": {}, "url": {}}}  # pyright: ignore
    assert declared(sample=lambda request: None, roots=[]) == {"sampling": {}, "roots": {}}  # pyright: ignore


@pytest.mark.parametrize(
    ("answer", "result"),
    [
        ({"name": "Ann"}, {"action": "accept", "content": {"name": "Ann"}}),
        ({}, {"action": "accept", "content": {}}),
        (None, {"action": "decline"}),
        (ElicitAnswer("cancel"), {"action": "cancel"}),
        (ElicitAnswer("decline", {"name": "Ann"}), {"action": "decline"}),
    ],
)
async def test_form_is_answered(answer: ElicitAnswer | dict[str, object] | None, result: Params) -> None:
    shown: list[ElicitRequest] = []

    async def elicit(request: ElicitRequest) -> ElicitAnswer | dict[str, object] | None:
        shown.append(request)
        return answer

    async with connect(asking("elicitation/create", FORM), elicit=elicit) as server:
        assert (await server.call("x")).structured_content == {"q": result}
    assert (shown[0].message, shown[0].mode, shown[0].schema) == ("Your name?", "form", {"type": "object"})
    assert shown[0].raw == FORM


async def test_form_can_be_submitted_as_it_is() -> None:
    fields: Params = {
        "name": {"type": "string", "default": "Ann"},
        "sure": {"type": "boolean", "default": False},
        "tags": {"type": "array", "default": []},
        "note": {"type": "string"},
        "odd": True,
    }
    form: Params = {"message": "?", "requestedSchema": {"type": "object", "properties": fields}}

    def elicit(request: ElicitRequest) -> dict[str, object]:
        return request.defaults

    async with connect(asking("elicitation/create", form), elicit=elicit) as server:
        content: Params = {"name": "Ann", "sure": False, "tags": []}
        assert (await server.call("x")).structured_content == {"q": {"action": "accept", "content": content}}


@pytest.mark.parametrize("schema", [{}, {"type": "object"}, {"properties": None}, {"properties": ["name"]}])
def test_form_without_fields_begins_with_nothing(schema: Params) -> None:
    assert ElicitRequest("?", schema=schema).defaults == {}


async def test_page_to_visit_is_accepted_without_content() -> None:
    page: Params = {"mode": "url", "message": "Sign in", "url": "https://x.example"}
    urls: list[str | None] = []

    def elicit(request: ElicitRequest) -> ElicitAnswer:
        urls.append(request.url)
        return ElicitAnswer("accept")

    async with connect(asking("elicitation/create", page), elicit=elicit) as server:
        assert (await server.call("x")).structured_content == {"q": {"action": "accept"}}
    assert urls == ["https://x.example"]


async def test_model_is_asked() -> None:
    shown: list[SampleRequest] = []

    def sample(request: SampleRequest) -> str:
        shown.append(request)
        return "hi"

    async with connect(asking("sampling/createMessage", SAMPLING), sample=sample) as server:
        result = await server.call("x")
    content = {"type": "text", "text": "hi"}
    said = {"role": "assistant", "model": "unknown", "content": content, "stopReason": "endTurn"}
    assert result.structured_content == {"q": said}
    assert (shown[0].messages[0].text, shown[0].max_tokens, shown[0].system_prompt) == ("Say hi.", 9, "Be brief.")


async def test_model_can_be_named() -> None:
    own = {"model": "m1", "content": {"type": "text", "text": "hi"}}
    async with connect(asking("sampling/createMessage", SAMPLING), sample=lambda request: own) as server:
        assert (await server.call("x")).structured_content == {"q": {"role": "assistant", **own}}


async def test_roots_are_paths_uris_or_roots_given_or_made() -> None:
    expected = [
        {"uri": "file:///srv/my%20files", "name": "my files"},
        {"uri": "file:///tmp/x"},
        {"uri": "file:///y", "name": "Y"},
    ]
    places = ["/srv/my files", "file:///tmp/x", Root("file:///y", "Y")]
    async with connect(asking("roots/list", {}), roots=places) as server:
        assert (await server.call("x")).structured_content == {"q": {"roots": expected}}
    async with connect(asking("roots/list", {}), roots=lambda: places) as server:
        assert (await server.call("x")).structured_content == {"q": {"roots": expected}}
    async with connect(asking("roots/list", {}), roots="/srv/my files") as server:
        assert (await server.call("x")).structured_content == {"q": {"roots": expected[:1]}}


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage", "roots/list"])
async def test_question_without_a_callback_is_refused(method: str) -> None:
    fake = answering()
    async with connect(fake):
        assert fake.host is not None
        with pytest.raises(InputRefused) as caught:
            await fake.host.sink.ask({"q": Question(method, {})})
    assert caught.value.error is not None
    assert caught.value.error.code == METHOD_NOT_FOUND


async def test_question_outside_a_call_is_answered_too() -> None:
    fake = answering()
    async with connect(fake, roots=[Root("file:///y")]):
        assert fake.host is not None
        assert await fake.host.sink.ask({"q": Question("roots/list", {})}) == {"q": {"roots": [{"uri": "file:///y"}]}}


@pytest.mark.parametrize(
    ("method", "params", "code"),
    [("elicitation/create", FORM, INTERNAL_ERROR), ("sampling/createMessage", SAMPLING, -1)],
)
async def test_callback_that_fails_refuses_without_a_reason(
    method: str, params: Params, code: int, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(request: object) -> None:
        raise ValueError("/home/ann/secret")

    fake = asking(method, params)
    async with connect(fake, elicit=fail, sample=fail) as server:
        result = await server.call("x")
        assert fake.host is not None
        with pytest.raises(InputRefused) as caught:
            await fake.host.sink.ask({"q": Question(method, params)})
    assert (result.is_error, result.text) == (True, f"The client could not answer {method}.")
    assert caught.value.error == ErrorObject(code, f"The client could not answer {method}.")
    assert "/home/ann/secret" in caplog.text


async def test_person_may_reject_that_a_model_is_asked() -> None:
    async with connect(asking("sampling/createMessage", SAMPLING), sample=lambda request: None) as server:
        result = await server.call("x")
    assert (result.is_error, result.text) == (True, "The user rejected the sampling request.")


async def test_question_that_cannot_be_read_is_refused() -> None:
    fake = answering()
    async with connect(fake, sample=lambda request: "hi"):
        assert fake.host is not None
        with pytest.raises(InputRefused) as caught:
            await fake.host.sink.ask({"q": Question("sampling/createMessage", {"messages": "hi", "maxTokens": 1})})
    assert caught.value.error is not None
    assert caught.value.error.code == INVALID_PARAMS


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_stream_gives_data_as_an_event_of_its_own(era: Any) -> None:
    server = Server("demo")

    @server.tool
    async def tell() -> AsyncGenerator[object]:
        yield Progress(1, total=1)
        yield Data("Once")
        yield Data({"upon": None})

    async with connect(MemoryUpstream(server, era=era)) as client:
        events = [event async for event in client.stream("tell")]
    assert type(events[0]) is ProgressEvent
    assert [event.value for event in events if isinstance(event, DataEvent)] == ["Once", {"upon": None}]
    assert len(events) == 4 and isinstance(events[3], ToolResult)
