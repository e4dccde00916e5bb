"""The messages in a server's answer, whether it is one JSON body or an event stream.

How long a server may be silent (threats R15, R16) depends on where it stops. *Within* a head, a JSON body or an event
there is no reason to stop: `Timeouts.idle` (half a minute) applies. *Before* the first byte and *between* two events
a tool may be running: servers on the official TypeScript SDK send nothing meanwhile, so half a minute would cut every
longer call. There `Timeouts.silence` applies, the longest time that a call may take; mostly the caller's own deadline
comes first. TCP keep-alive detects a host that vanished, within half a minute.
"""

import asyncio
import logging
import math
from collections.abc import Iterator, Sequence
from time import monotonic
from typing import Final

from sluicegate.errors import Truncated
from sluicegate.http1 import Answer
from sluicegate.protocol.framing import LineDecoder, TooLong
from sluicegate.protocol.message import Message, Notification, Response
from sluicegate.protocol.parse_request import recover_id
from sluicegate.protocol.parse_response import (
    Mended,
    Unreadable,
    decode_batch_tolerant,
    decode_tolerant,
    read_answer,
    read_progress,
)
from sluicegate.protocol.sse import SseDecoder, SseEvent
from sluicegate.runtime.task_scope import TURN
from sluicegate.upstream.http_endpoint import EVENT_STREAM, JSON, Timeouts, UpstreamEndpoint, can_be_sent

log = logging.getLogger("sluicegate")

END_TIMEOUT: Final = 1.0
"""Seconds for an answer to end after its reply came, so that the connection can be reused."""
MAX_BODY_LINES: Final = 1000
"""Lines of a body that is not JSON but may be lines of JSON."""
MAX_RETRY_FIELD: Final = 30.0
"""Seconds of a server's `retry`, as between attempts of our own: with more, its answer would not be fetched in time."""
MAX_CHUNK: Final = 16 * 1024
"""Bytes of a stream that are read at once: five thousand of the shortest events."""
FOREVER: Final = math.inf


def decoded(data: bytes, mended: Mended) -> Sequence[Message | Unreadable]:
    """The messages of one body or event. Only servers of 2025-03-26 send several."""
    if (params := read_progress(data)) is not None:
        return (Notification("notifications/progress", params),)
    if (answer := read_answer(data)) is not None:
        return (Response(*answer),)
    if not data.startswith(b"{") and data.lstrip().startswith(b"["):
        return decode_batch_tolerant(data, mended)
    return (decode_tolerant(data, mended),)


class Chunks:
    """The bytes of an answer in short chunks, with turns for other tasks: a chunk may be thousands of events (T4)."""

    __slots__ = ("_answer", "_began", "_rest")

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._rest = b""
        self._began = monotonic()

    async def next(self) -> bytes | None:
        """The next bytes; None at the end.

        Raises:
            UpstreamError: the stream was cut or timed out.
        """
        before = monotonic()
        if before - self._began > TURN:
            await asyncio.sleep(0)
            self._began = before = monotonic()
        if not self._rest:
            chunk = await self._answer.next_chunk()
            if chunk is None or len(chunk) <= MAX_CHUNK:
                if monotonic() - before > TURN:
                    self._began = monotonic()  # It waited, so that other tasks have had their turn.
                return chunk
            self._rest = chunk
        chunk, self._rest = self._rest[:MAX_CHUNK], self._rest[MAX_CHUNK:]
        return chunk


class AnswerEvents:
    """The events of an answer; remembers the last id for resuming."""

    __slots__ = ("_answer", "_before", "_chunks", "_decoder", "_id", "_idle", "_in_event", "_silence", "retry")

    def __init__(
        self, answer: Answer, timeouts: Timeouts, last_id: str | None = None, *, endless: bool = False
    ) -> None:
        self.retry: float | None = None
        self._answer = answer
        self._chunks = Chunks(answer)
        self._decoder = SseDecoder(timeouts.message)
        self._before = last_id
        self._id: str | None = None
        self._in_event = False
        self._silence = FOREVER if endless else timeouts.silence
        self._idle = timeouts.idle
        answer.allow_silence(self._silence)

    @property
    def last_id(self) -> str | None:
        """The id of the last event, if it can be sent back in a header."""
        if self._id is None:
            return self._before
        # Headers carry the UTF-8 bytes, except control characters.
        value = self._id.encode().decode("latin-1")
        return value if value and can_be_sent(value) else None

    async def next_chunk(self) -> bytes | None:
        """The next bytes, for `read`; None at the end of the stream.

        Raises:
            UpstreamError: the stream was cut or timed out.
        """
        return await self._chunks.next()

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
                    self.retry = min(event.retry / 1000, MAX_RETRY_FIELD)
        return events


class Messages:
    """The messages of an answer to a request, whether it is one body or a stream of events."""

    __slots__ = (
        "_answer",
        "_chunks",
        "_has_body",
        "_id",
        "_kind",
        "_lines",
        "_problem",
        "_endpoint",
        "events",
        "streams",
    )

    def __init__(
        self,
        endpoint: UpstreamEndpoint,
        answer: Answer,
        request_id: int,
        last_id: str | None = None,
        *,
        endless: bool = False,
    ) -> None:
        self._endpoint = endpoint
        self._answer = answer
        self._chunks = Chunks(answer)
        self._id = request_id
        self._kind = answer.head.media_type
        is_events = self._kind == EVENT_STREAM
        self.events = AnswerEvents(answer, endpoint.timeouts, last_id, endless=endless) if is_events else None
        # The reference server of the conformance suite answers `subscriptions/listen` with endless lines of JSON.
        is_lines = endless and self._kind == JSON and answer.head.length < 0
        self._lines = LineDecoder(endpoint.timeouts.message) if is_lines else None
        self.streams = is_events or self._lines is not None
        """Whether messages may come before the reply."""
        if self._lines is not None:
            answer.allow_silence(FOREVER)
        self._problem: str | None = None
        self._has_body = False

    async def next_chunk(self) -> bytes | None:
        """The next bytes, for `read`; None at the end.

        Raises:
            UpstreamError: the answer is invalid or was cut.
        """
        if self.streams:
            chunk = await self._chunks.next()
            if chunk is None and self._lines is not None and not self._has_body:
                self._has_body = True
                return b"\n"  # Ends the last line.
            if chunk is None and self._problem is not None:
                raise self._endpoint.protocol_error(self._problem)
            return chunk
        if self._kind != JSON:
            self._answer.close()
            raise self._endpoint.protocol_error(f"is neither JSON nor an event stream (status {self._answer.status})")
        if self._has_body:
            return None
        self._has_body = True
        return await self._endpoint.read_body(self._answer)

    def read(self, chunk: bytes) -> Iterator[Message]:
        """The messages that end in a chunk, decoded one by one.

        Raises:
            UpstreamError: the answer is invalid.
        """
        if not self.streams:
            for message in decoded(chunk, self._endpoint.mended):
                if isinstance(message, Unreadable):
                    lines = _lines_of(chunk, self._endpoint.mended)
                    if lines is None:
                        raise self._endpoint.protocol_error(message.problem)
                    yield from lines
                    return
                yield message
            return
        for data in self._pieces(chunk):
            if isinstance(data, TooLong):
                self._note("is too long", recover_id(data.head) == self._id)
                continue
            for message in decoded(data, self._endpoint.mended):
                if isinstance(message, Unreadable):
                    self._note(message.problem, message.id == self._id)
                else:
                    yield message

    def _pieces(self, chunk: bytes) -> Iterator[bytes | TooLong]:
        """The lines or events that end in a chunk."""
        if self._lines is not None:
            yield from self._lines.feed(chunk)
            self._answer.allow_silence(self._endpoint.timeouts.idle if self._lines.buffered else FOREVER)
        elif self.events is not None:
            for event in self.events.read(chunk):
                if isinstance(event, TooLong):
                    yield event
                elif event.data and event.event == "message":
                    yield event.data

    def is_reply(self, response: Response) -> bool:
        """Whether this answers our request. A response without an id does: there is only one request here."""
        return response.id is None or response.id == self._id or response.id == str(self._id)

    def _note(self, problem: str, is_ours: bool) -> None:
        if is_ours:
            raise self._endpoint.protocol_error(problem)
        if self._problem is None:
            log.warning("%s: a message %s and is skipped.", self._endpoint.name, problem)
        self._problem = problem


def _lines_of(body: bytes, mended: Mended) -> list[Message] | None:
    """The messages of a body that is lines of JSON; None if it is not."""
    if not 0 < body.count(b"\n") <= MAX_BODY_LINES:
        return None
    found: list[Message] = []
    for line in filter(None, body.split(b"\n")):
        message = decode_tolerant(line, mended)
        if isinstance(message, Unreadable):
            return None
        found.append(message)
    return found


def ended_early(name: str) -> Truncated:
    """The error for a stream that ended before its reply."""
    return Truncated(f"{name} ended its event stream without the answer.")
