"""The endpoint as an ASGI app: in Starlette and FastAPI, under uvicorn and granian, and called by hand."""

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any, Protocol, cast

import pytest
from starlette.applications import Starlette
from starlette.routing import BaseRoute, Mount, Route

import sluicegate
from sluicegate.client.events import ProgressEvent
from sluicegate.downstream import asgi_request
from sluicegate.errors import LocalProtocolError
from sluicegate.http1 import Limits
from sluicegate.runtime.task_scope import TaskScope
from tests.downstream.http_client import Headers, HttpClient, initialize, request
from tests.downstream.http_stage import Stage, call, heard, progress, stamped, texts
from tests.downstream.raw_client import Json
from tests.ports import free_port

ROOT = Path(__file__).parents[2]
PATIENCE = 10.0
MIB = 1024 * 1024
SERVERS = ["uvicorn", "granian"]
APPS = ["in_starlette", "in_fastapi"]
BODY = "POST /tools/mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"

# ------------------------------------------------------------------------------------------- under servers of others


class Program:
    """An ASGI server that runs one of the apps in a process of its own."""

    def __init__(self, process: "subprocess.Popen[bytes]", port: int, log: Path) -> None:
        self.process = process
        self.port = port
        self.log = log
        self.url = f"http://127.0.0.1:{port}"


@contextmanager
def program(server: str, app: str, log: Path, *options: str) -> Generator[Program]:
    """Run an app; ready to take requests."""
    port = free_port()
    name = f"tests.serve.asgi_apps:{app}"
    granian = ["--interface", "asgi"] if server == "granian" else []
    command = [sys.executable, "-m", server, *granian, "--port", str(port), *options, name]
    with log.open("wb") as file, subprocess.Popen(command, cwd=ROOT, stdout=file, stderr=file) as process:
        try:
            _wait_for(port, process, log)
            yield Program(process, port, log)
        finally:
            process.terminate()
            try:
                process.wait(PATIENCE)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for(port: int, process: "subprocess.Popen[bytes]", log: Path) -> None:
    # A server says in its own words when it is ready; that it accepts is the same for all. Each try waits a little.
    for _ in range(200):
        assert process.poll() is None, log.read_text()
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except ConnectionRefusedError:
            try:
                process.wait(0.1)
            except subprocess.TimeoutExpired:
                pass
    raise AssertionError(log.read_text())


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Generator[Callable[[str, str], Program]]:
    """Programs that are started when they are first wanted, whatever the order of the tests."""
    running: dict[tuple[str, str], Program] = {}
    with ExitStack() as stack:

        def get(server: str, app: str) -> Program:
            if (server, app) not in running:
                log = tmp_path_factory.mktemp("asgi") / "log"
                running[server, app] = stack.enter_context(program(server, app, log))
            return running[server, app]

        yield get
    for ended in running.values():
        said = ended.log.read_text()
        assert "Traceback" not in said and "without completing" not in said, said


class Guest(HttpClient):
    """Speaks plain HTTP to the mounted endpoint, and to the controls of its stage."""

    def __init__(self, port: int, root: str = "/tools") -> None:
        self._address = "127.0.0.1", port
        self.host = f"127.0.0.1:{port}"
        self.root = root
        self._writers: list[asyncio.StreamWriter] = []

    async def send(
        self, method: str, path: str, headers: Headers = (), body: bytes = b""
    ) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
        path = path if path.startswith("/control") else self.root + path
        return await super().send(method, path, headers, body)

    async def go_on(self) -> None:
        assert (await self.open("POST", "/control/go")).status == 200

    async def happened(self, event: str) -> None:
        answer = await self.open("GET", f"/control/wait/{event}")
        assert answer.status == 200

    async def figures(self) -> dict[str, int]:
        answer = await self.open("GET", "/control/figures")
        return json.loads(await answer.body())


@pytest.fixture(params=[(server, app) for server in SERVERS for app in APPS], ids=lambda pair: "-".join(pair))
def place(request: pytest.FixtureRequest, programs: Callable[[str, str], Program]) -> Program:
    return programs(*request.param)


@pytest.fixture
async def guest(place: Program) -> AsyncGenerator[Guest]:
    client = Guest(place.port)
    try:
        assert (await client.open("POST", "/control/reset")).status == 200
        yield client
    finally:
        await client.aclose()


@pytest.mark.parametrize(("era", "path"), [("modern", "/mcp"), ("session", "/mcp"), ("auto", "/mcp"), ("auto", "/sse")])
async def test_our_client_lists_calls_and_hears_progress(place: Program, era: sluicegate.Era, path: str) -> None:
    async with asyncio.timeout(PATIENCE), sluicegate.connect(f"{place.url}/tools{path}", era=era) as client:
        assert "echo" in {tool.name for tool in await client.tools()}
        assert (await client.call("echo", text="hello")).text == "hello"
        events = [event async for event in client.stream("count", to=100)]
        said = [event.progress for event in events if isinstance(event, ProgressEvent)]
        assert said == list(range(1, 101))


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_a_question_is_answered_in_both_eras(place: Program, era: sluicegate.Era) -> None:
    async def elicit(question: sluicegate.ElicitRequest) -> dict[str, object]:
        return {"name": "Ada" if question.message == "Your name?" else "Grace"}

    async with asyncio.timeout(PATIENCE):
        async with sluicegate.connect(f"{place.url}/tools/mcp", era=era, elicit=elicit) as client:
            assert (await client.call("greet_two")).text == "Ada and Grace"


async def test_an_event_arrives_before_the_tool_goes_on(guest: Guest) -> None:
    answer = await guest.modern("tools/call", stamped("halves"))
    assert progress(await answer.message()) == 1
    await guest.go_on()
    assert progress(await answer.message()) == 2
    assert texts(cast(Json, (await answer.message())["result"])) == ["done"]
    assert await answer.next_event() is None


async def test_an_event_of_the_session_era_arrives_before_the_tool_goes_on(guest: Guest) -> None:
    session = await guest.initialize("2025-06-18")
    answer = await session.request(1, "tools/call", heard("halves"))
    assert progress(await answer.message()) == 1
    await guest.go_on()
    assert progress(await answer.message()) == 2


async def test_the_oldest_transport_gets_the_path_of_the_mount(guest: Guest) -> None:
    stream = await guest.open("GET", "/sse", [("Accept", "text/event-stream")])
    endpoint = await stream.event()
    assert endpoint.event == "endpoint" and endpoint.data.startswith("/tools/messages?session_id=")
    path = endpoint.data.removeprefix("/tools")
    assert (await guest.post(initialize("2024-11-05"), path=path)).status == 202
    assert (await stream.message())["id"] == "init"
    assert (await guest.post(request(2, "tools/call", heard("halves")), path=path)).status == 202
    assert progress(await stream.message()) == 1
    await guest.go_on()
    assert progress(await stream.message()) == 2
    stream.hang_up()


async def test_hanging_up_cancels_a_call_that_has_sent_nothing(guest: Guest) -> None:
    params = stamped("wait")
    headers = [("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call"), ("Mcp-Name", "wait")]
    fields = [("Content-Type", "application/json"), ("Accept", "application/json, text/event-stream"), *headers]
    writer, _ = await guest.send("POST", "/mcp", fields, json.dumps(request(1, "tools/call", params)).encode())
    await guest.happened("started")
    writer.close()
    await guest.happened("cancelled")


async def test_hanging_up_cancels_a_call_in_the_middle_of_its_stream(guest: Guest) -> None:
    answer = await guest.modern("tools/call", stamped("flood"))
    assert progress(await answer.message()) == 1
    answer.hang_up()
    await guest.happened("cancelled")


async def test_hanging_up_does_not_cancel_in_the_session_era(guest: Guest) -> None:
    session = await guest.initialize()
    answer = await session.request(1, "tools/call", heard("halves"))
    await answer.event()  # it only says where the stream begins
    last = await answer.event()
    answer.hang_up()
    await guest.go_on()
    rest = await session.listen(last.id)
    assert progress(await rest.message()) == 2
    assert texts(cast(Json, (await rest.message())["result"])) == ["done"]


async def test_a_session_is_its_callers_alone(guest: Guest) -> None:
    session = await guest.initialize(headers=[("X-User", "ada")])
    others = [field if field[0] != "X-User" else ("X-User", "eve") for field in session.headers]
    assert (await session.request(1, "tools/list")).status == 200
    assert (await session.post(request(2, "tools/list"), others)).status == 404
    assert (await guest.open("DELETE", "/mcp", others)).status == 404
    assert (await session.delete()).status == 204


async def test_a_body_of_four_mebibytes_is_read_and_a_larger_one_refused(guest: Guest) -> None:
    session = await guest.initialize()
    empty = len(json.dumps(request(1, "tools/call", call("echo", text=""))))
    longest = "x" * (4 * MIB - empty)
    answer = await session.request(1, "tools/call", call("echo", text=longest))
    assert texts(cast(Json, (await answer.json())["result"])) == [longest]
    answer = await session.request(2, "tools/call", call("echo", text=f"{longest}x"))
    assert answer.status == 413
    assert cast(Json, (await answer.json())["error"])["data"] == {
        "source": "sluicegate",
        "reason": "body_too_large",
        "delivered": "no",
        "retryable": False,
    }


async def test_a_body_of_unknown_length_is_counted_as_it_comes(place: Program) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", place.port)
    writer.write(f"{BODY}Transfer-Encoding: chunked\r\n\r\n".encode())
    chunk = b"10000\r\n" + b"x" * 65536 + b"\r\n"
    async with asyncio.timeout(PATIENCE):
        for _ in range(65):
            writer.write(chunk)
        # The end of the body never comes.
        assert (await reader.readline()).split()[1] == b"413"
    writer.transport.abort()


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([("Host", "evil.example")], 421),
        ([("Host", "mcp.example.com:443")], 200),
        ([("Host", "localhost"), ("Origin", "http://evil.example")], 403),
        ([("Host", "localhost"), ("Origin", "null")], 403),
        ([("Host", "localhost"), ("Origin", "https://app.example.com")], 200),
        ([("Host", "localhost:1"), ("Origin", "http://localhost:1")], 200),
    ],
)
async def test_hosts_and_origins_are_those_of_the_app(guest: Guest, headers: Headers, status: int) -> None:
    assert (await guest.modern("tools/list", headers=headers)).status == status
    assert (await guest.open("GET", "/healthz", headers)).status == status


async def test_a_client_that_does_not_read_costs_no_memory(guest: Guest) -> None:
    before = (await guest.figures())["peak"]
    answer = await guest.modern("tools/call", stamped("flood"))
    said = -1
    # Each look takes several turns of the server's loop, in which a tool that does not wait would say more.
    async with asyncio.timeout(PATIENCE * 3):
        while (now := (await guest.figures())["said"]) != said:
            said = now
    assert said > 1000
    assert (await guest.figures())["peak"] - before < 16 * 1024
    # And goes on, in order, when it reads again.
    for number in range(1, 200):
        assert progress(await answer.message()) == number
    answer.hang_up()
    await guest.happened("cancelled")


async def test_only_exact_paths_are_answered(guest: Guest) -> None:
    for path in ("/mcp/", "//mcp", "/MCP", "/mcp/x", "/"):
        assert (await guest.open("GET", path)).status == 404, path
    answer = await guest.open("PUT", "/mcp", body=b"{}")
    assert (answer.status, answer.headers["allow"]) == (405, "DELETE, GET, POST")


async def test_the_app_around_it_is_left_alone(guest: Guest) -> None:
    assert (await guest.open("GET", "/control/nothing")).status == 404
    assert (await guest.figures())["peak"] > 0


@pytest.mark.parametrize("server", SERVERS)
async def test_it_also_runs_without_an_app_around_it(server: str, tmp_path: Path) -> None:
    with program(server, "alone", tmp_path / "log") as running:
        async with asyncio.timeout(PATIENCE), sluicegate.connect(f"{running.url}/mcp") as client:
            assert (await client.call("echo", text="alone")).text == "alone"


@pytest.mark.parametrize("server", SERVERS)
async def test_without_a_lifespan_the_log_says_what_to_do(server: str, tmp_path: Path) -> None:
    with program(server, "forgotten", tmp_path / "log") as running:
        guest = Guest(running.port)
        assert (await guest.open("GET", "/healthz")).status == 500
        await guest.aclose()
    assert "lifespan=mcp.lifespan" in (tmp_path / "log").read_text()


async def test_uvicorn_with_a_shutdown_timeout_stops_while_streams_are_open(tmp_path: Path) -> None:
    with program("uvicorn", "in_fastapi", tmp_path / "log", "--timeout-graceful-shutdown", "1") as running:
        guest = Guest(running.port)
        session = await guest.initialize()
        stream = await session.listen()
        assert stream.status == 200
        running.process.send_signal(signal.SIGTERM)
        assert await asyncio.to_thread(running.process.wait, PATIENCE) == 0 - signal.SIGTERM
        await guest.aclose()


# --------------------------------------------------------------------------------------------------- called by hand


class App(Protocol):
    """An app of ours or of others."""

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None: ...


class Exchange:
    """One request to an app, as a server of ASGI that does what the test wants."""

    def __init__(self, app: App, method: str, path: str, headers: Headers, body: bytes) -> None:
        self.sent: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self.blocked = asyncio.Event()
        self.taking = asyncio.Event()
        self.taking.set()
        self.came: asyncio.Queue[dict[str, object]] = asyncio.Queue()
        self.came.put_nowait({"type": "http.request", "body": body, "more_body": False})
        self.returned = asyncio.Event()
        self.scope: dict[str, object] = {
            "type": "http",
            "http_version": "2",
            "method": method,
            "path": path,
            "query_string": b"",
            "headers": [(name.lower().encode(), value.encode()) for name, value in headers],
        }
        self._app = app

    async def run(self) -> None:
        await self._app(self.scope, self.came.get, self._send)
        self.returned.set()

    async def _send(self, message: dict[str, object]) -> None:
        if not self.taking.is_set():
            self.blocked.set()
            await self.taking.wait()
        self.sent.put_nowait(message)

    def hang_up(self) -> None:
        self.came.put_nowait({"type": "http.disconnect"})

    async def next(self) -> Mapping[str, Any]:
        async with asyncio.timeout(PATIENCE):
            return await self.sent.get()

    async def over(self) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.returned.wait()


HOST = ("Host", "localhost")


def posted(app: App, params: Json, *, path: str = "/mcp", headers: Headers = (HOST,)) -> Exchange:
    """A call of 2026-07-28."""
    fields = [
        *headers,
        ("Content-Type", "application/json"),
        ("MCP-Protocol-Version", "2026-07-28"),
        ("Mcp-Method", "tools/call"),
        ("Mcp-Name", str(params["name"])),
    ]
    return Exchange(app, "POST", path, fields, json.dumps(request(1, "tools/call", params)).encode())


@asynccontextmanager
async def running(stage: Stage) -> AsyncGenerator[tuple[sluicegate.AsgiApp, TaskScope]]:
    app = sluicegate.AsgiApp(stage.server)
    async with TaskScope() as tasks:
        async with app:
            yield app, tasks
        tasks.cancel_all()


async def status_of(exchange: Exchange) -> object:
    await exchange.run()
    return (await exchange.next())["status"]


async def test_an_answer_in_one_piece_has_its_length_and_lower_case_names() -> None:
    async with running(Stage()) as (app, _):
        exchange = posted(app, stamped("echo", text="hello"))
        await exchange.run()
        start, body = await exchange.next(), await exchange.next()
        assert start["status"] == 200
        assert dict(start["headers"])[b"content-length"] == str(len(body["body"])).encode()
        assert all(name == name.lower() for name, _ in start["headers"])
        assert body["more_body"] is False and exchange.sent.empty()


async def test_events_that_are_ready_together_leave_together() -> None:
    async with running(Stage()) as (app, _):
        exchange = posted(app, stamped("count", to=500))
        await exchange.run()
        pieces = [exchange.sent.get_nowait() for _ in range(exchange.sent.qsize())][1:]
        body = b"".join(piece["body"] for piece in pieces)
        assert body.count(b"notifications/progress") == 500
        assert len(pieces) < 50
        assert [piece["more_body"] for piece in pieces] == [True] * (len(pieces) - 1) + [False]


async def test_a_large_answer_is_handed_on_in_pieces() -> None:
    async with running(Stage()) as (app, _):
        exchange = posted(app, stamped("echo", text="x" * MIB))
        await exchange.run()
        pieces = [exchange.sent.get_nowait() for _ in range(exchange.sent.qsize())]
        start, *bodies = pieces
        assert max(len(piece["body"]) for piece in bodies) == asgi_request.AT_ONCE
        assert dict(start["headers"])[b"content-length"] == str(sum(len(piece["body"]) for piece in bodies)).encode()


async def test_a_tool_waits_for_a_server_that_takes_nothing() -> None:
    stage = Stage()
    async with running(stage) as (app, tasks):
        exchange = posted(app, stamped("flood"))
        exchange.taking.clear()
        tasks.start(exchange.run())
        async with asyncio.timeout(PATIENCE):
            await exchange.blocked.wait()
            said, turns = 0, 0
            while turns < 100:  # so many turns of the loop without a word
                await asyncio.sleep(0)
                turns = turns + 1 if said == stage.said else 0
                said = stage.said
        assert MIB / 200 < said < MIB / 50
        exchange.taking.set()
        async with asyncio.timeout(PATIENCE):
            while stage.said < said + 1000:  # noqa: ASYNC110 - it is the tool that says so, and it never waits
                await asyncio.sleep(0)
        exchange.hang_up()
        await exchange.over()
        assert stage.cancelled.is_set()


async def test_a_client_that_takes_nothing_for_too_long_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_request, "_LIMITS", Limits(blocked_time=0.01))
    stage = Stage()
    async with running(stage) as (app, tasks):
        exchange = posted(app, stamped("flood"))
        exchange.taking.clear()
        tasks.start(exchange.run())
        await exchange.over()
        async with asyncio.timeout(PATIENCE):
            await stage.cancelled.wait()


async def test_a_client_that_asks_more_than_it_reads_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_request, "MAX_UNSENT_ANSWER", 1000)
    async with running(Stage()) as (app, tasks):
        stream = Exchange(app, "GET", "/sse", [HOST, ("Accept", "text/event-stream")], b"")
        tasks.start(stream.run())
        await stream.next()
        query = (await stream.next())["body"].decode().partition("?")[2].strip()
        stream.taking.clear()
        statuses: list[object] = []
        for n in range(100):
            body = json.dumps(request(n, "ping")).encode()
            ping = Exchange(app, "POST", "/messages", [HOST, ("Content-Type", "application/json")], body)
            ping.scope["query_string"] = query.encode()
            statuses.append(await status_of(ping))
            await asyncio.sleep(0)
        stream.taking.set()
        await stream.over()
        assert statuses[0] == 202 and statuses[-1] == 404


async def test_a_client_whose_body_does_not_come_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asgi_request, "_LIMITS", Limits(body_time=0.01))
    async with running(Stage()) as (app, _):
        exchange = posted(app, stamped("echo", text="x"))
        exchange.came.get_nowait()
        assert await status_of(exchange) == 408


async def test_a_server_that_says_by_an_error_that_the_client_has_gone_is_understood() -> None:
    stage = Stage()
    async with running(stage) as (app, tasks):
        exchange = posted(app, stamped("halves"))

        async def send(message: Mapping[str, object]) -> None:
            raise OSError("gone")

        tasks.start(app(exchange.scope, exchange.came.get, send))
        async with asyncio.timeout(PATIENCE):
            while len(tasks):  # noqa: ASYNC110 - the scope ends with the test, and we look into it before
                await asyncio.sleep(0)


async def test_a_server_that_cancels_a_request_cancels_its_call() -> None:
    stage = Stage()
    async with running(stage) as (app, tasks):
        exchange = posted(app, stamped("wait"))
        tasks.start(exchange.run(), key="request")
        async with asyncio.timeout(PATIENCE):
            await stage.started.wait()
            tasks.cancel("request")
            await stage.cancelled.wait()


async def test_a_client_that_hangs_up_while_it_sends_is_not_answered() -> None:
    async with running(Stage()) as (app, _):
        exchange = posted(app, stamped("echo", text="x"))
        exchange.came.get_nowait()
        exchange.came.put_nowait({"type": "http.request", "body": b"{", "more_body": True})
        exchange.hang_up()
        await exchange.run()
        assert exchange.sent.empty()


@pytest.mark.parametrize(
    ("root", "path", "status"),
    [
        (None, "/mcp", 200),
        ("", "/mcp", 200),
        ("/tools", "/tools/mcp", 200),
        ("/tools/", "/tools/mcp", 200),
        ("/tools", "/mcp", 200),  # a server that leaves its own root out
        ("/tools", "/toolsmcp", 404),
        ("/tools", "/tools", 404),
        ("/mcp", "/mcp/mcp", 200),
    ],
)
async def test_the_path_is_that_behind_the_mount(root: str | None, path: str, status: int) -> None:
    async with running(Stage()) as (app, _):
        exchange = posted(app, stamped("echo", text="x"), path=path)
        if root is not None:
            exchange.scope["root_path"] = root
        assert await status_of(exchange) == status


async def test_a_wrong_path_is_answered_with_the_right_one_as_the_client_sees_it() -> None:
    async with running(Stage()) as (app, _):
        exchange = posted(app, stamped("echo", text="x"), path="/tools/")
        exchange.scope["root_path"] = "/tools"
        assert await status_of(exchange) == 404
        assert b"the MCP endpoint is /tools/mcp." in (await exchange.next())["body"]


ROUTES: dict[str, Callable[[sluicegate.AsgiApp], BaseRoute]] = {
    "at the root": lambda app: Mount("/", app),
    "as a route": lambda app: Route("/mcp", app),
    "mounted": lambda app: Mount("/tools", app),
    "mounted twice": lambda app: Mount("/a", routes=[Mount("/b", app)]),
    "by a parameter": lambda app: Mount("/{tenant}", app),
}


@pytest.mark.parametrize(
    ("routes", "server_root", "path", "root"),
    [
        ("at the root", "", "/mcp", ""),
        ("as a route", "", "/mcp", None),
        ("mounted twice", "", "/a/b/mcp", "/a/b"),
        ("by a parameter", "", "/ada/mcp", "/ada"),
        # Behind a proxy that leaves its prefix in the path, and behind one that takes it away.
        ("mounted", "/api", "/api/tools/mcp", "/api/tools"),
        ("mounted", "/api", "/tools/mcp", "/api/tools"),
    ],
)
async def test_it_is_found_however_it_is_mounted(routes: str, server_root: str, path: str, root: str | None) -> None:
    async with running(Stage()) as (app, tasks):
        outer = Starlette(routes=[ROUTES[routes](app)])
        exchange = posted(outer, stamped("echo", text="x"), path=path)
        exchange.scope["root_path"] = server_root
        assert await status_of(exchange) == 200
        if root is None:
            return  # It is that route alone, without the oldest transport beside it.
        oldest = path.removesuffix("/mcp") + "/sse"
        exchange = Exchange(outer, "GET", oldest, [HOST, ("Accept", "text/event-stream")], b"")
        exchange.scope["root_path"] = server_root
        tasks.start(exchange.run())
        await exchange.next()
        assert (await exchange.next())["body"].startswith(f"event: endpoint\ndata: {root}/messages?".encode())
        exchange.hang_up()
        await exchange.over()


async def test_at_the_root_of_a_mount_the_path_is_a_slash() -> None:
    app = sluicegate.AsgiApp(Stage().server, path="/")
    async with app:
        exchange = posted(app, stamped("echo", text="x"), path="/tools")
        exchange.scope["root_path"] = "/tools"
        assert await status_of(exchange) == 200


@pytest.mark.parametrize(
    ("hosts", "status"),
    [([], 421), (["localhost", "localhost"], 200), (["localhost", "127.0.0.1"], 421)],
)
async def test_the_same_host_sent_twice_counts_once(hosts: list[str], status: int) -> None:
    async with running(Stage()) as (app, _):
        headers = [("Host", host) for host in hosts]
        assert await status_of(posted(app, stamped("echo", text="x"), headers=headers)) == status


@pytest.mark.parametrize("length", ["4194305", "9" * 5000])
async def test_a_body_that_is_announced_as_too_large_is_not_waited_for(length: str) -> None:
    async with running(Stage()) as (app, _):
        exchange = posted(app, stamped("echo", text="x"), headers=[HOST, ("Content-Length", length)])
        exchange.came.get_nowait()
        assert await status_of(exchange) == 413


async def test_headers_without_end_are_refused_and_not_kept() -> None:
    async with running(Stage()) as (app, _):
        exchange = posted(app, stamped("echo", text="x"), headers=[HOST, *[("x", "")] * asgi_request.MAX_FIELDS])
        assert await status_of(exchange) == 431


async def test_a_mount_whose_name_needs_quoting_is_quoted_for_the_oldest_transport() -> None:
    async with running(Stage()) as (app, tasks):
        exchange = Exchange(app, "GET", "/a b\n/sse", [HOST, ("Accept", "text/event-stream")], b"")
        exchange.scope["root_path"] = "/a b\n"
        tasks.start(exchange.run())
        await exchange.next()
        assert (await exchange.next())["body"].startswith(b"event: endpoint\ndata: /a%20b%0A/messages?session_id=")
        exchange.hang_up()
        await exchange.over()


async def test_a_websocket_elsewhere_is_refused_before_it_is_accepted() -> None:
    async with running(Stage()) as (app, _):
        exchange = Exchange(app, "GET", "/mcp", [HOST], b"")
        await app({**exchange.scope, "type": "websocket"}, exchange.came.get, exchange.sent.put)
        assert (await exchange.next())["type"] == "websocket.close"


async def test_an_unknown_scope_is_an_error() -> None:
    async with running(Stage()) as (app, _):
        exchange = Exchange(app, "GET", "/mcp", [HOST], b"")
        with pytest.raises(sluicegate.ProtocolError, match="teapot"):
            await app({"type": "teapot"}, exchange.came.get, exchange.sent.put)


async def test_an_app_can_be_started_again_but_not_twice_at_once() -> None:
    app = sluicegate.AsgiApp(Stage().server)
    for _ in range(2):
        async with app:
            assert await status_of(posted(app, stamped("echo", text="x"))) == 200
            with pytest.raises(sluicegate.ConfigError, match="is open already"):
                async with app:
                    pass
    with pytest.raises(sluicegate.ConfigError, match="is not open"):
        await posted(app, stamped("echo", text="x")).run()


async def test_a_second_lifespan_is_refused_with_the_reason() -> None:
    async with running(Stage()) as (app, _):
        exchange = Exchange(app, "GET", "/mcp", [HOST], b"")
        await app({"type": "lifespan"}, exchange.came.get, exchange.sent.put)
        failed = await exchange.next()
        assert failed["type"] == "lifespan.startup.failed" and "is open already" in failed["message"]


async def test_requests_in_progress_when_the_app_ends_are_answered_that_it_stops() -> None:
    stage = Stage()
    app = sluicegate.AsgiApp(stage.server)
    async with TaskScope() as tasks:
        exchange = posted(app, stamped("wait"))
        async with app:
            tasks.start(exchange.run())
            async with asyncio.timeout(PATIENCE):
                await stage.started.wait()
        assert (await exchange.next())["status"] == 503
        assert b"about to stop" in (await exchange.next())["body"]
        await exchange.over()


async def test_an_answer_is_given_once_and_in_order() -> None:
    def a_request() -> asgi_request.AsgiRequest:
        return asgi_request.AsgiRequest(Exchange(sluicegate.AsgiApp(Stage().server), "GET", "/mcp", [HOST], b"").scope)

    with pytest.raises(LocalProtocolError):
        a_request().write(b"x")
    with pytest.raises(LocalProtocolError):
        a_request().end()
    answered = a_request()
    answered.respond(200)
    with pytest.raises(LocalProtocolError, match="already"):
        answered.start(200)
    hung_up: list[str] = []
    answered.on_disconnect(lambda: hung_up.append("before"))
    answered.leave()
    answered.leave()
    answered.on_disconnect(lambda: hung_up.append("after"))
    assert hung_up == ["before", "after"]


async def test_an_app_that_is_about_to_stop_ends_what_merely_listens() -> None:
    stage = Stage()
    async with running(stage) as (app, tasks):
        listening = Exchange(app, "GET", "/sse", [HOST, ("Accept", "text/event-stream")], b"")
        waiting = posted(app, stamped("wait"))
        tasks.start(listening.run())
        tasks.start(waiting.run())
        async with asyncio.timeout(PATIENCE):
            await stage.started.wait()
        app.stop_taking()
        await listening.over()
        ready = Exchange(app, "GET", "/readyz", [HOST], b"")
        assert await status_of(ready) == 503
        stage.go.set()
        assert (await waiting.next())["status"] == 200


def test_an_app_that_does_not_run_has_nothing_to_stop() -> None:
    sluicegate.AsgiApp(Stage().server).stop_taking()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"path": "mcp"}, "must begin with a slash"),
        ({"hosts": "example.com"}, "must be a list of names"),
        ({"hosts": ["https://example.com"]}, "is not valid in hosts"),
        ({"hosts": [""]}, "is not valid in hosts"),
        ({"origins": ["example.com"]}, "is not valid in origins"),
        ({"origins": ["https://example.com/"]}, "is not valid in origins"),
    ],
)
def test_settings_that_could_never_match_are_refused(arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(sluicegate.ConfigError, match=sentence):
        sluicegate.AsgiApp(Stage().server, **arguments)


def test_what_is_no_server_is_not_mounted() -> None:
    with pytest.raises(TypeError, match="serves a Server, not int"):
        sluicegate.AsgiApp(5)  # pyright: ignore[reportArgumentType]


async def test_what_differs_in_one_header_alone_is_another_request_whatever_came_before() -> None:
    """Headers that are the same are read once; none is taken for another."""
    first = asgi_request.read_headers([(b"host", b"localhost"), (b"accept", b"application/json")])
    assert asgi_request.read_headers([(b"host", b"localhost"), (b"accept", b"application/json")]) is first
    other = asgi_request.read_headers([(b"host", b"localhost"), (b"accept", b"text/event-stream")])
    assert (first.get("accept"), other.get("accept")) == ("application/json", "text/event-stream")
    long = [(b"host", b"localhost"), (b"x", b"x" * asgi_request.MAX_KNOWN)]
    assert asgi_request.read_headers(long) is not asgi_request.read_headers(long)
    many = [(b"x", b"")] * (asgi_request.MAX_FIELDS + 1)  # Few bytes, and much memory.
    assert asgi_request.read_headers(many) is not asgi_request.read_headers(many)
    for number in range(512):
        assert asgi_request.read_headers([(b"x", b"%d" % number)]).get("x") == str(number)
