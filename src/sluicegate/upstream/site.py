"""One URL of a server: what is asked of it, and what its answers are, before anybody asks what they mean.

The one rule: the headers that were configured for it go to its origin and nowhere else (threats T9), and nothing of a
body that is no message is ever repeated to anybody.
"""

import asyncio
import logging
import math
import re
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Final
from urllib.parse import urljoin, urlsplit

from sluicegate.errors import (
    ConfigError,
    ErrorObject,
    LocalProtocolError,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from sluicegate.http1 import Answer, Fields, Pool
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

log = logging.getLogger("sluicegate")

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
ACCEPT_BOTH: Final[Fields] = (("Accept", f"{JSON}, {EVENTS}"), ("Content-Type", JSON))
ACCEPT_EVENTS: Final[Fields] = (("Accept", EVENTS),)

LONGEST_SILENCE: Final = 600.0
"""Seconds that a server may say nothing while a call waits. The caller's own deadline is mostly nearer."""

LONGEST_BODY: Final = 60.0
"""Seconds for a JSON body whose head is there already."""

LARGEST_REFUSAL: Final = 64 * 1024
"""Bytes that are read of an answer whose status says that it is none."""

MOST_REDIRECTS: Final = 3
LINGER: Final = 1.0

_header_name: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_header_value: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")
_OURS: Final = frozenset(
    "accept accept-encoding connection content-length content-type expect host keep-alive last-event-id mcp-method"
    " mcp-name mcp-protocol-version mcp-session-id te trailer transfer-encoding upgrade".split()
)


def checked_fields(headers: Mapping[str, str]) -> Fields:
    """The headers that somebody configured, if all of them can be sent.

    Raises:
        ConfigError: one cannot be, or is not for a person to set. Its value is not told: it may be a secret.
    """
    for name, value in headers.items():
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody checks types
            raise ConfigError(f"The header {name!r} is a string, not {type(value).__name__}.")
        if not _header_name.fullmatch(name) or not _header_value.fullmatch(value):
            raise ConfigError(f"The header {ascii(name)} cannot be sent: one line of printable Latin-1 can be.")
        if name.lower() in _OURS or name.lower().startswith("mcp-param-"):
            raise ConfigError(f"The header {name!r} is set by the protocol; leave it out.")
    return tuple(headers.items())


def origin_of(url: str) -> tuple[str, str, int] | None:
    """Scheme, host and port of a URL, or None if it is not one that we can ask."""
    if not (url.isascii() and url.isprintable()) or " " in url:
        return None
    try:
        parts = urlsplit(url)
        scheme, port = parts.scheme.lower(), parts.port
    except ValueError:
        return None
    if scheme not in ("http", "https") or not parts.hostname or "@" in parts.netloc:
        return None
    return scheme, parts.hostname.lower(), port or (443 if scheme == "https" else 80)


class Site:
    """A URL, the headers configured for it, and the connections to it."""

    def __init__(self, name: str, url: str, fields: Fields, pool: Pool) -> None:
        self.name = name
        self.url = url
        self._fields = fields
        self._pool = pool

    async def ask(
        self,
        method: str,
        fields: Fields,
        body: bytes = b"",
        *,
        url: str | None = None,
        first_byte: float | None = None,
        idle: float | None = None,
        resend: bool = False,
    ) -> Answer:
        """The answer to a request, after at most three redirects within the origin; method and body stay the same.

        Raises:
            UpstreamError: there is no answer, or it leads elsewhere.
        """
        target = url or self.url
        fields = (*self._fields, *fields)
        for _ in range(MOST_REDIRECTS + 1):
            answer = await self._pool.request(
                method, target, fields, body, resend=resend, first_byte=first_byte, idle=idle
            )
            if not 300 <= answer.status < 400:
                return answer
            answer.close()
            target = self.within_origin(target, answer.headers.get("location"))
            if answer.status not in (307, 308) or target is None:
                problem = f"{self.name} redirects (status {answer.status}) where we do not follow; give its own URL."
                raise UpstreamProtocolError(problem, delivered="no", data={"status": answer.status})
        problem = f"{self.name} redirects more than {MOST_REDIRECTS} times."
        raise UpstreamProtocolError(problem, delivered="no")

    def within_origin(self, base: str, reference: str | None) -> str | None:
        """The URL that a server names, if it is of the origin we were sent to."""
        if reference is None:
            return None
        try:
            target = urljoin(base, reference)
        except ValueError:
            return None
        return target if origin_of(target) == origin_of(self.url) is not None else None

    async def refusal_of(self, answer: Answer) -> ErrorObject:
        """What an answer says whose status is no success: a JSON-RPC error is a reply like any other.

        Raises:
            UpstreamError: it says nothing that is for a caller; the error tells its status.
        """
        status = answer.status
        if status in (401, 403):
            answer.close()
            raise self._unauthorized(status)
        if media_type(answer) == JSON:
            try:
                message = decode_tolerant(await read_body(answer, LARGEST_REFUSAL))
            except UpstreamError:
                message = None
            if isinstance(message, Response) and isinstance(message.reply, ErrorObject):
                return message.reply
        answer.close()
        raise self.status_error(answer)

    def status_error(self, answer: Answer) -> UpstreamError:
        """The error for an answer of which only the status can be told."""
        status = answer.status
        data: dict[str, object] = {"status": status}
        if status in (401, 403):
            return self._unauthorized(status)
        if status in (429, 503):
            seconds = answer.headers.get("retry-after") or ""
            if seconds.isascii() and seconds.isdecimal() and len(seconds) < 7:
                data["retryAfter"] = int(seconds)
            return UpstreamUnavailable(f"{self.name} takes no requests now (status {status}).", data=data)
        if status >= 500:
            problem = f"{self.name} failed (status {status})."
            return UpstreamUnavailable(problem, delivered="unknown", data=data)
        problem = f"{self.name} answered with status {status} and no message."
        return UpstreamProtocolError(problem, delivered="unknown", data=data)

    def _unauthorized(self, status: int) -> UpstreamUnavailable:
        wanted = "wants authorization" if status == 401 else "does not authorize us"
        error = UpstreamUnavailable(f"{self.name} {wanted} (status {status}).", data={"status": status})
        error.reason = "backend_auth"
        return error

    def protocol_error(self, problem: str) -> UpstreamProtocolError:
        """The error for an answer that is none."""
        return UpstreamProtocolError(f"The answer of {self.name} {problem}.")


def media_type(answer: Answer) -> str:
    """What kind of body an answer has, in lower case and without parameters."""
    return (answer.headers.get("content-type") or "").split(";")[0].strip().lower()


async def read_body(answer: Answer, limit: int | None = None) -> bytes:
    """The whole body of an answer.

    Raises:
        UpstreamError: it is too large or too slow, or ends too early.
    """
    try:
        async with asyncio.timeout(LONGEST_BODY):
            return await answer.read(limit)
    except TimeoutError:
        raise UpstreamTimeout("The server's answer came too slowly.") from None
    finally:
        answer.close()


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

    def __init__(self, answer: Answer, last_id: str | None = None) -> None:
        self.last_id = last_id
        self.retry: float | None = None
        self._answer = answer
        self._decoder: SseDecoder | None = None
        self._ready: deque[SseEvent | TooLong] = deque()

    async def next(self) -> SseEvent | TooLong | None:
        """The next event, or None at the end of the stream.

        Raises:
            UpstreamError: the stream was cut.
        """
        decoder = self._decoder = self._decoder or SseDecoder()
        while not self._ready:
            chunk = await self._answer.next_chunk()
            if chunk is None:
                return None
            self._ready.extend(decoder.feed(chunk))
        event = self._ready.popleft()
        if event.id is not None:
            # A header takes the bytes of UTF-8, but not every one of them.
            value = event.id.encode().decode("latin-1")
            self.last_id = value if value and _header_value.fullmatch(value) else None
        if isinstance(event, SseEvent) and event.retry is not None:
            self.retry = event.retry / 1000
        return event


class Messages:
    """The messages of an answer to a request, whether it is one body or a stream of events."""

    def __init__(self, site: Site, answer: Answer, request_id: int, last_id: str | None = None) -> None:
        self.events = Events(answer, last_id)
        self._site = site
        self._answer = answer
        self._id = request_id
        self._kind = media_type(answer)
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
            if self.streams:
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
        for message in decoded(await read_body(self._answer)):
            if isinstance(message, Unreadable):
                raise self._site.protocol_error(message.problem)
            self._waiting.append(message)

    def _take_event(self, event: SseEvent | TooLong) -> None:
        if isinstance(event, TooLong):
            self._note(f"is too long ({event.size} bytes)", recover_id(event.head) == self._id)
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


def ended_early(name: str) -> UpstreamClosed:
    """The error for a stream that ended before its reply."""
    return UpstreamClosed(f"{name} ended its event stream without the answer.")


FOREVER: Final = math.inf
