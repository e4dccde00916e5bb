"""A request as a handler sees it, with methods to answer it; and the parser of requests."""

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Final

import msgspec

from sluicegate.errors import LocalProtocolError

from .body import BadChunk, ChunkDecoder
from .headers import (
    CHUNKED,
    BadHead,
    Fields,
    HeadCache,
    Headers,
    RequestHead,
    answer_head,
    check_beginning,
    read_request_head,
)
from .limits import Limits

if TYPE_CHECKING:
    from .server_connection import HttpConnection

log: Final = logging.getLogger("sluicegate")

MAX_JOINED: Final = 64 * 1024
"""Bytes of a body that are written in one piece with the head: up to here, the copy costs less than a second buffer."""

# The state of the answer. From _MUTE on it is a stream; the lowest bit then says whether the connection is kept.
_UNANSWERED: Final = 0
_ANSWERED: Final = 1
_MUTE: Final = 2  # To HEAD: without a body.
_CHUNKED: Final = 4
_BARE: Final = 6  # To HTTP/1.0: the end of the connection is the end of the answer.
_UPGRADED: Final = 8  # In another protocol.


# A Struct because it is created faster than a class with `__init__`, once per request.
class Request(msgspec.Struct, eq=False):
    """One request with its whole body. Answer with `respond`, or with `start`, `write` … `end`."""

    _connection: "HttpConnection"
    head: RequestHead
    body: bytes
    method: str
    path: str
    """The path as the client sent it, not decoded or normalised: compare it exactly."""
    query: str
    headers: Headers
    peer: str
    """The client's address."""
    _stage: int = _UNANSWERED
    _listeners: "list[Callable[[], object]] | None" = None

    @property
    def root(self) -> str:
        """The prefix of the path outside of the application: always empty here."""
        return ""

    def refused(self, reason: str) -> None:
        """Report that the request is refused before it is handled."""
        self._connection.listener.on_refused(reason, self._connection.peer)

    @property
    def scheme(self) -> str:
        """http or https."""
        return self._connection.scheme

    @property
    def disconnected(self) -> bool:
        """Whether the client has hung up. The answer may still be written, but is not read."""
        return self._connection.hung_up

    @property
    def answered(self) -> bool:
        """Whether the answer is complete."""
        return self._stage == _ANSWERED

    @property
    def started(self) -> bool:
        """Whether the answer has begun."""
        return self._stage != _UNANSWERED

    @property
    def unsent(self) -> int:
        """Bytes that the client has not read yet."""
        return self._connection.unsent

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Call this when the client hangs up before it has its answer; immediately if it has hung up already.

        A client that only closes its sending side looks the same, and still gets the answer.
        """
        if self._connection.hung_up:
            callback()
        elif self._listeners is None:
            self._listeners = [callback]
        else:
            self._listeners.append(callback)

    def respond(self, status: int, headers: Fields = (), body: bytes = b"") -> None:
        """Answer in one piece, with one write.

        Raises:
            LocalProtocolError: it is answered already, or a header cannot be sent.
        """
        if self._stage != _UNANSWERED:
            raise LocalProtocolError("The request is answered already.")
        connection = self._connection
        keep = self.head.keep_alive and not connection.listener.draining
        prefix = answer_head(status, headers, not keep)
        self._stage = _ANSWERED
        self._listeners = None  # Breaks a reference cycle.
        if status == 204 or status == 304:
            connection.finish(b"%b\r\n" % prefix, keep)
        elif self.method == "HEAD":
            connection.finish(b"%bContent-Length: %d\r\n\r\n" % (prefix, len(body)), keep)
        elif len(body) > MAX_JOINED:
            connection.finish(b"%bContent-Length: %d\r\n\r\n" % (prefix, len(body)), keep, body)
        else:
            connection.finish(b"%bContent-Length: %d\r\n\r\n%b" % (prefix, len(body), body), keep)

    def start(self, status: int, headers: Fields = ()) -> None:
        """Begin a streamed answer. The head is sent together with the data that is written in this turn of the loop.

        Raises:
            LocalProtocolError: it is answered already, or a header cannot be sent.
        """
        if self._stage != _UNANSWERED:
            raise LocalProtocolError("The request is answered already.")
        if status == 204 or status == 304:
            raise LocalProtocolError(f"An answer of status {status} has no body to stream.")
        chunked = self.head.minor == 1
        keep = chunked and self.head.keep_alive and not self._connection.listener.draining
        prefix = answer_head(status, headers, not keep)
        self._stage = (_MUTE if self.method == "HEAD" else _CHUNKED if chunked else _BARE) + keep
        self._connection.begin_stream(prefix + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n"))

    def write(self, data: bytes) -> None:
        """Send more of the answer; dropped if the client has hung up. All writes of one turn of the loop are joined.

        Raises:
            LocalProtocolError: no answer has been started.
        """
        stage = self._stage
        if stage < _MUTE:
            raise LocalProtocolError("`write` is only possible between `start` and `end`.")
        if data and stage >= _CHUNKED:
            self._connection.add(data)

    @property
    def is_behind(self) -> bool:
        """Whether `drain` may have to wait."""
        return self._connection.is_behind

    async def drain(self) -> None:
        """Wait while more than `Limits.unsent` bytes are unsent, until the client reads them or is gone."""
        await self._connection.wait_taken()

    def upgrade(self, headers: Fields, receive: Callable[[bytes], None]) -> None:
        """Switch the connection to another protocol, with an answer of status 101.

        `receive` gets all bytes of the client, `write` sends ours, `end` closes the connection. It must not raise.

        Raises:
            LocalProtocolError: the request is answered already.
        """
        if self._stage != _UNANSWERED:
            raise LocalProtocolError("The request is answered already.")
        self._stage = _UPGRADED
        lines = "".join(f"{name}: {value}\r\n" for name, value in headers)
        head = f"HTTP/1.1 101 Switching Protocols\r\n{lines}\r\n"
        self._connection.upgrade(head.encode("latin-1"), receive)

    async def drain_all(self) -> None:
        """Wait until the client has read everything, or is gone."""
        await self._connection.wait_taken(1)

    def end(self) -> None:
        """Complete the answer.

        Raises:
            LocalProtocolError: it was not started, or has ended.
        """
        stage = self._stage
        if stage < _MUTE:
            raise LocalProtocolError("There is no answer to end.")
        self._stage = _ANSWERED
        self._listeners = None
        self._connection.flush(last=stage & ~1 == _CHUNKED)
        if stage == _UPGRADED:
            self._connection.linger()
        else:
            self._connection.finish(b"", bool(stage & 1))

    def abort(self) -> None:
        """Close the connection: the client sees that its answer is not complete."""
        self._stage = _ANSWERED
        self._listeners = None  # The client did not hang up.
        self._connection.abort()

    @property
    def chunked(self) -> bool:
        """Whether the answer uses the chunked coding."""
        return self._stage & ~1 == _CHUNKED

    def notify_disconnected(self) -> None:
        """Call the callbacks of `on_disconnect`. For the connection."""
        listeners, self._listeners = self._listeners, None
        for callback in listeners or ():
            try:
                callback()
            except Exception:  # An edge: one failing callback must not prevent the others.
                log.exception("A disconnect callback failed.")


Handler = Callable[[Request], Coroutine[object, object, None] | None]
"""Answers requests. A coroutine runs in a task and must complete the answer. None needs no task: the request is already
answered, or will be by other code."""


# -------------------------------------------------------------------------------------------------- reading requests

MAX_EMPTY_LINES: Final = 4


class BadBody(BadHead):
    """The body is refused."""


class RequestReader:
    """Parses requests from a buffer. Heads are looked up in `known` first."""

    __slots__ = (
        *("buffer", "head", "is_body_held_back"),
        *("_body_size", "_chunks", "_empty_lines", "_known", "_limits", "_parts", "_scanned"),
    )

    def __init__(self, known: HeadCache[RequestHead], limits: Limits) -> None:
        self.buffer = bytearray()
        """Bytes that are not parsed yet."""
        self.head: RequestHead | None = None
        """The head whose body is not complete."""
        self.is_body_held_back = False
        """Whether the client waits for `100 Continue` before it sends the body."""
        self._known = known
        self._limits = limits
        self._scanned = self._empty_lines = 0
        self._chunks: ChunkDecoder | None = None
        self._parts: list[bytes] = []
        self._body_size = 0

    def next(self) -> tuple[RequestHead, bytes] | None:
        """The next complete request, or None if there is none yet.

        Raises:
            BadHead: the request is refused; where the next one begins is unknown.
        """
        head = self.head or self._read_head()
        if head is None:
            return None
        body = self._read_body(head.length) if self._chunks is None else self._read_chunks(self._chunks)
        if body is None:
            return None
        self.head = self._chunks = None
        return head, body

    def clear(self) -> None:
        """Drop all bytes."""
        self.head = self._chunks = None
        self.buffer.clear()
        self._parts.clear()

    def _read_head(self) -> RequestHead | None:
        buffer, limits = self.buffer, self._limits
        # Old clients send empty lines before a request (RFC 9112, 2.2).
        while buffer.startswith(b"\r\n"):
            del buffer[:2]
            self._scanned = 0
            self._empty_lines += 1
            if self._empty_lines > MAX_EMPTY_LINES:
                raise BadHead(400, "The request's head is malformed.")
        end = buffer.find(b"\r\n\r\n", max(0, self._scanned - 3)) + 4
        if end < 4:
            check_beginning(buffer, self._scanned, url=limits.url, headers=limits.headers)
            self._scanned = len(buffer)
            return None
        raw = bytes(buffer[:end])
        del buffer[:end]
        self._scanned = self._empty_lines = 0
        head = self._known.find(raw)
        if head is None:
            head = read_request_head(raw, url=limits.url, headers=limits.headers)
            if head.length > limits.body:
                raise BadBody(413, "The request's body is too large.")
            self._known.learn(raw, head)
        self.head = head
        self.is_body_held_back = head.expects_continue and not buffer
        if head.length == CHUNKED:
            self._chunks = ChunkDecoder()
        return head

    def _read_body(self, length: int) -> bytes | None:
        buffer = self.buffer
        if len(buffer) < length:
            return None
        with memoryview(buffer) as view:
            body = bytes(view[:length])
        del buffer[:length]
        return body

    def _read_chunks(self, chunks: ChunkDecoder) -> bytes | None:
        data = bytes(self.buffer)
        self.buffer.clear()
        try:
            parts = chunks.feed(data)
        except BadChunk:
            raise BadBody(400, "The request's body is malformed.") from None
        self._parts += parts
        self._body_size += sum(map(len, parts))
        # Each chunk costs as much as a hundred bytes; real clients do not send a long body in tiny chunks.
        if self._body_size > self._limits.body or chunks.chunks > 1024 + self._body_size // 16:
            raise BadBody(413, "The request's body is too large.")
        if chunks.rest is None:
            return None
        self.buffer += chunks.rest
        body = b"".join(self._parts)
        self._parts.clear()
        self._body_size = 0
        return body
