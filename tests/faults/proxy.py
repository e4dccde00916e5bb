"""A TCP proxy on loopback that stands between a client and a server and fails when a test says so.

    async with fault_proxy(host, port) as proxy:         # passes everything both ways until told otherwise
        proxy.down = Reset(after=100)                    # every connection: reset when 100 bytes of answer have passed
        proxy.up = Cut(after=40, seen=b'"tools/call"')   # only those on which the client says this from now on
        ...                                              # the client asks proxy.url("/mcp")
        await proxy.wait_struck()                        # it has happened
        proxy.heal()                                     # from now on everything passes again

`up` is what the client sends, `down` what the server sends. A toxic counts the bytes that pass in its direction on one
connection since the toxic was set, so that a kept connection can be hit at its next request; with `seen`, since the
chunk with which the client had said those bytes, and never before. The bytes up to `after` still pass, to the byte.
There is one toxic per direction at a time, and it stays until it is replaced.

    Reset    RST to both sides                           Cut      the end (FIN) to both sides: a truncated stream
    Stall    half-open: nothing passes either way,       Block    stops reading in its direction: the sender's
             and neither side is told                             socket fills up, as behind a slow reader
    Drip     a few bytes per tick                        Latency  each chunk comes later

`refuse()` closes the listening socket, so that connections are refused, and `accept()` opens it again at the same port.
`reset()`, `cut()` and `stall()` do at once to everything that is open what the toxics of that name do at their byte.

Whether a side has hung up is seen in `wait_clients` and `wait_servers`: on a stalled connection each of them learns of
its own deadline only, which is what half-open means.
"""

import asyncio
import socket
import struct
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Final, Literal

from sluicegate.runtime.task_scope import TaskScope

Direction = Literal["up", "down"]

CHUNK: Final = 64 * 1024
PATIENCE: Final = 20.0


@dataclass(frozen=True, eq=False)
class Reset:
    """RST to both sides after so many bytes."""

    after: int = 0
    seen: bytes = b""


@dataclass(frozen=True, eq=False)
class Cut:
    """An orderly end to both sides after so many bytes."""

    after: int = 0
    seen: bytes = b""


@dataclass(frozen=True, eq=False)
class Stall:
    """Half-open after so many bytes: both sockets stay, what they say is lost, neither is told of the other's end."""

    after: int = 0
    seen: bytes = b""


@dataclass(frozen=True, eq=False)
class Block:
    """Stop reading from the sender after so many bytes; the other direction goes on."""

    after: int = 0
    seen: bytes = b""


@dataclass(frozen=True, eq=False)
class Drip:
    """Pass no more than `size` bytes every `every` seconds, once `after` bytes have passed at full speed."""

    size: int = 1
    every: float = 0.01
    after: int = 0
    seen: bytes = b""


@dataclass(frozen=True, eq=False)
class Latency:
    """Pass each chunk so many seconds late, once `after` bytes have passed at once."""

    seconds: float
    after: int = 0
    seen: bytes = b""


Toxic = Reset | Cut | Stall | Block | Drip | Latency


class FaultProxy:
    """The proxy; made by `fault_proxy`. See the module for how to use it."""

    def __init__(self, host: str, port: int, tasks: TaskScope) -> None:
        self.host = "127.0.0.1"
        self.port = 0
        self.toxics: dict[Direction, Toxic | None] = {"up": None, "down": None}
        self.accepted = 0
        """How many connections there have been."""
        self.struck = 0
        """How often a toxic had its effect: once per connection, toxic and direction."""
        self.passed: dict[Direction, int] = {"up": 0, "down": 0}
        """How many bytes have passed, on all connections together."""
        self._target = (host, port)
        self._tasks = tasks
        self._listener: asyncio.Server | None = None
        self._joints: set[_Joint] = set()
        self._coming: set[asyncio.StreamWriter] = set()  # Clients whose way on is not there yet.
        self._changed = asyncio.Event()

    @property
    def up(self) -> Toxic | None:
        """What happens to the bytes of clients."""
        return self.toxics["up"]

    @up.setter
    def up(self, toxic: Toxic | None) -> None:
        self.toxics["up"] = toxic
        self.tell()

    @property
    def down(self) -> Toxic | None:
        """What happens to the bytes of the server."""
        return self.toxics["down"]

    @down.setter
    def down(self, toxic: Toxic | None) -> None:
        self.toxics["down"] = toxic
        self.tell()

    def url(self, path: str = "/mcp", *, scheme: str = "http", name: str | None = None) -> str:
        """Where a client finds the server behind the proxy."""
        return f"{scheme}://{name or self.host}:{self.port}{path}"

    def heal(self) -> None:
        """Pass everything again; what was reset, cut or stalled stays so."""
        self.up = self.down = None

    def refuse(self) -> None:
        """Have new connections refused; those that are open stay."""
        if self._listener is not None:
            self._listener.close()
            self._listener = None

    async def accept(self) -> None:
        """Take connections, at the same port as before."""
        if self._listener is None:
            self._listener = await asyncio.start_server(self._join, self.host, self.port, limit=CHUNK)
            self.port = self._listener.sockets[0].getsockname()[1]

    def reset(self) -> None:
        """Reset everything that is open."""
        for joint in list(self._joints):
            joint.reset()

    def cut(self) -> None:
        """End everything that is open in an orderly way."""
        for joint in list(self._joints):
            joint.cut()

    def stall(self) -> None:
        """Pass nothing more on anything that is open."""
        for joint in self._joints:
            joint.stalled = True

    async def wait_struck(self, times: int = 1) -> None:
        """Wait until toxics have had their effect so often since the proxy began."""
        await self._wait(lambda: self.struck >= times)

    async def wait_clients(self, count: int) -> None:
        """Wait until exactly so many connections are there whose client has not hung up."""
        await self._wait(lambda: sum("up" not in joint.ended for joint in self._joints) == count)

    async def wait_servers(self, count: int) -> None:
        """Wait until exactly so many connections are there whose server has not hung up."""
        await self._wait(lambda: sum("down" not in joint.ended for joint in self._joints) == count)

    async def wait_passed(self, direction: Direction, count: int) -> None:
        """Wait until so many bytes have passed, on all connections together."""
        await self._wait(lambda: self.passed[direction] >= count)

    # For connections, and for `fault_proxy`.

    def tell(self) -> None:
        """Wake all waiters for an event."""
        self._changed.set()

    async def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for as long as it takes."""
        while not is_so():
            self._changed.clear()
            await self._changed.wait()

    def end(self) -> None:
        """Refuse, and end everything."""
        self.refuse()
        self.reset()
        for writer in self._coming:
            writer.transport.abort()
        self._tasks.cancel_all()

    async def _wait(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE):
            await self.wait_until(is_so)

    def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.accepted += 1
        self._coming.add(writer)
        self._tasks.start(self._carry(reader, writer))

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=CHUNK)
        except OSError:
            writer.transport.abort()
            return
        finally:
            self._coming.discard(writer)
        joint = _Joint(self, writer, far_writer)
        self._joints.add(joint)
        self.tell()
        try:
            async with TaskScope() as tasks:
                tasks.start(joint.pump("up", reader, far_writer))
                tasks.start(joint.pump("down", far_reader, writer))
        finally:
            joint.cut()
            self._joints.discard(joint)
            self.tell()


class _Joint:
    """One connection: the client's socket and the server's."""

    def __init__(self, proxy: FaultProxy, near: asyncio.StreamWriter, far: asyncio.StreamWriter) -> None:
        self.stalled = False
        self.ended: set[Direction] = set()
        self._proxy = proxy
        self._writers = (near, far)
        self._counts: dict[Direction, _Count] = {"up": _Count(None), "down": _Count(None)}
        for writer in self._writers:
            writer.transport.set_write_buffer_limits(0)  # `drain` then means: all of it has left

    def reset(self) -> None:
        for writer in self._writers:
            sock: socket.socket = writer.get_extra_info("socket")
            if not writer.transport.is_closing():
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            writer.transport.abort()

    def cut(self) -> None:
        for writer in self._writers:
            writer.close()

    async def pump(self, direction: Direction, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(CHUNK):
                if direction == "up":
                    self._listen_to(data)
                if not self.stalled:
                    await self._pass(direction, data, writer)
            if not self.stalled and not writer.transport.is_closing():
                writer.write_eof()
        except OSError:  # reset, or gone between two steps of ours
            if not self.stalled:
                self.reset()
        finally:
            self.ended.add(direction)
            self._proxy.tell()

    def _listen_to(self, data: bytes) -> None:
        """See whether the client says what a toxic waits for."""
        for direction in self._counts:
            count = self._count(direction)
            if count.toxic is not None and not count.seen:
                count.said = (count.said + data)[-CHUNK:]
                count.seen = count.toxic.seen in count.said

    def _count(self, direction: Direction) -> "_Count":
        toxic = self._proxy.toxics[direction]
        if self._counts[direction].toxic is not toxic:
            self._counts[direction] = _Count(toxic)
        return self._counts[direction]

    async def _pass(self, direction: Direction, data: bytes, writer: asyncio.StreamWriter) -> None:
        count = self._count(direction)
        toxic = count.toxic
        if toxic is None or not count.seen:
            await self._write(direction, data, writer)
            return
        room = max(0, toxic.after - count.passed)
        at_once, rest = data[:room], data[room:]
        count.passed += len(data)
        await self._write(direction, at_once, writer)
        if count.passed < toxic.after:
            return
        if not count.struck:
            count.struck = True
            self._proxy.struck += 1
            self._proxy.tell()
        match toxic:
            case Reset():
                self.reset()
            case Cut():
                self.cut()
            case Stall():
                self.stalled = True
            case Block():
                await self._proxy.wait_until(lambda: self._proxy.toxics[direction] is not toxic)
                await self._write(direction, rest, writer)
            case Drip():
                while rest and self._proxy.toxics[direction] is toxic and not self.stalled:
                    await self._write(direction, rest[: toxic.size], writer)
                    rest = rest[toxic.size :]
                    await asyncio.sleep(toxic.every)  # The pace of the drip.
                await self._write(direction, rest, writer)
            case Latency():
                await asyncio.sleep(toxic.seconds)  # The latency.
                await self._write(direction, rest, writer)

    async def _write(self, direction: Direction, data: bytes, writer: asyncio.StreamWriter) -> None:
        if data and not self.stalled:
            writer.write(data)
            await writer.drain()
            self._proxy.passed[direction] += len(data)
            self._proxy.tell()


class _Count:
    """What of one toxic has passed on one connection, in one direction."""

    def __init__(self, toxic: Toxic | None) -> None:
        self.toxic = toxic
        self.seen = toxic is None or not toxic.seen
        self.said = b""
        self.passed = 0
        self.struck = False


@asynccontextmanager
async def fault_proxy(host: str, port: int) -> AsyncGenerator[FaultProxy]:
    """A proxy in front of a server, for as long as the `async with` lasts."""
    async with TaskScope() as tasks:
        proxy = FaultProxy(host, port, tasks)
        await proxy.accept()
        try:
            yield proxy
        finally:
            proxy.end()
