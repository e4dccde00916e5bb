"""A client that writes and reads plain HTTP, each request on a connection of its own, to see what is really sent."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import NamedTuple, cast

from sluicegate.downstream.duplex import INPUT_TIMEOUT
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.downstream.http_guard import HostPolicy, HttpLimits
from sluicegate.exchange import Caller, Handler, chain
from sluicegate.gate.admission import Admission
from sluicegate.http1 import Limits, Listener, serve
from sluicegate.runtime.identity import Identify, IncomingRequest
from tests.downstream.raw_client import Json, modern

PATIENCE = 10.0

Headers = Sequence[tuple[str, str]]
BOTH = "application/json, text/event-stream"


class Event(NamedTuple):
    """One server-sent event as it came."""

    data: str
    id: str | None = None
    event: str | None = None
    retry: str | None = None

    @property
    def message(self) -> Json:
        return json.loads(self.data)


class Answer:
    """One response; its body is read as the test asks for it."""

    def __init__(
        self, status: int, headers: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self.status = status
        self.headers = headers
        self.comments = 0
        self._reader = reader
        self._writer = writer
        self._text = b""

    async def body(self) -> bytes:
        """All of the body."""
        if "content-length" in self.headers:
            async with asyncio.timeout(PATIENCE):
                return await self._reader.readexactly(int(self.headers["content-length"]))
        body = b""
        while "transfer-encoding" in self.headers and (chunk := await self._chunk()):
            body += chunk
        return body

    async def json(self) -> Json:
        """The body as one JSON object."""
        assert self.headers.get("content-type") == "application/json", self.headers
        return json.loads(await self.body())

    async def next_event(self) -> Event | None:
        """The next event with its comments left out, or None at the end of the stream."""
        assert self.headers.get("content-type") == "text/event-stream", (self.status, self.headers)
        while True:
            while b"\n\n" not in self._text:
                chunk = await self._chunk()
                if not chunk:
                    assert not self._text
                    return None
                self._text += chunk
            block, self._text = self._text.split(b"\n\n", 1)
            lines = block.decode().split("\n")
            fields = dict(line.split(": ", 1) for line in lines if not line.startswith(":"))
            self.comments += len(lines) - len(fields)
            if fields:
                return Event(fields["data"], fields.get("id"), fields.get("event"), fields.get("retry"))

    async def event(self) -> Event:
        """The next event."""
        event = await self.next_event()
        assert event is not None, "the stream has ended"
        return event

    async def message(self) -> Json:
        """The message of the next event."""
        return (await self.event()).message

    async def events(self) -> list[Event]:
        """All events up to the end of the stream."""
        events: list[Event] = []
        while (event := await self.next_event()) is not None:
            events.append(event)
        return events

    async def _chunk(self) -> bytes:
        async with asyncio.timeout(PATIENCE):
            size = int(await self._reader.readline(), 16)
            return (await self._reader.readexactly(size + 2))[:-2]

    async def cut_off(self) -> None:
        """Wait until the server has closed the connection."""
        async with asyncio.timeout(PATIENCE):
            try:
                assert await self._reader.read() == b""
            except ConnectionError:
                pass

    def hang_up(self) -> None:
        """Close the connection as a client that goes away does."""
        self._writer.close()


class HttpClient:
    """Speaks to one endpoint."""

    def __init__(self, endpoint: HttpEndpoint, listener: Listener) -> None:
        self.endpoint = endpoint
        self.listener = listener
        self._address = host, port = listener.addresses[0]
        self.host = f"{host}:{port}"
        self._writers: list[asyncio.StreamWriter] = []

    async def all_closed(self) -> None:
        """Wait until the server has let go of every connection."""
        async with asyncio.timeout(PATIENCE):
            while self.listener.connections:  # noqa: ASYNC110 - nobody else wants to know, so there is no event
                await asyncio.sleep(0)

    async def open(self, method: str, path: str, headers: Headers = (), body: bytes = b"") -> Answer:
        """The answer to a request with exactly these headers, beside Host and Content-Length."""
        writer, reader = await self.send(method, path, headers, body)
        async with asyncio.timeout(PATIENCE):
            head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.split(": ", 1) for line in head[1:] if line)
        return Answer(int(head[0].split()[1]), {name.lower(): value for name, value in pairs}, reader, writer)

    async def send(
        self, method: str, path: str, headers: Headers = (), body: bytes = b""
    ) -> tuple[asyncio.StreamWriter, asyncio.StreamReader]:
        """Send a request and wait for nothing."""
        reader, writer = await asyncio.open_connection(*self._address)
        self._writers.append(writer)
        fields = list(headers)
        if not any(name.lower() == "host" for name, _ in fields):
            fields.insert(0, ("Host", self.host))
        lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields)]
        if body or method == "POST":
            lines.append(f"Content-Length: {len(body)}")
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        return writer, reader

    async def post(self, message: object, headers: Headers = (), *, accept: str = BOTH, path: str = "/mcp") -> Answer:
        """The answer to a posted message."""
        body = message if isinstance(message, bytes) else json.dumps(message).encode()
        fields = [("Content-Type", "application/json"), ("Accept", accept), *headers]
        return await self.open("POST", path, fields, body)

    async def modern(
        self, method: str, params: Json | None = None, *, id: object = 1, accept: str = BOTH, headers: Headers = ()
    ) -> Answer:
        """The answer to a request of 2026-07-28 with all the headers it must have, and more."""
        params = params or {}
        params = params if "_meta" in params else modern(params)
        message = {"jsonrpc": "2.0", "id": id, "method": method, "params": params}
        return await self.post(message, [*standard(method, params), *headers], accept=accept)

    async def initialize(
        self, version: str = "2025-11-25", *, headers: Headers = (), accept: str = BOTH, **capabilities: object
    ) -> "Session":
        """Shake hands."""
        answer = await self.post(initialize(version, **capabilities), headers, accept=accept)
        assert answer.status == 200, await answer.body()
        session = Session(self, answer.headers["mcp-session-id"], version, headers, accept)
        session.welcome = cast(Json, (await answer.json())["result"])
        assert (await session.notify("notifications/initialized")).status == 202
        return session

    async def aclose(self) -> None:
        for writer in self._writers:
            writer.transport.abort()
            try:
                await writer.wait_closed()
            except ConnectionError:
                pass


class Session:
    """A session-era client."""

    def __init__(self, client: HttpClient, id: str, version: str, headers: Headers, accept: str) -> None:
        self.client = client
        self.id = id
        self.welcome: Json = {}
        own = [] if version == "2025-03-26" else [("MCP-Protocol-Version", version)]
        self.headers: Headers = [("Mcp-Session-Id", id), *own, *headers]
        self._accept = accept

    async def post(self, message: object, headers: Headers | None = None, *, accept: str | None = None) -> Answer:
        return await self.client.post(message, headers or self.headers, accept=accept or self._accept)

    async def request(
        self, id: object, method: str, params: Json | None = None, *, accept: str | None = None
    ) -> Answer:
        return await self.post(request(id, method, params), accept=accept)

    async def start(self, id: object, method: str, params: Json) -> asyncio.StreamWriter:
        """Send a request without waiting for anything of its answer."""
        fields = [("Content-Type", "application/json"), ("Accept", self._accept), *self.headers]
        body = json.dumps(request(id, method, params)).encode()
        return (await self.client.send("POST", "/mcp", fields, body))[0]

    async def notify(self, method: str, params: Json | None = None) -> Answer:
        return await self.post(notification(method, params))

    async def respond(self, id: object, result: Json) -> Answer:
        return await self.post(response(id, result))

    async def listen(self, last_event: str | None = None) -> Answer:
        """Open the GET stream, or one that was cut."""
        resume = [] if last_event is None else [("Last-Event-ID", last_event)]
        return await self.client.open("GET", "/mcp", [("Accept", "text/event-stream"), *self.headers, *resume])

    async def delete(self) -> Answer:
        return await self.client.open("DELETE", "/mcp", self.headers)


def request(id: object, method: str, params: Json | None = None) -> Json:
    return {"jsonrpc": "2.0", "id": id, "method": method, **({} if params is None else {"params": params})}


def notification(method: str, params: Json | None = None) -> Json:
    return {"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})}


def response(id: object, result: Json | None = None) -> Json:
    return {"jsonrpc": "2.0", "id": id, "result": result or {}}


def initialize(version: str = "2025-11-25", *, id: object = "init", **capabilities: object) -> Json:
    info = {"name": "raw", "version": "1"}
    return request(id, "initialize", {"protocolVersion": version, "capabilities": capabilities, "clientInfo": info})


def standard(method: str, params: Mapping[str, object], version: str = "2026-07-28") -> list[tuple[str, str]]:
    """The headers that a request of 2026-07-28 must have; names are plain ASCII in these tests."""
    headers = [("MCP-Protocol-Version", version), ("Mcp-Method", method)]
    field = {"tools/call": "name", "prompts/get": "name", "resources/read": "uri"}.get(method)
    if field is not None:
        headers.append(("Mcp-Name", str(params.get(field))))
    return headers


def by_token(request: IncomingRequest) -> Caller:
    """A caller for each token: enough of authentication for tests."""
    return Caller(request.headers.get("authorization") or "nobody")


@asynccontextmanager
async def http_client(
    handler: Handler,
    *,
    hold: float = INPUT_TIMEOUT,
    hosts: HostPolicy | None = None,
    limits: Limits | None = None,
    places: HttpLimits | None = None,
    calls: Admission | None = None,
    sse: bool = True,
    identify: Identify = by_token,
) -> AsyncGenerator[HttpClient]:
    """A client of a handler that is served over loopback; all connections are gone when both have ended."""
    handler = chain((calls or Admission(),), handler)
    async with HttpEndpoint(handler, hold=hold, hosts=hosts, limits=places, identify=identify, sse=sse) as endpoint:
        async with serve(endpoint, limits=limits) as listener:
            client = HttpClient(endpoint, listener)
            try:
                yield client
            finally:
                await client.aclose()
