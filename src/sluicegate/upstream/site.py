"""One URL of a server: what is asked of it, and what its answers are, before anybody asks what they mean.

The one rule: the headers that were configured for it go to its origin and nowhere else (threats T9), and nothing of a
body that is no message is ever repeated to anybody.
"""

import asyncio
import math
import re
from collections.abc import Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Final, NamedTuple
from urllib.parse import urljoin

import msgspec

from sluicegate.errors import (
    ConfigError,
    ErrorObject,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from sluicegate.http1 import Answer, ClientLimits, Fields, Pool
from sluicegate.http1.client import Letterhead, letterhead, origin_of
from sluicegate.protocol.framing import DEFAULT_CEILING
from sluicegate.protocol.message import Response
from sluicegate.protocol.tolerant import decode_tolerant

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"
ACCEPT_BOTH: Final[Fields] = (("Accept", f"{JSON}, {EVENTS}"), ("Content-Type", JSON))
ACCEPT_EVENTS: Final[Fields] = (("Accept", EVENTS),)

LARGEST_REFUSAL: Final = 64 * 1024
"""Bytes that are read of an answer whose status says that it is none."""

LARGEST_RETRY_AFTER: Final = 999_999
"""Seconds; whoever asks for more time than that has not thought about it."""

MOST_REDIRECTS: Final = 3

LONGEST_URL: Final = 8 * 1024
"""Of those that a server names."""

_header_name: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_header_value: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

# How servers that should say 404 say that they do not know a session, before they look at what is asked in it. The
# TypeScript SDK's examples, and all that is modelled on them: 400 and an error of this code. Its transport, if the
# server has only one: the second. The Python SDK until 2025, and the examples to a GET: 400 and a line of plain text.
_LOST_CODE: Final = -32000
_lost_message: Final = re.compile(r"session|server not initialized", re.IGNORECASE)
_lost_text: Final = re.compile(
    rb"(bad request: )?(no valid|invalid or missing) session id( provided)?\.?", re.IGNORECASE
)

_OURS: Final = frozenset(
    "accept accept-encoding connection content-length content-type expect host keep-alive last-event-id mcp-method"
    " mcp-name mcp-protocol-version mcp-session-id te trailer transfer-encoding upgrade".split()
)


class Patience(msgspec.Struct, frozen=True, kw_only=True):
    """How many seconds a server has, and for what, which `messages` explains; and how many bytes for one message."""

    connect: float = 10.0
    """Until a connection is there: the wait for a free one, the name, TCP and TLS."""
    taken: float = 60.0
    """Until it has taken a message that is not answered."""
    silence: float = 600.0
    """From a request to the first byte of its answer, and from one event to the next."""
    idle: float = 30.0
    """Between two bytes of a head, a body or an event that has begun."""
    body: float = 60.0
    """For the whole of a body that has begun; a stream of events has as long as its caller waits."""
    retry: float = 1.0
    """Before a stream that was cut is asked for again, if the server names no other time."""
    message: int = DEFAULT_CEILING
    """Bytes of a body or of an event."""

    def limits(self) -> ClientLimits:
        """The same for connections."""
        return ClientLimits(connect=self.connect, first_byte=self.taken, idle=self.idle, body=self.message)


def can_be_sent(value: str) -> bool:
    """Whether a header can have this value: one line of printable Latin-1."""
    return _header_value.fullmatch(value) is not None


def checked_fields(headers: Mapping[str, str]) -> Fields:
    """The headers that somebody configured, if all of them can be sent.

    Raises:
        ConfigError: one cannot be, or is not for a person to set. Its value is not told: it may be a secret.
    """
    for name, value in headers.items():
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - not everybody checks types
            raise ConfigError(f"The header {name!r} is a string, not {type(value).__name__}.")
        if not _header_name.fullmatch(name) or not can_be_sent(value):
            raise ConfigError(f"The header {ascii(name)} cannot be sent: one line of printable Latin-1 can be.")
        if name.lower() in _OURS or name.lower().startswith("mcp-param-"):
            raise ConfigError(f"The header {name!r} is set by the protocol; leave it out.")
    return tuple(headers.items())


class Refusal(NamedTuple):
    """An answer whose status is no success: a reply like any other, or an error that tells the status."""

    says: ErrorObject | UpstreamError
    is_lost_session: bool = False
    """Whether the server does not know the session that the request named."""

    def reply(self) -> ErrorObject:
        """The reply.

        Raises:
            UpstreamError: it says nothing that is for a caller.
        """
        if isinstance(self.says, UpstreamError):
            raise self.says
        return self.says


def is_about_session(error: ErrorObject) -> bool:
    """Whether a server of the session era refuses a request for the session that it names, or does not name."""
    return error.code == _LOST_CODE and _lost_message.search(error.message) is not None


class Site:
    """A URL, the headers configured for it, and the connections to it."""

    def __init__(self, name: str, url: str, fields: Fields, pool: Pool, patience: Patience) -> None:
        self.name = name
        self.url = url
        self.patience = patience
        self._fields = fields
        self.send_once = pool.send
        """As `send`, but a redirect is an answer, too: for whoever hands on to `followed` what is no plain one."""

    def letterhead(self, method: str, fields: Fields, url: str | None = None) -> Letterhead:
        """A request but for its body, with the headers configured for the site; to be kept by whoever sends many."""
        return letterhead(method, url or self.url, (*self._fields, *fields))

    async def ask(
        self,
        method: str,
        fields: Fields,
        body: bytes = b"",
        *,
        url: str | None = None,
        first_byte: float | None = None,
    ) -> Answer:
        """As `send`, for what is asked now and then."""
        return await self.send(self.letterhead(method, fields, url), body, first_byte=first_byte)

    async def send(
        self, letter: Letterhead, body: bytes, *, first_byte: float | None = None, resend: bool = False
    ) -> Answer:
        """The answer to a request, after at most three redirects within the origin; method and body stay the same.

        Raises:
            UpstreamError: there is no answer, or it leads elsewhere.
        """
        answer = await self.send_once(letter, body, first_byte=first_byte, resend=resend)
        return await self.followed(answer, letter, body, first_byte=first_byte, resend=resend)

    async def followed(
        self, answer: Answer, letter: Letterhead, body: bytes, *, first_byte: float | None = None, resend: bool = False
    ) -> Answer:
        """As `send`, where the first answer is here already."""
        for left in reversed(range(MOST_REDIRECTS + 1)):
            status = answer.head.status
            if not 300 <= status < 400:
                return answer
            answer.close()
            target = self.within_origin(letter.url, answer.headers.get("location"))
            if status not in (307, 308) or target is None:
                problem = f"{self.name} redirects (status {status}) where we do not follow; give its own URL."
                # "Ask there" has not run here. "See there" may well have: it is how forms are answered.
                delivered = "no" if status in (307, 308) else "unknown"
                raise UpstreamProtocolError(problem, delivered=delivered, data={"status": status})
            letter = letterhead(letter.method, target, letter.headers)
            if left:
                answer = await self.send_once(letter, body, first_byte=first_byte, resend=resend)
        problem = f"{self.name} redirects more than {MOST_REDIRECTS} times."
        raise UpstreamProtocolError(problem, delivered="no", data={"status": answer.head.status})

    def within_origin(self, base: str, reference: str | None) -> str | None:
        """The URL that a server names, if it is of the origin we were sent to."""
        if reference is None or len(reference) > LONGEST_URL:
            return None
        try:
            target = urljoin(base, reference)
        except ValueError:
            return None
        # Asked of those who will send it: two who read a URL differently would be a way to another origin.
        return target if origin_of(target) == origin_of(self.url) is not None else None

    async def refusal_of(self, answer: Answer) -> ErrorObject:
        """What an answer says whose status is no success: a JSON-RPC error is a reply like any other.

        Raises:
            UpstreamError: it says nothing that is for a caller; the error tells its status.
        """
        return (await self.read_refusal(answer)).reply()

    async def read_refusal(self, answer: Answer, *, within_session: bool = False) -> Refusal:
        """As `refusal_of`, but nothing is raised; of a request that named a session it is told if it was for that."""
        status = answer.status
        if within_session and status == 404:
            answer.close()  # Whatever its body says.
            return Refusal(self.status_error(answer), is_lost_session=True)
        is_json, may_be_lost = answer.head.media_type == JSON, within_session and status == 400
        body = b""
        # Not of 401, 403 and those who have no time: they are for whoever keeps the credentials, and the time.
        if (is_json or may_be_lost) and status not in (401, 403) and retry_after(answer) is None:
            with suppress(UpstreamError):
                body = await self.read_body(answer, LARGEST_REFUSAL)
        answer.close()
        message = decode_tolerant(body) if is_json and body else None
        if isinstance(message, Response) and isinstance(message.reply, ErrorObject):
            error = message.reply
            return Refusal(error, may_be_lost and is_about_session(error))
        return Refusal(self.status_error(answer), may_be_lost and _lost_text.fullmatch(body.strip()) is not None)

    def status_error(self, answer: Answer) -> UpstreamError:
        """The error for an answer of which only the status can be told, and in `retryAfter` when to come again."""
        status = answer.status
        data: dict[str, object] = {"status": status}
        if status in (401, 403):
            return self._unauthorized(status)
        if status in (429, 503):
            seconds = retry_after(answer)
            if seconds is not None:
                data["retryAfter"] = seconds
            # A proxy says 503, too, of a server that broke down with the request in its hands; but not when to retry.
            delivered = "no" if status == 429 or seconds is not None else "unknown"
            problem = f"{self.name} takes no requests now (status {status})."
            return UpstreamUnavailable(problem, delivered=delivered, data=data)
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

    async def read_body(self, answer: Answer, limit: int | None = None) -> bytes:
        """The whole body of an answer.

        Raises:
            UpstreamError: it is too large or too slow, or ends too early.
        """
        if answer.is_complete:
            return await answer.read(limit)
        try:
            await answer.wait_begun()
            async with asyncio.timeout(self.patience.body):
                return await answer.read(limit)
        except TimeoutError:
            raise UpstreamTimeout(f"The answer of {self.name} came too slowly.") from None
        finally:
            answer.close()


def retry_after(answer: Answer) -> int | None:
    """In how many seconds a server that has no time now wants to be asked again, if it says so."""
    value = (answer.headers.get("retry-after") or "").strip()
    if answer.status not in (429, 503) or not value.isascii():
        return None
    if value.isdecimal():
        return min(int(value[:20]), LARGEST_RETRY_AFTER)
    from email.utils import parsedate_to_datetime  # here and not above: few servers are as busy, and it is heavy

    try:
        # By its own clock, if it tells the time: ours may differ.
        now = parsedate_to_datetime(answer.headers.get("date") or "")
    except (ValueError, OverflowError):
        now = datetime.now(UTC)
    try:
        seconds = (parsedate_to_datetime(value) - now).total_seconds()
    except (ValueError, OverflowError, TypeError):  # No date; or only one of the two says where on earth.
        return None
    return min(max(math.ceil(seconds), 0), LARGEST_RETRY_AFTER)
