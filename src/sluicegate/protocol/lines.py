"""Lines, the framing of stdio: chunks in, whole messages out."""

from sluicegate.protocol.framing import CR, DEFAULT_CEILING, HEAD, LF, Frame, Held, TooLong, on_one_line, pass_bom


class LineDecoder:
    """Newline-delimited messages out of chunks: the framing of stdio.

    Lines end at the byte 0x0A only; a CR before it belongs to the line end. Blank lines are no messages, and a BOM is
    passed over where the stream begins.
    """

    __slots__ = ("_ceiling", "_held", "_lead")

    def __init__(self, ceiling: int = DEFAULT_CEILING) -> None:
        self._ceiling = ceiling
        self._held = Held(ceiling + 1)  # one more, as the last byte may turn out to be the CR of the line end
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
            self._lead, chunk = pass_bom(self._lead + chunk)
        frames: list[Frame] = []
        if LF not in chunk:  # in the middle of a long line: `split` would look at it ten times as long, and copy it
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


def encode_line(message: bytes) -> bytes:
    """Return one JSON message as one line of stdio."""
    if LF in message or CR in message or not message.isascii():
        message = on_one_line(message)
    return message + b"\n"
