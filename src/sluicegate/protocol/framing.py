"""What both framings, lines and server-sent events, have in common: bytes that are held until a message is whole.

The one rule: how the bytes were cut into chunks is never seen outside, and never costs more than reading them once.
What is inside a message is not looked at. A message that is too long fails alone, as soon as it is: what is left of it
is passed over, and the next one is read.
"""

from typing import Final

import msgspec

DEFAULT_CEILING = 16 * 1024 * 1024

HEAD = 4096
"""How much of a message that is too long is kept: its first members, among which the request id mostly is."""

_SHORT, _BLOCK = 4096, 64 * 1024  # pieces shorter than the one are gathered to blocks of the other
_LET_GO = 16  # pieces, mostly of 64 KiB: a tenth of a millisecond
_BOM = b"\xef\xbb\xbf"
LF: Final = 0x0A
CR: Final = 0x0D
"""As numbers, because `b"\n" in data` takes eight times as long as `0x0A in data`."""


class TooLong(msgspec.Struct, frozen=True):
    """A message beyond the ceiling: its first `HEAD` bytes, or fewer if the ceiling is lower.

    It is reported where it crosses the ceiling, for it may never end (threats R4).
    """

    head: bytes


Frame = bytes | TooLong


class Held:
    """Bytes that are added up to a ceiling; beyond it, only their head.

    What was too much is let go bit by bit: who adds to it calls `let_go` with each chunk while something is `spent`.
    """

    __slots__ = ("_block", "_ceiling", "_is_over", "_pieces", "size", "spent")

    def __init__(self, ceiling: int) -> None:
        self._ceiling = ceiling
        self._is_over = False
        self._pieces: list[bytes] = []  # as they came, joined once: in one buffer they would be copied again and again
        self._block = bytearray()  # what came last, if short: a list of single bytes would take fifty times as much
        self.spent: list[bytes] = []  # pieces of what was too much
        self.size = 0

    @property
    def is_empty(self) -> bool:
        return not (self.size or self._is_over)

    @property
    def head(self) -> bytes:
        head = b""
        for piece in (*self._pieces, self._block):
            head += piece[: HEAD - len(head)]
            if len(head) == HEAD:
                break
        return head

    def add(self, piece: bytes) -> bool:
        """Whether these bytes are the ones that cross the ceiling."""
        if self._is_over:
            return False
        if self.size + len(piece) > self._ceiling:
            # All of the head, and nothing behind the ceiling: how the bytes were cut must not be seen in it.
            head = self.head
            self.spent, self._pieces = self._pieces, []
            self._block[:] = head + piece[: max(min(self._ceiling, HEAD) - len(head), 0)]
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
        """Return what was added, or None if it was too much; begin anew."""
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

    def let_go(self) -> None:
        """Free some of what is spent."""
        # A few at a time, the last ones first, whose memory the system can have back: to give it 16 MiB at once takes
        # two milliseconds, in which nobody else is served.
        del self.spent[-_LET_GO:]


def pass_bom(start: bytes) -> tuple[bytes | None, bytes]:
    """Return (None, the stream without its BOM), or (start, nothing) while it may still become one."""
    if len(start) < len(_BOM) and _BOM.startswith(start):
        return start, b""
    return None, start.removeprefix(_BOM)


# Raw payloads keep the layout of a pretty-printed body. In JSON, CR and LF occur as whitespace only, these others in
# strings only. LF ends a message; the rest does for readers that are in use: CR for Python's text streams, U+2028 and
# U+2029 for Node's readline (from 24 on), and these and U+0085 for httpx's lines (python-sdk #1356).
_SPACES = bytes.maketrans(b"\r\n", b"  ")
_ESCAPES = ((b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"), (b"\xc2\x85", rb"\u0085"))


def on_one_line(message: bytes) -> bytes:
    """Return the same JSON without anything that a reader may take for the end of a line.

    Needed only if it holds CR or LF, or is not ASCII, which callers look at first: nearly no message is.
    """
    if LF in message or CR in message:
        message = message.translate(_SPACES)
    for raw, escape in _ESCAPES:
        if raw[0] in message:  # To look for one byte takes a hundredth of the time.
            message = message.replace(raw, escape)
    return message
