"""A server's answer, as its body comes, decompressed no further than it is asked for."""

import asyncio
import zlib
from typing import TYPE_CHECKING, Final

import msgspec

from sluicegate.errors import Truncated, UpstreamClosed, UpstreamError, UpstreamProtocolError

from .heads import AnswerHead, Headers

if TYPE_CHECKING:
    from .outgoing import Connection

AHEAD: Final = 256 * 1024  # What may lie here unread before the server has to wait.
INFLATED_AT_ONCE: Final = 256 * 1024
MOST_MEMBERS: Final = 256  # Of one gzip stream: each costs a copy of what lies behind it, and may hold nothing.


# A Struct, though nothing of it is ever on a wire: one is made for every answer, in a fraction of the time.
class Answer(msgspec.Struct, eq=False):
    """A server's answer: its head now, its body as it comes. Must be read to its end or closed."""

    head: AnswerHead
    _connection: "Connection"
    _limit: int
    _parts: list[bytes]
    _size: int = 0
    _ended: bool = False
    _inflater: "_Inflater | None" = None
    _error: UpstreamError | None = None
    _waiter: "asyncio.Future[None] | None" = None

    @property
    def status(self) -> int:
        """The three digits."""
        return self.head.status

    @property
    def headers(self) -> Headers:
        """The header fields."""
        return self.head.headers

    @property
    def is_complete(self) -> bool:
        """Whether all of the body is here, read or not."""
        return self._ended

    def whole(self) -> bytes | None:
        """All of the body, if it is here, as it was sent and no longer than its limit; it is still there to be read."""
        if not self._ended or self._inflater is not None or self._size > self._limit:
            return None
        return self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)

    def allow_silence(self, seconds: float) -> None:
        """From now on, let so many seconds pass between two bytes of the body; `math.inf` for any number."""
        if not self._ended and self._error is None:
            self._connection.allow_silence(seconds)

    async def wait_begun(self) -> None:
        """Wait until a byte of the body is here, or it has ended, or failed."""
        while not (self._size or self._ended or self._error):
            await self._more()

    async def next_chunk(self) -> bytes | None:
        """What has come since the last call, waiting for at least a byte; None at the end.

        Raises:
            UpstreamError: the body ends too early, too late, or cannot be read.
        """
        inflater = self._inflater
        while True:
            if inflater is not None and (data := await self._inflated(inflater)):
                return data
            if self._parts:
                data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
                self._parts.clear()
                if self._size > AHEAD and not self._ended:
                    self._connection.resume()
                self._size = 0
                if inflater is None:
                    return data
                inflater.feed(data)
            elif self._error is not None:
                raise self._error
            elif self._ended:
                if inflater is not None and not inflater.finished:
                    raise cut_short(self._connection.lane.who)
                return None
            else:
                await self._more()

    def _more(self) -> "asyncio.Future[None]":
        """Done when there is something new: bytes, the end, or a failure."""
        self._waiter = self._connection.loop.create_future()
        return self._waiter

    async def _inflated(self, inflater: "_Inflater") -> bytes:
        try:
            data = inflater.take()
        except zlib.error:
            self.close()
            raise UpstreamProtocolError(
                f"The answer of {self._connection.lane.who} is compressed in a way that cannot be read."
            ) from None
        if len(data) == INFLATED_AT_ONCE:
            await asyncio.sleep(0)  # There may be any amount of it, and others have something to do.
        return data

    async def read(self, limit: int | None = None) -> bytes:
        """The whole body, if it is not longer than the limit; by default `ClientLimits.body`.

        Raises:
            UpstreamError: it is longer, or ends too early, too late, or cannot be read.
        """
        limit = self._limit if limit is None else limit
        if self._size <= limit and (whole := self.whole()) is not None:
            self._parts = []
            self._size = 0
            return whole
        parts: list[bytes] = []
        size = 0
        # If the length is told, and too much, there is no need to see it.
        while self._ended or self.head.length <= limit:
            chunk = await self.next_chunk()
            if chunk is None:
                return b"".join(parts)
            size += len(chunk)
            if size > limit:
                break
            parts.append(chunk)
        self.close()
        raise UpstreamProtocolError(f"The answer of {self._connection.lane.who} is larger than {limit} bytes.")

    def let_end(self, seconds: float) -> None:
        """Be done with it, but let the server end it within so many seconds: its connection can then be used again."""
        if not self._ended and self._error is None:
            self._connection.forsake(seconds)

    def close(self) -> None:
        """Be done with it: if it is not complete, the connection is cut, which tells the server to stop."""
        if not self._ended and self._error is None:
            self._connection.abort()
            self.fail(UpstreamClosed("The answer was given up."))

    # For the connection.

    def add(self, data: bytes) -> bool:
        """Take a part of the body; whether the server should wait now."""
        self._parts.append(data)
        self._size += len(data)
        if self._waiter is not None:
            self._wake()
        return self._size > AHEAD

    def end(self) -> None:
        """Know that the body is complete."""
        self._ended = True
        self._wake()

    def fail(self, error: UpstreamError) -> None:
        """Know that the rest will not come."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)


def begun_answer(head: AnswerHead, connection: "Connection", limit: int) -> Answer:
    """An answer of which nothing is here but the head."""
    return Answer(head, connection, limit, [], _inflater=_Inflater(head.coding) if head.coding else None)


class _Inflater:
    """Decompresses gzip and deflate no further than it is asked to: a small bomb stays small."""

    def __init__(self, coding: str) -> None:
        self._is_gzip = coding == "gzip"
        self._stream = zlib.decompressobj(31) if self._is_gzip else None
        self._input = b""
        self._members = 1
        self._holds_back = False
        self.finished = True
        """Whether the compressed stream is complete; an empty one is, as the answer to HEAD."""

    def feed(self, data: bytes) -> None:
        """Take compressed bytes; called when `take` has used up the last ones."""
        self._input += data

    def take(self) -> bytes:
        """Some decompressed bytes; none if more input is needed."""
        while self._input or self._holds_back:
            if self._stream is None:
                self.finished = False
                # "deflate" is a zlib stream, but some servers leave its two bytes of header out.
                first = self._input[:2]
                if len(first) < 2:
                    return b""
                wrapped = first[0] & 15 == 8 and int.from_bytes(first, "big") % 31 == 0
                self._stream = zlib.decompressobj(15 if wrapped else -15)
            elif self._stream.eof:
                if not self._is_gzip:
                    raise zlib.error("bytes behind the end")
                self._members += 1
                if self._members > MOST_MEMBERS:
                    raise zlib.error("too many members")
                self._stream = zlib.decompressobj(31)  # gzip may have several members
            data = self._stream.decompress(self._input, INFLATED_AT_ONCE)
            self.finished = self._stream.eof
            # zlib may have read the last byte and still have output: a raw stream has no trailer to be left over.
            self._holds_back = len(data) == INFLATED_AT_ONCE and not self.finished
            self._input = self._stream.unused_data if self.finished else self._stream.unconsumed_tail
            if data:
                return data
        return b""


def cut_short(who: str) -> Truncated:
    """The error for an answer that ends too early."""
    return Truncated(f"The answer of {who} ends before it is complete.")
