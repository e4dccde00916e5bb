"""Our connection to a server: a request out, its answer in; then free for the next one."""

import asyncio
import math
import socket
from collections import deque
from contextlib import suppress
from typing import TYPE_CHECKING, Final, NamedTuple, cast

import msgspec

from sluicegate.errors import UpstreamClosed, UpstreamError, UpstreamProtocolError, UpstreamTimeout

from .answers import Answer, begun_answer, cut_short
from .chunks import BadChunk, ChunkDecoder
from .heads import CHUNKED, UNTIL_CLOSE, AnswerHead, BadHead, read_answer_head
from .transports import read_less_at_once

if TYPE_CHECKING:
    from .client import Pool

MOST_INTERIM: Final = 8

# A host that has vanished says nothing, and neither does a server that works on a long answer: only the network can
# tell them apart. It asks after 15 silent seconds and gives up after 15 more. (Not TCP_USER_TIMEOUT, which would also
# cut off a server that is merely slow to read.)
_KEEP_ALIVE: Final = tuple(
    (socket.IPPROTO_TCP, cast(int, getattr(socket, name)), value)
    for name, value in (("TCP_KEEPIDLE", 15), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 3))
    if hasattr(socket, name)
)


class ClientLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What a server may cost us: bytes and seconds."""

    connect: float = 10.0
    """Until a connection is there: the wait for a free one, the name, TCP and TLS."""
    first_byte: float = 60.0
    """From the request to the first byte of its answer, and from the head to the first byte of the body: some servers
    send a head at once and work then."""
    idle: float = 30.0
    """Between two bytes of an answer."""
    keep: float = 30.0
    """How long an unused connection is kept; less if the server says so."""
    head: int = 64 * 1024
    body: int = 16 * 1024 * 1024
    """Of what `Answer.read` returns: after decompression."""
    per_origin: int = 256
    """Connections to one scheme, host and port."""


class Origin(NamedTuple):
    """Where a connection goes, and what its certificate must name."""

    scheme: str
    host: str
    port: int

    @property
    def address(self) -> str:
        """Host and port, as they stand in a URL: all of it that is nobody's secret."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Lane:
    """The connections of a pool to one origin: who may have one, and who waits for one."""

    __slots__ = ("free", "opened", "origin", "waiting", "who")

    def __init__(self, origin: Origin, who: str) -> None:
        self.origin = origin
        self.who = who  # answers there: what it is called in a sentence
        self.opened = 0
        self.free: list[Connection] = []
        self.waiting: deque[asyncio.Future[Connection | None]] = deque()

    def give(self, connection: "Connection | None") -> bool:
        """Give a connection, or room for a new one, to whoever waits the longest; whether somebody does."""
        while self.waiting:
            future = self.waiting.popleft()
            if not future.done():
                future.set_result(connection)
                return True
        return False


class Connection(asyncio.Protocol):
    """One connection to a server: free in the pool, or in the middle of one request."""

    __slots__ = (
        *("lane", "loop", "made", "lost", "heard", "uses", "_pool", "_limits", "_known", "_exact", "_transport"),
        *("_waiter", "_answer", "_buffer", "_to_head", "_paused", "_first_byte", "_idle"),
        *("_missing", "_interim", "_chunks", "_forsaken"),
        *("_deadline", "_timer_at", "_timer"),
    )

    def __init__(self, pool: "Pool", lane: Lane) -> None:
        self.lane = lane
        self.loop = asyncio.get_running_loop()
        self.made = self.lost = self.heard = False
        self.uses = 0
        self._pool = pool
        self._limits = pool.limits
        self._known = pool.known
        self._exact = pool.known.exact
        self._transport: asyncio.Transport | None = None
        self._waiter: asyncio.Future[Answer] | None = None
        self._answer: Answer | None = None
        self._buffer = bytearray()
        self._to_head = self._paused = self._forsaken = False
        self._first_byte = pool.limits.first_byte
        self._idle = pool.limits.idle
        self._missing = self._interim = 0
        self._chunks: ChunkDecoder | None = None
        self._deadline = self._timer_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, data: bytes, to_head: bool, first_byte: float, idle: float) -> asyncio.Future[Answer]:
        """Send a request; the future has its answer once the head of it is there."""
        self.uses += 1
        self.heard = False
        self._to_head = to_head
        self._first_byte = first_byte
        self._idle = idle
        self._interim = 0
        waiter = self._waiter = self.loop.create_future()
        if self._transport is None or self.lost:
            self.fail(UpstreamClosed(f"{self.lane.who} closed the connection.", delivered="no"))
        else:
            # As `_wait`, which nearly always has nothing else to do.
            deadline = self._deadline = self.loop.time() + first_byte
            if self._timer_at > deadline:
                self._wait(first_byte)
            self._transport.write(data)
        return waiter

    def give_up(self, waiter: asyncio.Future[Answer]) -> None:
        """Nobody waits for this any more: close what is still going on of it, which tells the server."""
        if self._waiter is waiter:
            self._waiter = None
            self.abort()
        elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            waiter.result().close()

    def abort(self) -> None:
        """Cut the connection."""
        self.lost = True
        self._answer = None
        if self._transport is not None:
            self._transport.abort()

    def resume(self) -> None:
        """Let the server send again."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
            self._wait(self._idle)

    def allow_silence(self, seconds: float) -> None:
        """Give the server other time than it had between two bytes of the answer that is under way."""
        self._idle = seconds
        if self._answer is not None and not self._paused:
            self._wait(seconds)

    def forsake(self, seconds: float) -> None:
        """Read no more of the answer that is under way, but let the server come to its end within so many seconds."""
        self.resume()
        self._forsaken = True
        self._wait(seconds)

    # What the transport tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is one by its methods only.
        self.made = True
        self._pool.remember(self)
        read_less_at_once(transport)
        sock = cast(socket.socket | None, transport.get_extra_info("socket"))
        if sock is not None:
            with suppress(OSError):  # It may be gone again already.
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                for option in _KEEP_ALIVE:
                    sock.setsockopt(*option)

    def data_received(self, data: bytes) -> None:
        if self.lost:
            return
        waiter = self._waiter
        if waiter is None:
            if self._answer is not None:
                self._take_body(data)
            else:
                self.abort()  # An answer to nothing; whatever it is, it is not the next one.
            return
        if waiter.cancelled():
            self.give_up(waiter)
            return
        self.heard = True
        if not self._buffer:
            end = data.find(b"\r\n\r\n") + 4
            head = self._exact.get(data[:end]) or self._known.find(data[:end])
            if head is not None and head.status >= 200:
                body = data[end:]
                if head.length != len(body) or head.coding or self._to_head:
                    self._begin(waiter, head, body)
                    return
                self._waiter = None
                self._finish(head)
                waiter.set_result(Answer(head, self, self._limits.body, [body] if body else [], len(body), True))
                return
        self._buffer += data
        try:
            self._read_head(waiter)
        except BadHead as problem:
            self.fail(UpstreamProtocolError(f"The answer of {self.lane.who} cannot be read: {problem.sentence}."))
        except UpstreamProtocolError as problem:
            self.fail(problem)

    def eof_received(self) -> bool:
        self.lost = True  # From now on, not only from the next turn of the loop: nothing more is sent on it.
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self._transport = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._pool.forget(self)
        answer = self._answer
        if answer is not None and self._missing == UNTIL_CLOSE and exc is None:
            self._answer = None
            answer.end()
        elif answer is not None or self.heard:
            self.fail(cut_short(self.lane.who))
        else:
            self.fail(UpstreamClosed(f"{self.lane.who} closed the connection without an answer."))

    # An answer in.

    def _read_head(self, waiter: asyncio.Future[Answer]) -> None:
        buffer = self._buffer
        while True:
            end = buffer.find(b"\r\n\r\n") + 4
            if end > self._limits.head or (end < 4 and len(buffer) > self._limits.head):
                raise UpstreamProtocolError(
                    f"The head of the answer of {self.lane.who} is larger than {self._limits.head} bytes."
                )
            if end < 4:
                if not (buffer.startswith(b"HTTP/1.") or b"HTTP/1.".startswith(buffer[:7])):
                    raise BadHead(502, "it is not HTTP/1.1")
                self._wait(self._idle)
                return
            raw = bytes(buffer[:end])
            del buffer[:end]
            head = self._known.find(raw)
            if head is None:
                head = read_answer_head(raw)
                self._known.learn(raw, head)
            if head.status >= 200:
                break
            self._interim += 1
            if head.status == 101 or self._interim > MOST_INTERIM:
                raise BadHead(502, "it changes to a protocol that was not asked for")
        rest = bytes(buffer)
        buffer.clear()
        self._begin(waiter, head, rest)

    def _begin(self, waiter: asyncio.Future[Answer], head: AnswerHead, body: bytes) -> None:
        """Hand out an answer of which the head is here, and perhaps some of the body."""
        answer = begun_answer(head, self, self._limits.body)
        self._waiter = None
        self._answer = answer
        self._forsaken = False
        self._missing = 0 if self._to_head else head.length
        self._chunks = ChunkDecoder() if self._missing == CHUNKED else None
        waiter.set_result(answer)
        if body or not self._missing:
            self._take_body(body)
        else:
            self._wait(self._first_byte)

    def _take_body(self, data: bytes) -> None:
        answer = self._answer
        assert answer is not None
        extra = b""
        ended = False
        if self._chunks is not None:
            try:
                parts = self._chunks.feed(data)
            except BadChunk:
                self.fail(
                    UpstreamProtocolError(f"The answer of {self.lane.who} cannot be read: its body is malformed.")
                )
                return
            extra, ended = self._chunks.rest or b"", self._chunks.rest is not None
            data = parts[0] if len(parts) == 1 else b"".join(parts)
        elif self._missing >= 0:
            if len(data) > self._missing:
                data, extra = data[: self._missing], data[self._missing :]
            self._missing -= len(data)
            ended = not self._missing
        full = bool(data) and not self._forsaken and answer.add(data)
        if ended:
            self._answer = None
            answer.end()
            if extra:
                self.abort()
            else:
                self._finish(answer.head)
        elif full and not self._paused and self._transport is not None:
            # Now it is we who are slow: no deadline runs against the server.
            self._paused = True
            self._transport.pause_reading()
            self._deadline = math.inf
        elif not self._paused and not self._forsaken:
            self._wait(self._idle)

    def _finish(self, head: AnswerHead) -> None:
        """An answer is complete: back into the pool, or closed."""
        transport = self._transport
        if transport is None:
            return
        # A server that answers before it has read the request may still be reading it; no other belongs behind it.
        if not head.keep_alive or self.lost or transport.get_write_buffer_size():
            self.lost = True
            transport.close()
            return
        if self._paused:
            self._paused = False
            transport.resume_reading()
        keep = min(head.keep_time, self._limits.keep)
        deadline = self._deadline = self.loop.time() + keep
        if self._timer_at > deadline:
            self._wait(keep)
        lane = self.lane
        if not (lane.waiting and lane.give(self)):
            lane.free.append(self)

    def fail(self, error: UpstreamError) -> None:
        """Cut the connection, and tell whoever waits for something on it why."""
        waiter, self._waiter = self._waiter, None
        answer, self._answer = self._answer, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        if answer is not None:
            answer.fail(error)
        self.abort()

    # One timer: its deadline moves with every byte, and it looks at the clock only when it fires.

    def _wait(self, seconds: float) -> None:
        self._deadline = self.loop.time() + seconds
        if self._timer_at > self._deadline:
            if self._timer is not None:
                self._timer.cancel()
            self._set_timer()

    def _set_timer(self) -> None:
        self._timer = None
        self._timer_at = self._deadline
        if self._deadline != math.inf:
            self._timer = self.loop.call_at(self._deadline, self._on_timer)

    def _on_timer(self) -> None:
        if self.loop.time() < self._deadline:
            self._set_timer()
            return
        self._timer = None
        self._timer_at = math.inf
        if self._waiter is not None or self._answer is not None:
            self.fail(UpstreamTimeout(f"{self.lane.who} did not answer in time."))
        else:
            self.abort()
