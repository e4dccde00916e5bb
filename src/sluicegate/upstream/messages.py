"""The messages in a server's answer, whether it is one body or a stream of events.

How long a server may be silent (threats R15, R16) depends on where it stops. *In the middle* of something, a head, a
JSON body, an event, nobody has a reason to stop, and half a minute (`Patience.idle`) is the end of it. *Between*
things, ahead of the first byte or between two events, a tool may be at work: servers made with the official TypeScript
SDK send nothing at all meanwhile, so that half a minute would cut every longer call of theirs. There a server has as
long as a call may take (`Patience.silence`), mostly less, for the caller's own deadline is nearer; and a host that
vanished is found out in half a minute by TCP's keep-alive, which needs no byte of the server.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import Sequence
from typing import Final

from sluicegate.errors import LocalProtocolError, Truncated, UpstreamError
from sluicegate.http1 import Answer
from sluicegate.protocol.framing import SseDecoder, SseEvent, TooLong
from sluicegate.protocol.message import (
    Message,
    Response,
    Unreadable,
    decode_batch_tolerant,
    decode_tolerant,
    encode,
    recover_id,
)
from sluicegate.upstream.site import EVENTS, JSON, Patience, Site, can_be_sent, media_type

log = logging.getLogger("sluicegate")

LINGER: Final = 1.0
FOREVER: Final = math.inf


async def read_to_end(answer: Answer) -> None:
    """Let an answer that has said all it has to say end by itself: its connection can then be used again."""
    try:
        async with asyncio.timeout(LINGER):
            while await answer.next_chunk() is not None:
                pass
    except (TimeoutError, UpstreamError):
        pass
    finally:
        answer.close()


def encoded(message: Message) -> bytes:
    """The bytes of a message of ours.

    Raises:
        LocalProtocolError: it holds something that JSON cannot express.
    """
    try:
        return encode(message)
    except (TypeError, ValueError, RecursionError) as problem:
        raise LocalProtocolError(f"The request cannot be written as JSON: {problem}") from None


def decoded(data: bytes) -> Sequence[Message | Unreadable]:
    """The messages of one body or event: mostly one, several only from servers of 2025-03-26."""
    return decode_batch_tolerant(data) if data.lstrip()[:1] == b"[" else [decode_tolerant(data)]


class Events:
    """The events of an answer, one at a time; what is needed to ask for the rest is remembered."""

    def __init__(
        self, answer: Answer, patience: Patience, last_id: str | None = None, *, endless: bool = False
    ) -> None:
        self.last_id = last_id
        self.retry: float | None = None
        self._answer = answer
        self._decoder = SseDecoder()
        self._ready: deque[SseEvent | TooLong] = deque()
        self._in_event = False
        self._silence = FOREVER if endless else patience.silence
        self._idle = patience.idle
        answer.allow_silence(self._silence)

    async def next(self) -> SseEvent | TooLong | None:
        """The next event, or None at the end of the stream.

        Raises:
            UpstreamError: the stream was cut, or fell silent.
        """
        decoder = self._decoder
        while not self._ready:
            chunk = await self._answer.next_chunk()
            if chunk is None:
                return None
            self._ready.extend(decoder.feed(chunk))
            in_event = decoder.buffered > 0
            if in_event != self._in_event:
                self._in_event = in_event
                self._answer.allow_silence(self._idle if in_event else self._silence)
        event = self._ready.popleft()
        if isinstance(event, TooLong):
            return event
        if event.id is not None:
            # A header takes the bytes of UTF-8, but not every one of them.
            value = event.id.encode().decode("latin-1")
            self.last_id = value if value and can_be_sent(value) else None
        if event.retry is not None:
            self.retry = event.retry / 1000
        return event


class Messages:
    """The messages of an answer to a request, whether it is one body or a stream of events."""

    def __init__(
        self, site: Site, answer: Answer, request_id: int, last_id: str | None = None, *, endless: bool = False
    ) -> None:
        self._site = site
        self._answer = answer
        self._id = request_id
        self._kind = media_type(answer)
        self.events = Events(answer, site.patience, last_id, endless=endless) if self.streams else None
        self._waiting: deque[Message] = deque()
        self._problem: str | None = None
        self._read = False

    @property
    def streams(self) -> bool:
        """Whether messages may come ahead of the reply."""
        return self._kind == EVENTS

    async def next(self) -> Message | None:
        """The next message, or None when there will be no more.

        Raises:
            UpstreamError: the answer cannot be read, or was cut.
        """
        while not self._waiting:
            if self.events is not None:
                event = await self.events.next()
                if event is None and self._problem is not None:
                    raise self._site.protocol_error(self._problem)
                if event is None:
                    return None
                self._take_event(event)
            elif self._read:
                return None
            else:
                self._read = True
                await self._take_body()
        return self._waiting.popleft()

    def is_reply(self, message: Message) -> bool:
        """Whether this answers our request; an error without an id does, as nobody else was asked anything here."""
        return isinstance(message, Response) and (
            message.id is None or message.id == self._id or message.id == str(self._id)
        )

    async def _take_body(self) -> None:
        if self._kind != JSON:
            self._answer.close()
            raise self._site.protocol_error(f"is neither JSON nor an event stream (status {self._answer.status})")
        for message in decoded(await self._site.read_body(self._answer)):
            if isinstance(message, Unreadable):
                raise self._site.protocol_error(message.problem)
            self._waiting.append(message)

    def _take_event(self, event: SseEvent | TooLong) -> None:
        if isinstance(event, TooLong):
            self._note("is too long", recover_id(event.head) == self._id)
        elif event.data and event.event == "message":
            for message in decoded(event.data):
                if isinstance(message, Unreadable):
                    self._note(message.problem, message.id == self._id)
                else:
                    self._waiting.append(message)

    def _note(self, problem: str, is_ours: bool) -> None:
        if is_ours:
            raise self._site.protocol_error(problem)
        if self._problem is None:
            log.warning("%s: an event %s and is skipped.", self._site.name, problem)
        self._problem = problem


def ended_early(name: str) -> Truncated:
    """The error for a stream that ended before its reply."""
    return Truncated(f"{name} ended its event stream without the answer.")
