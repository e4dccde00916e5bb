"""Help for tests, ours and yours: a server met over a wire in memory, with real bytes in either era.

    async with sluicegate.connect(sluicegate.testing.MemoryUpstream(server, era="session")) as client: ...

shows what a client of that era sees, without a process. `MemoryWire.pair()` is the wire itself.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.duplex import LONGEST_HOLD, serve_duplex
from sluicegate.exchange import Handler, Host
from sluicegate.upstream.link import Era, Link
from sluicegate.wire import Receiver


class MemoryWire:
    """One end of a channel in memory. Bytes arrive at the other end in the next turn of the loop, in order."""

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
        """All that was written at this end, for tests that look at the bytes."""

    @classmethod
    def pair(cls, capacity: int = 65536) -> "tuple[MemoryWire, MemoryWire]":
        """Two ends of one channel; a writer that can wait does so while `capacity` bytes are unread."""
        left, right = cls(capacity), cls(capacity)
        left._other, right._other = right, left
        return left, right

    def attach(self, receiver: Receiver) -> None:
        """Hand what arrives at this end to the receiver."""
        self._receiver = receiver
        self._schedule()

    def write(self, data: bytes) -> None:
        """Send bytes to the other end; dropped once this end has hung up."""
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
        """Wait while the other end has more unread than the wire holds."""
        await self._room.wait()

    def pause_reading(self) -> None:
        """Let what arrives wait."""
        self._paused = True

    def resume_reading(self) -> None:
        """Take it again."""
        self._paused = False
        self._schedule()

    def hang_up(self) -> None:
        """Say nothing more, like a closed stdin: the other end reads what is on its way, then the end. It may go on."""
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
    """A handler as an `Upstream`, met through real bytes in the era of your choice."""

    def __init__(self, handler: Handler, *, era: Era = "auto", hold: float = LONGEST_HOLD) -> None:
        self._handler = handler
        self._era: Era = era
        self._hold = hold
        self.wires: list[MemoryWire] = []
        """The client's end of each connection made so far."""

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[Link]:
        """A connection for as long as the `async with` lasts."""
        ours, theirs = MemoryWire.pair()
        self.wires.append(ours)
        async with TaskScope() as tasks:
            attach: Callable[[Receiver], None] = theirs.attach
            tasks.start(serve_duplex(self._handler, theirs, attach, hold=self._hold))
            link = Link("memory", host, tasks)
            ours.attach(link)
            try:
                await link.open(ours, self._era, probe_timeout=10.0, open_timeout=30.0)
                yield link
            finally:
                link.close()
                ours.hang_up()
                tasks.cancel_all()
