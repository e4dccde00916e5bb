"""Servers and clients of the three transports, for the tests of what our client does when something fails."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable
from contextlib import asynccontextmanager
from typing import Literal

import sluicegate
from sluicegate import Server, UpstreamError
from sluicegate.exchange import Connection, Host
from sluicegate.upstream.duplex import Era
from sluicegate.upstream.http import HttpUpstream
from sluicegate.upstream.http_endpoint import Timeouts
from tests.faults.proxy import FaultProxy, fault_proxy
from tests.upstream.http_server import DISCOVERED, INFO, Answer, Asked, Json, endpoint, message, scripted
from tests.upstream.raw_server import Recorder

Way = Literal["modern", "session", "sse"]
WAYS: tuple[Way, ...] = ("modern", "session", "sse")
POSTED: tuple[Way, ...] = ("modern", "session")
"""Where the answer to a POST is the answer to the call."""

TEXT: Json = {"content": [{"type": "text", "text": "done"}]}
LIMIT = 20.0


def era_of(way: Way) -> Era:
    return "modern" if way == "modern" else "session"


class Spoken:
    """A scripted server that makes acquaintance by its transport and leaves the rest to the test."""

    def __init__(self, way: Way, answer: Answer) -> None:
        self.way = way
        self.streams: list[Asked] = []
        self._answer = answer

    def __call__(self, asked: Asked) -> Awaitable[None] | None:
        welcome: Json = {
            "protocolVersion": "2025-11-25",
            "capabilities": {"tools": {}, "logging": {}, "resources": {"subscribe": True}},
            "serverInfo": INFO,
        }
        match asked.called or asked.method:
            case "server/discover":
                asked.result(DISCOVERED)
            case "GET" if self.way == "sse":
                return self._push(asked)
            case "GET" | "DELETE" if self.way == "session" and asked.header("last-event-id") is None:
                asked.status(405)
            case "initialize" if self.way == "sse" and asked.path == "/mcp":
                asked.status(405)
            case "initialize" if self.way == "sse":
                asked.status(202)
                self.say(id=asked.id, result=welcome)
            case "initialize":
                asked.result(welcome, ("Mcp-Session-Id", "s1"))
            case "notifications/initialized" | "notifications/cancelled":
                asked.status(202)
            case _:
                return self._answer(asked)
        return None

    def say(self, **members: object) -> None:
        """Send a message on the event stream of HTTP+SSE."""
        self.streams[-1].event(message(**members))

    async def _push(self, asked: Asked) -> None:
        asked.stream()
        asked.event(b"/messages", event="endpoint")
        self.streams.append(asked)
        await asyncio.Event().wait()

    def reply(self, asked: Asked, result: Json = TEXT) -> None:
        """Answer a call in the way of the transport."""
        if self.way == "sse":
            asked.status(202)
            self.say(id=asked.id, result=result)
        else:
            asked.result(result)


@asynccontextmanager
async def connection_to(
    url: str, way: Way, timeouts: Timeouts | None = None, headers: dict[str, str] | None = None
) -> AsyncGenerator[Connection]:
    """A connection by one transport."""
    upstream = HttpUpstream(url, era=era_of(way), name="script", timeouts=timeouts, headers=headers)
    async with asyncio.timeout(LIMIT), upstream.connect(Host({}, INFO, Recorder({"roots": []}))) as connection:
        yield connection


class Counted:
    """A server of ours that counts how often its tool ran."""

    def __init__(self) -> None:
        self.runs = 0
        self.expected = 1
        self.begun = asyncio.Event()
        self.cancelled = asyncio.Event()
        self.server = server = Server("counted", version="1")

        @server.tool
        async def run(pad: str = "") -> str:
            self.runs += 1
            return f"ran {self.runs}"

        @server.tool
        async def count(to: int):
            self.runs += 1
            for n in range(1, to + 1):
                yield sluicegate.Progress(n, total=to)
            yield f"counted to {to}"

        @server.tool
        async def tick(call: sluicegate.Call) -> str:
            n = 0
            try:
                while True:
                    n += 1
                    await call.progress(n)
                    self.begun.set()
                    await asyncio.sleep(0.005)  # The pace of the progress.
            finally:
                self.cancelled.set()

        @server.tool
        async def hang() -> str:
            self.runs += 1
            if self.runs >= self.expected:
                self.begun.set()
            try:
                await asyncio.Event().wait()
            finally:
                self.cancelled.set()
            return "never"

        self.tools = (run, count, tick, hang)


@asynccontextmanager
async def proxied(way: Way) -> AsyncGenerator[tuple[Counted, FaultProxy, str]]:
    """A server of ours behind a fault proxy, and the URL of the proxy."""
    counted = Counted()
    async with asyncio.timeout(LIMIT), endpoint(counted.server) as origin:
        host, port = origin.removeprefix("http://").split(":")
        async with fault_proxy(host, int(port)) as proxy:
            yield counted, proxy, proxy.url("/sse" if way == "sse" else "/mcp")


@asynccontextmanager
async def spoken(
    way: Way, answer: Answer, timeouts: Timeouts | None = None, headers: dict[str, str] | None = None
) -> AsyncGenerator[tuple[Connection, Spoken]]:
    """A connection to a scripted server that is past its acquaintance."""
    script = Spoken(way, answer)
    async with scripted(script) as server, connection_to(server.url, way, timeouts, headers) as connection:
        yield connection, script


def everything_about(problem: UpstreamError) -> str:
    """All that anybody could print of an error."""
    return f"{problem!s} {problem!r} {problem.message} {problem.details} {problem.data} {problem.__cause__!r}"
