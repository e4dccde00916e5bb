"""The answer to an HTTP request as a stream of messages: one JSON body if nothing is said ahead, else events.

Decided late, so that an early error keeps its status.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from sluicegate.downstream.doors import EVENTS, JSON, Accepted, Fields, Headers, Refusal
from sluicegate.downstream.duplex import MESSAGES_A_TURN
from sluicegate.downstream.keepalive import KeepAlive
from sluicegate.errors import INTERNAL_ERROR, OVERLOADED, RATE_LIMITED, SHUTTING_DOWN, ErrorObject
from sluicegate.protocol.conversation import UNENCODABLE
from sluicegate.protocol.events import encode_comment, encode_event
from sluicegate.protocol.message import Reply, RequestId, as_object, encode_reply

log: Final = logging.getLogger("sluicegate")

EVENT_FIELDS: Final[Fields] = (
    ("Content-Type", EVENTS),
    ("Cache-Control", "no-cache, no-transform"),
    ("X-Accel-Buffering", "no"),
)
JSON_FIELDS: Final[Fields] = (("Content-Type", JSON),)

_BAD_REQUEST: Final = frozenset({-32700, -32600, -32020, -32021, -32022})
_STATUSES: Final = {RATE_LIMITED: 429, OVERLOADED: 503, 1030: 503, SHUTTING_DOWN: 503}
STOPPED: Final = ErrorObject(
    SHUTTING_DOWN,
    "The server is about to stop; the request was cancelled and may have run in part.",
    {"source": "sluicegate", "reason": "shutting_down", "delivered": "unknown", "retryable": False},
)
_RETRY: Final[Fields] = (("Retry-After", "1"),)


class HttpRequest(Protocol):
    """A request with its body, and the way to answer it: of our own HTTP module, or of an ASGI server."""

    @property
    def method(self) -> str: ...
    @property
    def root(self) -> str: ...  # The path that the client sees in front of `path`.
    @property
    def path(self) -> str: ...
    @property
    def query(self) -> str: ...
    @property
    def headers(self) -> Headers: ...
    @property
    def body(self) -> bytes: ...
    @property
    def disconnected(self) -> bool: ...
    def on_disconnect(self, callback: Callable[[], object]) -> None: ...
    def respond(self, status: int, headers: Fields = (), body: bytes = b"") -> None: ...
    def start(self, status: int, headers: Fields = ()) -> None: ...
    def write(self, data: bytes) -> None: ...
    @property
    def is_behind(self) -> bool: ...  # Whether `drain` may have to wait.
    async def drain(self) -> None: ...
    def end(self) -> None: ...
    def abort(self) -> None: ...


def status_of(code: int, *, modern: bool) -> int:
    """The HTTP status of an error. The session era has fewer of them."""
    if code in _STATUSES:
        return _STATUSES[code]
    if code in _BAD_REQUEST or (modern and code == -32602):
        return 400
    return 404 if modern and code == -32601 else 200


def refuse(request: HttpRequest, refusal: Refusal) -> None:
    """Answer with a refusal."""
    request.respond(refusal.status, (*JSON_FIELDS, *refusal.headers), refusal.body)


def fields_for(status: int, error: ErrorObject) -> Fields:
    """The headers of an error; one that may pass later says when to try again, unless it says not to."""
    may_pass_later = status in (429, 503) and (as_object(error.data) or {}).get("retryable") is not False
    return (*JSON_FIELDS, *_RETRY) if may_pass_later else JSON_FIELDS


# A Struct, though nothing of it is ever on a wire: one is made for every request, in a fraction of the time.
class ModernStream(msgspec.Struct, eq=False):
    """The answer to one request of 2026-07-28. Whoever makes one that takes events lets it be kept alive."""

    id: RequestId
    _request: HttpRequest
    _takes: Accepted
    _keepalive: KeepAlive
    _streaming: bool = False
    _over: bool = False
    _sent: int = 0

    async def send(self, message: bytes) -> None:
        """Send a message ahead of the reply; a client that takes no events gets the reply only."""
        if self._takes.events:
            self.send_now(message)
            if self._request.is_behind:
                await self._request.drain()
        # A tool that never waits would otherwise never let us hear that its client has gone.
        self._sent += 1
        if self._sent % MESSAGES_A_TURN == 0:
            await asyncio.sleep(0)

    def send_now(self, message: bytes) -> None:
        """Send a message without waiting."""
        if self._takes.events and not self._over:
            self._start()
            self._request.write(encode_event(message))

    async def reply(self, reply: Reply) -> None:
        """Send the reply."""
        self.reply_now(reply)

    def reply_now(self, reply: Reply) -> None:
        """Send the reply: as the whole body if nothing was said before, else as the last event."""
        if self._over:
            return  # a tool that swallowed its cancellation
        self._over = True
        self._keepalive.forget(self)
        try:
            body = encode_reply(self.id, reply)
        except Exception:  # An edge: the encoder runs code of the values in it, which may raise anything (R34).
            log.exception("An answer could not be encoded.")
            reply = UNENCODABLE
            body = encode_reply(self.id, reply)
        status, fields = 200, JSON_FIELDS
        if isinstance(reply, ErrorObject):
            status = _status_of_modern(reply)
            fields = fields_for(status, reply)
        # An error that has a status of its own keeps it, even for a client that wants events only.
        if self._streaming or not (self._takes.json or status != 200):
            self._start()
            self._request.write(encode_event(body))
            self._request.end()
        else:
            self._request.respond(status, fields, body)

    def abandon(self) -> None:
        """Send nothing more: nobody reads it. The connection has no other use either."""
        if not self._over:
            self._over = True
            self._keepalive.forget(self)
            self._request.abort()

    def _start(self) -> None:
        if not self._streaming:
            self._streaming = True
            self._request.start(200, EVENT_FIELDS)

    def stay_alive(self) -> None:
        """Say that we are still at it."""
        self._start()
        self._request.write(encode_comment())


def _status_of_modern(reply: ErrorObject) -> int:
    # One code stands for a server that failed and for our own failure; only the latter is HTTP's business.
    if reply.code == INTERNAL_ERROR and (as_object(reply.data) or {}).get("reason") == "internal":
        return 500
    return status_of(reply.code, modern=True)
