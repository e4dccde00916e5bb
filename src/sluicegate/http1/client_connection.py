"""A connection to a server, one request at a time; and the answer, decompressed as it is read."""

import asyncio
import math
import zlib
from typing import TYPE_CHECKING, Final, cast

import msgspec

from sluicegate.errors import Truncated, UpstreamClosed, UpstreamError, UpstreamProtocolError, UpstreamTimeout

from .body import INFLATED_AT_ONCE, BadChunk, ChunkDecoder, Inflater
from .headers import CHUNKED, UNTIL_CLOSE, AnswerHead, BadHead, Headers, read_answer_head
from .limits import set_keep_alive, set_read_buffer

if TYPE_CHECKING:
    from .client import OriginPool, Pool

READ_AHEAD: Final = 256 * 1024  # Unread bytes of an answer before the server has to wait.
MAX_INTERIM: Final = 8


# A Struct because it is created faster than a class with `__init__`, once per answer.
class Answer(msgspec.Struct, eq=False):
    """A server's answer: its head, and its body as it comes. Must be read to its end or closed."""

    head: AnswerHead
    _connection: "ClientConnection"
    _limit: int
    _parts: list[bytes]
    _size: int = 0
    _ended: bool = False
    _inflater: "Inflater | None" = None
    _error: UpstreamError | None = None
    _waiter: "asyncio.Future[None] | None" = None
    _read_ahead: int = READ_AHEAD
    _is_gathered: bool = False
    """Whether the waiter wants the whole body, or more than `_read_ahead` bytes of it."""

    @property
    def status(self) -> int:
        return self.head.status

    @property
    def headers(self) -> Headers:
        return self.head.headers

    @property
    def is_complete(self) -> bool:
        """Whether the whole body has arrived."""
        return self._ended

    def success(self, media_type: str) -> bytes | None:
        """The body, if the status is 200, the media type is this one, and `whole` returns the body."""
        head = self.head
        return self.whole() if head.status == 200 and head.media_type == media_type else None

    def whole(self) -> bytes | None:
        """The body, if all of it is here, not compressed and within the limit. It is not consumed."""
        if not self._ended or self._inflater is not None or self._size > self._limit:
            return None
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def allow_silence(self, seconds: float) -> None:
        """Set the time limit between two bytes of the body, perhaps `math.inf`."""
        if not self._ended and self._error is None:
            self._connection.allow_silence(seconds)

    async def wait_begun(self) -> None:
        """Wait for the first byte of the body, its end, or a failure."""
        while not (self._size or self._ended or self._error):
            await self._more()

    async def next_chunk(self) -> bytes | None:
        """The bytes since the last call, at least one; None at the end.

        Raises:
            UpstreamError: the body is cut, too slow or invalid.
        """
        inflater = self._inflater
        while True:
            if inflater is not None and (data := await self._inflated(inflater)):
                return data
            if self._parts:
                data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
                self._parts.clear()
                if self._size > READ_AHEAD and not self._ended:
                    self._connection.resume()
                self._size = 0
                if inflater is None:
                    return data
                inflater.feed(data)
            elif self._error is not None:
                raise self._error
            elif self._ended:
                if inflater is not None and not inflater.finished:
                    raise _truncated(self._connection.origin_pool.name)
                return None
            else:
                await self._more()

    def _more(self) -> "asyncio.Future[None]":
        """A future for the next bytes, the end, or a failure."""
        self._waiter = self._connection.loop.create_future()
        return self._waiter

    async def _inflated(self, inflater: "Inflater") -> bytes:
        try:
            data = inflater.take()
        except zlib.error:
            self.close()
            name = self._connection.origin_pool.name
            raise UpstreamProtocolError(f"The answer of {name} is compressed in a way that cannot be read.") from None
        if len(data) == INFLATED_AT_ONCE:
            await asyncio.sleep(0)  # There may be much more; let other tasks run.
        return data

    async def read(self, limit: int | None = None) -> bytes:
        """The whole body, up to the limit; by default `ClientLimits.body`.

        Raises:
            UpstreamError: it is longer, cut, too slow or invalid.
        """
        limit = self._limit if limit is None else limit
        if not (self._ended or self._error or self._inflater) and self.head.length <= limit:
            await self._gather(limit)
        if self._size <= limit and (whole := self.whole()) is not None:
            self._parts = []
            self._size = 0
            return whole
        parts: list[bytes] = []
        size = 0
        # A body whose Content-Length is too large is not read at all.
        while self._ended or self.head.length <= limit:
            chunk = await self.next_chunk()
            if chunk is None:
                return b"".join(parts)
            size += len(chunk)
            if size > limit:
                break
            parts.append(chunk)
        self.close()
        raise UpstreamProtocolError(f"The answer of {self._connection.origin_pool.name} is larger than {limit} bytes.")

    async def _gather(self, limit: int) -> None:
        """Wait for the whole body, its failure, or more than `limit` bytes: its parts are joined once, at the end."""
        self._read_ahead, self._is_gathered = limit, True
        self._connection.resume()
        while not (self._ended or self._error or self._size > limit):
            await self._more()
        self._read_ahead, self._is_gathered = READ_AHEAD, False

    def let_end(self, seconds: float) -> None:
        """Ignore the rest. If the server ends it within so many seconds, its connection is reused."""
        if not self._ended and self._error is None:
            self._connection.discard_rest(seconds)

    def close(self) -> None:
        """Ignore the rest. If it is not complete, the connection is closed, which tells the server to stop."""
        if not self._ended and self._error is None:
            self._connection.abort()
            self.fail(UpstreamClosed("The answer was closed."))

    def add(self, data: bytes) -> bool:
        """Add a part of the body; whether to stop reading."""
        self._parts.append(data)
        self._size += len(data)
        is_full = self._size > self._read_ahead
        if self._waiter is not None and (is_full or not self._is_gathered):
            self._wake()
        return is_full

    def end(self) -> None:
        self._ended = True
        self._wake()

    def fail(self, error: UpstreamError) -> None:
        self._error = error
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


class ClientConnection(asyncio.Protocol):
    """One connection to a server: free in the pool, or used by one request."""

    __slots__ = (
        *("origin_pool", "loop", "made", "lost", "heard", "uses", "_pool", "_limits", "_known", "_exact", "_transport"),
        *("_waiter", "_answer", "_buffer", "_to_head", "_paused", "_first_byte", "_idle"),
        *("_missing", "_interim", "_chunks", "_discarding"),
        *("_deadline", "_timer_at", "_timer"),
    )

    def __init__(self, pool: "Pool", origin_pool: "OriginPool") -> None:
        self.origin_pool = origin_pool
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
        self._to_head = self._paused = self._discarding = False
        self._first_byte = pool.limits.first_byte
        self._idle = pool.limits.idle
        self._missing = self._interim = 0
        self._chunks: ChunkDecoder | None = None
        self._deadline = self._timer_at = math.inf
        self._timer: asyncio.TimerHandle | None = None

    def ask(self, data: bytes, to_head: bool, first_byte: float, idle: float) -> asyncio.Future[Answer]:
        """Send a request; a future for its answer, which is set when the head has arrived."""
        self.uses += 1
        self.heard = False
        self._to_head = to_head
        self._first_byte = first_byte
        self._idle = idle
        self._interim = 0
        waiter = self._waiter = self.loop.create_future()
        if self._transport is None or self.lost:
            self.fail(UpstreamClosed(f"{self.origin_pool.name} closed the connection.", delivered="no"))
        else:
            # Inlined from `_wait`, which nearly always does only this.
            deadline = self._deadline = self.loop.time() + first_byte
            if self._timer_at > deadline:
                self._wait(first_byte)
            self._transport.write(data)
        return waiter

    def give_up(self, waiter: asyncio.Future[Answer]) -> None:
        """The caller was cancelled: close the connection or the answer, which tells the server."""
        if self._waiter is waiter:
            self._waiter = None
            self.abort()
        elif waiter.done() and not waiter.cancelled() and waiter.exception() is None:
            waiter.result().close()

    def abort(self) -> None:
        self.lost = True
        self._answer = None
        if self._transport is not None:
            self._transport.abort()

    def resume(self) -> None:
        """Read again after a pause."""
        if self._paused and self._transport is not None:
            self._paused = False
            self._transport.resume_reading()
            self._wait(self._idle)

    def allow_silence(self, seconds: float) -> None:
        """Set the time limit between two bytes of the current answer."""
        self._idle = seconds
        if self._answer is not None and not self._paused:
            self._wait(seconds)

    def discard_rest(self, seconds: float) -> None:
        """Discard the rest of the current answer, which must end within so many seconds."""
        self.resume()
        self._discarding = True
        self._wait(seconds)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's transports are not of this class.
        self.made = True
        self._pool.remember(self)
        set_read_buffer(transport)
        set_keep_alive(transport)

    def data_received(self, data: bytes) -> None:
        if self.lost:
            return
        waiter = self._waiter
        if waiter is None and self._answer is not None:
            self._take_body(data)
            return
        if waiter is None:
            self.abort()  # Bytes without a request: they must not be taken for the next answer.
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
            self._fail_invalid(problem.sentence)
        except UpstreamProtocolError as problem:
            self.fail(problem)

    def eof_received(self) -> bool:
        self.lost = True  # At once, not with `connection_lost` in the next turn of the loop.
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
            self.fail(_truncated(self.origin_pool.name))
        else:
            self.fail(UpstreamClosed(f"{self.origin_pool.name} closed the connection without an answer."))

    def _read_head(self, waiter: asyncio.Future[Answer]) -> None:
        buffer = self._buffer
        while True:
            end = buffer.find(b"\r\n\r\n") + 4
            if end > self._limits.head or (end < 4 and len(buffer) > self._limits.head):
                raise UpstreamProtocolError(
                    f"The head of the answer of {self.origin_pool.name} is larger than {self._limits.head} bytes."
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
            if head.status == 101 or self._interim > MAX_INTERIM:
                raise BadHead(502, "it changes to a protocol that was not asked for")
        rest = bytes(buffer)
        buffer.clear()
        self._begin(waiter, head, rest)

    def _begin(self, waiter: asyncio.Future[Answer], head: AnswerHead, body: bytes) -> None:
        """Set the answer, with its head and the beginning of the body."""
        inflater = Inflater(head.coding, self._limits.body) if head.coding else None
        answer = Answer(head, self, self._limits.body, [], _inflater=inflater)
        self._waiter = None
        self._answer = answer
        self._discarding = False
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
                self._fail_invalid("its body is malformed")
                return
            extra, ended = self._chunks.rest or b"", self._chunks.rest is not None
            data = parts[0] if len(parts) == 1 else b"".join(parts)
        elif self._missing >= 0:
            if len(data) > self._missing:
                data, extra = data[: self._missing], data[self._missing :]
            self._missing -= len(data)
            ended = not self._missing
        full = bool(data) and not self._discarding and answer.add(data)
        if ended:
            self._answer = None
            answer.end()
            if extra:
                self.abort()
            else:
                self._finish(answer.head)
        elif full and not self._paused and self._transport is not None:
            # Our side is slow now, so the server has no deadline.
            self._paused = True
            self._transport.pause_reading()
            self._deadline = math.inf
        elif not self._paused and not self._discarding:
            self._wait(self._idle)

    def _finish(self, head: AnswerHead) -> None:
        """Return to the pool after a complete answer, or close."""
        transport = self._transport
        if transport is None:
            return
        # If the server answered before it read the whole request, the connection cannot be reused.
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
        origin_pool = self.origin_pool
        if not (origin_pool.waiting and origin_pool.give(self)):
            origin_pool.free.append(self)

    def fail(self, error: UpstreamError) -> None:
        """Close the connection and fail the request in progress."""
        waiter, answer, self._waiter, self._answer = self._waiter, self._answer, None, None
        if waiter is not None and not waiter.done():
            waiter.set_exception(error)
        if answer is not None:
            answer.fail(error)
        self.abort()

    def _fail_invalid(self, problem: str) -> None:
        self.fail(UpstreamProtocolError(f"The answer of {self.origin_pool.name} cannot be read: {problem}."))

    # One timer. Its deadline moves with every byte, but is compared with the clock only when the timer fires.

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
            self.fail(UpstreamTimeout(f"{self.origin_pool.name} did not answer in time."))
        else:
            self.abort()


def _truncated(name: str) -> Truncated:
    return Truncated(f"The answer of {name} ends before it is complete.")
