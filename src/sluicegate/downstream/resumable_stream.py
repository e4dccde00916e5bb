"""A stream of events that outlives the requests that carry it: hanging up cancels nothing.

Events go into the session's replay buffer and to the request that reads them now. A client that comes back with the id
of the last event it saw gets the rest of that stream.
"""

import logging
from collections import OrderedDict, deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from sluicegate.downstream.http_guard import SESSION_HEADER
from sluicegate.downstream.http_response import EVENT_FIELDS, HttpRequest
from sluicegate.protocol.sse import encode_comment, encode_event
from sluicegate.runtime.identity import Fields
from sluicegate.runtime.quota import Lease

if TYPE_CHECKING:
    from sluicegate.downstream.http_session import HttpSession

log = logging.getLogger("sluicegate")


class ResumableStream:
    """One stream of events: it goes on without a reader, and another request may take over reading."""

    __slots__ = ("_delivered", "_lease", "_sent", "_session", "carrier", "finished", "number")

    def __init__(self, session: "HttpSession", number: int) -> None:
        self.number = number
        self.finished = False
        self.carrier: HttpRequest | None = None
        """The request that reads it now."""
        self._session = session
        self._sent = 0
        self._delivered = 0
        self._lease: Lease | None = None

    def carry(self, request: HttpRequest, after: int | None, lease: Lease | None = None) -> None:
        """Send the events on this request from now on, beginning after an event that its client has seen.

        The lease is released when the request ends.
        """
        self.drop_carrier()
        session = self._session
        self._lease = lease
        fields: Fields = (*EVENT_FIELDS, (SESSION_HEADER, session.id))
        request.start(200, fields)
        self.carrier = request
        session.carried += 1
        if session.conversation.session.revision.elicitation_modes and after is None:
            # Only clients of 2025-11-25 know an event without data; it lets them resume before the first message.
            request.write(encode_event(b"", id=f"{self.number}-{self._delivered}", retry=session.shared.retry_ms))
        if self._sent:
            self._send_missed(request, self._delivered if after is None else after)
        if self.finished:
            self.drop_carrier()
        else:
            session.shared.keepalive.watch(self)
            request.on_disconnect(lambda: self._lost(request))

    def ended_with(self, position: int) -> bool:
        """Whether this event was the last one, and no other will come."""
        return self.finished and position >= self._sent

    def _send_missed(self, request: HttpRequest, seen: int) -> None:
        buffer = self._session.buffer
        remembered = [] if buffer is None else buffer.of(self.number, seen)
        forgotten = (remembered[0][0] if remembered else self._sent + 1) - seen - 1
        if forgotten > 0:
            # The buffer is bounded: send what it still has, and say what is missing.
            log.warning("A client came back too late: %d events of its stream are lost.", forgotten)
            request.write(encode_comment(f"{forgotten} events are lost"))
        for position, message in remembered:
            request.write(encode_event(message, id=f"{self.number}-{position}"))
        self._delivered = self._sent

    async def send(self, message: bytes) -> None:
        """Send an event; waits while the client is slow."""
        self.send_now(message)
        if self.carrier is not None and self.carrier.is_behind:
            await self.carrier.drain()

    async def send_in_passing(self, message: bytes) -> None:
        """Send an event that is not kept: log lines would push answers out of the buffer."""
        if self.carrier is not None:
            self.carrier.write(encode_event(message))
            if self.carrier.is_behind:
                await self.carrier.drain()

    def send_now(self, message: bytes) -> None:
        """Send an event without waiting; without a reader it is only kept. After the end it is dropped."""
        if self.finished:
            return
        self._sent = position = self._sent + 1
        self._session.remember(self.number, position, message)
        if self.carrier is not None:
            self.carrier.write(encode_event(message, id=f"{self.number}-{position}"))
            self._delivered = position

    def finish(self) -> None:
        """End the stream; clients can still come back for its events."""
        self.finished = True
        self.drop_carrier()
        self._session.drop_forgotten(self.number)

    def close(self) -> None:
        """End the stream with its session, which nothing may keep alive from now on."""
        self.finished = True
        self.drop_carrier()
        del self._session  # Breaks a reference cycle, so that sessions are freed without the garbage collector.

    def drop_carrier(self) -> None:
        """End the request that carries the events, if one does."""
        carrier, self.carrier = self.carrier, None
        if carrier is None:
            return
        session = self._session
        session.carried -= 1
        session.shared.keepalive.forget(self)
        if self._lease is not None:
            self._lease.release()
            self._lease = None
        carrier.end()
        session.rest()

    def stay_alive(self) -> None:
        if self.carrier is not None:
            self.carrier.write(encode_comment())

    def _lost(self, request: HttpRequest) -> None:
        if self.carrier is request:
            # Ended all the same: a client that closed its side only keeps the connection half open until we close ours.
            self.drop_carrier()


MAX_REMEMBERED: Final = 1000
MAX_REMEMBERED_BYTES: Final = 1 << 20
_BESIDE_MESSAGE: Final = 200  # About what an event takes beside its bytes.


class ReplayMemory:
    """The bound of all buffers together: the buffer that was written least recently drops events first."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.size = 0
        """What they hold now; maintained by the buffers."""
        # In the order of the last event. A plain dict would pass over all removed entries before the first one.
        self._buffers: OrderedDict[ReplayBuffer, None] = OrderedDict()

    def wrote(self, buffer: "ReplayBuffer") -> None:
        """Make this buffer the last to drop events. For buffers."""
        self._buffers[buffer] = None
        self._buffers.move_to_end(buffer)

    def emptied(self, buffer: "ReplayBuffer") -> None:
        """Take this buffer out, since it is empty. For buffers."""
        del self._buffers[buffer]

    def make_room(self) -> None:
        """Drop the oldest events until the rest fits; the newest event of all always stays. For buffers."""
        while self.size > self.most:
            oldest = next(iter(self._buffers))
            if len(self._buffers) == 1 and len(oldest) == 1:
                return
            oldest.forget_one()


class ReplayBuffer:
    """The last events of one session, for a client that lost its connection."""

    __slots__ = ("_events", "_last", "_memory", "_on_forgotten", "_size")

    def __init__(self, memory: ReplayMemory, on_forgotten: Callable[[int], object]) -> None:
        """`on_forgotten` is called with each stream that has no events left."""
        self._memory = memory
        self._on_forgotten = on_forgotten
        self._events: deque[tuple[int, int, bytes]] = deque()
        self._last: dict[int, int] = {}
        """The position of each stream's last event. The oldest is dropped first, so when this one is, all are."""
        self._size = 0

    def __len__(self) -> int:
        return len(self._events)

    def __contains__(self, stream: int) -> bool:
        return stream in self._last

    def add(self, stream: int, position: int, message: bytes) -> None:
        """Keep an event, the newest of its stream, and drop the oldest if there are too many."""
        events, memory = self._events, self._memory
        events.append((stream, position, message))
        self._last[stream] = position
        self._size += len(message)
        memory.size += len(message) + _BESIDE_MESSAGE
        memory.wrote(self)
        memory.make_room()
        while len(events) > MAX_REMEMBERED or (self._size > MAX_REMEMBERED_BYTES and len(events) > 1):
            self.forget_one()

    def forget_one(self) -> None:
        stream, position, message = self._events.popleft()
        self._size -= len(message)
        self._memory.size -= len(message) + _BESIDE_MESSAGE
        if not self._events:
            self._memory.emptied(self)
        if self._last[stream] == position:
            del self._last[stream]
            self._on_forgotten(stream)

    def clear(self) -> None:
        while self._events:
            self.forget_one()

    def of(self, stream: int, after: int) -> list[tuple[int, bytes]]:
        """The events of a stream after a position, as far as they are kept."""
        return [(place, message) for number, place, message in self._events if number == stream and place > after]
