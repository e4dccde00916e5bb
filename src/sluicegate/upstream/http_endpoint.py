"""One URL of a server: sending requests to it, following redirects, and turning statuses into errors.

The one rule: configured headers go to the server's origin and nowhere else (threats T9), and a body that is no message
is never shown.
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
from sluicegate.http1.client import RequestTemplate, origin_of, request_template
from sluicegate.protocol.framing import DEFAULT_CEILING
from sluicegate.protocol.message import Response
from sluicegate.protocol.parse_response import Mended, decode_tolerant

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"
ACCEPT_BOTH: Final[Fields] = (("Accept", f"{JSON}, {EVENT_STREAM}"), ("Content-Type", JSON))
ACCEPT_EVENTS: Final[Fields] = (("Accept", EVENT_STREAM),)

MAX_REFUSAL: Final = 64 * 1024
"""Bytes that are read of an error response."""

MAX_RETRY_AFTER: Final = 999_999
"""Seconds. Larger values are cut to this."""

MAX_REDIRECTS: Final = 3

MAX_URL: Final = 8 * 1024
"""Bytes of a URL that a server names."""

_header_name: Final = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_header_value: Final = re.compile(r"[\t\x20-\x7e\x80-\xff]*")

# How servers refuse an unknown session that do not use 404, as they should. The TypeScript SDK's examples, and servers
# modelled on them: 400 and an error of this code. Its transport, in a server with one session: the second pattern. The
# Python SDK until 2025, and the examples in answer to a GET: 400 and a line of plain text.
_LOST_CODE: Final = -32000
_lost_message: Final = re.compile(r"session|server not initialized", re.IGNORECASE)
_lost_text: Final = re.compile(
    rb"(bad request: )?(no valid|invalid or missing) session id( provided)?\.?", re.IGNORECASE
)

_OURS: Final = frozenset(
    "accept accept-encoding connection content-length content-type expect host keep-alive last-event-id mcp-method"
    " mcp-name mcp-protocol-version mcp-session-id te trailer transfer-encoding upgrade".split()
)


class Timeouts(msgspec.Struct, frozen=True, kw_only=True):
    """Timeouts in seconds, which `http_messages` explains, and the largest message in bytes."""

    connect: float = 10.0
    """Until a connection is open: waiting for a free one, DNS, TCP and TLS."""
    taken: float = 60.0
    """Until the server accepts a message that has no answer."""
    silence: float = 600.0
    """From a request to the first byte of its answer, and between two events."""
    idle: float = 30.0
    """Between two bytes within a head, a body or an event."""
    body: float = 60.0
    """For a whole body once it has begun. An event stream is only limited by the caller's deadline."""
    retry: float = 1.0
    """Before a stream that was cut is resumed, unless the server names another time."""
    message: int = DEFAULT_CEILING
    """Bytes of a body or an event."""

    def limits(self) -> ClientLimits:
        """These timeouts as limits of a connection pool."""
        return ClientLimits(connect=self.connect, first_byte=self.taken, idle=self.idle, body=self.message)


def can_be_sent(value: str) -> bool:
    """Whether a header can have this value: one line of printable Latin-1."""
    return _header_value.fullmatch(value) is not None


def checked_fields(headers: Mapping[str, str]) -> Fields:
    """The configured headers, checked.

    Raises:
        ConfigError: a header cannot be sent, or is set by the protocol. Its value may be a secret and is not shown.
    """
    for name, value in headers.items():
        if not isinstance(value, str):  # pyright: ignore[reportUnnecessaryIsInstance] - callers may not check types
            raise ConfigError(f"The header {name!r} must be a string, not {type(value).__name__}.")
        if not _header_name.fullmatch(name) or not can_be_sent(value):
            raise ConfigError(f"The header {ascii(name)} cannot be sent: it must be one line of printable Latin-1.")
        if name.lower() in _OURS or name.lower().startswith("mcp-param-"):
            raise ConfigError(f"The header {name!r} is set by the protocol; remove it.")
    return tuple(headers.items())


class ErrorAnswer(NamedTuple):
    """A response with an error status: a JSON-RPC error, or our own error that names the status."""

    says: ErrorObject | UpstreamError
    is_lost_session: bool = False
    """Whether the server does not know the session that the request named."""

    def reply(self) -> ErrorObject:
        """The JSON-RPC error.

        Raises:
            UpstreamError: the response holds none.
        """
        if isinstance(self.says, UpstreamError):
            raise self.says
        return self.says


def is_about_session(error: ErrorObject) -> bool:
    """Whether a session-era server refuses a request because its session is unknown or missing."""
    return error.code == _LOST_CODE and _lost_message.search(error.message) is not None


class UpstreamEndpoint:
    """A URL, the headers configured for it, and the connections to it."""

    def __init__(self, name: str, url: str, fields: Fields, pool: Pool, timeouts: Timeouts, mended: Mended) -> None:
        """`mended` counts messages that lacked something."""
        self.name = name
        self.mended = mended
        self.url = url
        self.timeouts = timeouts
        self._fields = fields
        self.send_once = pool.send
        """`send` without following redirects: the caller passes other answers than a plain result to `followed`."""

    def request_template(self, method: str, fields: Fields, url: str | None = None) -> RequestTemplate:
        """A request without its body, with the configured headers; to be kept for many requests."""
        return request_template(method, url or self.url, (*self._fields, *fields))

    async def ask(
        self,
        method: str,
        fields: Fields,
        body: bytes = b"",
        *,
        url: str | None = None,
        first_byte: float | None = None,
    ) -> Answer:
        """Send a rare request, for which no template is kept; otherwise as `send`."""
        return await self.send(self.request_template(method, fields, url), body, first_byte=first_byte)

    async def send(
        self, template: RequestTemplate, body: bytes, *, first_byte: float | None = None, resend: bool = False
    ) -> Answer:
        """The answer to a request, after at most three redirects within the origin. Method and body stay the same.

        Raises:
            UpstreamError: there is no answer, or a redirect that we do not follow.
        """
        answer = await self.send_once(template, body, first_byte=first_byte, resend=resend)
        return await self.followed(answer, template, body, first_byte=first_byte, resend=resend)

    async def followed(
        self,
        answer: Answer,
        template: RequestTemplate,
        body: bytes,
        *,
        first_byte: float | None = None,
        resend: bool = False,
    ) -> Answer:
        """The answer after the redirects of a first answer, which `send_once` returned; otherwise as `send`."""
        for left in reversed(range(MAX_REDIRECTS + 1)):
            status = answer.head.status
            if not 300 <= status < 400:
                return answer
            answer.close()
            target = self.within_origin(template.url, answer.headers.get("location"))
            if status not in (307, 308) or target is None:
                problem = (
                    f"{self.name} redirects to another place (status {status}); configure the URL it redirects to."
                )
                # 307 and 308 mean that the request has not run here. After 303 it may have: forms answer like this.
                delivered = "no" if status in (307, 308) else "unknown"
                raise UpstreamProtocolError(problem, delivered=delivered, data={"status": status})
            template = request_template(template.method, target, template.headers)
            if left:
                answer = await self.send_once(template, body, first_byte=first_byte, resend=resend)
        problem = f"{self.name} redirects more than {MAX_REDIRECTS} times."
        raise UpstreamProtocolError(problem, delivered="no", data={"status": answer.head.status})

    def within_origin(self, base: str, reference: str | None) -> str | None:
        """The URL that a server names, if it is of our own origin."""
        if reference is None or len(reference) > MAX_URL:
            return None
        try:
            target = urljoin(base, reference)
        except ValueError:
            return None
        # By the parser of the HTTP client: two different URL parsers would open a way to another origin.
        return target if origin_of(target) == origin_of(self.url) is not None else None

    async def refusal_of(self, answer: Answer) -> ErrorObject:
        """The JSON-RPC error in a response with an error status.

        Raises:
            UpstreamError: it holds none; the error names the status.
        """
        return (await self.read_refusal(answer)).reply()

    async def read_refusal(self, answer: Answer, *, within_session: bool = False) -> ErrorAnswer:
        """As `refusal_of`, but raises nothing. With `within_session`, it also checks whether the session was lost."""
        status = answer.status
        if within_session and status == 404:
            answer.close()  # The body does not matter.
            return ErrorAnswer(self.status_error(answer), is_lost_session=True)
        is_json, may_be_lost = answer.head.media_type == JSON, within_session and status == 400
        body = b""
        # Not of 401, 403 and Retry-After: their bodies are not for the caller.
        if (is_json or may_be_lost) and status not in (401, 403) and retry_after(answer) is None:
            with suppress(UpstreamError):
                body = await self.read_body(answer, MAX_REFUSAL)
        answer.close()
        message = decode_tolerant(body, self.mended) if is_json and body else None
        if isinstance(message, Response) and isinstance(message.reply, ErrorObject):
            error = message.reply
            return ErrorAnswer(error, may_be_lost and is_about_session(error))
        return ErrorAnswer(self.status_error(answer), may_be_lost and _lost_text.fullmatch(body.strip()) is not None)

    def status_error(self, answer: Answer) -> UpstreamError:
        """The error for a response, without its body. `retryAfter` in its data are the seconds to wait for a retry."""
        status = answer.status
        data: dict[str, object] = {"status": status}
        if status in (401, 403):
            return self._unauthorized(status)
        if status in (429, 503):
            seconds = retry_after(answer)
            if seconds is not None:
                data["retryAfter"] = seconds
            # A proxy also sends 503 if the server failed while it had the request, but then without Retry-After.
            delivered = "no" if status == 429 or seconds is not None else "unknown"
            problem = f"{self.name} takes no requests now (status {status})."
            return UpstreamUnavailable(problem, delivered=delivered, data=data)
        if status >= 500:
            problem = f"{self.name} failed (status {status})."
            return UpstreamUnavailable(problem, delivered="unknown", data=data)
        problem = f"{self.name} answered with status {status} and no message."
        return UpstreamProtocolError(problem, delivered="unknown", data=data)

    def _unauthorized(self, status: int) -> UpstreamUnavailable:
        wanted = "requires authorization" if status == 401 else "denies authorization"
        error = UpstreamUnavailable(f"{self.name} {wanted} (status {status}).", data={"status": status})
        error.reason = "backend_auth"
        return error

    def protocol_error(self, problem: str) -> UpstreamProtocolError:
        """The error for an invalid answer."""
        return UpstreamProtocolError(f"The answer of {self.name} {problem}.")

    async def read_body(self, answer: Answer, limit: int | None = None) -> bytes:
        """The whole body of an answer.

        Raises:
            UpstreamError: it is too large, too slow or cut.
        """
        if answer.is_complete:
            return await answer.read(limit)
        try:
            await answer.wait_begun()
            async with asyncio.timeout(self.timeouts.body):
                return await answer.read(limit)
        except TimeoutError:
            raise UpstreamTimeout(f"The answer of {self.name} came too slowly.") from None
        finally:
            answer.close()


def retry_after(answer: Answer) -> int | None:
    """The seconds of a Retry-After header, in a response with status 429 or 503."""
    value = (answer.headers.get("retry-after") or "").strip()
    if answer.status not in (429, 503) or not value.isascii():
        return None
    if value.isdecimal():
        return min(int(value[:20]), MAX_RETRY_AFTER)
    from email.utils import parsedate_to_datetime  # Here because it is slow to load and rarely needed.

    try:
        # By the server's clock if it sends a Date: ours may differ.
        now = parsedate_to_datetime(answer.headers.get("date") or "")
    except (ValueError, OverflowError):
        now = datetime.now(UTC)
    try:
        seconds = (parsedate_to_datetime(value) - now).total_seconds()
    except (ValueError, OverflowError, TypeError):  # No date, or only one of the two has a time zone.
        return None
    return min(max(math.ceil(seconds), 0), MAX_RETRY_AFTER)
