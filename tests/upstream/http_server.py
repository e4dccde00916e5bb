"""Servers over real loopback sockets: our own endpoint, and one that does what the test says."""

import json
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from ssl import SSLContext

from msgspec.structs import force_setattr

from sluicegate.downstream.http import HttpEndpoint
from sluicegate.exchange import Handler
from sluicegate.http1 import Limits, Request, serve
from sluicegate.upstream.http_endpoint import Timeouts

Json = dict[str, object]
JSON = (("Content-Type", "application/json"),)
EVENTS = (("Content-Type", "text/event-stream"),)


@asynccontextmanager
async def endpoint(handler: Handler) -> AsyncGenerator[str]:
    """Our own endpoint; its origin."""
    async with HttpEndpoint(handler) as ours, serve(ours) as listener:
        host, port = listener.addresses[0]
        yield f"http://{host}:{port}"


class Asked:
    """One request to a scripted server."""

    def __init__(self, request: Request) -> None:
        self.request = request
        self.method = request.method
        self.path = request.path
        self.body: Json = json.loads(request.body) if request.body else {}
        self.called = str(self.body.get("method", ""))
        self.id = self.body.get("id")

    def header(self, name: str) -> str | None:
        return self.request.headers.get(name)

    def status(self, status: int, body: bytes = b"", *headers: tuple[str, str]) -> None:
        self.request.respond(status, headers, body)

    def result(self, result: Json, *headers: tuple[str, str]) -> None:
        self.request.respond(200, (*JSON, *headers), message(id=self.id, result=result))

    def error(self, status: int, code: int, text: str = "no", **data: object) -> None:
        error = {"code": code, "message": text, **data}
        self.request.respond(status, JSON, message(id=self.id, error=error))

    def stream(self) -> None:
        self.request.start(200, EVENTS)

    def event(self, body: bytes = b"", *, id: str | None = None, event: str | None = None, retry: int = -1) -> None:
        lines = [f"event: {event}"] if event else []
        lines += [f"id: {id}"] if id is not None else []
        lines += [f"retry: {retry}"] if retry >= 0 else []
        self.request.write("\n".join([*lines, "data: "]).encode() + body + b"\n\n")

    def end(self) -> None:
        self.request.end()


def message(**members: object) -> bytes:
    return json.dumps({"jsonrpc": "2.0", **members}).encode()


Answer = Callable[[Asked], Awaitable[None] | None]


class Script:
    """What a scripted server does, and what it was asked."""

    def __init__(self, answer: Answer) -> None:
        self.url = ""
        self.place: tuple[str, int] = ("", 0)
        self.asked: list[Asked] = []
        self._answer = answer

    async def __call__(self, request: Request) -> None:
        asked = Asked(request)
        self.asked.append(asked)
        waiting = self._answer(asked)
        if waiting is not None:
            await waiting

    def methods(self) -> list[str]:
        """What came so far: the message's method, or that of HTTP."""
        return [asked.called or asked.method for asked in self.asked]


@asynccontextmanager
async def scripted(
    answer: Answer, path: str = "/mcp", *, limits: Limits | None = None, ssl: SSLContext | None = None
) -> AsyncGenerator[Script]:
    """A server that answers every request with this function."""
    script = Script(answer)
    async with serve(script, limits=limits, ssl=ssl) as listener:
        host, port = listener.addresses[0]
        script.url = f"http://{host}:{port}{path}" if ssl is None else f"https://localhost:{port}{path}"
        script.place = (host, port)
        yield script


def change(timeouts: Timeouts, **seconds: float) -> None:
    """Give a server more or less time from its next answer on: what has to succeed, on a busy machine too, needs more
    than what has to fail. Only for what is looked at with every answer: not for `connect` and `taken`."""
    for name, value in seconds.items():
        force_setattr(timeouts, name, value)


DISCOVERED: Json = {"resultType": "complete", "supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
INFO: Json = {"name": "script", "version": "1"}


def modern(answer: Answer) -> Answer:
    """A server of 2026-07-28 that answers all but `server/discover` with this function."""

    def handle(asked: Asked) -> Awaitable[None] | None:
        if asked.called == "server/discover":
            asked.result(DISCOVERED)
            return None
        return answer(asked)

    return handle


def session(answer: Answer, *, version: str = "2025-11-25", session_id: str = "s1", **capabilities: object) -> Answer:
    """A session-era server that takes the handshake, pushes nothing, and answers the rest with this function."""

    def handle(asked: Asked) -> Awaitable[None] | None:
        match asked.called or asked.method:
            case "server/discover":
                asked.status(400)
            case "initialize":
                welcome: Json = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": INFO}
                asked.result(welcome, ("Mcp-Session-Id", session_id))
            case "notifications/initialized" | "notifications/cancelled":
                asked.status(202)
            case "DELETE":
                asked.status(405)
            case "GET" if asked.header("last-event-id") is None:
                asked.status(405)
            case _:
                return answer(asked)
        return None

    return handle
