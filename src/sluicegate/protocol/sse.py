"""Server-sent events, the framing of HTTP: chunks in, whole messages out."""

import msgspec

from sluicegate.protocol.framing import CR, DEFAULT_CEILING, LF, MessageBuffer, TooLong, on_one_line, skip_bom

FIELD_CEILING = 4096
"""Bytes of an SSE id or event name."""

_RETRY_DIGITS = 10  # 115 days in milliseconds; `int` is slow for endless digits, and then raises
_LINE_CEILING = len("event: ") + FIELD_CEILING + 1  # the longest field, and a byte to see that there was more


class SseEvent(msgspec.Struct, frozen=True):
    """One event. Without `data` it has no message, but its `id` and `retry` count. An empty id resets the last id."""

    data: bytes
    event: str = "message"
    id: str | None = None
    retry: int | None = None


class SseDecoder:
    """Server-sent events out of chunks, as WHATWG defines them (HTML, 9.2.6), with limits.

    Lines end at CR, LF or CRLF only. Comments, unknown fields and an incomplete last event are skipped. Unlike a
    browser, this also returns events that have only an id or a retry field, which MCP sends first on its streams. The
    ceiling limits the data.
    """

    __slots__ = (
        *("_after_cr", "_ceiling", "_data", "_event", "_has_begun", "_has_data"),
        *("_id", "_in_data", "_lead", "_line", "_retry"),
    )

    def __init__(self, ceiling: int = DEFAULT_CEILING) -> None:
        self._ceiling = ceiling
        self._lead: bytes | None = b""
        self._after_cr = False  # the last chunk ended in CR: an LF that comes next belongs to it
        self._has_begun = False  # an event may have begun that has not ended
        self._line = bytearray()  # a line that has not ended, unless it is a data line
        self._in_data = False  # in a data line that has not ended; its bytes go straight to `_data`
        self._data = MessageBuffer(ceiling)
        self._has_data = False  # empty data differs from no data
        self._event = ""
        self._id: str | None = None
        self._retry: int | None = None

    @property
    def buffered(self) -> int:
        """The bytes held of an event that has not ended yet."""
        held = len(self._line) + self._data.size + len(self._lead or b"")
        return held + len(self._event) + len(self._id or "")

    def feed(self, chunk: bytes) -> list[SseEvent | TooLong]:
        """The events that end in this chunk."""
        if self._data.dropped:
            self._data.free_some()
        if self._lead is not None:
            self._lead, chunk = skip_bom(self._lead + chunk)
        if self._after_cr and chunk:
            self._after_cr = False
            chunk = chunk.removeprefix(b"\n")
        if CR in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        events: list[SseEvent | TooLong] = []
        if self._in_data and LF not in chunk:  # in the middle of a long line, as in `LineDecoder`
            self._add(chunk, events)
            return events
        blocks = chunk.split(b"\n\n")
        rest = blocks.pop()
        for block in blocks:  # the lines of one event each; the first may have begun in an earlier chunk
            if not self._has_begun and (not block or (block.startswith(b":") and LF not in block)):
                continue  # nothing, or a comment: there may be thousands
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
        """The event if it has the most common form: one data line, with at most an id before it."""
        block = block.removeprefix(b"event: message\n")
        id = None
        if block.startswith(b"id: "):
            field, _, block = block.partition(b"\n")
            if len(field) > FIELD_CEILING or 0 in field:
                return None
            id = field[4:].decode(errors="replace")
        if not block.startswith(b"data: ") or LF in block or len(block) > self._ceiling:
            return None
        return SseEvent(block[6:], "message", id)

    def _read_lines(self, lines: list[bytes], events: list[SseEvent | TooLong]) -> None:
        """Read complete lines; the first may be the end of a line that began in an earlier chunk."""
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
        # One byte more than the name, to see whether a space follows, which is dropped.
        if len(self._line) > 5 and self._line.startswith(b"data:"):
            self._in_data = True
            self._add_data(bytes(self._line), events)
            self._line.clear()
        else:
            del self._line[_LINE_CEILING:]  # only data may be long

    def _end_line(self, events: list[SseEvent | TooLong]) -> None:
        if self._in_data:
            self._in_data = False
        else:
            line = bytes(self._line)
            self._line.clear()
            self._read(line, events)

    def _read(self, line: bytes, events: list[SseEvent | TooLong]) -> None:
        """Read the field in a complete line."""
        if line.startswith(b"data:"):
            self._add_data(line, events)
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        match name:
            case b"data":  # without a colon: an empty line of data
                self._add_data(line, events)
            case b"event":
                # Cut rather than ignored: an unknown event type must not become a message.
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
            # Its data was reported as too long, but its id counts: otherwise a resumed stream would repeat the event.
            data, self._has_data = b"", False
        if self._has_data or self._id is not None or self._retry is not None:
            events.append(SseEvent(data, self._event or "message", self._id, self._retry))
        self._has_data = False
        self._event = ""
        self._id = self._retry = None


def encode_event(data: bytes, *, event: str | None = None, id: str | None = None, retry: int | None = None) -> bytes:
    """One JSON message as a server-sent event; without data it only sets the id or the retry time.

    Raises:
        ValueError: `event` or `id` contains CR, LF or NUL, or `retry` is negative.
    """
    if LF in data or CR in data or not data.isascii():
        data = on_one_line(data)
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
    """An SSE comment, which keeps a silent stream alive.

    Raises:
        ValueError: the text contains CR, LF or NUL.
    """
    return b": " + _plain(text) + b"\n\n"


def _plain(text: str) -> bytes:
    if "\n" in text or "\r" in text or "\0" in text:
        raise ValueError(f"An SSE field cannot contain CR, LF or NUL: {text!r}")
    return text.encode()
