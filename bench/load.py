"""One plain client for every HTTP server that is measured: it asks, looks at the answer, and asks again.

It knows just enough of HTTP to find the end of an answer, so that it is the server that the race is about, and it looks
for the right words in each answer, so that nobody is quick at answering something else.
"""

import asyncio
import time
from collections.abc import Sequence
from itertools import count
from typing import Final, NamedTuple

from bench.samples import TEXT, compact

MODERN: Final = "2026-07-28"
SESSION: Final = "2025-11-25"

_ids: Final = count(1_000_000)  # of one length, so that all heads are alike, as those of a real client mostly are


class Place(NamedTuple):
    """Where to ask: a port, a revision, and a session if it is an older one."""

    port: int
    version: str
    session: str = ""


class Ask:
    """A tool call as bytes, with a new id each time, and the words that its answer has to have."""

    def __init__(self, place: Place, tool: str, arguments: object, words: bytes) -> None:
        port, version, session = place
        modern = version == MODERN
        meta: dict[str, object] = {"progressToken": "p"} if tool != "echo" else {}
        if modern:
            meta["io.modelcontextprotocol/protocolVersion"] = version
            meta["io.modelcontextprotocol/clientCapabilities"] = {}
        params = {"name": tool, "arguments": arguments} | ({"_meta": meta} if meta else {})
        message = compact({"jsonrpc": "2.0", "id": 1_000_000, "method": "tools/call", "params": params})
        self.words = words
        more = {"MCP-Protocol-Version": version}
        more |= {"Mcp-Method": "tools/call", "Mcp-Name": tool} if modern else {"Mcp-Session-Id": session}
        self._before, _, self._behind = post(port, message, more).rpartition(b"1000000")

    def next(self) -> bytes:
        """The next request."""
        return b"%b%d%b" % (self._before, next(_ids), self._behind)


def post(port: int, message: bytes, more: dict[str, str]) -> bytes:
    """A POST of a message."""
    fields = {
        "Host": f"127.0.0.1:{port}",
        "Accept": "application/json, text/event-stream",
        "Content-Type": "application/json",
        **more,
        "Content-Length": str(len(message)),
    }
    lines = "".join(f"{name}: {value}\r\n" for name, value in fields.items())
    return b"POST /mcp HTTP/1.1\r\n%b\r\n%b" % (lines.encode(), message)


class Asker(asyncio.Protocol):
    """One connection, on which one request after the other is asked."""

    def __init__(self) -> None:
        self.left = [0]
        self.done: asyncio.Future[None] | None = None
        self.ask: Ask | None = None
        self.first_at = 0
        """When the first event of the last answer came."""
        self.answer = b""
        self.gone: asyncio.Future[None]
        """Done when the connection is closed."""
        self._transport: asyncio.WriteTransport | None = None
        self._parts: list[bytes] = []
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # pyright: ignore[reportAttributeAccessIssue] - uvloop's is one by its methods only
        self.gone = asyncio.get_running_loop().create_future()

    def connection_lost(self, exc: Exception | None) -> None:
        self.gone.set_result(None)
        if self.done and not self.done.done():
            self.done.set_exception(RuntimeError("the server hung up"))

    def write(self, request: bytes) -> None:
        """Send a request."""
        assert self._transport
        self.first_at = 0
        self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        if not self.first_at and b"data:" in data and b"notifications/progress" in data:
            self.first_at = time.perf_counter_ns()
        if self._parts or self._missing:
            self._parts.append(data)
            self._missing -= len(data)
            complete = self._missing <= 0 if self._missing > -_UNKNOWN else data.endswith(b"0\r\n\r\n")
        else:
            complete = self._begins(data)
        if complete:
            data = b"".join(self._parts) if self._parts else data
            self._parts.clear()
            self._missing = 0
            self._answered(data)

    def abort(self) -> None:
        """Cut the connection."""
        assert self._transport
        self.done = None
        self._transport.abort()

    def _begins(self, data: bytes) -> bool:
        """Whether an answer is all there with its first bytes."""
        end = data.find(b"\r\n\r\n") + 4
        if end < 4:
            raise RuntimeError("the head of an answer came in pieces")
        head = data[:end].lower()
        at = head.find(b"content-length: ")
        if at >= 0:
            self._missing = int(head[at + 16 : head.index(b"\r\n", at)]) - (len(data) - end)
            complete = self._missing <= 0
        else:
            self._missing = -_UNKNOWN
            complete = data.endswith(b"0\r\n\r\n")
        if not complete:
            self._parts.append(data)
        return complete

    def _answered(self, answer: bytes) -> None:
        if self.ask is None:
            self.answer = answer
        elif self.ask.words not in answer:
            problem = RuntimeError(f"that is not the answer: {answer[:1000]!r}")
            if self.done and not self.done.done():
                self.done.set_exception(problem)
            return
        self.left[0] -= 1
        if self.ask is not None and self.left[0] > 0:
            self.write(self.ask.next())
        elif self.done and not self.done.done() and self.left[0] <= 0:
            self.done.set_result(None)


_UNKNOWN: Final = 1 << 60
DEADLINE: Final = 60.0


async def connect(port: int, lanes: int) -> list[Asker]:
    """So many connections."""
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Asker, "127.0.0.1", port))[1] for _ in range(lanes)]


async def hang_up(askers: Sequence[Asker]) -> None:
    """Close these connections."""
    for asker in askers:
        asker.abort()
    async with asyncio.timeout(DEADLINE):
        for asker in askers:
            await asker.gone


async def ask_all(askers: Sequence[Asker], ask: Ask, calls: int) -> None:
    """Ask so many times, one call under way on each connection, and wait until every one is answered."""
    lanes = min(len(askers), calls)
    loop = asyncio.get_running_loop()
    async with asyncio.timeout(DEADLINE):
        waits: list[asyncio.Future[None]] = []
        for place, asker in enumerate(askers[:lanes]):
            # A share each, so that none is still on its way when the others have ended.
            asker.left, asker.done, asker.ask = [calls // lanes + (place < calls % lanes)], loop.create_future(), ask
            waits.append(asker.done)
            asker.write(ask.next())
        for wait in waits:
            await wait


async def answer_to(asker: Asker, request: bytes) -> bytes:
    """The whole answer to one request."""
    asker.left, asker.done, asker.ask = [1], asyncio.get_running_loop().create_future(), None
    asker.write(request)
    async with asyncio.timeout(DEADLINE):
        await asker.done
    return asker.answer


async def open_session(asker: Asker, port: int) -> str:
    """The id of a new session, ready to be used."""
    params = {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": {"name": "bench", "version": "0"}}
    hello = compact({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": params})
    answer = await answer_to(asker, post(port, hello, {}))
    for line in answer.split(b"\r\n\r\n")[0].split(b"\r\n"):
        name, _, value = line.partition(b": ")
        if name.lower() == b"mcp-session-id":
            session = value.decode()
            break
    else:
        raise RuntimeError(f"no session: {answer[:1000]!r}")
    ready = compact({"jsonrpc": "2.0", "method": "notifications/initialized"})
    await answer_to(asker, post(port, ready, {"MCP-Protocol-Version": SESSION, "Mcp-Session-Id": session}))
    return session


def echo(place: Place) -> Ask:
    """A call of the echo."""
    return Ask(place, "echo", {"text": TEXT}, b'"text":"' + TEXT.encode())


def counting(place: Place, events: int) -> Ask:
    """A call that is answered with so many events."""
    return Ask(place, "count", {"to": events}, b"counted to %d" % events)


def knock(place: Place) -> Ask:
    """A call whose one event comes a moment before its answer."""
    return Ask(place, "knock", {}, b'"come"')
