"""Many clients at once of one server process: connections that cost a callback and no task, and what the process costs.

async with load_server(calls=2000) as server:
    answers = await server.calls("echo", [{"text": "a"}, {"text": "b"}])      # all at once
    assert (await server.census()).running == 0
"""

import asyncio
import json
import os
import re
import resource
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import Final, NamedTuple, cast

import msgspec

from sluicegate.http1 import Limits
from tests.downstream.http_client import Headers, standard
from tests.downstream.raw_client import Json, modern
from tests.faults.load_server import Census, Options
from tests.polling import until, until_called

PATIENCE: Final = 40.0
_LENGTH: Final = re.compile(rb"\r\ncontent-length: ([0-9]+)\r\n", re.IGNORECASE)
RST: Final = b"\x01\0\0\0\0\0\0\0"  # linger for no time at all: what is unsent is dropped, and the peer is told so


class Answer(NamedTuple):
    """One answer as it came."""

    status: int
    head: bytes
    body: bytes

    def header(self, name: str) -> str:
        found = re.search(rf"\r\n{name}: (.*?)\r\n".encode(), self.head, re.IGNORECASE)
        assert found, self.head
        return found[1].decode()

    @property
    def message(self) -> Json:
        return json.loads(self.body)

    @property
    def text(self) -> str:
        """What the tool said."""
        result = cast(Json, self.message["result"])
        return cast(str, cast(list[Json], result["content"])[0]["text"])

    @property
    def reason(self) -> object:
        """Why we were refused."""
        return cast(Json, cast(Json, self.message["error"])["data"])["reason"]


class Wire(asyncio.Protocol):
    """A kept connection: one request at a time, answers with a length."""

    def __init__(self) -> None:
        self.lost = asyncio.get_running_loop().create_future()
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray()
        self._waiting: asyncio.Future[Answer] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n") + 4
        if end < 4:
            return
        head = bytes(self._buffer[:end])
        found = _LENGTH.search(head)
        size = end + (int(found[1]) if found else 0)
        if len(self._buffer) >= size and self._waiting is not None:
            answer = Answer(int(head[9:12]), head, bytes(self._buffer[end:size]))
            del self._buffer[:size]
            self._waiting.set_result(answer)
            self._waiting = None

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.lost.done():
            self.lost.set_result(None)
        if self._waiting is not None and not self._waiting.done():  # Else whoever waited was cancelled.
            self._waiting.set_exception(exc or ConnectionResetError("hung up without an answer"))

    def ask(self, data: bytes) -> "asyncio.Future[Answer]":
        """Send a request; its answer comes later."""
        assert self._transport is not None and self._waiting is None
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(data)
        return self._waiting

    @property
    def is_open(self) -> bool:
        return not self.lost.done()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()


class LoadServer:
    """The process, and the way to it."""

    def __init__(self, process: asyncio.subprocess.Process, port: int, aside: int) -> None:
        self.process = process
        self.port = port
        self._aside = aside
        self._wires: list[Wire] = []
        self._control: Wire | None = None
        self._turn = asyncio.Lock()

    async def wire(self) -> Wire:
        """A new connection."""
        _, wire = await asyncio.get_running_loop().create_connection(Wire, "127.0.0.1", self.port)
        self._wires.append(wire)
        return wire

    async def wires(self, count: int) -> list[Wire]:
        """So many connections."""
        found: list[Wire] = []
        while len(found) < count:
            more = min(200, count - len(found))
            found += await asyncio.gather(*(self.wire() for _ in range(more)))
        return found

    async def socket(self, *, buffer: int | None = None) -> socket.socket:
        """A connection that is read and closed by hand; with a small buffer, hardly anything is read ahead."""
        sock = socket.socket()
        sock.setblocking(False)
        if buffer is not None:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        return sock

    def hang_up(self) -> None:
        """Cut all wires."""
        for wire in self._wires:
            wire.close()
        self._wires.clear()

    def close(self) -> None:
        """Cut all wires, the test's own too."""
        self.hang_up()
        if self._control is not None:
            self._control.close()

    async def calls(self, tool: str, arguments: Sequence[Json], headers: Headers = ()) -> list[Answer]:
        """The answers to calls that are all under way at once, each on a connection of its own."""
        wires = await self.wires(len(arguments))
        waiting = [wire.ask(call_of(tool, given, headers)) for wire, given in zip(wires, arguments, strict=True)]
        async with asyncio.timeout(PATIENCE):
            return await asyncio.gather(*waiting)

    async def call(self, tool: str, headers: Headers = (), **arguments: object) -> Answer:
        """The answer to one call."""
        (answer,) = await self.calls(tool, [arguments], headers)
        return answer

    async def aside(self, tool: str, **arguments: object) -> Answer:
        """The answer to a question of the test's own, however full the server is."""
        async with asyncio.timeout(PATIENCE), self._turn:
            if self._control is None or not self._control.is_open:
                _, self._control = await asyncio.get_running_loop().create_connection(Wire, "127.0.0.1", self._aside)
            return await self._control.ask(call_of(tool, arguments))

    async def census(self) -> Census:
        """What is alive in the server."""
        answer = await self.aside("count_all")
        return msgspec.convert(cast(Json, answer.message["result"])["structuredContent"], Census)

    async def wait_census(self, is_so: Callable[[Census], bool]) -> Census:
        """What is alive when it is so."""
        return await until_called(self.census, is_so)

    @property
    def rss(self) -> int:
        """Bytes of memory that the process has."""
        with open(f"/proc/{self.process.pid}/statm", "rb") as file:
            return int(file.read().split()[1]) * resource.getpagesize()

    @property
    def peak_rss(self) -> int:
        """The most bytes of memory that it ever had."""
        with open(f"/proc/{self.process.pid}/status", "rb") as file:
            return int(re.findall(rb"VmHWM:\s+([0-9]+) kB", file.read())[0]) * 1024

    @property
    def descriptors(self) -> int:
        """Files and sockets that the process has open."""
        return len(os.listdir(f"/proc/{self.process.pid}/fd"))

    async def wait_descriptors(self, most: int) -> None:
        """Wait until no more than these are open."""
        await until(lambda: self.descriptors <= most)


def call_of(
    tool: str, arguments: Json, headers: Headers = (), *, id: object = 1, accept: str = "application/json"
) -> bytes:
    """A call of 2026-07-28 as bytes; it hears of progress if events are accepted."""
    params = modern({"name": tool, "arguments": arguments})
    if "event" in accept:
        cast(Json, params["_meta"])["progressToken"] = "p"
    return post_of("tools/call", params, headers, id=id, accept=accept)


def post_of(
    method: str, params: Json, headers: Headers = (), *, id: object = 1, accept: str = "application/json"
) -> bytes:
    """A request of 2026-07-28 as bytes."""
    body = json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}).encode()
    return raw_post(body, [*standard(method, params), *headers], accept=accept)


def encoded(message: object) -> bytes:
    """A message as the body of a POST."""
    return json.dumps(message).encode()


def raw_post(body: bytes, headers: Headers = (), *, accept: str = "application/json", path: str = "/mcp") -> bytes:
    """Whatever is to be posted as bytes."""
    fields = [("Host", "localhost"), ("Content-Type", "application/json"), ("Accept", accept), *headers]
    lines = [f"POST {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields), f"Content-Length: {len(body)}"]
    return "\r\n".join([*lines, "", ""]).encode("latin-1") + body


def raise_descriptors() -> int:
    """How many files and sockets this process may have open from now on."""
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def statuses(answers: Iterable[Answer]) -> dict[int, int]:
    """How often each status came."""
    counts: dict[int, int] = {}
    for answer in answers:
        counts[answer.status] = counts.get(answer.status, 0) + 1
    return counts


@asynccontextmanager
async def load_server(*, http: Limits | None = None, calls: int = 1000) -> AsyncGenerator[LoadServer]:
    """A server process; it ends with status 0, whatever was done to it."""
    raise_descriptors()
    options = msgspec.json.encode(Options(http or Limits(), calls)).decode()
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.faults.load_server", options, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    try:
        async with asyncio.timeout(PATIENCE):
            ports = (await process.stdout.readline()).split()
        server = LoadServer(process, int(ports[0]), int(ports[1]))
        try:
            yield server
        finally:
            server.close()
        process.send_signal(signal.SIGTERM)
        async with asyncio.timeout(PATIENCE):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
