"""The chunked coding: bytes in, the body out. Pure.

Not llhttp's, because httptools does not tell where a body ended, and behind it the next request may have come. The
one rule: exactly the grammar of RFC 9112, 7.1, and no line that grows without end.
"""

import re
from typing import Final

LAST: Final = b"0\r\n\r\n"
_TOKEN: Final = rb"[!#$%&'*+\-.^_`|~0-9A-Za-z]+"
_QUOTED: Final = rb'"[\t\x20\x21\x23-\x5b\x5d-\x7e]*"'
_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,15})((?:;" + _TOKEN + rb"(?:=(?:" + _TOKEN + rb"|" + _QUOTED + rb"))?)*)")
_PLAIN_SIZE: Final = re.compile(rb"[0-9A-Fa-f]{1,15}\r\n")
_TRAILER: Final = re.compile(_TOKEN + rb":[\t\x20-\x7e\x80-\xff]*")
_LONGEST_LINE: Final = 1024
_MOST_ASIDE: Final = 8 * 1024  # Extensions and trailers: nobody reads them, so nobody needs many.


class BadChunk(Exception):
    """The body is not what the chunked coding allows."""


class ChunkDecoder:
    """Takes the bytes of one chunked body, however they were cut."""

    __slots__ = ("_after_data", "_aside", "_held", "_in_trailers", "_missing", "chunks", "rest")

    def __init__(self) -> None:
        self.chunks = 0
        self.rest: bytes | None = None
        """What came behind the body; None until its end."""
        self._missing = 0  # of the chunk's bytes
        self._held = b""  # a line's beginning
        self._after_data = self._in_trailers = False
        self._aside = 0

    def feed(self, data: bytes) -> list[bytes]:
        """The parts of the body in these bytes. Not called again once `rest` is there.

        Raises:
            BadChunk: nothing behind this can be trusted.
        """
        if self._held:
            data = self._held + data
            self._held = b""
        parts: list[bytes] = []
        at = 0
        if not (self._missing or self._after_data or self._in_trailers):
            # Nearly all there is: chunks that came in one piece, without extensions.
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
            if end < 0 or end - at > _LONGEST_LINE:
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
        """Refuse early what can never become right: a reader that waits for more may wait for ever."""
        held = self._held
        limit = 1 if self._after_data else _LONGEST_LINE
        if (
            len(held) > limit
            or b"\n" in held
            or b"\r" in held[:-1]
            or (self._after_data and held[:1] not in (b"", b"\r"))
        ):
            raise BadChunk

    def _set_aside(self, text: bytes) -> None:
        self._aside += len(text)
        if self._aside > _MOST_ASIDE:
            raise BadChunk
