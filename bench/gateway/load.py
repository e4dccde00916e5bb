"""The plain client of the gateways' race: Streamable HTTP as in `load`, HTTP+SSE for a gateway that has no other, and
a pipe.
"""

import asyncio
import itertools
import os
import select
from collections.abc import Sequence
from typing import Final, NamedTuple

from bench.gateway.stage import Gate
from bench.load import DEADLINE, MODERN, SESSION, Ask, Asker, answer_to, connect, hang_up, post
from bench.samples import compact

INFO: Final = {"name": "bench", "version": "0"}
_ids: Final = itertools.count(1_000_000)


class Door(NamedTuple):
    """Where a gateway is asked, and how."""

    port: int
    version: str = SESSION
    path: str = "/mcp"
    session: str = ""
    channel: bool = False
    """Whether it has the oldest transport only: answers come on a stream of their own."""


class Call(Ask):
    """A request as bytes, with a new id each time, and the words that its answer has to have."""

    def __init__(self, door: Door, method: str, params: dict[str, object], words: bytes) -> None:
        self.words = words
        name = params.get("name")
        more = {"MCP-Protocol-Version": door.version}
        if door.version == MODERN:
            more |= {"Mcp-Method": method} | ({"Mcp-Name": name} if isinstance(name, str) else {})
        elif door.session:
            more |= {"Mcp-Session-Id": door.session}
        request = posted(door, message(method, params, door.version), {} if door.channel else more)
        self._before, _, self._behind = request.rpartition(b"1000000")


class Varied(Ask):
    """Requests in turn, for the same words."""

    def __init__(self, asks: Sequence[Ask]) -> None:
        self.words = asks[0].words
        self._turns = itertools.cycle([ask.next for ask in asks])

    def next(self) -> bytes:
        return next(self._turns)()


def message(method: str, params: dict[str, object], version: str) -> bytes:
    """A request, with 1000000 for its id."""
    if version == MODERN:
        mine = {f"io.modelcontextprotocol/{key}": value for key, value in _SAID.items()}
        meta = params.get("_meta", {})
        assert isinstance(meta, dict)
        params = {**params, "_meta": {**meta, **mine}}
    # The id is last, for it is looked for from behind.
    return compact({"jsonrpc": "2.0", "method": method, "params": params, "id": 1_000_000})


_SAID: Final = {"protocolVersion": MODERN, "clientCapabilities": {}, "clientInfo": INFO}


def posted(door: Door, body: bytes, more: dict[str, str]) -> bytes:
    """A POST of a message."""
    return post(door.port, body, more).replace(b"POST /mcp ", b"POST %b " % door.path.encode(), 1)


async def entered(door: Door) -> Door:
    """The door with a session of its own, if its revision has them."""
    if door.version == MODERN or door.channel:
        return door
    [asker] = await connect(door.port, 1)
    session = await open_session(asker, door)
    await hang_up([asker])
    return door._replace(session=session)


async def open_session(asker: Asker, door: Door) -> str:
    """The id of a new session, ready to be used; empty if the gateway has none."""
    answer = await answer_to(asker, posted(door, compact(_HELLO), {}))
    if b'"protocolVersion"' not in answer:
        raise RuntimeError(f"no session: {answer[:300]!r}")
    session = ""
    for line in answer.split(b"\r\n\r\n")[0].split(b"\r\n"):
        name, _, value = line.partition(b": ")
        if name.lower() == b"mcp-session-id":
            session = value.decode()
    more = {"MCP-Protocol-Version": SESSION} | ({"Mcp-Session-Id": session} if session else {})
    await answer_to(asker, posted(door, compact(_READY), more))
    return session


_HELLO: Final = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "initialize",
    "params": {"protocolVersion": SESSION, "capabilities": {}, "clientInfo": INFO},
}
_READY: Final = {"jsonrpc": "2.0", "method": "notifications/initialized"}


# ------------------------------------------------------------------------------------------------------ HTTP+SSE


class Channel(Asker):
    """The stream of one client of the oldest transport; what it asks goes out on a connection beside it."""

    def __init__(self) -> None:
        super().__init__()
        self.endpoint: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.posting: Asker | None = None
        self._heard = b""

    def write(self, request: bytes) -> None:
        if self.posting is None:
            super().write(request)
        else:
            self.posting.write(request.replace(b"POST /messages ", b"POST %b " % self.endpoint.result().encode(), 1))

    def data_received(self, data: bytes) -> None:
        self._heard += data
        words = self.ask.words if self.ask else b'"result"'
        if not self.endpoint.done():
            if not self._heard.startswith(b"HTTP/1.1 200"):
                self.endpoint.set_exception(RuntimeError(f"no channel: {self._heard[:100]!r}"))
                return
            _, found, rest = self._heard.partition(b"event: endpoint\ndata: ")
            if found and b"\n" in rest:
                self.endpoint.set_result(rest.partition(b"\n")[0].strip().decode())
                self._heard = b""
        elif self._heard.endswith(_END_OF_EVENT) and ((words in self._heard) or b'"error":' in self._heard):
            heard, self._heard = self._heard, b""
            self._answered(heard)

    def abort(self) -> None:
        super().abort()
        if self.posting is not None:
            self.posting.abort()


_END_OF_EVENT: Final = b"\n\n\r\n"
"""Such a gateway sends each event as one chunk."""


class _Posting(Asker):
    """Sends, and does not look at what comes back: it is nothing but 202."""

    def data_received(self, data: bytes) -> None:
        pass


async def open_channel(door: Door) -> Channel:
    """A channel that is ready to be used."""
    loop = asyncio.get_running_loop()
    _, channel = await loop.create_connection(Channel, "127.0.0.1", door.port)
    channel.write(b"GET /mcp HTTP/1.1\r\nHost: 127.0.0.1:%d\r\nAccept: text/event-stream\r\n\r\n" % door.port)
    async with asyncio.timeout(10):
        await channel.endpoint
    _, channel.posting = await loop.create_connection(_Posting, "127.0.0.1", door.port)
    await answer_to(channel, posted(door, compact(_HELLO), {}))
    channel.write(posted(door, compact(_READY), {}))
    return channel


async def lanes_of(door: Door, lanes: int) -> Sequence[Asker]:
    """So many connections."""
    if door.channel:
        return [await open_channel(door) for _ in range(lanes)]
    return await connect(door.port, lanes)


# ---------------------------------------------------------------------------------------------------------- pipe


class Pipe:
    """A gateway that is asked on its stdin."""

    def __init__(self, gate: Gate, version: str) -> None:
        assert gate.process.stdin and gate.process.stdout
        self._in, self._out = gate.process.stdin.fileno(), gate.process.stdout.fileno()
        self._version = version
        self._rest = b""
        if version == SESSION:
            self._write(compact(_HELLO))
            while b'"protocolVersion"' not in self._line():
                pass
            self._write(compact(_READY))

    def ask(self, name: str, arguments: dict[str, object], words: bytes, calls: int, lanes: int) -> None:
        """Call a tool so many times, with so many calls under way."""
        params: dict[str, object] = {"name": name, "arguments": arguments}
        before, _, behind = message("tools/call", params, self._version).rpartition(b"1000000")
        asked = min(lanes, calls)
        for _ in range(asked):
            self._write(b"%b%d%b" % (before, next(_ids), behind))
        for _ in range(calls):
            while words not in (line := self._line()):
                if b'"error"' in line:
                    raise RuntimeError(f"that is not the answer: {line[:300]!r}")
            if asked < calls:
                asked += 1
                self._write(b"%b%d%b" % (before, next(_ids), behind))

    def _write(self, line: bytes) -> None:
        os.write(self._in, line + b"\n")

    def _line(self) -> bytes:
        while b"\n" not in self._rest:
            if not select.select([self._out], [], [], DEADLINE)[0]:
                raise RuntimeError("it does not answer")
            data = os.read(self._out, 1 << 20)
            if not data:
                raise RuntimeError("it hung up")
            self._rest += data
        line, _, self._rest = self._rest.partition(b"\n")
        return line
