"""Newline-delimited messages, the framing of stdio; and the buffer that server-sent events use, too.

The one rule: the result does not depend on how the bytes were cut into chunks, and every byte is read once. A message
that is too long is reported as soon as it crosses the ceiling; its rest is skipped, and the next one is read.
"""

from typing import Final

import msgspec

DEFAULT_CEILING = 16 * 1024 * 1024

HEAD_KEPT = 4096
"""Bytes that are kept of a message that is too long: its first members mostly include the request id."""

_SHORT, _BLOCK = 4096, 64 * 1024  # pieces shorter than the first are gathered into blocks of the second size
_FREED_AT_ONCE = 16  # pieces, mostly of 64 KiB: this takes a tenth of a millisecond
_BOM = b"\xef\xbb\xbf"
LF: Final = 0x0A
CR: Final = 0x0D
"""Numbers, because `b"\n" in data` takes eight times as long as `0x0A in data`."""


class TooLong(msgspec.Struct, frozen=True):
    """A message beyond the ceiling: its first `HEAD_KEPT` bytes, or fewer if the ceiling is lower (threats R4)."""

    head: bytes


Frame = bytes | TooLong


class MessageBuffer:
    """The bytes of one message up to a ceiling; beyond it, only its head.

    A message that is too long is freed in portions: callers of `add` call `free_some` with each chunk while there is
    something in `dropped`.
    """

    __slots__ = ("_block", "_ceiling", "_is_over", "_pieces", "dropped", "size")

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self._is_over = False
        self._pieces: list[bytes] = []  # joined once: a single growing buffer would be copied again and again
        self._block = bytearray()  # the last short pieces: a list of single bytes would take fifty times the memory
        self.dropped: list[bytes] = []  # pieces of a message that was too long
        self.size = 0

    @property
    def is_empty(self) -> bool:
        return not (self.size or self._is_over)

    @property
    def head(self) -> bytes:
        head = b""
        for piece in (*self._pieces, self._block):
            head += piece[: HEAD_KEPT - len(head)]
            if len(head) == HEAD_KEPT:
                break
        return head

    def add(self, piece: bytes) -> bool:
        """Add bytes; whether they cross the ceiling."""
        if self._is_over:
            return False
        if self.size + len(piece) > self._ceiling:
            # The whole head and nothing after the ceiling: the result must not depend on how the bytes were cut.
            head = self.head
            self.dropped, self._pieces = self._pieces, []
            self._block[:] = head + piece[: max(min(self._ceiling, HEAD_KEPT) - len(head), 0)]
            self.size = len(self._block)
            self._is_over = True
            return True
        self.size += len(piece)
        if len(piece) < _SHORT:
            self._block += piece
            if len(self._block) >= _BLOCK:
                self._end_block()
        else:
            self._end_block()
            self._pieces.append(piece)
        return False

    def take(self) -> bytes | None:
        """The bytes, or None if there were too many. The buffer is empty then."""
        taken = None if self._is_over else b"".join((*self._pieces, self._block))
        self._is_over = False
        self._pieces.clear()
        self._block.clear()
        self.size = 0
        return taken

    def _end_block(self) -> None:
        if self._block:
            self._pieces.append(bytes(self._block))
            self._block.clear()

    def free_some(self) -> None:
        """Free a portion of `dropped`: to free 16 MiB at once takes two milliseconds, which block the event loop."""
        del self.dropped[-_FREED_AT_ONCE:]


def skip_bom(start: bytes) -> tuple[bytes | None, bytes]:
    """(None, the stream without its BOM), or (start, nothing) while it may still become a BOM."""
    if len(start) < len(_BOM) and _BOM.startswith(start):
        return start, b""
    return None, start.removeprefix(_BOM)


# Raw payloads keep the layout of a pretty-printed body. In JSON, CR and LF occur only as whitespace, the other line
# ends only in strings. LF ends a message. Some readers in use also end lines at others: Python's text streams at CR,
# Node's readline (from 24 on) at U+2028 and U+2029, httpx at these and U+0085 (python-sdk #1356).
_SPACES = bytes.maketrans(b"\r\n", b"  ")
_ESCAPES = ((b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"), (b"\xc2\x85", rb"\u0085"))


def on_one_line(message: bytes) -> bytes:
    """The same JSON without anything that a reader may take for a line end.

    Callers check first whether it has CR or LF or is not ASCII, which is rare.
    """
    if LF in message or CR in message:
        message = message.translate(_SPACES)
    for raw, escape in _ESCAPES:
        if raw[0] in message:  # A search for one byte takes a hundredth of the time.
            message = message.replace(raw, escape)
    return message


class LineDecoder:
    """Messages out of chunks. Lines end at LF or CRLF only; blank lines and a BOM at the beginning are skipped."""

    __slots__ = ("_ceiling", "_held", "_lead")

    def __init__(self, ceiling: int = DEFAULT_CEILING) -> None:
        self._ceiling = ceiling
        self._held = MessageBuffer(ceiling + 1)  # one more, since the last byte may be the CR of the line end
        self._lead: bytes | None = b""

    @property
    def buffered(self) -> int:
        """The bytes held of a line that has not ended yet."""
        return self._held.size + len(self._lead or b"")

    def feed(self, chunk: bytes) -> list[Frame]:
        """The messages that end in this chunk."""
        if self._held.dropped:
            self._held.free_some()
        if self._lead is not None:
            self._lead, chunk = skip_bom(self._lead + chunk)
        frames: list[Frame] = []
        if LF not in chunk:  # in the middle of a long line: `split` would take ten times as long, and copy it
            if chunk:
                self._hold(chunk, frames)
            return frames
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and not self._held.is_empty:
            self._hold(lines.pop(0), frames)
            self._end_line(frames)
        for line in filter(None, lines):  # without empty lines: there may be thousands
            if line.endswith(b"}") and len(line) <= self._ceiling:  # nearly all: not blank, no CR, not too long
                frames.append(line)
            else:
                self._judge(line, frames)
        if rest:
            self._hold(rest, frames)
        return frames

    def finish(self) -> list[Frame]:
        """The last message if no newline ended it. Nothing may be fed afterwards."""
        frames: list[Frame] = []
        if self._lead:
            self._hold(self._lead, frames)
        self._end_line(frames)
        return frames

    def _hold(self, piece: bytes, frames: list[Frame]) -> None:
        """Keep a piece of a line that has not ended yet."""
        if self._held.add(piece):
            frames.append(TooLong(self._held.head))

    def _end_line(self, frames: list[Frame]) -> None:
        line = self._held.take()
        if line is not None:
            self._judge(line, frames)

    def _judge(self, line: bytes, frames: list[Frame]) -> None:
        """Add the line to the frames, if it is a message."""
        body = line[:-1] if line.endswith(b"\r") else line
        if len(body) > self._ceiling:
            frames.append(TooLong(line[: min(HEAD_KEPT, self._ceiling + 1)]))
        elif body.strip(b" \t\r"):  # not isspace(), which also takes \v and \f for whitespace
            frames.append(body)


def encode_line(message: bytes) -> bytes:
    """One JSON message as one line of stdio."""
    if LF in message or CR in message or not message.isascii():
        message = on_one_line(message)
    return message + b"\n"
