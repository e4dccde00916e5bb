"""A client that writes and reads plain messages, to see what is really on the wire."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Final, cast

from sluicegate.downstream.duplex import INPUT_TIMEOUT, DuplexServer, serve_duplex
from sluicegate.exchange import Handler
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.testing import MemoryWire

Json = dict[str, object]


STILL: Final = 200
"""Turns of the loop without any progress after which nothing more happens by itself."""


async def standstill(progress: Callable[[], int]) -> int:
    """The value of something that grows, once it has begun and grows no more."""
    before, turns = 0, 0
    async with asyncio.timeout(20):
        while turns < STILL:
            now = progress()
            turns = turns + 1 if now == before and now else 0
            before = now
            await asyncio.sleep(0)
    return before


class RawClient:
    """One end of a memory wire, spoken to in JSON."""

    def __init__(self, wire: MemoryWire) -> None:
        self.wire = self._wire = wire
        self._lines: asyncio.Queue[Json | list[Json]] = asyncio.Queue()
        self._rest = b""
        self.server_gone = asyncio.Event()
        wire.attach(self)

    def received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            self._lines.put_nowait(json.loads(line))

    def ended(self) -> None:
        self.server_gone.set()

    def send(self, **message: object) -> None:
        self.send_bytes(json.dumps({"jsonrpc": "2.0", **message}).encode())

    def send_bytes(self, line: bytes) -> None:
        self._wire.write(line + b"\n")

    async def next(self) -> Json:
        """The next message of the server."""
        message = await self.next_any()
        assert isinstance(message, dict)
        return message

    async def next_any(self) -> Json | list[Json]:
        """The next line of the server, which may be a batch."""
        async with asyncio.timeout(10):
            return await self._lines.get()

    async def request(self, id: object, method: str, params: Json | None = None) -> Json:
        """The very next message after a request: its answer, if nothing else was on its way."""
        self.send(id=id, method=method, **({} if params is None else {"params": params}))
        return await self.next()

    async def initialize(self, version: str = "2025-11-25", **capabilities: object) -> Json:
        """Shake hands; the result of `initialize`."""
        info = {"name": "raw", "version": "1"}
        params: Json = {"protocolVersion": version, "capabilities": capabilities, "clientInfo": info}
        answer = await self.request("init", "initialize", params)
        self.send(method="notifications/initialized")
        return result_of(answer)

    async def nothing_more(self) -> None:
        """Make sure that nothing is on its way: a ping is answered next."""
        assert await self.request("fence", "ping") == {"jsonrpc": "2.0", "id": "fence", "result": {}}

    def hang_up(self) -> None:
        self._wire.hang_up()


def modern(params: Json | None = None, *, capabilities: Json | None = None, **meta: object) -> Json:
    """Params as 2026-07-28 wants them."""
    stamp: Json = {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": capabilities or {},
        **meta,
    }
    return {**(params or {}), "_meta": stamp}


def result_of(answer: Json) -> Json:
    assert "result" in answer, answer
    return cast(Json, answer["result"])


def error_of(answer: Json) -> Json:
    assert "error" in answer, answer
    return cast(Json, answer["error"])


@asynccontextmanager
async def raw_client(
    handler: Handler, *, hold: float = INPUT_TIMEOUT, kind: type[DuplexServer] = DuplexServer, capacity: int = 65536
) -> AsyncGenerator[RawClient]:
    """A raw client of a handler that is served over a memory wire."""
    ours, theirs = MemoryWire.pair(capacity)
    async with TaskScope() as tasks:

        async def serve() -> None:
            await serve_duplex(handler, theirs, theirs.attach, hold=hold, kind=kind)
            theirs.hang_up()

        tasks.start(serve())
        try:
            yield RawClient(ours)
        finally:
            ours.hang_up()
