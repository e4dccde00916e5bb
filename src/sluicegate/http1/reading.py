"""Requests out of the bytes of a connection, however these are cut: the next head, and the body that belongs to it.

No clock and no socket: whoever feeds the bytes decides how long to wait for more of them.
"""

from typing import Final

from .chunks import BadChunk, ChunkDecoder
from .heads import CHUNKED, BadHead, RequestHead, check_beginning, read_request_head
from .known_heads import KnownHeads
from .limits import Limits

MOST_EMPTY_LINES: Final = 4


class BadBody(BadHead):
    """The body behind a head is refused."""


class RequestReader:
    """What has come of the next request. Heads that came before are looked up in `known`."""

    __slots__ = (
        *("buffer", "head", "is_body_held_back"),
        *("_body_size", "_chunks", "_empty_lines", "_known", "_limits", "_parts", "_scanned"),
    )

    def __init__(self, known: KnownHeads[RequestHead], limits: Limits) -> None:
        self.buffer = bytearray()
        """What has come and was not made sense of yet."""
        self.head: RequestHead | None = None
        """The head whose body is still to come."""
        self.is_body_held_back = False
        """Whether that came without any of its body, whose sender wants to be told first that we take it."""
        self._known = known
        self._limits = limits
        self._scanned = self._empty_lines = 0
        self._chunks: ChunkDecoder | None = None
        self._parts: list[bytes] = []
        self._body_size = 0

    def next(self) -> tuple[RequestHead, bytes] | None:
        """A complete request, once; None if there is none yet.

        Raises:
            BadHead: what comes is no request that we take; where the next one would begin is not sure.
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
        """Forget all that has come."""
        self.head = self._chunks = None
        self.buffer.clear()
        self._parts.clear()

    def _read_head(self) -> RequestHead | None:
        buffer, limits = self.buffer, self._limits
        # An empty line or two in front is a habit of old clients (RFC 9112, 2.2).
        while buffer.startswith(b"\r\n"):
            del buffer[:2]
            self._scanned = 0
            self._empty_lines += 1
            if self._empty_lines > MOST_EMPTY_LINES:
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
        # Each chunk costs us as much as a hundred bytes; nobody honest sends a long body in crumbs.
        if self._body_size > self._limits.body or chunks.chunks > 1024 + self._body_size // 16:
            raise BadBody(413, "The request's body is too large.")
        if chunks.rest is None:
            return None
        self.buffer += chunks.rest
        body = b"".join(self._parts)
        self._parts.clear()
        self._body_size = 0
        return body
