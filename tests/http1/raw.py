"""A peer that speaks bytes: what it sends is what the test says, right or wrong."""

import asyncio
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import NamedTuple

from sluicegate.http1 import Handler, Limits, Listener, Request, serve

PATIENCE = 10.0


class Reply(NamedTuple):
    """One answer as it came."""

    status: int
    headers: dict[str, str]
    body: bytes


class Peer:
    """One connection, with everything that was read from it."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader = reader
        self.writer = writer

    @property
    def socket(self) -> socket.socket:
        return self.writer.get_extra_info("socket")

    def send(self, data: bytes) -> None:
        self.writer.write(data)

    def send_eof(self) -> None:
        self.writer.write_eof()

    async def read_head(self) -> tuple[int, dict[str, str]]:
        async with asyncio.timeout(PATIENCE):
            lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        assert lines[0].startswith("HTTP/1.1 ")
        pairs = (line.split(": ", 1) for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value for name, value in pairs}

    async def read_reply(self, *, to_head: bool = False) -> Reply:
        status, headers = await self.read_head()
        async with asyncio.timeout(PATIENCE):
            if to_head or status in (100, 204, 304):
                body = b""
            elif headers.get("transfer-encoding") == "chunked":
                body = b"".join([chunk async for chunk in self.chunks()])
            elif "content-length" in headers:
                body = await self.reader.readexactly(int(headers["content-length"]))
            else:
                body = await self.reader.read()
        return Reply(status, headers, body)

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            async with asyncio.timeout(PATIENCE):
                size = int(await self.reader.readline(), 16)
                data = await self.reader.readexactly(size + 2)
            assert data.endswith(b"\r\n")
            if not size:
                return
            yield data[:-2]

    async def read_rest(self) -> bytes:
        """Everything up to the end of the connection, however it ends."""
        rest = b""
        async with asyncio.timeout(PATIENCE):
            try:
                while data := await self.reader.read(65536):
                    rest += data
            except ConnectionError:
                pass
        return rest

    async def aclose(self) -> None:
        self.writer.transport.abort()
        try:
            await self.writer.wait_closed()
        except ConnectionError:
            pass


@asynccontextmanager
async def connected(listener: Listener) -> AsyncGenerator[Peer]:
    peer = Peer(*await asyncio.open_connection(*listener.addresses[0]))
    try:
        yield peer
    finally:
        await peer.aclose()


@asynccontextmanager
async def exchange(handler: Handler | None = None, limits: Limits | None = None) -> AsyncGenerator[Peer]:
    """A server and one connection to it."""
    async with serve(handler or echo, limits=limits) as listener, connected(listener) as peer:
        yield peer


def echo(request: Request) -> None:
    request.respond(200, (("X-Method", request.method), ("X-Path", request.path)), request.body)


@asynccontextmanager
async def scripted(
    script: Callable[[Peer], Coroutine[object, object, None]],
) -> AsyncGenerator[str]:
    """The URL of a server whose every connection follows the script."""
    peers: list[Peer] = []

    async def follow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peers.append(Peer(reader, writer))
        try:
            await script(peers[-1])
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(follow, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/mcp"
    finally:
        server.close()
        for peer in peers:
            await peer.aclose()
        await server.wait_closed()
