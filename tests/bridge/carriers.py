"""What carries a raw client's messages: a pipe, Streamable HTTP, or HTTP+SSE. None knows what they mean."""

import asyncio
import json
import math
import os
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import aclosing
from typing import Any, Final, Protocol

from sluicegate.downstream.duplex import serve_duplex
from sluicegate.downstream.stdio import StdioWire
from sluicegate.exchange import Handler
from sluicegate.http1 import Answer, Pool
from sluicegate.runtime.task_scope import TaskScope

Json = dict[str, Any]
Hear = Callable[[Any], None]

TYPED: Final = ("Content-Type", "application/json")
BOTH: Final = ("Accept", "application/json, text/event-stream")


class Carrier(Protocol):
    """The way to the gateway and back."""

    async def open(self, hear: Hear) -> None:
        """Connect; `hear` gets whatever comes."""
        ...

    def send(self, message: object, headers: tuple[tuple[str, str], ...] = ()) -> None:
        """Send a message; what comes of it is heard."""
        ...

    def let_go(self, message: Json) -> bool:
        """Close the stream of a request, where it has one; whether it had."""
        ...

    async def listen(self, headers: tuple[tuple[str, str], ...]) -> None:
        """Open the stream of things that belong to no request, where there is one."""
        ...

    async def aclose(self) -> None:
        """Hang up."""
        ...


class Pipe:
    """Two real pipes, with the gateway's stdio front at the other end."""

    def __init__(self, handler: Handler, tasks: TaskScope) -> None:
        self._handler = handler
        self._tasks = tasks
        self._out = -1
        self._transport: asyncio.ReadTransport | None = None

    async def open(self, hear: Hear) -> None:
        theirs_in, self._out = os.pipe()
        ours_in, theirs_out = os.pipe()
        wire = await StdioWire.open(theirs_in, theirs_out)
        for descriptor in (theirs_in, theirs_out):
            os.close(descriptor)
        self._tasks.start(self._serve(wire))
        reader = asyncio.StreamReader(limit=1 << 24)
        self._transport, _ = await asyncio.get_running_loop().connect_read_pipe(
            lambda: asyncio.StreamReaderProtocol(reader), os.fdopen(ours_in, "rb", buffering=0)
        )
        self._tasks.start(self._read(reader, hear))

    async def _serve(self, wire: StdioWire) -> None:
        try:
            await serve_duplex(self._handler, wire, wire.attach)
        finally:
            await wire.aclose()

    async def _read(self, reader: asyncio.StreamReader, hear: Hear) -> None:
        while line := await reader.readline():
            hear(json.loads(line))

    def send(self, message: object, headers: tuple[tuple[str, str], ...] = ()) -> None:
        os.write(self._out, json.dumps(message).encode() + b"\n")

    def let_go(self, message: Json) -> bool:
        return False

    async def listen(self, headers: tuple[tuple[str, str], ...]) -> None:
        pass

    async def aclose(self) -> None:
        os.close(self._out)
        if self._transport is not None:
            self._transport.close()


class Http:
    """Streamable HTTP: every message is a POST, and its answer a body or a stream."""

    def __init__(self, url: str, pool: Pool, tasks: TaskScope) -> None:
        self._url = url
        self._pool = pool
        self._tasks = tasks
        self._hear: Hear = lambda message: None
        self.session: str | None = None

    async def open(self, hear: Hear) -> None:
        self._hear = hear

    def send(self, message: object, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self._tasks.start(self._post(message, headers), key=id(message))

    def let_go(self, message: Json) -> bool:
        return self._tasks.cancel(id(message))

    async def _post(self, message: object, headers: tuple[tuple[str, str], ...]) -> None:
        fields = (TYPED, BOTH, *self._session(), *headers)
        body = json.dumps(message).encode()
        answer = await self._pool.request("POST", self._url, fields, body, idle=math.inf, first_byte=math.inf)
        try:
            self.session = answer.headers.get("mcp-session-id") or self.session
            if answer.headers.get("content-type") == "text/event-stream":
                await self._follow(answer)
            elif body := await answer.read():
                self._hear(json.loads(body))
        finally:
            answer.close()

    def _session(self) -> tuple[tuple[str, str], ...]:
        return () if self.session is None else (("Mcp-Session-Id", self.session),)

    async def _follow(self, answer: Answer) -> None:
        async with aclosing(events(answer)) as stream:
            async for _, data in stream:
                if data:
                    self._hear(json.loads(data))

    async def listen(self, headers: tuple[tuple[str, str], ...]) -> None:
        fields = (("Accept", "text/event-stream"), *self._session(), *headers)
        answer = await self._pool.request("GET", self._url, fields, idle=math.inf)
        assert answer.status == 200, answer.status
        self._tasks.start(_then_close(self._follow(answer), answer))

    async def aclose(self) -> None:
        if self.session is not None:
            answer = await self._pool.request("DELETE", self._url, self._session())
            answer.close()


class Sse:
    """HTTP+SSE of 2024-11-05: one stream for what is heard, a POST for what is said."""

    def __init__(self, origin: str, pool: Pool, tasks: TaskScope) -> None:
        self._origin = origin
        self._pool = pool
        self._tasks = tasks
        self._place: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def open(self, hear: Hear) -> None:
        fields = (("Accept", "text/event-stream"),)
        answer = await self._pool.request("GET", f"{self._origin}/sse", fields, idle=math.inf)
        assert answer.status == 200, answer.status
        self._tasks.start(_then_close(self._read(answer, hear), answer))
        await self._place

    async def _read(self, answer: Answer, hear: Hear) -> None:
        async with aclosing(events(answer)) as stream:
            async for event, data in stream:
                if event == "endpoint":
                    self._place.set_result(data)
                else:
                    hear(json.loads(data))

    def send(self, message: object, headers: tuple[tuple[str, str], ...] = ()) -> None:
        self._tasks.start(self._post(message))

    async def _post(self, message: object) -> None:
        url = f"{self._origin}{self._place.result()}"
        answer = await self._pool.request("POST", url, (TYPED,), json.dumps(message).encode())
        assert answer.status == 202, answer.status
        answer.close()

    def let_go(self, message: Json) -> bool:
        return False

    async def listen(self, headers: tuple[tuple[str, str], ...]) -> None:
        pass

    async def aclose(self) -> None:
        pass


async def _then_close(work: Coroutine[object, object, None], answer: Answer) -> None:
    try:
        await work
    finally:
        answer.close()


async def events(answer: Answer) -> AsyncGenerator[tuple[str, str]]:
    """The name and the data of each event of a stream, to its end."""
    text = b""
    while (chunk := await answer.next_chunk()) is not None:
        *blocks, text = (text + chunk).split(b"\n\n")
        for block in blocks:
            fields = [line.partition(": ") for line in block.decode().split("\n") if not line.startswith(":")]
            found = {name: value for name, _, value in fields}
            if "data" in found:
                yield found.get("event", "message"), found["data"]
