"""Decoding of bodies: the chunked coding, gzip and deflate. Pure.

Chunks are not decoded by httptools, because it does not say where a body ends and the next request begins. The one
rule: exactly the grammar of RFC 9112, 7.1, and no line of unlimited length.
"""

import re
import zlib
from typing import Final

LAST: Final = b"0\r\n\r\n"
_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED: Final = rb'"[\t\x20\x21\x23-\x5b\x5d-\x7e]*"'
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})((?:;" + _TOKEN + rb"(?:=(?:" + _TOKEN + rb"|" + _QUOTED + rb"))?)*)")
_PLAIN_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}\r\n")
_TRAILER: Final = re.compile(_TOKEN + rb":[\t\x20-\x7e\x80-\xff]*")
_MAX_LINE: Final = 1024
INFLATED_AT_ONCE: Final = 256 * 1024
MAX_INFLATION: Final = 100  # Event streams of JSON have 10 to 40, zeros a thousand.
MAX_MEMBERS: Final = 256  # In one gzip stream: each member costs a copy of all data after it, and may be empty.
_MAX_ASIDE: Final = 8 * 1024  # Extensions and trailers are not used, so few are allowed.


class BadChunk(Exception):
    """The chunked coding is invalid."""


class ChunkDecoder:
    """Decodes one chunked body."""

    __slots__ = ("_after_data", "_aside", "_held", "_in_trailers", "_missing", "chunks", "rest")

    def __init__(self) -> None:
        self.chunks = 0
        self.rest: bytes | None = None
        """The bytes after the body; None until its end."""
        self._missing = 0  # bytes of the current chunk
        self._held = b""  # a line's beginning
        self._after_data = self._in_trailers = False
        self._aside = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The parts of the body in these bytes. Must not be called again once `rest` is set.

        Raises:
            BadChunk: the rest of the stream cannot be used.
        """
        if self._held:
            data = self._held + data
            self._held = b""
        parts: list[bytes] = []
        at = 0
        if not (self._missing or self._after_data or self._in_trailers):
            # The most common case: complete chunks without extensions.
            while (size := _PLAIN_SIZE.match(data, at)) is not None:
                begin = size.end()
                end = begin + int(size[0], 16)
                if end == begin or data[end : end + 2] != b"\r\n":
                    break
                self.chunks += 1
                parts.append(data[begin:end])
                at = end + 2
            left = len(data) - at
            if left == len(LAST) and data.endswith(LAST):
                self.chunks += 1
                self.rest = b""
                return parts
            if not left:
                return parts
        while True:
            if self._missing:
                part = data[at : at + self._missing]
                if not part:
                    return parts
                parts.append(part)
                at += len(part)
                self._missing -= len(part)
                self._after_data = not self._missing
                continue
            end = data.find(b"\r\n", at)
            if end < 0 or end - at > _MAX_LINE:
                self._held = data[at:]
                self._check_beginning()
                return parts
            line = data[at:end]
            at = end + 2
            if self._after_data:
                if line:
                    raise BadChunk
                self._after_data = False
            elif self._in_trailers:
                if not line:
                    self.rest = data[at:]
                    return parts
                if not _TRAILER.fullmatch(line):
                    raise BadChunk
                self._set_aside(line)
            else:
                self._begin(line)

    def _begin(self, line: bytes) -> None:
        match = _SIZE.fullmatch(line)
        if match is None:
            raise BadChunk
        self.chunks += 1
        if match[2]:
            self._set_aside(match[2])
        self._missing = int(match[1], 16)
        self._in_trailers = not self._missing

    def _check_beginning(self) -> None:
        """Refuse the beginning of a line that cannot become valid, instead of waiting for its end."""
        held = self._held
        limit = 1 if self._after_data else _MAX_LINE
        if (
            len(held) > limit
            or b"\n" in held
            or b"\r" in held[:-1]
            or (self._after_data and held[:1] not in (b"", b"\r"))
        ):
            raise BadChunk

    def _set_aside(self, text: bytes) -> None:
        self._aside += len(text)
        if self._aside > _MAX_ASIDE:
            raise BadChunk


class Inflater:
    """Decompresses gzip and deflate in portions, as a protection against decompression bombs.

    After `limit` bytes, what comes out must be less than `MAX_INFLATION` times what came in. A body is cut there
    anyway; an event stream may be longer.
    """

    def __init__(self, coding: str, limit: int) -> None:
        self._limit = limit
        self._received = self._made = 0
        self._is_gzip = coding == "gzip"
        self._stream = zlib.decompressobj(31) if self._is_gzip else None
        self._input = b""
        self._members = 1
        self._holds_back = False
        self.finished = True
        """Whether the compressed stream is complete. An empty one is, as in the answer to HEAD."""

    def feed(self, data: bytes) -> None:
        """Add compressed bytes, after `take` has used up the last ones."""
        self._input += data
        self._received += len(data)

    def take(self) -> bytes:
        """Some decompressed bytes; none if more input is needed.

        Raises:
            zlib.error: the input is invalid, or a bomb.
        """
        if self._made > self._limit and self._made > MAX_INFLATION * self._received:
            raise zlib.error("a decompression bomb")
        while self._input or self._holds_back:
            if self._stream is None:
                self.finished = False
                # "deflate" is a zlib stream, but some servers leave out its header of two bytes.
                first = self._input[:2]
                if len(first) < 2:
                    return b""
                wrapped = first[0] & 15 == 8 and int.from_bytes(first, "big") % 31 == 0
                self._stream = zlib.decompressobj(15 if wrapped else -15)
            elif self._stream.eof:
                if not self._is_gzip:
                    raise zlib.error("bytes behind the end")
                self._members += 1
                if self._members > MAX_MEMBERS:
                    raise zlib.error("too many members")
                self._stream = zlib.decompressobj(31)  # gzip may have several members
            data = self._stream.decompress(self._input, INFLATED_AT_ONCE)
            self.finished = self._stream.eof
            # zlib may have consumed all input and still have output, since a raw stream has no trailer.
            self._holds_back = len(data) == INFLATED_AT_ONCE and not self.finished
            self._input = self._stream.unused_data if self.finished else self._stream.unconsumed_tail
            if data:
                self._made += len(data)
                return data
        return b""
