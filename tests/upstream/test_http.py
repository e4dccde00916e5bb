"""Servers at a URL: our own in every era and transport, and scripted ones that fail."""

import asyncio
import json
import logging
import socket
from collections.abc import AsyncGenerator, Callable, Generator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Annotated, Literal

import msgspec
import pytest

import sluicegate
from sluicegate import (
    Client,
    ConfigError,
    RpcError,
    Server,
    UpstreamClosed,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
    connect,
)
from sluicegate.errors import ErrorObject
from sluicegate.exchange import Connection, Host
from sluicegate.protocol.input_required import Answers
from sluicegate.protocol.message import Notification, Result, opened
from sluicegate.protocol.types import ProgressEvent, ResourceUpdated, ToolResult, ToolsChanged
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream import http, http_endpoint, http_messages, legacy_sse
from sluicegate.upstream.duplex import Era
from sluicegate.upstream.http import HttpUpstream
from sluicegate.upstream.http_endpoint import Timeouts
from tests.upstream.http_server import (
    DISCOVERED,
    EVENTS,
    INFO,
    Answer,
    Asked,
    Json,
    Script,
    change,
    endpoint,
    message,
    modern,
    scripted,
    session,
)
from tests.upstream.raw_server import Recorder, exchange

Way = Literal["modern", "session", "sse"]
WAYS: tuple[Way, ...] = ("modern", "session", "sse")
TEXT: Json = {"content": [{"type": "text", "text": "done"}]}
Region = Annotated[str, msgspec.Meta(extra_json_schema={"x-mcp-header": "Region"})]


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest) -> Way:
    return request.param


@pytest.fixture(autouse=True)
def no_verdicts() -> Iterator[None]:
    http.forget_verdicts()
    yield
    http.forget_verdicts()


class Confirmation(msgspec.Struct):
    sure: bool


class Whole:
    """A server of ours, and what the test wants to know of it."""

    def __init__(self) -> None:
        self.server = server = Server("whole", version="1")
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.go_on = asyncio.Event()

        @server.tool
        async def greet(name: str) -> str:
            return f"hello {name}"

        @server.tool
        async def count(to: int):
            for n in range(1, to + 1):
                yield sluicegate.Progress(n, total=to)
            yield f"counted to {to}"

        @server.tool
        async def ask(call: sluicegate.Call) -> str:
            answer = await call.elicit("Really?", Confirmation)
            return str(answer.content.sure if answer.content else None)

        @server.tool
        async def wait(call: sluicegate.Call) -> str:
            self.begun.set()
            try:
                await self.go_on.wait()
            except asyncio.CancelledError:
                self.cancelled.set()
                raise
            return "waited"

        @server.tool
        async def leave(call: sluicegate.Call) -> str:
            await call.progress(1)
            call.end_response_early()
            self.begun.set()
            await self.go_on.wait()
            await call.progress(2)
            return "came back"

        @server.tool
        def where(region: Region = "nowhere") -> str:
            return region

        @server.tool
        async def mutter(call: sluicegate.Call) -> str:
            await call.log("warning", "careful")
            return "said"

        @server.resource("note://today")
        def today() -> str:
            return "sunny"

        self.tools = (greet, count, ask, wait, leave, where, mutter, today)


@asynccontextmanager
async def connected(way: Way, **options: object) -> AsyncGenerator[tuple[Client, Whole]]:
    """A client of our own server by each of the three ways."""
    whole = Whole()
    era: Era = "modern" if way == "modern" else "session"
    async with asyncio.timeout(20), endpoint(whole.server) as origin:
        url = f"{origin}/sse" if way == "sse" else f"{origin}/mcp"
        async with connect(url, era=era, **options) as client:  # pyright: ignore[reportArgumentType]
            yield client, whole


@asynccontextmanager
async def opened_to(
    answer: Answer, *, era: Era = "auto", headers: dict[str, str] | None = None, timeouts: Timeouts | None = None
) -> AsyncGenerator[tuple[Connection, Script, Recorder]]:
    """A connection to a scripted server, and what its host hears."""
    idle = Recorder({"roots": []})
    async with asyncio.timeout(20), scripted(answer) as script:
        upstream = HttpUpstream(script.url, era=era, headers=headers, timeouts=timeouts, name="script")
        async with upstream.connect(Host({}, {"name": "test", "version": "1"}, idle)) as connection:
            yield connection, script, idle


async def refused(answer: Answer, *, era: Era = "auto") -> tuple[sluicegate.UpstreamError, Script]:
    """The error with which a scripted server cannot be opened."""
    async with asyncio.timeout(20), scripted(answer) as script:
        with pytest.raises(sluicegate.UpstreamError) as caught:
            async with HttpUpstream(script.url, era=era, name="script").connect(Host({}, INFO, Recorder())):
                pass
        return caught.value, script


# ---------------------------------------------------------------------------------------- our own server, by every way


async def test_a_tool_is_listed_and_called(way: Way) -> None:
    async with connected(way) as (client, _):
        assert client.name == "whole"
        assert "greet" in [tool.name for tool in await client.tools()]
        assert (await client.call("greet", name="you")).text == "hello you"
        assert (await client.read("note://today")).text == "sunny"


async def test_the_version_is_that_of_the_way(way: Way) -> None:
    async with connected(way) as (client, _):
        assert client.version == ("2026-07-28" if way == "modern" else "2025-11-25")


async def test_a_thousand_progress_events_come_in_order_and_none_is_lost(way: Way) -> None:
    async with connected(way) as (client, _):
        events = [event async for event in client.stream("count", to=1000)]
        assert [e.progress for e in events if isinstance(e, ProgressEvent)] == list(range(1, 1001))
        assert isinstance(events[-1], ToolResult) and events[-1].text == "counted to 1000"


async def test_a_question_in_the_middle_of_a_call_is_put_to_its_caller(way: Way) -> None:
    async with connected(way, elicit=lambda question: {"sure": True}) as (client, _):  # pyright: ignore
        assert (await client.call("ask")).text == "True"


async def test_a_cancelled_call_is_cancelled_at_the_server(way: Way) -> None:
    async with connected(way) as (client, whole), TaskScope() as tasks:

        async def call() -> None:
            await client.call("wait")

        tasks.start(call(), key="call")
        await whole.begun.wait()
        tasks.cancel("call")
        await whole.cancelled.wait()


async def test_a_log_line_reaches_its_listener(way: Way) -> None:
    lines: list[object] = []
    async with connected(way, on_log=lambda event: lines.append(event.data)) as (client, _):  # pyright: ignore
        await client.call("mutter")
        assert lines == ["careful"]


async def test_changes_reach_subscribers(way: Way) -> None:
    async with connected(way) as (client, whole), client.listen(tools=True, uris=["note://today"]) as changes:
        whole.server.resource_updated("note://today")
        assert await anext(changes) == ResourceUpdated("note://today")
        whole.server.remove_tool("greet")
        assert await anext(changes) == ToolsChanged()


async def test_many_calls_run_at_once(way: Way) -> None:
    async with connected(way) as (client, _):
        async with asyncio.TaskGroup() as group:
            calls = [group.create_task(client.call("greet", name=str(n))) for n in range(200)]
        assert [call.result().text for call in calls] == [f"hello {n}" for n in range(200)]


async def test_an_argument_that_is_marked_travels_as_a_header_too() -> None:
    async with connected("modern") as (client, _):
        # Nothing is known of the tool yet: the server refuses, its tools are listed, and the call is sent again.
        assert (await client.call("where", region="Zürich")).text == "Zürich"
        assert (await client.call("where", region="eu")).text == "eu"


async def test_a_server_that_lets_go_of_the_stream_is_come_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sluicegate.downstream.http_sessions.RETRY_MS", 10)
    async with connected("session") as (client, whole), TaskScope() as tasks:

        async def let_go_on() -> None:
            await whole.begun.wait()
            whole.go_on.set()

        tasks.start(let_go_on())
        progress: list[float] = []
        result = await client.call("leave", on_progress=lambda event: progress.append(event.progress))
        assert result.text == "came back" and progress == [1, 2]


async def test_a_server_of_ours_is_found_out_to_be_modern_and_an_sse_url_to_be_sse() -> None:
    async with endpoint(Whole().server) as origin:
        for path, version in (("/mcp", "2026-07-28"), ("/sse", "2025-11-25")):
            for _ in range(2):
                async with connect(origin + path) as client:
                    assert client.version == version
                    assert (await client.call("greet", name="you")).text == "hello you"
        assert http.verdict_on(f"{origin}/mcp") == "modern" and http.verdict_on(f"{origin}/sse") == "sse"


# ------------------------------------------------------------------------------------------------------------ probing


async def test_an_endpoint_that_refuses_the_probe_gets_initialize_with_its_method_and_no_revision() -> None:
    async with opened_to(session(lambda asked: asked.result(TEXT))) as (connection, script, _):
        assert connection.discovery.version == "2025-11-25"
        probe, initialize, initialized = script.asked[:3]
        assert probe.header("mcp-protocol-version") == "2026-07-28" and probe.header("mcp-method") == "server/discover"
        assert initialize.header("mcp-protocol-version") is None and initialize.header("mcp-method") == "initialize"
        assert initialized.header("mcp-method") == "notifications/initialized"
        assert initialized.header("mcp-protocol-version") == "2025-11-25"
        assert initialized.header("mcp-session-id") == "s1"
        assert isinstance(await connection(exchange()), Result)
    assert script.asked[-1].method == "DELETE"


@pytest.mark.parametrize("status", [400, 404, 405, 406, 415, 422])
async def test_a_bare_status_to_the_probe_is_no_reason_to_give_up(status: int) -> None:
    answer = session(lambda asked: asked.result(TEXT))

    def handle(asked: Asked) -> object:
        return asked.status(status) if asked.called == "server/discover" else answer(asked)

    async with opened_to(handle) as (connection, _, _):  # pyright: ignore[reportArgumentType]
        assert connection.discovery.version == "2025-11-25"


async def test_a_verdict_is_remembered_and_the_probe_left_out() -> None:
    async with asyncio.timeout(20), scripted(session(lambda asked: asked.result(TEXT))) as script:
        for _ in range(2):
            async with connect(script.url):
                pass
        assert script.methods().count("server/discover") == 1


async def test_an_outdated_verdict_about_the_era_is_detected_again() -> None:
    older, newer = session(lambda asked: asked.result(TEXT)), modern(lambda asked: asked.error(200, -32601))
    updated = asyncio.Event()
    async with asyncio.timeout(20), scripted(lambda asked: (newer if updated.is_set() else older)(asked)) as script:
        async with connect(script.url) as client:
            assert client.version == "2025-11-25"
        updated.set()
        async with connect(script.url) as client:
            assert client.version == "2026-07-28"
        assert http.verdict_on(script.url) == "modern"


async def test_a_server_that_refuses_its_own_revision_is_asked_twice_and_no_more() -> None:
    data: Json = {"supported": ["2026-07-28"], "requested": "x"}
    problem, script = await refused(lambda asked: asked.error(400, -32022, data=data))
    assert "twice" in problem.message and script.methods() == ["server/discover"] * 2


@pytest.mark.parametrize("status", [401, 403])
async def test_a_server_that_wants_authorization_is_named_as_such_and_probed_no_further(status: int) -> None:
    problem, script = await refused(lambda asked: asked.status(status, b"secret detail"))
    assert isinstance(problem, UpstreamUnavailable) and problem.reason == "backend_auth"
    assert "authoriz" in problem.message and "secret" not in problem.message
    assert len(script.asked) == 1


@pytest.mark.parametrize("status", [500, 502, 503])
async def test_an_outage_is_no_verdict(status: int) -> None:
    problem, script = await refused(lambda asked: asked.status(status, b"<html>trace</html>"))
    assert isinstance(problem, UpstreamUnavailable) and problem.data["status"] == status
    assert "html" not in problem.message and len(script.asked) == 1


@pytest.mark.parametrize("status", [429, 500, 503])
async def test_an_outage_is_no_verdict_even_if_its_body_is_a_message(status: int) -> None:
    """A server of both eras would be taken for an older one, and be remembered as such."""
    healed = asyncio.Event()
    newer, older = modern(lambda asked: asked.result(TEXT)), session(lambda asked: asked.result(TEXT))

    def handle(asked: Asked) -> object:
        if asked.called == "server/discover" and not healed.is_set():
            return asked.error(status, -32603, "no time")
        return (newer if asked.called == "server/discover" else older)(asked)

    async with asyncio.timeout(20), scripted(handle) as script:  # pyright: ignore[reportArgumentType]
        with pytest.raises(UpstreamUnavailable) as caught:
            async with connect(script.url):
                pass
        assert caught.value.data["status"] == status and script.methods() == ["server/discover"]
        healed.set()
        async with connect(script.url) as client:
            assert client.version == "2026-07-28"


async def test_a_web_site_is_recognized_by_all_three_observations() -> None:
    page = (("Content-Type", "text/html"),)
    problem, script = await refused(lambda asked: asked.status(200, b"<html>hello</html>", *page))
    assert isinstance(problem, UpstreamUnavailable) and "hello" not in problem.message
    assert "speaks no MCP" in problem.message and script.methods() == ["server/discover", "initialize", "GET"]


async def test_a_repeated_observation_is_reported_once() -> None:
    problem, _ = await refused(lambda asked: asked.status(404, b""))
    assert problem.message.count("answered with status 404 and no message") == 1


@pytest.mark.parametrize("path", ["", "/", "/mpc"])
async def test_a_wrong_path_differs_from_no_server_and_its_message_is_for_the_user(path: str) -> None:
    async with asyncio.timeout(20), endpoint(Whole().server) as origin:
        with pytest.raises(UpstreamUnavailable, match="check the path of its URL") as caught:
            async with connect(f"{origin}{path}"):
                pass
        assert str(caught.value).endswith(" It says: There is nothing here; the MCP endpoint is /mcp.")
        assert "It says" not in caught.value.message


async def test_nothing_in_common_is_reported_with_both_lists() -> None:
    data: Json = {"supported": ["2031-01-01"], "requested": "x"}
    problem, _ = await refused(lambda asked: asked.error(400, -32022, data=data))
    assert "2031-01-01" in problem.message and "2026-07-28" in problem.message


async def test_a_server_that_does_not_answer_is_unavailable_in_time() -> None:
    async def never(asked: Asked) -> None:
        await asyncio.Event().wait()

    async with asyncio.timeout(10), scripted(never) as script:
        with pytest.raises(UpstreamUnavailable, match="did not answer within"):
            async with HttpUpstream(script.url, probe_timeout=0.05).connect(Host({}, INFO, Recorder())):
                pass


@contextmanager
def taken_port() -> Generator[int]:
    """A port at which nothing listens, and nothing else will."""
    with socket.socket() as place:
        place.bind(("127.0.0.1", 0))
        yield place.getsockname()[1]


async def unreachable(upstream: HttpUpstream) -> str:
    """What is said of a server that cannot be reached."""
    with pytest.raises(UpstreamUnavailable) as caught:
        async with asyncio.timeout(20), upstream.connect(Host({}, INFO, Recorder())):
            pass
    assert caught.value.delivered == "no" and caught.value.reason == "backend_unavailable"
    return str(caught.value)


async def test_a_port_without_a_listener_is_unavailable_and_nothing_was_sent() -> None:
    with taken_port() as port:
        with pytest.raises(UpstreamUnavailable) as caught:
            async with connect(f"http://127.0.0.1:{port}/secret?key=secret"):
                pass
        assert caught.value.delivered == "no"
        why = "could not be reached: nothing listens there; see that it runs and that its port is right."
        assert str(caught.value) == f"127.0.0.1:{port} {why}"


async def test_a_server_that_cannot_be_reached_is_named_with_host_and_port_and_no_more_of_its_url(way: Way) -> None:
    with taken_port() as port:
        url = f"http://127.0.0.1:{port}/secret?key=secret#secret"
        era: Era = "modern" if way == "modern" else "session"
        assert await unreachable(HttpUpstream(url, era=era, name="remote")) == (
            f"remote could not be reached: nothing listens at 127.0.0.1:{port};"
            " see that it runs and that its port is right."
        )


async def test_a_server_that_goes_away_is_named_in_the_call_that_finds_it_gone() -> None:
    async with opened_to(modern(lambda asked: asked.request.abort())) as (connection, _, _):
        with pytest.raises(UpstreamClosed, match=r"^script closed the connection without an answer\.$"):
            await connection(exchange())


async def test_a_server_that_hangs_up_on_the_first_word_is_named_once() -> None:
    problem, _ = await refused(lambda asked: asked.request.abort(), era="session")
    assert str(problem) == "script closed the connection without an answer."


async def test_a_name_of_several_addresses_at_which_nothing_listens_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """As localhost mostly is: asyncio makes one error of several, which has no number any more."""
    with taken_port() as port:
        both = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (f"127.0.0.{n}", port)) for n in (1, 2)]

        def known(*_: object, **__: object) -> object:
            return both

        monkeypatch.setattr(socket, "getaddrinfo", known)
        problem = await unreachable(HttpUpstream(f"http://both.test:{port}/mcp", name="remote"))
        assert problem.startswith(f"remote could not be reached: nothing listens at both.test:{port};")


async def test_an_unknown_host_name_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(*_: object, **__: object) -> None:
        raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    why = "could not be reached: the name no.test is not known here; see that its URL is right."
    assert await unreachable(HttpUpstream("http://no.test/secret", name="remote")) == f"remote {why}"


# --------------------------------------------------------------------------------------------------------- 2026-07-28


async def test_a_modern_request_says_in_its_headers_what_its_body_says() -> None:
    async with opened_to(modern(lambda asked: asked.result(TEXT))) as (connection, script, _):
        await connection(exchange(params={"name": "größe", "arguments": {}}))
        call = script.asked[-1]
        assert call.header("mcp-method") == "tools/call" and call.header("mcp-protocol-version") == "2026-07-28"
        assert call.header("mcp-name") == "=?base64?Z3LDtsOfZQ==?=" and call.header("mcp-session-id") is None
        assert call.header("accept") == "application/json, text/event-stream"


async def test_every_request_has_its_own_name_in_its_header_however_many_there_were() -> None:
    async with opened_to(modern(lambda asked: asked.result(TEXT))) as (connection, script, _):
        names = [f"tool{n % 300}" for n in range(700)]
        for name in names:
            await connection(exchange(params={"name": name, "arguments": {}}))
        await connection(exchange("resources/read", {"uri": "a:" + "b" * 5000}))
        await connection(exchange("prompts/get", {"name": "tool1"}))
        calls = [(asked.header("mcp-method"), asked.header("mcp-name")) for asked in script.asked[1:]]
        assert calls[:700] == [("tools/call", name) for name in names]
        assert calls[700:] == [("resources/read", "a:" + "b" * 5000), ("prompts/get", "tool1")]


async def test_a_tool_whose_marks_are_learned_later_has_its_headers_from_then_on() -> None:
    schema: Json = {"type": "object", "properties": {"a": {"type": "string", "x-mcp-header": "A"}}}
    marked: Json = {"tools": [{"name": "t", "inputSchema": schema}]}
    plain: Json = {"tools": [{"name": "t", "inputSchema": {"type": "object", "title": "no x-mcp-header"}}]}
    lists = iter([marked, plain])

    def handle(asked: Asked) -> None:
        asked.result(next(lists) if asked.called == "tools/list" else TEXT)

    async with opened_to(modern(handle)) as (connection, script, _):
        seen: list[str | None] = []
        for value in ("one", "two", "three"):
            await connection(exchange(params={"name": "t", "arguments": {"a": value}}))
            seen.append(script.asked[-1].header("mcp-param-a"))
            await connection(exchange(params={"name": "t", "arguments": {"a": value * 2}}))
            seen.append(script.asked[-1].header("mcp-param-a"))
            if value != "three":
                await connection(exchange("tools/list", {}))
        assert seen == [None, None, "two", "twotwo", None, None]


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_a_stream_that_ends_behind_its_answer_leaves_its_connection_to_others(era: Era) -> None:
    used: list[object] = []

    async def stream(asked: Asked) -> None:
        used.append(asked.request._connection)  # pyright: ignore[reportPrivateUsage]
        asked.stream()
        asked.event(message(id=asked.id, result=TEXT))
        await asyncio.sleep(0.01)  # so that it is the next thing to be read, and not the same
        asked.end()

    async with opened_to((modern if era == "modern" else session)(stream), era=era) as (connection, _, _):
        while len(used) == len(set(used)):
            assert isinstance(await connection(exchange()), Result)


async def test_progress_has_the_callers_own_token_and_an_invented_one_is_dropped() -> None:
    def stream(asked: Asked) -> None:
        asked.stream()
        for token in ("invented", asked.id):
            params = {"progressToken": token, "progress": 1}
            asked.event(message(method="notifications/progress", params=params))
        asked.event(message(id=asked.id, result=TEXT))
        asked.end()

    async with opened_to(modern(stream)) as (connection, _, _):
        sink = Recorder()
        await connection(exchange(sink=sink, progress_token="mine"))
        assert [notice.params["progressToken"] for notice in sink.notices] == ["mine"]


async def test_a_stream_that_ends_without_the_answer_breaks_the_protocol_and_is_perhaps_delivered() -> None:
    def stream(asked: Asked) -> None:
        asked.stream()
        asked.event(message(method="notifications/message", params={"level": "info", "data": 1}))
        asked.end()

    async with opened_to(modern(stream)) as (connection, _, _):
        with pytest.raises(UpstreamProtocolError) as caught:
            await connection(exchange())
        assert caught.value.delivered == "unknown"


async def test_a_stream_that_is_cut_is_perhaps_delivered() -> None:
    async def stream(asked: Asked) -> None:
        asked.stream()
        asked.event(message(method="notifications/message", params={"level": "info", "data": 1}))
        await asyncio.sleep(0)
        asked.request.abort()

    async with opened_to(modern(stream)) as (connection, _, _):
        with pytest.raises(sluicegate.UpstreamError) as caught:
            await connection(exchange())
        assert caught.value.delivered == "unknown"


@pytest.mark.parametrize(("status", "code"), [(400, -32602), (404, -32601), (500, -32603), (503, 1004)])
async def test_a_json_rpc_error_is_the_reply_whatever_its_status(status: int, code: int) -> None:
    async with opened_to(modern(lambda asked: asked.error(status, code))) as (connection, _, _):
        assert await connection(exchange()) == ErrorObject(code, "no")


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, UpstreamUnavailable),
        (404, UpstreamProtocolError),
        (418, UpstreamProtocolError),
        (429, UpstreamUnavailable),
        (500, UpstreamUnavailable),
        (202, UpstreamProtocolError),
        (200, UpstreamProtocolError),
    ],
)
async def test_any_other_answer_is_an_error_that_repeats_nothing_of_it(
    status: int, kind: type[sluicegate.UpstreamError]
) -> None:
    def handle(asked: Asked) -> None:
        asked.status(status, b"<p>/home/secret</p>", ("Content-Type", "text/html"), ("Retry-After", "7"))

    async with opened_to(modern(handle)) as (connection, _, _):
        with pytest.raises(kind) as caught:
            await connection(exchange())
        assert "secret" not in caught.value.message and str(status) in caught.value.message
        assert status != 429 or caught.value.data == {"status": 429, "retryAfter": 7}


async def test_an_answer_beyond_the_ceiling_is_an_error_as_a_body_and_as_an_event() -> None:
    large = b'{"jsonrpc":"2.0","id":%d,"result":{"x":"' + b"x" * (17 << 20) + b'"}}'

    async def handle(asked: Asked) -> None:
        body = large.replace(b"%d", str(asked.id).encode())
        if asked.header("mcp-name") == "event":
            asked.stream()
            asked.event(body)
            await asked.request.drain()
            asked.end()
        else:
            asked.status(200, body, ("Content-Type", "application/json"))

    async with opened_to(modern(handle)) as (connection, _, _):
        for name in ("body", "event"):
            with pytest.raises(UpstreamProtocolError):
                await connection(exchange(params={"name": name}))


async def test_a_body_that_drips_and_a_server_that_says_nothing_are_timed_out() -> None:
    ended = asyncio.Event()

    async def handle(asked: Asked) -> None:
        if asked.header("mcp-name") == "drip":
            asked.request.start(200, (("Content-Type", "application/json"),))
            while not asked.request.disconnected:
                asked.request.write(b" ")
                await asyncio.sleep(0.005)  # The pace of a body that drips.
            ended.set()
        else:
            await asyncio.Event().wait()

    timeouts = Timeouts()
    async with opened_to(modern(handle), timeouts=timeouts) as (connection, _, _):
        change(timeouts, body=0.05)
        with pytest.raises(sluicegate.UpstreamTimeout):
            await connection(exchange(params={"name": "drip"}))
        await ended.wait()
        change(timeouts, silence=0.05)
        with pytest.raises(sluicegate.UpstreamTimeout) as caught:
            await connection(exchange(params={"name": "silent"}))
        assert caught.value.delivered == "unknown"


async def test_an_answer_to_something_else_is_none() -> None:
    def handle(asked: Asked) -> None:
        asked.status(200, message(id=4711, result=TEXT), ("Content-Type", "application/json"))

    async with opened_to(modern(handle)) as (connection, _, _):
        with pytest.raises(UpstreamProtocolError):
            await connection(exchange())


async def test_a_tool_with_invalid_marks_is_left_out_and_named_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    def schema(kind: str) -> Json:
        return {"type": "object", "properties": {"a": {"type": kind, "x-mcp-header": "A"}}}

    tools = [{"name": "good", "inputSchema": schema("string")}, {"name": "bad", "inputSchema": schema("number")}]

    def handle(asked: Asked) -> None:
        asked.result({"tools": tools} if asked.called == "tools/list" else TEXT)

    async with opened_to(modern(handle)) as (connection, script, _):
        with caplog.at_level(logging.WARNING):
            reply = await connection(exchange("tools/list", {}))
        assert isinstance(reply, Result) and opened(reply)["tools"] == tools[:1]
        assert "'bad'" in caplog.text
        await connection(exchange(params={"name": "good", "arguments": {"a": " x"}}))
        assert script.asked[-1].header("mcp-param-a") == "=?base64?IHg=?="


async def test_a_second_header_mismatch_is_the_reply() -> None:
    def handle(asked: Asked) -> None:
        if asked.called == "tools/list":
            asked.result({"tools": []})
        else:
            asked.error(400, -32020)

    async with opened_to(modern(handle)) as (connection, script, _):
        reply = await connection(exchange())
        assert isinstance(reply, ErrorObject) and reply.code == -32020
        assert script.methods()[1:] == ["tools/call", "tools/list", "tools/call"]


# ----------------------------------------------------------------------------------------------------- the session era


async def test_a_session_that_was_lost_is_opened_again_and_the_call_sent_again_once() -> None:
    sessions = iter(["s1", "s2"])
    lost = asyncio.Event()

    def handle(asked: Asked) -> None:
        match asked.called or asked.method:
            case "initialize":
                capabilities: Json = {"logging": {}, "resources": {"subscribe": True}}
                welcome: Json = {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": INFO}
                asked.result(welcome, ("Mcp-Session-Id", next(sessions)))
            case "GET":
                asked.status(405)
            case _ if asked.header("mcp-session-id") == "s1" and lost.is_set():
                asked.status(404)
            case "tools/call":
                asked.result(TEXT)
            case "resources/subscribe" | "logging/setLevel":
                asked.result({})
            case _:
                asked.status(202)

    async with opened_to(handle, era="session") as (connection, script, _), TaskScope() as tasks:
        await connection(exchange(log_level="debug"))
        sink = Recorder()
        wanted: Json = {"notifications": {"resourceSubscriptions": ["a://b"]}}

        async def listen() -> None:
            await connection(exchange("subscriptions/listen", wanted, sink))

        tasks.start(listen())
        await sink.heard.wait()
        lost.set()
        begun = len(script.asked)
        assert isinstance(await connection(exchange()), Result)
        again = [called for called in script.methods()[begun:] if called != "GET"]
        assert again == [
            *("tools/call", "initialize", "notifications/initialized"),
            *("logging/setLevel", "resources/subscribe", "tools/call"),
        ]
        assert script.asked[begun + 1].header("mcp-session-id") is None
        assert script.asked[-1].header("mcp-session-id") == "s2"
        tasks.cancel_all()


async def test_concurrent_calls_that_notice_a_lost_session_open_one_new_session() -> None:
    sessions = iter(["s1", "s2"])
    renewing = asyncio.Event()

    def handle(asked: Asked) -> None:
        match asked.called or asked.method:
            case "initialize":
                name = next(sessions)
                welcome: Json = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": INFO}
                asked.result(welcome, ("Mcp-Session-Id", name))
                if name == "s2":
                    renewing.set()
            case "tools/call":
                asked.status(404) if asked.header("mcp-session-id") == "s1" else asked.result(TEXT)
            case "GET":
                asked.status(405)
            case _:
                asked.status(202)

    async with opened_to(handle, era="session") as (connection, script, _):
        calls = [connection(exchange()) for _ in range(20)]
        async with asyncio.timeout(10):
            # The first of them goes away in the middle of it.
            first, *others = [asyncio.ensure_future(call) for call in calls]
            await renewing.wait()
            first.cancel()
            assert all(isinstance(reply, Result) for reply in await asyncio.gather(*others))
        assert script.methods().count("initialize") == 2


@pytest.mark.parametrize("answer", [500, 401, 404])
async def test_a_lost_session_that_cannot_be_replaced_is_closed_and_nothing_was_delivered(answer: int) -> None:
    welcomed = asyncio.Event()
    inner = session(lambda asked: asked.status(404))

    def handle(asked: Asked) -> object:
        if asked.called == "initialize" and welcomed.is_set():
            return asked.status(answer)
        return inner(asked)

    async with opened_to(handle) as (connection, _, _):  # pyright: ignore[reportArgumentType]
        welcomed.set()
        with pytest.raises(UpstreamClosed, match=str(answer)) as caught:
            await connection(exchange())
        assert caught.value.delivered == "no"


@pytest.mark.parametrize(("era", "way"), [("modern", "POST"), ("session", "POST"), ("session", "GET")])
async def test_notifications_are_a_sign_of_life_though_no_call_wants_them(
    era: Literal["modern", "session"], way: str
) -> None:
    signs, calling = asyncio.Event(), asyncio.Event()
    log = message(method="notifications/message", params={"level": "debug", "data": 1})

    async def answer(asked: Asked) -> None:
        calling.set()
        asked.stream()
        if way == "POST":
            asked.event(log)
        await signs.wait()
        asked.event(message(id=asked.id, result=TEXT))
        asked.end()

    inner = modern(answer) if era == "modern" else session(answer)

    async def handle(asked: Asked) -> None:
        if asked.method == "GET" == way:
            asked.stream()
            await calling.wait()
            asked.event(log)
            await signs.wait()
            asked.end()
        elif (waiting := inner(asked)) is not None:
            await waiting

    async with asyncio.timeout(20), scripted(handle) as script:
        host = Host({}, INFO, Recorder(), on_sign_of_life=signs.set)
        async with HttpUpstream(script.url, era=era, name="script").connect(host) as connection:
            assert isinstance(await connection(exchange()), Result)


@pytest.mark.parametrize("event_id", ["größe", "\x01", "a b"])
async def test_an_event_id_of_any_kind_does_no_harm(event_id: str) -> None:
    inner = session(lambda asked: asked.result(TEXT))
    twice = asyncio.Event()

    def handle(asked: Asked) -> object:
        if asked.method != "GET":
            return inner(asked)
        if script_ids:
            twice.set()
        script_ids.append(asked.header("last-event-id"))
        asked.stream()
        asked.event(message(method="notifications/tools/list_changed"), id=event_id)
        return asked.end()

    script_ids: list[str | None] = []
    async with opened_to(handle, timeouts=Timeouts(retry=0.01)) as (connection, _, _):  # pyright: ignore[reportArgumentType]
        await twice.wait()
        assert isinstance(await connection(exchange()), Result)
        wanted = None if event_id == "\x01" else event_id.encode().decode("latin-1")
        assert script_ids[:2] == [None, wanted]


async def test_a_session_that_is_lost_again_at_once_is_an_error() -> None:
    async with opened_to(session(lambda asked: asked.status(404))) as (connection, script, _):
        with pytest.raises(UpstreamProtocolError, match="404"):
            await connection(exchange())
        assert script.methods().count("tools/call") == 2


async def test_a_stream_that_is_cut_is_taken_up_again_behind_its_last_event() -> None:
    async def handle(asked: Asked) -> None:
        asked.stream()
        if asked.method == "POST":
            calls.append(asked.id)
            asked.event(id="e0", retry=10)
            params = {"progressToken": asked.id, "progress": 1}
            asked.event(message(method="notifications/progress", params=params), id="e1")
            await asyncio.sleep(0)
            asked.request.abort()
        else:
            resumed.append((asked.header("last-event-id"), asked.header("mcp-session-id")))
            params = {"progressToken": calls[0], "progress": 2}
            asked.event(message(method="notifications/progress", params=params), id="e2")
            asked.event(message(id=calls[0], result=TEXT), id="e3")
            asked.end()

    calls: list[object] = []
    resumed: list[tuple[str | None, str | None]] = []
    async with opened_to(session(handle)) as (connection, _, _):
        sink = Recorder()
        assert isinstance(await connection(exchange(sink=sink, progress_token=0)), Result)
        assert [notice.params["progress"] for notice in sink.notices] == [1, 2]
        assert resumed == [("e1", "s1")] and len(calls) == 1


async def test_a_server_cannot_put_off_the_rest_of_its_answer_for_days(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_messages, "MAX_RETRY_FIELD", 0.05)
    calls: list[object] = []

    async def handle(asked: Asked) -> None:
        asked.stream()
        if asked.method == "POST":
            calls.append(asked.id)
            asked.event(id="e0", retry=999_999_999)
        else:
            asked.event(message(id=calls[0], result=TEXT), id="e1")
        asked.end()

    async with opened_to(session(handle)) as (connection, _, _), asyncio.timeout(5):
        assert isinstance(await connection(exchange()), Result)


@pytest.mark.parametrize("is_cut", [False, True])
async def test_the_response_to_the_client_ends_early_when_the_server_ends_the_stream_but_not_when_it_is_cut(
    is_cut: bool,
) -> None:
    async def handle(asked: Asked) -> None:
        asked.stream()
        if asked.method == "POST":
            calls.append(asked.id)
            asked.event(id="e0", retry=10)
            await asyncio.sleep(0)
            asked.request.abort() if is_cut else asked.end()
        else:
            asked.event(message(id=calls[0], result=TEXT), id="e1")
            asked.end()

    calls: list[object] = []
    end_response_early: list[bool] = []
    async with opened_to(session(handle)) as (connection, _, _):
        call = exchange()
        call.end_response_early = lambda: end_response_early.append(True)
        assert isinstance(await connection(call), Result)
        assert end_response_early == ([] if is_cut else [True])


async def test_a_stream_that_cannot_be_taken_up_again_is_perhaps_delivered() -> None:
    def handle(asked: Asked) -> None:
        if asked.method == "POST":
            asked.stream()
            asked.event(id="e0", retry=1)
            asked.end()
        else:
            asked.status(400)

    async with opened_to(session(handle)) as (connection, _, _):
        with pytest.raises(UpstreamProtocolError) as caught:
            await connection(exchange())
        assert caught.value.delivered == "unknown"


async def test_a_stream_without_ids_is_not_asked_for_again() -> None:
    def handle(asked: Asked) -> None:
        asked.stream()
        asked.end()

    async with opened_to(session(handle)) as (connection, script, _):
        with pytest.raises(UpstreamProtocolError):
            await connection(exchange())
        assert script.methods().count("GET") == 1


async def test_a_question_on_the_stream_of_a_call_is_its_callers_even_if_others_wait() -> None:
    answered: asyncio.Queue[Asked] = asyncio.Queue()

    async def handle(asked: Asked) -> None:
        if asked.called == "tools/call":
            asked.stream()
            name = str(asked.request.body).count("theirs")
            if name:
                await answered_once.wait()
            else:
                params: Json = {"message": "?", "requestedSchema": {"type": "object", "properties": {}}}
                asked.event(message(id="q", method="elicitation/create", params=params))
                await answered_once.wait()
            asked.event(message(id=asked.id, result=TEXT))
            asked.end()
        else:
            asked.status(200, b"ok")  # Not 202, which is what is asked for.
            answered.put_nowait(asked)
            answered_once.set()

    answered_once = asyncio.Event()
    async with opened_to(session(handle)) as (connection, _, idle), asyncio.TaskGroup() as group:
        other = Recorder()
        theirs = exchange(params={"name": "theirs"}, sink=other)
        theirs.caller = sluicegate.Caller("somebody else")
        group.create_task(_reply(connection, theirs))
        sink = Recorder({"action": "accept", "content": {}})
        capabilities: Json = {"elicitation": {"form": {}}}
        await connection(exchange(params={"name": "mine"}, sink=sink, capabilities=capabilities))
        assert len(sink.questions) == 1 and not other.questions and not idle.questions
        reply = (await answered.get()).body
        assert reply["id"] == "q" and reply["result"] == {"action": "accept", "content": {}}


async def _reply(connection: Connection, asked: sluicegate.Exchange) -> None:
    await connection(asked)


async def test_a_ping_on_any_stream_is_answered() -> None:
    pongs: asyncio.Queue[object] = asyncio.Queue()
    answer = session(lambda asked: (pongs.put_nowait(asked.id), asked.status(202))[1])

    async def handle(asked: Asked) -> None:
        if asked.method == "GET":
            asked.stream()
            asked.event(message(id="on GET", method="ping"))
            await asyncio.Event().wait()
        elif asked.called == "tools/call":
            asked.stream()
            asked.event(message(id="on POST", method="ping"))
            asked.event(message(id=asked.id, result=TEXT))
            asked.end()
        else:
            answer(asked)

    async with opened_to(handle) as (connection, _, _):
        await connection(exchange())
        assert {await pongs.get(), await pongs.get()} == {"on GET", "on POST"}


async def test_questions_that_the_server_may_not_ask_are_refused() -> None:
    answers: asyncio.Queue[Json] = asyncio.Queue()

    async def handle(asked: Asked) -> None:
        if asked.called == "tools/call":
            asked.stream()
            asked.event(message(id="q1", method="tools/list"))
            asked.event(message(id="q2", method="prompts/list"))
            await both.wait()
            asked.event(message(id=asked.id, result=TEXT))
            asked.end()
        else:
            answers.put_nowait(asked.body)
            asked.status(400 if answers.qsize() == 1 else 202)
            if answers.qsize() == 2:
                both.set()

    both = asyncio.Event()
    async with opened_to(session(handle)) as (connection, _, _):
        assert isinstance(await connection(exchange()), Result)
        codes = {body["id"]: body["error"]["code"] for body in (answers.get_nowait(), answers.get_nowait())}  # pyright: ignore
        assert codes == {"q1": -32601, "q2": -32601}


async def test_a_question_that_is_nested_too_deeply_is_refused_and_its_call_answered() -> None:
    answers: asyncio.Queue[Json] = asyncio.Queue()
    refused = asyncio.Event()

    async def handle(asked: Asked) -> None:
        if asked.called != "tools/call":
            answers.put_nowait(asked.body)
            asked.status(202)
            refused.set()
            return
        deep = json.loads("[" * 600 + "]" * 600)
        tool: Json = {"name": "a", "inputSchema": {"properties": {"x": {"x-mcp-header": "a"}, "y": deep}}}
        params: Json = {"messages": [], "maxTokens": 1, "tools": [tool]}
        asked.stream()
        asked.event(message(id="q", method="sampling/createMessage", params=params))
        await refused.wait()
        asked.event(message(id=asked.id, result=TEXT))
        asked.end()

    async with opened_to(session(handle)) as (connection, _, _):
        sink = Recorder()
        assert isinstance(await connection(exchange(sink=sink, capabilities={"sampling": {"tools": {}}})), Result)
        body = answers.get_nowait()
        assert body["id"] == "q" and body["error"]["code"] == -32602  # pyright: ignore
        assert sink.questions == []


class SilentPerson(Recorder):
    """A caller that never answers its question."""

    def __init__(self) -> None:
        super().__init__()
        self.asked, self.given_up = asyncio.Event(), asyncio.Event()

    async def ask(self, questions: object) -> Answers:
        self.asked.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.given_up.set()
        raise AssertionError


async def test_a_question_that_the_server_takes_back_is_asked_no_more() -> None:
    person = SilentPerson()

    async def handle(asked: Asked) -> None:
        asked.stream()
        asked.event(message(id=7, method="roots/list"))
        await person.asked.wait()
        asked.event(message(method="notifications/cancelled", params={"requestId": [7]}))
        asked.event(message(method="notifications/cancelled", params={"requestId": 7}))
        await person.given_up.wait()
        asked.event(message(id=asked.id, result=TEXT))
        asked.end()

    async with opened_to(session(handle)) as (connection, _, _):
        capabilities: Json = {"roots": {}}
        assert isinstance(await connection(exchange(sink=person, capabilities=capabilities)), Result)


async def test_a_question_ends_with_the_call_that_caused_it() -> None:
    person = SilentPerson()

    async def handle(asked: Asked) -> None:
        asked.stream()
        asked.event(message(id=7, method="roots/list"))
        await asyncio.Event().wait()

    async with opened_to(session(handle)) as (connection, _, _), TaskScope() as tasks:
        tasks.start(_reply(connection, exchange(sink=person, capabilities={"roots": {}})), key="call")
        await person.asked.wait()
        tasks.cancel("call")
        await person.given_up.wait()


@pytest.mark.parametrize("era", [modern, session])
async def test_an_event_that_cannot_be_read_is_skipped_unless_it_is_the_answer(
    era: Callable[[Answer], Answer], caplog: pytest.LogCaptureFixture
) -> None:
    def handle(asked: Asked) -> None:
        asked.stream()
        asked.event(b"{")
        asked.event(b"comment", event="other")
        asked.event()
        if "broken" in str(asked.body):
            asked.event(b'{"jsonrpc":"2.0","id":%d,"result":7}' % asked.id)
        else:
            asked.event(message(id=str(asked.id), result=TEXT))
        asked.end()

    async with opened_to(era(handle)) as (connection, _, _):
        assert isinstance(await connection(exchange()), Result)
        with pytest.raises(UpstreamProtocolError):
            await connection(exchange(params={"name": "broken"}))


async def test_a_batch_of_2025_03_26_is_read() -> None:
    def handle(asked: Asked) -> None:
        progress = message(method="notifications/progress", params={"progressToken": asked.id, "progress": 1})
        body = b"[" + progress + b"," + message(id=asked.id, result=TEXT) + b"]"
        asked.status(200, body, ("Content-Type", "application/json; charset=utf-8"))

    async with opened_to(session(handle, version="2025-03-26")) as (connection, _, _):
        sink = Recorder()
        assert isinstance(await connection(exchange(sink=sink, progress_token=5)), Result)
        assert [notice.params["progressToken"] for notice in sink.notices] == [5]


async def test_nothing_is_asked_of_a_connection_that_was_left() -> None:
    async with opened_to(session(lambda asked: asked.result(TEXT))) as (connection, _, _):
        pass
    with pytest.raises(UpstreamClosed) as caught:
        await connection(exchange())
    assert caught.value.delivered == "no"


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_a_call_that_ends_after_its_connection_was_left_has_its_answer(era: Era) -> None:
    """A slow client takes a notice, behind which the answer has come already."""
    taking, may_go_on = asyncio.Event(), asyncio.Event()

    class Slow(Recorder):
        async def emit(self, notification: Notification) -> None:
            taking.set()
            await may_go_on.wait()

    def answer(asked: Asked) -> None:
        progress = {"progressToken": asked.id, "progress": 1}
        question = message(id="q", method="roots/list")
        events = [message(method="notifications/progress", params=progress), message(id=asked.id, result=TEXT)]
        body = b"".join(
            b"data: %b\n\n" % event for event in (events if era == "modern" else [*events[:1], question, *events[1:]])
        )
        asked.status(200, body, *EVENTS)

    outcomes: list[object] = []

    async def call(connection: Connection) -> None:
        outcomes.append(await connection(exchange(sink=Slow(), progress_token="p")))

    async with asyncio.timeout(20), TaskScope() as tasks:
        async with opened_to((modern if era == "modern" else session)(answer), era=era) as (connection, _, _):
            tasks.start(call(connection))
            await taking.wait()
        may_go_on.set()
    assert [type(outcome) for outcome in outcomes] == [Result]


@pytest.mark.parametrize("end", ["cancelled", "too slow", "another revision", "no answer behind the head"])
async def test_a_session_is_ended_if_opening_fails_after_it_was_begun(end: str) -> None:
    begun, sessions = asyncio.Event(), set[str]()

    async def handle(asked: Asked) -> None:
        match asked.called or asked.method:
            case "initialize":
                sessions.add("s1")
                version = "1999-12-31" if end == "another revision" else "2025-11-25"
                welcome: Json = {"protocolVersion": version, "capabilities": {}, "serverInfo": INFO}
                if end == "no answer behind the head":
                    asked.request.start(200, (*EVENTS, ("Mcp-Session-Id", "s1")))
                    await asyncio.Event().wait()
                asked.result(welcome, ("Mcp-Session-Id", "s1"))
            case "DELETE":
                sessions.discard(asked.header("mcp-session-id") or "")
                asked.status(200)
            case _:
                begun.set()
                await asyncio.Event().wait()

    async def open_it(url: str) -> None:
        # Where the time is what runs out, it is enough for the server to have begun its session.
        opens_within = 2 if end in ("too slow", "no answer behind the head") else 20
        upstream = HttpUpstream(url, era="session", open_timeout=opens_within)
        async with upstream.connect(Host({}, INFO, Recorder())):
            pass

    async with asyncio.timeout(20), scripted(handle) as script:
        if end == "cancelled":
            async with TaskScope() as tasks:
                tasks.start(open_it(script.url), key="open")
                await begun.wait()
                tasks.cancel("open")
        else:
            with pytest.raises(sluicegate.UpstreamError):
                await open_it(script.url)
        assert script.methods().count("initialize") == 1 and not sessions


async def test_a_session_that_is_lost_by_its_end_is_not_begun_again() -> None:
    """The last call meets a session that we have just ended; a new one would never be ended."""
    called, deleted, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(asked: Asked) -> None:
        match asked.called or asked.method:
            case "tools/call":
                called.set()
                await deleted.wait()
                asked.status(404)
            case "DELETE":
                deleted.set()
                await may_end.wait()
                asked.status(200)
            case _:
                answer(asked)

    answer = session(lambda asked: None)
    problems: list[UpstreamClosed] = []

    async def call(connection: Connection) -> None:
        with pytest.raises(UpstreamClosed) as caught:
            await connection(exchange())
        problems.append(caught.value)
        may_end.set()

    async with asyncio.timeout(20), TaskScope() as tasks:
        async with opened_to(handle, era="session") as (connection, script, _):
            tasks.start(call(connection))
            await called.wait()
    assert problems[0].delivered == "no" and script.methods().count("initialize") == 1


async def test_a_call_that_times_out_is_cancelled_at_the_server() -> None:
    told = asyncio.Event()
    answer = session(lambda asked: None)

    async def handle(asked: Asked) -> None:
        if asked.called == "tools/call":
            await asyncio.Event().wait()
        answer(asked)
        if asked.called == "notifications/cancelled":
            told.set()

    timeouts = Timeouts()
    async with opened_to(handle, timeouts=timeouts) as (connection, _, _):
        change(timeouts, silence=0.1)
        with pytest.raises(UpstreamTimeout) as caught:
            await connection(exchange())
        assert caught.value.delivered == "unknown"
        await told.wait()


async def test_a_cancelled_call_is_reported_to_the_server_with_a_post() -> None:
    begun, told = asyncio.Event(), asyncio.Event()
    answer = session(lambda asked: None)

    async def handle(asked: Asked) -> None:
        if asked.called == "tools/call":
            begun.set()
            await asyncio.Event().wait()
        answer(asked)
        if asked.called == "notifications/cancelled":
            told.set()

    async with opened_to(handle) as (connection, script, _), TaskScope() as tasks:
        tasks.start(_reply(connection, exchange()), key="call")
        await begun.wait()
        tasks.cancel("call")
        await told.wait()
        assert script.asked[-1].body["params"]["requestId"] == next(  # pyright: ignore
            asked.id for asked in script.asked if asked.called == "tools/call"
        )


async def test_pushes_go_on_when_their_stream_was_cut() -> None:
    streams = iter([1, 2])
    answer = session(lambda asked: asked.result(TEXT))

    async def handle(asked: Asked) -> None:
        if asked.method != "GET":
            answer(asked)
            return
        n = next(streams)
        seen.append(asked.header("last-event-id"))
        asked.stream()
        asked.event(message(method="notifications/resources/updated", params={"uri": f"a://{n}"}), id=f"g{n}")
        await asyncio.sleep(0)
        if n == 1:
            asked.request.abort()
        else:
            await asyncio.Event().wait()

    seen: list[str | None] = []
    async with opened_to(handle, timeouts=Timeouts(retry=0.01)) as (_, _, idle):
        while len(idle.notices) < 2:
            idle.heard.clear()
            await idle.heard.wait()
        assert [notice.params["uri"] for notice in idle.notices] == ["a://1", "a://2"] and seen == [None, "g1"]


async def test_a_session_id_that_cannot_be_sent_back_is_refused() -> None:
    problem, _ = await refused(session(lambda asked: None, session_id="with blank"))
    assert isinstance(problem, UpstreamProtocolError)


# ------------------------------------------------------------------------------------------------------------ HTTP+SSE


@pytest.mark.parametrize("what", ["port", "length"])
async def test_an_invalid_url_from_the_server_is_its_fault_and_breaks_nothing(what: str) -> None:
    """By its port it is of the same origin, but the port has more digits than any port has."""

    def url_of(asked: Asked) -> str:
        host, port = (asked.header("host") or "").split(":")
        return f"http://{host}:{port:0>7}/m" if what == "port" else f"http://{host}:{port}/{'m' * 10_000}"

    async def sse_server(asked: Asked) -> None:
        if asked.method != "GET":
            asked.status(405)
            return
        asked.stream()
        asked.event(url_of(asked).encode(), event="endpoint")
        await asyncio.Event().wait()

    problem, script = await refused(sse_server)
    assert "endpoint" in problem.message and script.methods() == ["server/discover", "initialize", "GET"]
    problem, _ = await refused(lambda asked: asked.status(307, b"", ("Location", url_of(asked))))
    assert problem.reason == "backend_protocol" and "redirects" in problem.message


async def test_an_endpoint_of_another_origin_is_not_posted_to() -> None:
    async def handle(asked: Asked) -> None:
        if asked.method != "GET":
            asked.status(405)
            return
        asked.stream()
        asked.event(b"http://127.0.0.2:1/messages", event="endpoint")
        await asyncio.Event().wait()

    problem, script = await refused(handle)
    assert "another origin" in problem.message and script.methods() == ["server/discover", "initialize", "GET"]


async def test_the_end_of_the_event_stream_ends_every_call() -> None:
    streams: list[Asked] = []

    async def handle(asked: Asked) -> None:
        if asked.path == "/mcp" and asked.method == "POST":
            asked.status(405)
        elif asked.method == "GET":
            asked.stream()
            asked.event(b"messages?token=1", event="endpoint")
            streams.append(asked)
            await asyncio.Event().wait()
        else:
            asked.status(202)
            if asked.called == "initialize":
                welcome = {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": INFO}
                streams[0].event(message(id=asked.id, result=welcome), event="message")
            elif asked.called == "tools/call":
                streams[0].end()

    async with opened_to(handle) as (connection, script, _):
        assert connection.discovery.version == "2024-11-05"
        with pytest.raises(UpstreamClosed, match="closed its event stream"):
            await connection(exchange())
        assert [asked.request.query for asked in script.asked if asked.path == "/messages"] == ["token=1"] * 3


async def test_over_sse_nothing_is_sent_once_the_event_stream_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is still queued would run although its caller has gone."""
    monkeypatch.setattr(legacy_sse, "POST_WAIT", 20.0)
    taken, over, may_end, another = asyncio.Event(), asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def handle(asked: Asked) -> None:
        match asked.called or asked.method:
            case "GET":
                asked.stream()
                asked.event(b"/messages", event="endpoint")
                streams.append(asked)
                await over.wait()
                asked.end()
            case "initialize" if asked.path == "/mcp":
                asked.status(405)
            case "initialize":
                asked.status(202)
                welcome: Json = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": INFO}
                streams[0].event(message(id=asked.id, result=welcome))
            case "tools/call":
                (another if taken.is_set() else taken).set()
                await may_end.wait()
                asked.status(202)
            case _:
                asked.status(202)

    streams: list[Asked] = []
    problems: list[UpstreamClosed] = []

    async def call(connection: Connection) -> None:
        with pytest.raises(UpstreamClosed) as caught:
            await connection(exchange(params={"name": "t", "arguments": {"pad": "x" * 1000}}))
        problems.append(caught.value)

    async with opened_to(handle, era="session") as (connection, script, _), TaskScope() as tasks:
        for _ in range(3):
            tasks.start(call(connection))
        await taken.wait()  # The first; the others wait for it.
        over.set()
        await connection.wait_closed()
        may_end.set()  # Now it would be the turn of the next.
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.3):
                await another.wait()
    assert len(problems) == 3 and script.methods().count("tools/call") == 1


async def test_over_sse_calls_that_wait_for_room_do_not_all_take_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(legacy_sse, "POST_WAIT", 20.0)
    handed_over, arrived = 0, asyncio.Queue[Asked]()
    write = legacy_sse.SseWire.write

    def count(wire: legacy_sse.SseWire, data: bytes) -> None:
        nonlocal handed_over
        handed_over += len(data) > legacy_sse.POST_BUFFER
        write(wire, data)

    monkeypatch.setattr(legacy_sse.SseWire, "write", count)
    streams: list[Asked] = []

    async def handle(asked: Asked) -> None:
        match asked.called or asked.method:
            case "GET":
                asked.stream()
                asked.event(b"/messages", event="endpoint")
                streams.append(asked)
                await asyncio.Event().wait()
            case "initialize" if asked.path == "/mcp":
                asked.status(405)
            case "initialize":
                asked.status(202)
                welcome: Json = {"protocolVersion": "2025-11-25", "capabilities": {}, "serverInfo": INFO}
                streams[0].event(message(id=asked.id, result=welcome))
            case "tools/call":
                arrived.put_nowait(asked)
                await released.wait()
                asked.status(202)
            case _:
                asked.status(202)

    async with opened_to(handle, era="session") as (connection, _, _), TaskScope() as tasks:
        for number in range(1, 4):
            released = asyncio.Event()
            if number == 1:
                for _ in range(10):
                    large = exchange(params={"name": "t", "arguments": {"pad": "x" * legacy_sse.POST_BUFFER}})
                    tasks.start(_reply(connection, large))
            await arrived.get()
            assert handed_over == number
            released.set()
        tasks.cancel_all()


async def test_a_message_that_is_refused_ends_the_channel() -> None:
    streams: list[Asked] = []

    async def handle(asked: Asked) -> None:
        if asked.method == "GET":
            asked.stream()
            asked.event(b"/messages", event="endpoint")
            streams.append(asked)
            await asyncio.Event().wait()
        elif asked.called == "initialize" and asked.path == "/messages":
            asked.status(202)
            welcome = {"protocolVersion": "2024-11-05", "capabilities": {}, "serverInfo": INFO}
            streams[0].event(message(id=asked.id, result=welcome))
        else:
            asked.status(202 if asked.called.startswith("notifications/") else 404)

    async with opened_to(handle) as (connection, _, _):
        with pytest.raises(UpstreamClosed, match="status 404"):
            await connection(exchange())


# ------------------------------------------------------------------------------------------------ redirects and headers


@pytest.mark.parametrize("status", [307, 308])
async def test_a_redirect_within_the_origin_keeps_method_body_and_headers(status: int) -> None:
    answer = modern(lambda asked: asked.result(TEXT))

    def handle(asked: Asked) -> object:
        if asked.path == "/mcp":
            return asked.status(status, b"", ("Location", "/other"))
        return answer(asked)

    async with opened_to(handle, headers={"X-Key": "k"}) as (connection, script, _):  # pyright: ignore
        await connection(exchange())
        call = script.asked[-1]
        assert (call.path, call.method, call.called, call.header("x-key")) == ("/other", "POST", "tools/call", "k")


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
async def test_a_redirect_elsewhere_is_not_followed_and_takes_no_header_along(status: int) -> None:
    async with scripted(lambda asked: asked.result(DISCOVERED)) as elsewhere:
        location = ("Location", elsewhere.url)
        problem, _ = await refused(lambda asked: asked.status(status, b"", location))
        assert problem.reason == "backend_protocol" and "redirects" in problem.message
        assert elsewhere.asked == []


@pytest.mark.parametrize("status", [301, 302, 303])
async def test_a_redirect_that_would_change_the_method_is_not_followed(status: int) -> None:
    problem, script = await refused(lambda asked: asked.status(status, b"", ("Location", "/other")))
    assert "redirects" in problem.message and {asked.path for asked in script.asked} == {"/mcp"}


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_a_call_follows_three_redirects_and_no_fourth(era: Era) -> None:
    def handle(asked: Asked) -> None:
        if asked.path == wanted:
            return asked.result(TEXT)
        place = 0 if asked.path == "/mcp" else int(asked.path[1:])
        return asked.status(307, b"", ("Location", f"/{place + 1}"))

    async with opened_to((modern if era == "modern" else session)(handle), era=era) as (connection, script, _):
        wanted = "/3"
        assert isinstance(await connection(exchange()), Result)
        assert [asked.path for asked in script.asked if asked.called == "tools/call"] == ["/mcp", "/1", "/2", "/3"]
        script.asked.clear()
        wanted = "/4"
        with pytest.raises(UpstreamProtocolError, match="more than 3 times") as caught:
            await connection(exchange())
        assert caught.value.delivered == "no"
        assert [asked.path for asked in script.asked if asked.called == "tools/call"] == ["/mcp", "/1", "/2", "/3"]


async def test_a_loop_of_redirects_ends() -> None:
    problem, script = await refused(lambda asked: asked.status(307, b"", ("Location", "/mcp")), era="modern")
    assert "more than 3 times" in problem.message and len(script.asked) == 4


async def test_configured_headers_go_along_with_every_request_of_every_way(way: Way) -> None:
    keys: list[str | None] = []
    async with asyncio.timeout(20), endpoint(Whole().server) as origin:
        host = origin.removeprefix("http://")

        async def handle(asked: Asked) -> None:
            keys.append(asked.header("authorization"))
            pool = http_endpoint.Pool()
            try:
                skipped = {"host", "content-length", "accept-encoding", "connection"}
                fields = tuple(item for item in asked.request.headers if item[0] not in skipped)
                query = f"?{asked.request.query}" if asked.request.query else ""
                url = f"http://{host}{asked.path}{query}"
                answer = await pool.request(asked.method, url, fields, asked.request.body)
                kind = answer.headers.get("content-type")
                more = [(n, v) for n, v in answer.headers if n == "mcp-session-id"]
                if kind == "text/event-stream":
                    asked.request.start(answer.status, (*EVENTS, *more))
                    while (chunk := await answer.next_chunk()) is not None:
                        asked.request.write(chunk)
                    asked.end()
                else:
                    asked.status(answer.status, await answer.read(), *([("Content-Type", kind)] if kind else []), *more)
            finally:
                await pool.aclose()

        async with scripted(handle, "/sse" if way == "sse" else "/mcp") as proxy:
            options = {"headers": {"Authorization": "Bearer canary"}, "era": "modern" if way == "modern" else "session"}
            async with connect(proxy.url, **options) as client:  # pyright: ignore[reportArgumentType]
                assert (await client.call("greet", name="you")).text == "hello you"
        assert len(keys) >= 2 and set(keys) == {"Bearer canary"}


# ------------------------------------------------------------------------------------------------------------ connect()


@pytest.mark.parametrize(
    "open_it",
    [
        lambda: connect("http://"),
        lambda: connect("https://user:secret@example.com/mcp"),
        lambda: connect("http://exa mple/mcp"),
        lambda: connect("http://example.com:99999/mcp"),
        lambda: connect("http://example.com:0/mcp"),
        lambda: connect('http://exam"ple.com/mcp'),
        lambda: connect("http://[fe80::1%25eth0]/mcp"),
        lambda: connect("http://example.com/mcp", env={"A": "b"}),
        lambda: connect("http://example.com/mcp", cwd="/"),
        lambda: connect("http://example.com/mcp", headers={"Bad name": "x"}),
        lambda: connect("http://example.com/mcp", headers={"X-Key": "secret\r\nX-Other: y"}),
        lambda: connect("http://example.com/mcp", headers={"Mcp-Session-Id": "x"}),
        lambda: connect("python demo.py", headers={"X-Key": "x"}),
    ],
)
def test_an_invalid_target_is_refused_when_connect_is_called(open_it: Callable[[], object]) -> None:
    with pytest.raises(ConfigError) as caught:
        open_it()
    assert "secret" not in caught.value.message


async def test_an_error_of_the_server_is_raised_by_the_client() -> None:
    async with scripted(modern(lambda asked: asked.error(404, -32601, "no such thing"))) as script:
        async with connect(script.url) as client:
            with pytest.raises(RpcError, match="no such thing"):
                await client.call("t")


async def test_a_server_may_be_silent_for_as_long_as_its_caller_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Short(Timeouts, frozen=True):
        silence: float = 0.05

    for module in (http_endpoint, http):
        monkeypatch.setattr(module, "Timeouts", Short)

    async def slow(asked: Asked) -> None:
        await asyncio.sleep(0.3)  # Longer than `silence`: the time that passes is the subject.
        asked.result(TEXT)

    async with asyncio.timeout(20), scripted(modern(lambda asked: slow(asked))) as script:
        async with connect(script.url, timeout=10, max_timeout=10) as client:
            assert (await client.call("t")).text == "done"


# ------------------------------------------------------------------------------------------------------ lines of JSON


def lines(*messages: bytes) -> bytes:
    return b"".join(each + b"\n" for each in messages)


async def test_changes_in_lines_of_json_are_delivered_as_they_arrive() -> None:
    """As the conformance suite's reference server tells them."""
    go_on = asyncio.Event()

    async def tell(asked: Asked) -> None:
        asked.request.start(200, (("Content-Type", "application/json"),))
        meta = {"_meta": {"io.modelcontextprotocol/subscriptionId": str(asked.id)}}
        notices = {**meta, "notifications": {"toolsListChanged": True}}
        asked.request.write(lines(message(method="notifications/subscriptions/acknowledged", params=notices)))
        await go_on.wait()
        changed = message(method="notifications/tools/list_changed", params=meta)
        asked.request.write(changed[:20])
        asked.request.write(changed[20:] + b"\n")
        asked.request.write(message(id=asked.id, result={"resultType": "complete"}))  # Ended by the body's end.
        asked.end()

    async with opened_to(modern(tell)) as (connection, _, _):
        sink = Recorder()
        listening = asyncio.ensure_future(
            connection(exchange("subscriptions/listen", {"notifications": {"toolsListChanged": True}}, sink))
        )
        await sink.heard.wait()
        assert [notice.method for notice in sink.notices] == ["notifications/subscriptions/acknowledged"]
        go_on.set()
        assert isinstance(await listening, Result)
        assert sink.notices[-1].method == "notifications/tools/list_changed"


async def test_an_answer_behind_notices_in_lines_of_json_is_read() -> None:
    def answer(asked: Asked) -> None:
        progress = {"progressToken": asked.id, "progress": 1}
        body = lines(message(method="notifications/progress", params=progress), message(id=asked.id, result=TEXT))
        asked.request.respond(200, (("Content-Type", "application/json"),), body)

    async with opened_to(modern(answer)) as (connection, _, _):
        reply = await connection(exchange("tools/call", {"name": "x", "arguments": {}}))
        assert isinstance(reply, Result)
        assert opened(reply)["content"] == TEXT["content"]


@pytest.mark.parametrize("body", [b"\n" * 100_000, b"1\n" * 100_000, b'{"jsonrpc":\n"2.0"\n', b"<html>\n</html>\n"])
async def test_a_body_that_is_no_json_is_none_line_by_line_either(body: bytes) -> None:
    def answer(asked: Asked) -> None:
        asked.request.respond(200, (("Content-Type", "application/json"),), body)

    async with opened_to(modern(answer)) as (connection, _, _):
        with pytest.raises(UpstreamProtocolError):
            await connection(exchange("tools/call", {"name": "x", "arguments": {}}))


async def test_a_refused_subscription_is_read_in_any_layout() -> None:
    def refuse(asked: Asked) -> None:
        body = json.dumps({"jsonrpc": "2.0", "id": asked.id, "error": {"code": -32601, "message": "no"}}, indent=2)
        asked.request.respond(200, (("Content-Type", "application/json"),), body.encode())

    async with opened_to(modern(refuse)) as (connection, _, _):
        reply = await connection(exchange("subscriptions/listen", {"notifications": {"toolsListChanged": True}}))
        assert isinstance(reply, ErrorObject) and reply.code == -32601
