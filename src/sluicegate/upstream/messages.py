"""The messages in a server's answer, whether it is one body or a stream of events.

How long a server may be silent (threats R15, R16) depends on where it stops. *In the middle* of something, a head, a
JSON body, an event, nobody has a reason to stop, and half a minute (`Patience.idle`) is the end of it. *Between*
things, ahead of the first byte or between two events, a tool may be at work: servers made with the official TypeScript
SDK send nothing at all meanwhile, so that half a minute would cut every longer call of theirs. There a server has as
long as a call may take (`Patience.silence`), mostly less, for the caller's own deadline is nearer; and a host that
vanished is found out in half a minute by TCP's keep-alive, which needs no byte of the server.
"""

import logging
import math
from collections.abc import Iterator, Sequence
from typing import Final

from sluicegate.errors import Truncated
from sluicegate.http1 import Answer
from sluicegate.protocol.events import SseDecoder, SseEvent
from sluicegate.protocol.framing import TooLong
from sluicegate.protocol.lines import LineDecoder
from sluicegate.protocol.message import Message, Notification, Response, Result
from sluicegate.protocol.recovery import recover_id
from sluicegate.protocol.tolerant import Unreadable, decode_batch_tolerant, decode_tolerant
from sluicegate.protocol.usual import read_answer, read_progress, read_value
from sluicegate.upstream.site import EVENTS, JSON, Patience, Site, can_be_sent

log = logging.getLogger("sluicegate")

LINGER: Final = 1.0
"""Seconds in which an answer that has said all it has to say may come to its end: its connection is used again then."""
MOST_LINES: Final = 1000
"""How many lines a body has that is looked at line by line."""
FOREVER: Final = math.inf


def decoded(data: bytes) -> Sequence[Message | Unreadable]:
    """The messages of one body or event: mostly one, several only from servers of 2025-03-26."""
    if (params := read_progress(data)) is not None:
        return (Notification("notifications/progress", params),)
    if (answer := read_answer(data)) is not None:
        return (Response(*answer),)
    if not data.startswith(b"{") and data.lstrip().startswith(b"["):
        return decode_batch_tolerant(data)
    return (decode_tolerant(data),)


def plain_result(answer: Answer, request_id: int, *, opened: bool = False) -> Result | None:
    """The result in an answer that is one JSON body and here already, as nearly all are; bytes, or opened if wanted.

    None for anything else, even slightly: it is to be read as `Messages`, which know all there is to know.
    """
    if answer.head.status != 200 or answer.head.media_type != JSON or (body := answer.whole()) is None:
        return None
    if opened:
        value = read_value(body, request_id)
        return None if value is None else Result(value)
    found = read_answer(body)
    return found[1] if found is not None and found[0] == request_id else None


class Events:
    """The events of an answer; what is needed to ask for the rest is remembered."""

    __slots__ = ("_answer", "_before", "_decoder", "_id", "_idle", "_in_event", "_silence", "retry")

    def __init__(
        self, answer: Answer, patience: Patience, last_id: str | None = None, *, endless: bool = False
    ) -> None:
        self.retry: float | None = None
        self._answer = answer
        self._decoder = SseDecoder(patience.message)
        self._before = last_id
        self._id: str | None = None
        self._in_event = False
        self._silence = FOREVER if endless else patience.silence
        self._idle = patience.idle
        answer.allow_silence(self._silence)

    @property
    def last_id(self) -> str | None:
        """The id of the last event that was read, if it can be sent back."""
        if self._id is None:
            return self._before
        # A header takes the bytes of UTF-8, but not every one of them.
        value = self._id.encode().decode("latin-1")
        return value if value and can_be_sent(value) else None

    async def next_chunk(self) -> bytes | None:
        """What has come since the last call, for `read`; None at the end of the stream.

        Raises:
            UpstreamError: the stream was cut, or fell silent.
        """
        return await self._answer.next_chunk()

    def read(self, chunk: bytes) -> list[SseEvent | TooLong]:
        """The events that end in a chunk."""
        decoder = self._decoder
        events = decoder.feed(chunk)
        in_event = decoder.buffered > 0
        if in_event != self._in_event:
            self._in_event = in_event
            self._answer.allow_silence(self._idle if in_event else self._silence)
        for event in events:
            if isinstance(event, SseEvent):
                if event.id is not None:
                    self._id = event.id
                if event.retry is not None:
                    self.retry = event.retry / 1000
        return events


class Messages:
    """The messages of an answer to a request, whether it is one body or a stream of events."""

    __slots__ = ("_answer", "_has_body", "_id", "_kind", "_lines", "_problem", "_site", "events", "streams")

    def __init__(
        self, site: Site, answer: Answer, request_id: int, last_id: str | None = None, *, endless: bool = False
    ) -> None:
        self._site = site
        self._answer = answer
        self._id = request_id
        self._kind = answer.head.media_type
        is_events = self._kind == EVENTS
        self.events = Events(answer, site.patience, last_id, endless=endless) if is_events else None
        # What tells of changes without end is no single body, and has no length. The suite's reference server sends
        # lines of JSON.
        is_lines = endless and self._kind == JSON and answer.head.length < 0
        self._lines = LineDecoder(site.patience.message) if is_lines else None
        self.streams = is_events or self._lines is not None
        """Whether messages may come ahead of the reply."""
        if self._lines is not None:
            answer.allow_silence(FOREVER)
        self._problem: str | None = None
        self._has_body = False

    async def next_chunk(self) -> bytes | None:
        """What has come since the last call, for `read`; None when there will be no more.

        Raises:
            UpstreamError: the answer cannot be read, or was cut.
        """
        if self.streams:
            chunk = await self._answer.next_chunk()
            if chunk is None and self._lines is not None and not self._has_body:
                self._has_body = True
                return b"\n"  # Nothing else ends the last line of many.
            if chunk is None and self._problem is not None:
                raise self._site.protocol_error(self._problem)
            return chunk
        if self._kind != JSON:
            self._answer.close()
            raise self._site.protocol_error(f"is neither JSON nor an event stream (status {self._answer.status})")
        if self._has_body:
            return None
        self._has_body = True
        return await self._site.read_body(self._answer)

    def read(self, chunk: bytes) -> Iterator[Message]:
        """The messages that end in a chunk, one at a time: what is behind the one at hand has not been decoded yet.

        Raises:
            UpstreamError: the answer cannot be read.
        """
        if not self.streams:
            for message in decoded(chunk):
                if isinstance(message, Unreadable):
                    lines = _lines_of(chunk)
                    if lines is None:
                        raise self._site.protocol_error(message.problem)
                    yield from lines
                    return
                yield message
            return
        for data in self._pieces(chunk):
            if isinstance(data, TooLong):
                self._note("is too long", recover_id(data.head) == self._id)
                continue
            for message in decoded(data):
                if isinstance(message, Unreadable):
                    self._note(message.problem, message.id == self._id)
                else:
                    yield message

    def _pieces(self, chunk: bytes) -> Iterator[bytes | TooLong]:
        """The lines or events that end in a chunk."""
        if self._lines is not None:
            yield from self._lines.feed(chunk)
            self._answer.allow_silence(self._site.patience.idle if self._lines.buffered else FOREVER)
        elif self.events is not None:
            for event in self.events.read(chunk):
                if isinstance(event, TooLong):
                    yield event
                elif event.data and event.event == "message":
                    yield event.data

    def is_reply(self, response: Response) -> bool:
        """Whether this answers our request; an error without an id does, as nobody else was asked anything here."""
        return response.id is None or response.id == self._id or response.id == str(self._id)

    def _note(self, problem: str, is_ours: bool) -> None:
        if is_ours:
            raise self._site.protocol_error(problem)
        if self._problem is None:
            log.warning("%s: a message %s and is skipped.", self._site.name, problem)
        self._problem = problem


def _lines_of(body: bytes) -> list[Message] | None:
    """The messages of a body that is no JSON, if it is lines of it: what was meant is all there."""
    if not 0 < body.count(b"\n") <= MOST_LINES:
        return None
    found: list[Message] = []
    for line in filter(None, body.split(b"\n")):
        message = decode_tolerant(line)
        if isinstance(message, Unreadable):
            return None
        found.append(message)
    return found


def ended_early(name: str) -> Truncated:
    """The error for a stream that ended before its reply."""
    return Truncated(f"{name} ended its event stream without the answer.")
