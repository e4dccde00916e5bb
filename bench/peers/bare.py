"""The least that Python does for a call: the parts that we are made of, with none of our rules in between.

`python -m bench.peers.bare` is a server with one tool; with a port behind it, a gateway for the server there, whose
tools have `bare__` before their names. Both have no limit, no time-out, no session, no version, no error and no event;
they read a request as strictly as we do and give it a task of its own, as whoever awaits something must. What ours
takes more than these is what it does more; what these take more than nginx is Python itself.
"""

import asyncio
import socket
import sys
from collections.abc import Awaitable, Callable
from typing import Any, Final

import httptools
import jiter
import msgspec
import uvloop

OK: Final = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%b"
PREFIX: Final = "bare__"
ASK: Final = (
    b"POST /mcp HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: application/json, text/event-stream\r\n"
    b"Content-Type: application/json\r\nMCP-Protocol-Version: 2026-07-28\r\nMcp-Method: tools/call\r\n"
    b"Mcp-Name: %b\r\nContent-Length: %d\r\n\r\n%b"
)

Message = dict[str, Any]
Answer = Callable[[Message], Awaitable[bytes]]
encode: Final = msgspec.json.Encoder().encode
tasks: Final = set[asyncio.Task[None]]()


class Reply(msgspec.Struct):
    """An answer of a server, of which only the id is looked at."""

    id: int
    result: msgspec.Raw


read_reply: Final = msgspec.json.Decoder(Reply).decode


class Messages(asyncio.Protocol):
    """One connection, and the bodies that come on it."""

    transport: asyncio.WriteTransport
    parser: httptools.HttpRequestParser | httptools.HttpResponseParser

    def __init__(self) -> None:
        self._parts: list[bytes] = []

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # pyright: ignore[reportAttributeAccessIssue] - uvloop's is one by its methods only

    def data_received(self, data: bytes) -> None:
        self.parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)

    def body(self) -> bytes:
        """What has come, once."""
        parts, self._parts = self._parts, []
        return b"".join(parts)


class Front(Messages):
    """A client's connection."""

    def __init__(self, answer: Answer) -> None:
        super().__init__()
        self.parser = httptools.HttpRequestParser(self)
        self._answer = answer
        self._loop = asyncio.get_running_loop()

    def on_message_complete(self) -> None:
        message = jiter.from_json(self.body(), catch_duplicate_keys=True, allow_inf_nan=False)
        task = self._loop.create_task(self._work(message))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    async def _work(self, message: Message) -> None:
        answer = await self._answer(message)
        self.transport.write(OK % (len(answer), answer))


class Back(Messages):
    """A connection to a server, with one request at a time."""

    def __init__(self) -> None:
        super().__init__()
        self.parser = httptools.HttpResponseParser(self)
        self._loop = asyncio.get_running_loop()
        self._answered: asyncio.Future[bytes] | None = None

    def ask(self, request: bytes) -> Awaitable[bytes]:
        """The body of the answer."""
        self._answered = self._loop.create_future()
        self.transport.write(request)
        return self._answered

    def on_message_complete(self) -> None:
        assert self._answered
        self._answered.set_result(self.body())


async def echo(message: Message) -> bytes:
    """The server."""
    content = [{"type": "text", "text": message["params"]["arguments"]["text"]}]
    result = {"content": content, "isError": False, "resultType": "complete"}
    return encode({"jsonrpc": "2.0", "id": message["id"], "result": result})


def through(port: int) -> Answer:
    """The gateway: an id and a name of its own for the way there, and the caller's for the way back."""
    idle: list[Back] = []
    last = 0

    async def answer(message: Message) -> bytes:
        nonlocal last
        if idle:
            back = idle.pop()
        else:
            _, back = await asyncio.get_running_loop().create_connection(Back, "127.0.0.1", port)
        last += 1
        asked, message["id"] = message["id"], last
        name = message["params"]["name"] = message["params"]["name"].removeprefix(PREFIX)
        body = encode(message)
        reply = read_reply(await back.ask(ASK % (name.encode(), len(body), body)))
        idle.append(back)
        return encode({"jsonrpc": "2.0", "id": asked, "result": reply.result})

    return answer


async def main(place: socket.socket, answer: Answer) -> None:
    """Serve until killed."""
    await asyncio.get_running_loop().create_server(lambda: Front(answer), sock=place)
    print(place.getsockname()[1], flush=True)
    await asyncio.Event().wait()


if __name__ == "__main__":
    at, *behind = map(int, sys.argv[1:])
    listening = socket.create_server(("127.0.0.1", at), backlog=1000)
    uvloop.run(main(listening, through(behind[0]) if behind else echo))
