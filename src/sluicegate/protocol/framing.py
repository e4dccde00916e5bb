"""The two framings, lines and SSE: chunks in, whole messages out, never beyond a ceiling.

The one rule: how the bytes were cut into chunks is never seen outside, and never costs more than reading them once.
What is inside a message is not looked at. A message that is too long fails alone, as soon as it is: what is left of it
is passed over, and the next one is read.
"""

import msgspec

DEFAULT_CEILING = 16 * 1024 * 1024

HEAD = 4096
"""How much of a message that is too long is kept: its first members, among which the request id mostly is."""

FIELD_CEILING = 4096
"""How long an SSE id or event name may be. Neither is a payload, and each is kept beside one."""

_RETRY_DIGITS = 10  # 115 days in milliseconds; `int` on endless digits is slow, and then raises
_LINE_CEILING = len("event: ") + FIELD_CEILING + 1  # the longest field, and a byte to see that there was more
_SHORT, _BLOCK = 4096, 64 * 1024  # pieces shorter than the one are gathered to blocks of the other
_LET_GO = 16  # pieces, mostly of 64 KiB: a tenth of a millisecond
_BOM = b"\xef\xbb\xbf"
_LF, _CR = 0x0A, 0x0D  # as numbers, because `b"\n" in data` takes eight times as long as `0x0A in data`


class TooLong(msgspec.Struct, frozen=True):
    """A message beyond the ceiling: its first `HEAD` bytes, or fewer if the ceiling is lower.

    It is reported where it crosses the ceiling, for it may never end (threats R4).
    """

    head: bytes


Frame = bytes | TooLong


class LineDecoder:
    """Newline-delimited messages out of chunks: the framing of stdio.

    Lines end at the byte 0x0A only; a CR before it belongs to the line end. Blank lines are no messages, and a BOM is
    passed over where the stream begins.
    """

    __slots__ = ("_ceiling", "_held", "_lead")

    def __init__(self, ceiling: int = DEFAULT_CEILING) -> None:
        self._ceiling = ceiling
        self._held = _Held(ceiling + 1)  # one more, as the last byte may turn out to be the CR of the line end
        self._lead: bytes | None = b""

    @property
    def buffered(self) -> int:
        """The bytes held of a line that has not ended yet."""
        return self._held.size + len(self._lead or b"")

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the messages that end in this chunk."""
        if self._held.spent:
            self._held.let_go()
        if self._lead is not None:
            self._lead, chunk = _pass_bom(self._lead + chunk)
        frames: list[Frame] = []
        if _LF not in chunk:  # in the middle of a long line: `split` would look at it ten times as long, and copy it
            if chunk:
                self._hold(chunk, frames)
            return frames
        lines = chunk.split(b"\n")
        rest = lines.pop()
        if lines and not self._held.is_empty:
            self._hold(lines.pop(0), frames)
            self._end_line(frames)
        for line in filter(None, lines):  # of the blank ones, of which there may be thousands, most are gone here
            if line.endswith(b"}") and len(line) <= self._ceiling:  # nearly all: neither blank, nor with a CR, nor cut
                frames.append(line)
            else:
                self._judge(line, frames)
        if rest:
            self._hold(rest, frames)
        return frames

    def finish(self) -> list[Frame]:
        """Return the last message if no newline ended it. Nothing may be fed afterwards."""
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
            frames.append(TooLong(line[: min(HEAD, self._ceiling + 1)]))
        elif body.strip(b" \t\r"):  # not isspace(): it takes \v and \f too, which are no JSON whitespace
            frames.append(body)


class SseEvent(msgspec.Struct, frozen=True):
    """One event. `data` may be empty: such an event is no message, but its `id` and `retry` count.

    `id` is None if the event had none; an empty one resets the last event id.
    """

    data: bytes
    event: str = "message"
    id: str | None = None
    retry: int | None = None


class SseDecoder:
    """Server-sent events out of chunks, as WHATWG reads them (HTML, 9.2.6), with bounds.

    Lines end at CR, LF or CRLF only. Comments and unknown fields are passed over; an event the stream breaks off in is
    never seen. Unlike a browser, this also returns events that have only an id or a retry field, for MCP primes its
    streams with them. The ceiling is that of the data, so a message may be as long here as on a line.
    """

    __slots__ = (
        *("_after_cr", "_ceiling", "_data", "_event", "_has_begun", "_has_data"),
        *("_id", "_in_data", "_lead", "_line", "_retry"),
    )

    def __init__(self, ceiling: int = DEFAULT_CEILING) -> None:
        self._ceiling = ceiling
        self._lead: bytes | None = b""
        self._after_cr = False  # the last chunk ended in CR: an LF that comes next belongs to it
        self._has_begun = False  # something may have been read of an event that has not ended yet
        self._line = bytearray()  # a line that has not ended yet, unless
        self._in_data = False  # it is one of data, which goes straight to
        self._data = _Held(ceiling)
        self._has_data = False  # data that is empty differs from no data
        self._event = ""
        self._id: str | None = None
        self._retry: int | None = None

    @property
    def buffered(self) -> int:
        """The bytes held of an event that has not ended yet."""
        held = len(self._line) + self._data.size + len(self._lead or b"")
        return held + len(self._event) + len(self._id or "")

    def feed(self, chunk: bytes) -> list[SseEvent | TooLong]:
        """Return the events that end in this chunk."""
        if self._data.spent:
            self._data.let_go()
        if self._lead is not None:
            self._lead, chunk = _pass_bom(self._lead + chunk)
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if _CR in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[SseEvent | TooLong] = []
        if self._in_data and _LF not in chunk:  # in the middle of a long line of it, as in `LineDecoder`
            self._add(chunk, events)
            return events
        blocks = chunk.split(b"\n\n")
        rest = blocks.pop()
        for block in blocks:  # the lines of one event each; of the first one, some may have been read already
            event = None if self._has_begun else self._usual_event(block)
            if event is not None:
                events.append(event)
            else:
                self._read_lines(block.split(b"\n"), events)
                self._end_event(events)
                self._has_begun = False
        if rest:
            self._has_begun = True
            lines = rest.split(b"\n")
            piece = lines.pop()
            self._read_lines(lines, events)
            if piece:
                self._hold(piece, events)
        return events

    def _usual_event(self, block: bytes) -> SseEvent | None:
        """The event in whole lines, if it is written as nearly all are: one line of data, at most an id before it."""
        block = block.removeprefix(b"event: message\n")
        id = None
        if block.startswith(b"id: "):
            field, _, block = block.partition(b"\n")
            if len(field) > FIELD_CEILING or 0 in field:
                return None
            id = field[4:].decode(errors="replace")
        if not block.startswith(b"data: ") or _LF in block or len(block) > self._ceiling:
            return None
        return SseEvent(block[6:], "message", id)

    def _read_lines(self, lines: list[bytes], events: list[SseEvent | TooLong]) -> None:
        """Take over lines that have ended; the first may be the end of what is held."""
        if lines and (self._line or self._in_data):
            self._hold(lines.pop(0), events)
            self._end_line(events)
        for line in lines:
            if line:
                self._read(line, events)
            else:
                self._end_event(events)

    def _hold(self, piece: bytes, events: list[SseEvent | TooLong]) -> None:
        """Keep a piece of a line that has not ended yet."""
        if self._in_data:
            self._add(piece, events)
            return
        self._line += piece
        # One byte more than the name, to see whether there is a space to be left out.
        if len(self._line) > 5 and self._line.startswith(b"data:"):
            self._in_data = True
            self._add_data(bytes(self._line), events)
            self._line.clear()
        else:
            del self._line[_LINE_CEILING:]  # nothing but data may be long

    def _end_line(self, events: list[SseEvent | TooLong]) -> None:
        if self._in_data:
            self._in_data = False
        else:
            line = bytes(self._line)
            self._line.clear()
            self._read(line, events)

    def _read(self, line: bytes, events: list[SseEvent | TooLong]) -> None:
        """Take over the field that a whole line holds."""
        if line.startswith(b"data:"):
            self._add_data(line, events)
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":  # without a colon: an empty line of data
                self._add_data(line, events)
            case b"event":
                # Cut rather than passed over: an unknown kind of event must not become a message.
                self._event = value[:FIELD_CEILING].decode(errors="replace")
            case b"id" if b"\0" not in value and len(value) <= FIELD_CEILING:
                self._id = value.decode(errors="replace")
            case b"retry" if value.isdigit() and len(value) <= _RETRY_DIGITS:
                self._retry = int(value)
            case _:
                pass  # comments too: their name is empty

    def _add_data(self, line: bytes, events: list[SseEvent | TooLong]) -> None:
        if self._has_data:
            self._add(b"\n", events)
        self._has_data = True
        self._add(line[5:].removeprefix(b" "), events)

    def _add(self, data: bytes, events: list[SseEvent | TooLong]) -> None:
        if self._data.add(data):
            events.append(TooLong(self._data.head))

    def _end_event(self, events: list[SseEvent | TooLong]) -> None:
        data = self._data.take()
        if data is None:
            # Its data was reported already, its id counts: a resumed stream would begin with the same event again.
            data, self._has_data = b"", False
        if self._has_data or self._id is not None or self._retry is not None:
            events.append(SseEvent(data, self._event or "message", self._id, self._retry))
        self._has_data = False
        self._event = ""
        self._id = self._retry = None


class _Held:
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


def _pass_bom(start: bytes) -> tuple[bytes | None, bytes]:
    """Return (None, the stream without its BOM), or (start, nothing) while it may still become one."""
    if len(start) < len(_BOM) and _BOM.startswith(start):
        return start, b""
    return None, start.removeprefix(_BOM)


def encode_line(message: bytes) -> bytes:
    """Return one JSON message as one line of stdio."""
    if _LF in message or _CR in message or not message.isascii():
        message = _on_one_line(message)
    return message + b"\n"


def encode_event(data: bytes, *, event: str | None = None, id: str | None = None, retry: int | None = None) -> bytes:
    """Return one JSON message as a server-sent event; no data makes a priming event.

    Raises:
        ValueError: `event` or `id` holds CR, LF or NUL, or `retry` is negative.
    """
    if _LF in data or _CR in data or not data.isascii():
        data = _on_one_line(data)
    if event is None and id is None and retry is None:
        return b"data: %b\n\n" % data
    fields = b""
    if event is not None:
        fields += b"event: " + _plain(event) + b"\n"
    if id is not None:
        fields += b"id: " + _plain(id) + b"\n"
    if retry is not None:
        if retry < 0:
            raise ValueError(f"retry must not be negative: {retry}")
        fields += b"retry: %d\n" % retry
    return b"%bdata: %b\n\n" % (fields, data)


def encode_comment(text: str = "") -> bytes:
    """Return an SSE comment, which keeps a silent stream alive.

    Raises:
        ValueError: the text holds CR, LF or NUL.
    """
    return b": " + _plain(text) + b"\n\n"


# Raw payloads keep the layout of a pretty-printed body. In JSON, CR and LF occur as whitespace only, these others in
# strings only. LF ends a message; the rest does for readers that are in use: CR for Python's text streams, U+2028 and
# U+2029 for Node's readline (from 24 on), and these and U+0085 for httpx's lines (python-sdk #1356).
_SPACES = bytes.maketrans(b"\r\n", b"  ")
_ESCAPES = ((b"\xe2\x80\xa8", rb"\u2028"), (b"\xe2\x80\xa9", rb"\u2029"), (b"\xc2\x85", rb"\u0085"))


def _on_one_line(message: bytes) -> bytes:
    """Return the same JSON without anything that a reader may take for the end of a line.

    Needed only if it holds CR or LF, or is not ASCII, which callers look at first: nearly no message is.
    """
    if _LF in message or _CR in message:
        message = message.translate(_SPACES)
    for raw, escape in _ESCAPES:
        if raw[0] in message:  # To look for one byte takes a hundredth of the time.
            message = message.replace(raw, escape)
    return message


def _plain(text: str) -> bytes:
    """Return the text of a field, which must not begin another."""
    if "\n" in text or "\r" in text or "\0" in text:
        raise ValueError(f"CR, LF and NUL cannot stand in an SSE field: {text!r}")
    return text.encode()
