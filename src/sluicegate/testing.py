"""Helpers for tests: connects to a server through memory, with real bytes in either era.

    async with sluicegate.connect(sluicegate.testing.MemoryUpstream(server, era="session")) as client: ...

shows what a client of that era sees, without a process. `MemoryWire.pair()` is the byte channel itself.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from sluicegate.downstream.duplex import INPUT_TIMEOUT, serve_duplex
from sluicegate.exchange import Handler, Host
from sluicegate.runtime.byte_channel import Receiver
from sluicegate.runtime.lifespan import running
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream.duplex import DuplexConnection, Era


class MemoryWire:
    """One end of a channel in memory. Bytes arrive at the other end in order, in the next turn of the loop."""

    def __init__(self, capacity: int) -> None:
        self._capacity = capacity
        self._other: MemoryWire = self
        self._receiver: Receiver | None = None
        self._incoming: list[bytes] = []
        self._size = 0
        self._paused = False
        self._hung_up = False
        self._scheduled = False
        self._room = asyncio.Event()
        self._room.set()
        self.sent: list[bytes] = []
        """Everything written at this end, for assertions on bytes."""

    @classmethod
    def pair(cls, capacity: int = 65536) -> "tuple[MemoryWire, MemoryWire]":
        """The two ends of a channel; `drain` waits while `capacity` bytes are unread."""
        left, right = cls(capacity), cls(capacity)
        left._other, right._other = right, left
        return left, right

    def attach(self, receiver: Receiver) -> None:
        self._receiver = receiver
        self._schedule()

    def write(self, data: bytes) -> None:
        """Send bytes to the other end; dropped after `hang_up`."""
        if self._hung_up:
            return
        self.sent.append(data)
        other = self._other
        other._incoming.append(data)
        other._size += len(data)
        if other._size >= self._capacity:
            self._room.clear()
        other._schedule()

    async def drain(self) -> None:
        """Wait while the other end has `capacity` unread bytes."""
        await self._room.wait()

    @property
    def unsent(self) -> int:
        """Bytes that the other end has not read yet."""
        return self._other._size

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        self._schedule()

    def hang_up(self) -> None:
        """Close this direction, like a closed stdin: the other end reads the rest and may still write."""
        self._hung_up = True
        self._room.set()
        self._other._schedule()

    def _schedule(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._deliver)

    def _deliver(self) -> None:
        self._scheduled = False
        receiver = self._receiver
        if receiver is None or self._paused:
            return
        data, self._incoming, self._size = b"".join(self._incoming), [], 0
        self._other._room.set()
        if data:
            receiver.received(data)
        if self._other._hung_up and not self._incoming and not self._paused:
            self._receiver = None
            receiver.ended()


class MemoryUpstream:
    """A handler as an `Upstream`, reached through real bytes in the given era."""

    def __init__(self, handler: Handler, *, era: Era = "auto", hold: float = INPUT_TIMEOUT) -> None:
        self._handler = handler
        self._era: Era = era
        self._hold = hold
        self.wires: list[MemoryWire] = []
        """The client's end of each connection so far."""

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[DuplexConnection]:
        """A connection, open while the `async with` lasts."""
        ours, theirs = MemoryWire.pair()
        self.wires.append(ours)
        async with running(self._handler), TaskScope() as tasks:
            attach: Callable[[Receiver], None] = theirs.attach
            tasks.start(serve_duplex(self._handler, theirs, attach, hold=self._hold))
            link = DuplexConnection("memory", host, tasks)
            ours.attach(link)
            try:
                await link.open(ours, self._era, probe_timeout=10.0, open_timeout=30.0)
                yield link
            finally:
                link.close()
                ours.hang_up()
                tasks.cancel_all()
