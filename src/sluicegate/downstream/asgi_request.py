"""One request of an ASGI server: what the endpoint writes without waiting, handed on as the server takes it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NotRequired, TypedDict, cast

from sluicegate.downstream.doors import Fields, Refusal
from sluicegate.errors import LocalProtocolError
from sluicegate.http1 import Headers, Limits

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, object]], Awaitable[None]]

_LIMITS: Final = Limits()
AT_ONCE: Final = 64 * 1024
"""Bytes handed to the server in one piece, so that a slow client is seen to take some of them."""
MOST_UNSENT: Final = 16 * 1024 * 1024
"""Bytes of one answer that may wait when more is written: a client so far behind is given up (R24)."""

MOST_KNOWN: Final = 256
LONGEST_KNOWN: Final = 2048
MOST_FIELDS: Final = 128
"""Of one request, as our own HTTP module has it: each takes a hundred bytes more than it has."""

_TOO_LARGE: Final = Refusal(413, "body_too_large", "The request's body is too large.")
_TOO_MANY: Final = Refusal(431, "too_many_headers", "The request has too many headers.")
_TOO_SLOW: Final = Refusal(408, "slow_request", "The request did not arrive in time.")

# How far an answer is.
_UNANSWERED: Final = 0
_STREAMING: Final = 1
_ANSWERED: Final = 2


class HttpScope(TypedDict):
    """What an ASGI server says of a request before its body; only what we look at."""

    method: str
    path: str
    headers: Iterable[tuple[bytes, bytes]]
    root_path: NotRequired[str]
    app_root_path: NotRequired[str]  # Starlette's: the root path of the outermost app.
    query_string: NotRequired[bytes]


class AsgiRequest:
    """One request of an ASGI server, as the endpoint sees it: it writes without waiting, `carry` hands it on."""

    def __init__(self, scope: Scope, known: "KnownHeaders | None" = None) -> None:
        http = cast(HttpScope, scope)
        self.scope = scope
        self.method = http["method"]
        self.root, self.path = _places(http)
        self.query = http.get("query_string", b"").decode("latin-1")
        self.headers = (known or KnownHeaders()).read(http["headers"])
        self.body = b""
        self.disconnected = False
        self._stage = _UNANSWERED
        self._aborted = False
        self._listeners: list[Callable[[], object]] = []
        self._head: dict[str, object] = {}
        self._parts: list[bytes] = []
        self._unsent = 0
        self._news = asyncio.Event()
        self._taken = asyncio.Event()

    # ---------------------------------------------------------------------------------------------- for the endpoint

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Call this when the client hangs up before it has its answer; at once if it has already."""
        if self.disconnected:
            callback()
        else:
            self._listeners.append(callback)

    def respond(self, status: int, headers: Fields = (), body: bytes = b"") -> None:
        """Answer in one piece."""
        length: Fields = () if status in (204, 304) else (("Content-Length", str(len(body))),)
        self._begin(status, (*headers, *length))
        self._finish()
        self._add(body)

    def start(self, status: int, headers: Fields = ()) -> None:
        """Begin an answer whose end is not known yet."""
        self._begin(status, headers)
        self._stage = _STREAMING

    def write(self, data: bytes) -> None:
        """Send more of the answer; what is written while the server takes the last piece leaves together."""
        if self._stage != _STREAMING:
            raise LocalProtocolError("Only between start and end can more be written.")
        self._add(data)

    @property
    def is_behind(self) -> bool:
        """Whether `drain` has to wait."""
        return self._unsent > _LIMITS.unsent

    async def drain(self) -> None:
        """Wait, if too much is unsent, until the server has taken it or the client is gone."""
        while self._unsent > _LIMITS.unsent:
            self._taken.clear()
            await self._taken.wait()

    def end(self) -> None:
        """Complete the answer that was started."""
        if self._stage != _STREAMING:
            raise LocalProtocolError("There is no answer to end.")
        self._finish()

    def abort(self) -> None:
        """Leave the answer incomplete; the server then cuts the connection, or the stream of HTTP/2."""
        self._finish()
        self._aborted = True
        self._drop()

    def _begin(self, status: int, headers: Fields) -> None:
        if self._stage != _UNANSWERED:
            raise LocalProtocolError("The request is answered already.")
        # Lower case, as HTTP/2 wants it.
        pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in headers]
        self._head = {"type": "http.response.start", "status": status, "headers": pairs}

    def _finish(self) -> None:
        self._stage = _ANSWERED
        self._listeners.clear()  # Whether the client hears the end of it is nobody's concern any more.
        self._news.set()

    def _add(self, data: bytes) -> None:
        if self._unsent > MOST_UNSENT:
            self.leave()  # Not all who write can wait: pings are answered as fast as a client posts them.
        elif not self.disconnected:
            self._parts.append(data)
            self._unsent += len(data)
            self._news.set()

    def _drop(self) -> None:
        self._parts.clear()
        self._unsent = 0
        self._taken.set()
        self._news.set()

    # ------------------------------------------------------------------------------------------- for the ASGI server

    @property
    def complete(self) -> bool:
        """Whether all of the answer is there."""
        return self._stage == _ANSWERED

    async def read_body(self, receive: Receive) -> Refusal | None:
        """Read the body, or return why it is not read any further."""
        if len(self.headers.items) > MOST_FIELDS:
            return _TOO_MANY
        told = self.headers.get("content-length") or ""
        if told.isdecimal() and (len(told) > 18 or int(told) > _LIMITS.body):
            return _TOO_LARGE
        parts: list[bytes] = []
        size = 0
        try:
            async with asyncio.timeout(_LIMITS.body_time):
                more = True
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        self.disconnected = True
                        return None
                    parts.append(message.get("body", b""))
                    size += len(parts[-1])
                    if size > _LIMITS.body:
                        return _TOO_LARGE
                    more = message.get("more_body", False)
        except TimeoutError:
            return _TOO_SLOW
        self.body = b"".join(parts)
        return None

    async def carry(self, send: Send) -> None:
        """Hand the answer to the server as it comes, until it is complete or nobody takes it any more."""
        try:
            await self._next()
            if not self._lost:
                await _within_reason(send(self._head))
            while not self._lost:
                # Taken together: a new part may come while the server has these.
                data, last = b"".join(self._parts), self.complete
                self._parts.clear()
                await self._hand_on(data, last, send)
                if last:
                    return
                await self._next()
        except (OSError, TimeoutError):
            # Servers say in this way that the client has gone, and we that it takes nothing.
            self.leave()

    async def watch(self, receive: Receive) -> None:
        """Wait until the client hangs up, and tell those who want to know."""
        # Whatever else comes behind the body says nothing.
        while (await receive())["type"] != "http.disconnect":
            continue
        self.leave()

    def leave(self) -> None:
        """Take note that nobody listens any more."""
        if not self.disconnected:
            self.disconnected = True
            self._drop()
            listeners, self._listeners = self._listeners, []
            for callback in listeners:
                callback()

    @property
    def _lost(self) -> bool:
        return self.disconnected or self._aborted

    async def _next(self) -> None:
        """Wait for something to hand on."""
        while not (self._parts or self.complete or self._lost):
            self._news.clear()
            await self._news.wait()

    async def _hand_on(self, data: bytes, last: bool, send: Send) -> None:
        position = 0
        while not self._lost:
            piece = data[position : position + AT_ONCE]
            position += AT_ONCE
            ended = position >= len(data)
            await _within_reason(send({"type": "http.response.body", "body": piece, "more_body": not (last and ended)}))
            if not self._lost:
                self._unsent -= len(piece)
                self._taken.set()
            if ended:
                return


class KnownHeaders:
    """The headers of requests: one object for those that are the same.

    A client sends few different ones. What they mean is found out for the object, once.
    """

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[bytes, bytes], ...], Headers] = {}

    def read(self, given: Iterable[tuple[bytes, bytes]]) -> Headers:
        """The headers that an ASGI server gives."""
        pairs = tuple([(name, value) for name, value in given])
        headers = self._known.get(pairs)
        if headers is None:
            headers = Headers(_fields(pairs))
            if len(pairs) <= MOST_FIELDS and sum(len(name) + len(value) for name, value in pairs) <= LONGEST_KNOWN:
                if len(self._known) >= MOST_KNOWN:
                    self._known.clear()  # The few in use are back at once.
                self._known[pairs] = headers
        return headers


async def _within_reason(sending: Awaitable[None]) -> None:
    """Wait for the server to take something; a client that takes nothing for so long is given up."""
    async with asyncio.timeout(_LIMITS.blocked_time):
        await sending


def _places(scope: HttpScope) -> tuple[str, str]:
    """Where we are mounted, and the path from there, as the router of the app around us sees them.

    Not the path as it was sent: whoever guards a place out there guards what their router calls so.
    """
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    # Behind a proxy that takes a prefix away, the path lacks what the app around us was told to put before its own.
    for mount in (root, root.removeprefix(scope.get("app_root_path", "").rstrip("/"))):
        if mount and (path == mount or path.startswith(f"{mount}/")):
            return root, path[len(mount) :] or "/"
    return root, path


def _fields(headers: Iterable[tuple[bytes, bytes]]) -> Fields:
    fields = [(name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t")) for name, value in headers]
    hosts = [field for field in fields if field[0] == "host"]
    if len(hosts) > 1 and len(set(hosts)) == 1:
        # HTTP/2 may say it twice, as :authority too, and servers hand on both. Two that differ stay two, and refused.
        fields = [hosts[0], *(field for field in fields if field[0] != "host")]
    return tuple(fields)
