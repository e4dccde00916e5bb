"""The caller of an HTTP request is asked for once, before any route, on every way into an endpoint."""

import asyncio
import json
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

import sluicegate
from sluicegate import Caller, Exchange, Refusal
from sluicegate.downstream.http import HttpEndpoint, caller_by_address
from sluicegate.exchange import NETWORK
from sluicegate.http1 import serve
from sluicegate.protocol.message import Reply, Result
from sluicegate.runtime.identity import Identity, IncomingRequest
from tests.downstream.http_client import BOTH, Answer, Headers, HttpClient, http_client, initialize, request, standard
from tests.downstream.http_stage import Stage
from tests.downstream.raw_client import Json, modern

LOGIN = Refusal(401, "unauthenticated", "Sign in first.", (("WWW-Authenticate", 'Bearer realm="test"'),))
ADA: Headers = [("Authorization", "ada")]
EVENTS: Headers = [("Accept", "text/event-stream")]
UPGRADE: Headers = [
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
]


class Door:
    """An `identify` that records its requests. With `waits`, it answers after another turn of the loop."""

    def __init__(self, *, waits: bool) -> None:
        self.waits = waits
        self.is_closed = False
        self.asked: list[IncomingRequest] = []

    def __call__(self, request: IncomingRequest) -> Identity | Awaitable[Identity]:
        self.asked.append(request)
        identity = LOGIN if self.is_closed else Caller(request.headers.get("authorization") or "stranger")
        return self._later(identity) if self.waits else identity

    async def _later(self, identity: Identity) -> Identity:
        await asyncio.sleep(0)
        return identity


class Way:
    """The parts of a request to one route; `status` is that of its answer if the caller is known."""

    def __init__(self, method: str, path: str, status: int, headers: Headers = (), message: Json | None = None) -> None:
        self.method = method
        self.path = path
        self.status = status
        self.body = b"" if message is None else json.dumps(message).encode()
        posted: Headers = [("Content-Type", "application/json"), ("Accept", BOTH)]
        self.headers = [*headers, *(posted if message is not None else ())]

    async def send(self, client: HttpClient, headers: Headers = ADA) -> Answer:
        return await client.open(self.method, self.path, [*self.headers, *headers], self.body)

    async def start(
        self, client: HttpClient, headers: Headers = ADA
    ) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
        """Send it without waiting for an answer."""
        return await client.send(self.method, self.path, [*self.headers, *headers], self.body)


def modern_way(method: str, params: Json, status: int = 200) -> Way:
    params = modern(params)
    return Way("POST", "/mcp", status, standard(method, params), request(1, method, params))


async def ways(client: HttpClient) -> dict[str, Way]:
    """A request to each route, some of which need a session or a channel."""
    session = await client.initialize(headers=ADA)
    named: Headers = [("Mcp-Session-Id", session.id)]
    channel = await client.open("GET", "/sse", [*EVENTS, *ADA])
    messages = (await channel.event()).data
    return {
        "modern POST": modern_way("tools/list", {}),
        "modern POST of a large body": modern_way("tools/call", {"name": "echo", "arguments": {"text": "x" * 200_000}}),
        "modern subscription": modern_way("subscriptions/listen", {"notifications": {}}),
        "initialize": Way("POST", "/mcp", 200, (), initialize()),
        "session POST": Way("POST", "/mcp", 200, named, request(1, "tools/list")),
        "native POST": Way("POST", "/mcp", 200, (), request(1, "echo", {"text": "a"})),
        "GET stream": Way("GET", "/mcp", 200, [*EVENTS, *named]),
        "legacy channel": Way("GET", "/sse", 200, EVENTS),
        "legacy message": Way("POST", messages, 202, (), request(1, "ping")),
        "WebSocket": Way("GET", "/native", 101, UPGRADE),
        "page for browsers": Way("GET", "/", 200, [("Accept", "text/html")]),
        "unknown path": Way("GET", "/elsewhere", 404),
        "unknown method": Way("PUT", "/mcp", 405),
        "POST that is not JSON": Way("POST", "/mcp", 415),
        "DELETE": Way("DELETE", "/mcp", 204, named),  # The last: it ends the session.
    }


ALL = [
    *("modern POST", "modern POST of a large body", "modern subscription", "initialize", "session POST"),
    *("native POST", "GET stream", "legacy channel", "legacy message", "WebSocket", "page for browsers"),
    *("unknown path", "unknown method", "POST that is not JSON", "DELETE"),
]
each_way = pytest.mark.parametrize("name", ALL)
in_both_forms = pytest.mark.parametrize("waits", [False, True], ids=["value", "awaitable"])


@asynccontextmanager
async def opened(door: Door, name: str) -> AsyncGenerator[tuple[HttpClient, Way]]:
    async with http_client(Stage().server, identify=door) as client:
        way = (await ways(client))[name]
        door.asked.clear()
        yield client, way


async def test_every_route_is_tested() -> None:
    async with http_client(Stage().server) as client:
        assert list(await ways(client)) == ALL
        tested = {(way.method, way.path.partition("?")[0]) for way in (await ways(client)).values()}
        routes = client.endpoint._routes  # pyright: ignore[reportPrivateUsage]
        assert routes.keys() <= tested


@each_way
@in_both_forms
async def test_the_caller_is_asked_for_once_with_headers_and_address(name: str, waits: bool) -> None:
    door = Door(waits=waits)
    async with opened(door, name) as (client, way):
        assert (await way.send(client)).status == way.status
        (asked,) = door.asked
        assert (asked.method, asked.path) == (way.method, way.path.partition("?")[0])
        assert (asked.peer, asked.scheme) == ("127.0.0.1", "http")
        assert asked.headers.get("Authorization") == "ada"


@each_way
@in_both_forms
async def test_a_refusal_is_sent_and_nothing_else_happens(name: str, waits: bool) -> None:
    door = Door(waits=waits)
    async with opened(door, name) as (client, way):
        door.is_closed = True
        answer = await way.send(client)
        assert (answer.status, answer.headers["www-authenticate"]) == (401, 'Bearer realm="test"')
        assert (await answer.json())["error"] == {
            "code": -32600,
            "message": "Sign in first.",
            "data": {"source": "sluicegate", "reason": "unauthenticated", "delivered": "no", "retryable": False},
        }
        door.is_closed = False
        assert (await way.send(client)).status == way.status  # A refused DELETE ended nothing.


@pytest.mark.parametrize("name", ["session POST", "GET stream", "legacy message", "DELETE"])
@in_both_forms
async def test_sessions_and_channels_of_another_caller_do_not_exist(name: str, waits: bool) -> None:
    async with opened(Door(waits=waits), name) as (client, way):
        assert (await way.send(client, [("Authorization", "eve")])).status == 404
        assert (await way.send(client)).status == way.status


@in_both_forms
async def test_host_and_origin_are_checked_first(waits: bool) -> None:
    door = Door(waits=waits)
    async with http_client(Stage().server, identify=door) as client:
        assert (await client.modern("tools/list", headers=[("Origin", "https://evil.example")])).status == 403
        assert (await client.open("GET", "/mcp", [("Host", "evil.example")])).status == 421
        assert not door.asked


@pytest.mark.parametrize("path", ["/healthz", "/readyz"])
async def test_probes_need_no_identity(path: str) -> None:
    door = Door(waits=False)
    door.is_closed = True
    async with http_client(Stage().server, identify=door) as client:
        assert (await client.open("GET", path)).status == 200
        assert (await client.open("POST", path)).status == 401
        assert len(door.asked) == 1


class Waiting:
    """An `identify` that waits until the test goes on."""

    def __init__(self) -> None:
        self.started = asyncio.Event()
        self.ended = asyncio.Event()
        self.go = asyncio.Event()

    async def __call__(self, request: IncomingRequest) -> Identity:
        self.started.set()
        try:
            await self.go.wait()
        finally:
            self.ended.set()
        return Caller("ada")


async def test_a_client_that_hangs_up_ends_the_wait_for_its_identity() -> None:
    stage, door = Stage(), Waiting()
    async with asyncio.timeout(10), http_client(stage.server, identify=door) as client:
        writer, _ = await modern_way("tools/list", {}).start(client)
        await door.started.wait()
        writer.close()
        await door.ended.wait()
        await client.all_closed()
        assert not stage.ran


async def test_a_stopping_endpoint_refuses_requests_without_identity() -> None:
    door = Waiting()
    async with asyncio.timeout(10), http_client(Stage().server, identify=door) as client:
        _, reader = await modern_way("tools/list", {}).start(client)
        await door.started.wait()
        client.endpoint.give_up()
        assert (await reader.readline()).split()[1] == b"503"


async def test_an_identify_that_fails_later_fails_its_own_request_only(caplog: pytest.LogCaptureFixture) -> None:
    async def identify(request: IncomingRequest) -> Identity:
        if request.headers.get("authorization") is None:
            raise RuntimeError("secret detail")
        return Caller("ada")

    async with http_client(Stage().server, identify=identify) as client:
        _, reader = await modern_way("tools/list", {}).start(client, ())
        async with asyncio.timeout(10):
            assert await reader.read() == b""
        assert (await modern_way("tools/list", {}).send(client)).status == 200
    assert [record.message for record in caplog.records] == ["A request could not be taken."]


# --------------------------------------------------------------------------------------------- the default, and ASGI


class From:
    """A request from an address."""

    method, path, scheme = "POST", "/mcp", "http"
    headers: Any = None

    def __init__(self, peer: str) -> None:
        self.peer = peer


@pytest.mark.parametrize("peer", ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1"])
def test_clients_on_this_machine_are_the_local_user(peer: str) -> None:
    assert caller_by_address(From(peer)) == Caller("local")


@pytest.mark.parametrize("peer", ["192.168.1.5", "10.127.0.1", "fe80::1", "::ffff:10.0.0.1", ""])
def test_other_clients_are_never_the_local_user(peer: str) -> None:
    assert caller_by_address(From(peer)) == NETWORK == Caller("network")


async def test_without_identify_the_address_decides() -> None:
    callers: list[Caller] = []

    async def handler(exchange: Exchange) -> Reply:
        callers.append(exchange.caller)
        return Result({})

    async with HttpEndpoint(handler) as endpoint, serve(endpoint) as listener:
        client = HttpClient(endpoint, listener)
        assert (await client.modern("tools/list")).status == 200
        await client.aclose()
    assert callers == [Caller("local")]


class AsgiConnection:
    """One connection of an ASGI server, without a network."""

    def __init__(self, kind: str, path: str, body: bytes = b"", extensions: Json | None = None) -> None:
        fields = [("host", "localhost"), ("accept", BOTH), ("content-type", "application/json"), ("x-user", "ada")]
        self.scope: dict[str, Any] = {
            "type": kind,
            "path": path,
            "scheme": "wss" if kind == "websocket" else "https",
            "client": ("192.0.2.7", 5000),
            "headers": [(name.encode(), value.encode()) for name, value in fields],
            "extensions": extensions or {},
            **({"method": "POST"} if kind == "http" else {}),
        }
        first: Json = {"type": "websocket.connect"} if kind == "websocket" else {"type": "http.request", "body": body}
        self._incoming: list[Json] = [first]
        self.sent: list[dict[str, Any]] = []

    async def run(self, app: sluicegate.AsgiApp) -> None:
        async with asyncio.timeout(10), app:
            await app(self.scope, self._receive, self._send)

    async def _receive(self) -> Json:
        if self._incoming:
            return self._incoming.pop(0)
        return {"type": "websocket.disconnect"} if self.scope["type"] == "websocket" else await asyncio.Future()

    async def _send(self, message: dict[str, Any]) -> None:
        self.sent.append(message)


Identifying = Callable[[Any], Identity | Awaitable[Identity]]


def asgi_identify(identity: Identity, *, waits: bool, asked: list[object] | None = None) -> Identifying:
    async def later() -> Identity:
        return identity

    def identify(scope: Any) -> Identity | Awaitable[Identity]:
        if asked is not None:
            asked.append((scope["client"][0], scope["path"]))
        return later() if waits else identity

    return identify


LIST = json.dumps(request(1, "echo", {"text": "a"})).encode()


@in_both_forms
@pytest.mark.parametrize(("kind", "path"), [("http", "/mcp"), ("websocket", "/native")])
async def test_an_asgi_app_asks_for_the_caller_once(kind: str, path: str, waits: bool) -> None:
    asked: list[object] = []
    app = sluicegate.AsgiApp(Stage().server, caller=asgi_identify(Caller("ada"), waits=waits, asked=asked))
    connection = AsgiConnection(kind, path, LIST)
    await connection.run(app)
    assert asked == [("192.0.2.7", path)]
    first = connection.sent[0]
    assert first == {"type": "websocket.accept"} if kind == "websocket" else first["status"] == 200


@in_both_forms
@pytest.mark.parametrize(
    ("kind", "path", "extensions"),
    [("http", "/mcp", {}), ("websocket", "/native", {"websocket.http.response": {}})],
)
async def test_an_asgi_app_sends_the_refusal_with_status_and_headers(
    kind: str, path: str, extensions: Json, waits: bool
) -> None:
    app = sluicegate.AsgiApp(Stage().server, caller=asgi_identify(LOGIN, waits=waits))
    connection = AsgiConnection(kind, path, LIST, extensions)
    await connection.run(app)
    head, *parts = connection.sent
    assert head["status"] == 401
    fields: Sequence[tuple[bytes, bytes]] = head["headers"]
    assert (b"www-authenticate", b'Bearer realm="test"') in fields
    assert b"Sign in first." in b"".join(part["body"] for part in parts)


async def test_a_socket_of_a_server_that_cannot_send_a_status_is_closed() -> None:
    connection = AsgiConnection("websocket", "/native")
    await connection.run(sluicegate.AsgiApp(Stage().server, caller=asgi_identify(LOGIN, waits=False)))
    assert connection.sent == [{"type": "websocket.close", "code": 1008, "reason": "Sign in first."}]
