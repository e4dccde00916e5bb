"""The answer to an HTTP request: one JSON body if nothing is sent ahead of the reply, else an event stream.

Decided late, so that an early error keeps its status.
"""

import asyncio
import math
from collections.abc import Callable
from itertools import takewhile
from typing import Final, Protocol

import msgspec

from sluicegate.downstream.duplex import MESSAGES_A_TURN
from sluicegate.downstream.http_guard import EVENT_STREAM, JSON, Accepted
from sluicegate.errors import INTERNAL_ERROR, OVERLOADED, RATE_LIMITED, SHUTTING_DOWN, ErrorObject
from sluicegate.protocol.message import Reply, RequestId, as_object, encode_any_reply
from sluicegate.protocol.sse import encode_comment, encode_event
from sluicegate.runtime.identity import LATER, Fields, IncomingRequest, Refusal

EVENT_FIELDS: Final[Fields] = (
    ("Content-Type", EVENT_STREAM),
    ("Cache-Control", "no-cache, no-transform"),
    ("X-Accel-Buffering", "no"),
)
JSON_FIELDS: Final[Fields] = (("Content-Type", JSON),)

_BAD_REQUEST: Final = frozenset({-32700, -32600, -32020, -32021, -32022})
_STATUSES: Final = {RATE_LIMITED: 429, OVERLOADED: 503, 1030: 503, SHUTTING_DOWN: 503}

KEEP_ALIVE: float = 15.0
"""Seconds after which a stream sends a comment; proxies close silent connections."""


class HttpRequest(IncomingRequest, Protocol):
    """A request with its body, and the way to answer it: of our own HTTP module, or of an ASGI server."""

    @property
    def root(self) -> str: ...  # The path that the client sees in front of `path`.
    @property
    def query(self) -> str: ...
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
    @property
    def unsent(self) -> int: ...  # Bytes that the client has not read yet.
    def end(self) -> None: ...
    def refused(self, reason: str) -> None: ...
    def abort(self) -> None: ...


def status_of(code: int, *, modern: bool) -> int:
    """The HTTP status of an error. The session era has fewer of them."""
    if code in _STATUSES:
        return _STATUSES[code]
    if code in _BAD_REQUEST or (modern and code == -32602):
        return 400
    return 404 if modern and code == -32601 else 200


def refuse(request: HttpRequest, refusal: Refusal) -> None:
    """Answer a request that is refused before it is handled."""
    request.refused(refusal.reason)
    request.respond(refusal.status, (*JSON_FIELDS, *refusal.headers), refusal.body)


def fields_for(status: int, error: ErrorObject) -> Fields:
    """The headers of an error; with Retry-After if the request may pass later."""
    data = as_object(error.data) or {}
    if status not in (429, 503) or data.get("retryable") is False:
        return JSON_FIELDS
    seconds = data.get("retryAfter")
    return (*JSON_FIELDS, *((("Retry-After", str(seconds)),) if isinstance(seconds, int) else LATER))


class WaitingStream(Protocol):
    """A stream on which a client waits."""

    def stay_alive(self) -> None:
        """Send something; called every `KEEP_ALIVE` seconds until the stream is forgotten."""
        ...


class KeepAlive:
    """Calls `stay_alive` of each watched stream every `KEEP_ALIVE` seconds, or as many as are given."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        # All wait for the same time, so the order in which they came is the order in which they are due.
        self._due: Final[dict[WaitingStream, float]] = {}
        self._timer: asyncio.TimerHandle | None = None
        self._timer_at = math.inf
        self._loop: asyncio.AbstractEventLoop | None = None  # Kept: each look-up is a system call.

    def __len__(self) -> int:
        return len(self._due)

    def watch(self, stream: WaitingStream) -> None:
        """Watch a stream from now on; if it is watched already, its time begins again."""
        loop = self._loop
        if loop is None:
            loop = self._loop = asyncio.get_running_loop()
        self._due.pop(stream, None)
        due = self._due[stream] = loop.time() + (self._seconds or KEEP_ALIVE)
        if due < self._timer_at:
            self._set_timer(loop, due)

    def forget(self, stream: WaitingStream) -> None:
        """Stop watching a stream. Doing it twice does no harm."""
        self._due.pop(stream, None)

    def close(self) -> None:
        self._due.clear()
        self._loop = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
            self._timer_at = math.inf

    def _set_timer(self, loop: asyncio.AbstractEventLoop, due: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = due
        self._timer = loop.call_at(due, self._call_due)

    def _call_due(self) -> None:
        self._timer = None
        self._timer_at = math.inf
        loop = asyncio.get_running_loop()
        now = loop.time()
        # Streams that ended are not in the table any more, so few are left.
        try:
            for stream, _ in list(takewhile(lambda entry: entry[1] <= now, self._due.items())):
                # Watched again before it sends: sending may end it.
                if self._due.pop(stream, None) is not None:
                    self.watch(stream)
                    stream.stay_alive()
        finally:
            if self._due:
                due = next(iter(self._due.values()))
                if due < self._timer_at:
                    self._set_timer(loop, due)


# A Struct, though it is never on a wire: one is made for every request, in a fraction of the time.
class ModernStream(msgspec.Struct, eq=False):
    """The answer to one request of 2026-07-28. If it accepts events, its creator has it watched by `KeepAlive`."""

    id: RequestId
    _request: HttpRequest
    _takes: Accepted
    _keepalive: KeepAlive
    _streaming: bool = False
    _over: bool = False
    _sent: int = 0

    async def send(self, message: bytes) -> None:
        """Send a message ahead of the reply; a client that accepts no events gets the reply only."""
        if self._takes.events:
            self.send_now(message)
            if self._request.is_behind:
                await self._request.drain()
        # A tool that never waits would otherwise keep us from noticing that its client has gone.
        self._sent += 1
        if self._sent % MESSAGES_A_TURN == 0:
            await asyncio.sleep(0)

    def send_now(self, message: bytes) -> None:
        if self._takes.events and not self._over:
            self._start()
            self._request.write(encode_event(message))

    def reply(self, reply: Reply) -> None:
        """Send the reply: as the whole body if nothing was sent before, else as the last event."""
        if self._over:
            return  # a tool that swallowed its cancellation
        self._over = True
        self._keepalive.forget(self)
        body, reply = encode_any_reply(self.id, reply)
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
        """Send nothing more, and close the connection: the client is gone."""
        if not self._over:
            self._over = True
            self._keepalive.forget(self)
            self._request.abort()

    def _start(self) -> None:
        if not self._streaming:
            self._streaming = True
            self._request.start(200, EVENT_FIELDS)

    def stay_alive(self) -> None:
        """Send a comment, so that proxies keep the connection."""
        self._start()
        self._request.write(encode_comment())


def _status_of_modern(reply: ErrorObject) -> int:
    # The code is used for failures of servers and for our own; only the latter has an HTTP status.
    if reply.code == INTERNAL_ERROR and (as_object(reply.data) or {}).get("reason") == "internal":
        return 500
    return status_of(reply.code, modern=True)
