"""One request of an ASGI server: buffers what the endpoint writes, and sends it as the server accepts it."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any, Final, NotRequired, TypedDict, cast

from sluicegate.errors import LocalProtocolError
from sluicegate.http1 import Headers, Limits
from sluicegate.runtime.identity import Fields, Refusal

Scope = Mapping[str, Any]
Receive = Callable[[], Awaitable[Mapping[str, Any]]]
Send = Callable[[dict[str, object]], Awaitable[None]]

_LIMITS: Final = Limits()
AT_ONCE: Final = 64 * 1024
"""Bytes handed to the server at once, so that the progress of a slow client can be seen."""
MAX_UNSENT_ANSWER: Final = 16 * 1024 * 1024
"""Bytes of one answer that may wait when more is written: a client further behind is cut off (R24)."""

MAX_KNOWN: Final = 2048
"""Bytes of headers that are cached."""
MAX_FIELDS: Final = 128
"""Headers of one request, as in our own HTTP module: each takes a hundred bytes beside its text."""

_TOO_LARGE: Final = Refusal(413, "body_too_large", "The request's body is too large.")
_TOO_MANY: Final = Refusal(431, "too_many_headers", "The request has too many headers.")
_TOO_SLOW: Final = Refusal(408, "slow_request", "The request did not arrive in time.")

# The stages of an answer.
_UNANSWERED: Final = 0
_STREAMING: Final = 1
_ANSWERED: Final = 2


class HttpScope(TypedDict):
    """The keys of an ASGI scope that we use."""

    method: str
    path: str
    headers: Iterable[tuple[bytes, bytes]]
    root_path: NotRequired[str]
    app_root_path: NotRequired[str]  # Starlette's: the root path of the outermost app.
    query_string: NotRequired[bytes]
    scheme: NotRequired[str]
    client: NotRequired[tuple[str, int] | None]


class AsgiRequest:
    """An ASGI request as an `HttpRequest`: the endpoint writes without waiting, and `carry` sends it."""

    def __init__(self, scope: Scope) -> None:
        http = cast(HttpScope, scope)
        self.scope = scope
        self.method = http["method"]
        self.root, self.path = _mount_and_path(http)
        self.query = http.get("query_string", b"").decode("latin-1")
        self.headers = read_headers(http["headers"])
        client = http.get("client")
        self.peer = client[0] if client else ""
        self.scheme = "https" if http.get("scheme") in ("https", "wss") else "http"
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
        """Call this when the client hangs up before its answer is complete; at once if it has already."""
        if self.disconnected:
            callback()
        else:
            self._listeners.append(callback)

    def refused(self, reason: str) -> None:
        """Report nothing: the server in front of us has a log of its own."""

    def respond(self, status: int, headers: Fields = (), body: bytes = b"") -> None:
        length: Fields = () if status in (204, 304) else (("Content-Length", str(len(body))),)
        self._begin(status, (*headers, *length))
        self._finish()
        self._add(body)

    def start(self, status: int, headers: Fields = ()) -> None:
        self._begin(status, headers)
        self._stage = _STREAMING

    def write(self, data: bytes) -> None:
        """Send more of the answer; parts are joined while the server is busy."""
        if self._stage != _STREAMING:
            raise LocalProtocolError("write() is allowed between start() and end() only.")
        self._add(data)

    @property
    def is_behind(self) -> bool:
        return self._unsent > _LIMITS.unsent

    @property
    def unsent(self) -> int:
        """Bytes that the server has not sent yet."""
        return self._unsent

    async def drain(self) -> None:
        """Wait while too much is unsent, until the server has sent it or the client is gone."""
        while self._unsent > _LIMITS.unsent:
            self._taken.clear()
            await self._taken.wait()

    def end(self) -> None:
        if self._stage != _STREAMING:
            raise LocalProtocolError("end() without start().")
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
        self._listeners.clear()  # A hang-up from now on changes nothing.
        self._news.set()

    def _add(self, data: bytes) -> None:
        if self._unsent > MAX_UNSENT_ANSWER:
            self.leave()  # Not all writers can wait: pings are answered as fast as a client posts them.
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
        return self._stage == _ANSWERED

    async def read_body(self, receive: Receive) -> Refusal | None:
        """Read the body, or return why it is not read any further."""
        if len(self.headers.items) > MAX_FIELDS:
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
        """Send the answer as it comes, until it is complete or the client is gone."""
        try:
            await self._next()
            if not self._lost:
                await _within_reason(send(self._head))
            while not self._lost:
                # Read together: new parts may come while the server sends these.
                data, last = b"".join(self._parts), self.complete
                self._parts.clear()
                await self._hand_on(data, last, send)
                if last:
                    return
                await self._next()
        except (OSError, TimeoutError):
            # Servers report a gone client with OSError; the timeout is ours, for a client that reads nothing.
            self.leave()

    async def watch(self, receive: Receive) -> None:
        """Wait until the client hangs up, then call the listeners."""
        # Other messages after the body have no meaning.
        while (await receive())["type"] != "http.disconnect":
            continue
        self.leave()

    def leave(self) -> None:
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


def read_headers(given: Iterable[tuple[bytes, bytes]]) -> Headers:
    """The headers of a request: the same object for the same headers, so that what follows is computed once."""
    pairs = tuple([(name, value) for name, value in given])
    is_usual = len(pairs) <= MAX_FIELDS and sum(len(name) + len(value) for name, value in pairs) <= MAX_KNOWN
    return _cached_headers(pairs) if is_usual else Headers(_fields(pairs))


@lru_cache(maxsize=256)
def _cached_headers(pairs: tuple[tuple[bytes, bytes], ...]) -> Headers:
    return Headers(_fields(pairs))


async def _within_reason(sending: Awaitable[None]) -> None:
    """Wait for the server to send something.

    Raises:
        TimeoutError: the client has read nothing for too long.
    """
    async with asyncio.timeout(_LIMITS.blocked_time):
        await sending


def _mount_and_path(scope: HttpScope) -> tuple[str, str]:
    """The mount path and the path below it, as the router of the outer app sees them.

    Not the path as it was sent: access rules of the outer app apply to the path that its router sees.
    """
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    # Behind a proxy that strips a prefix, the path lacks the root path of the outer app.
    for mount in (root, root.removeprefix(scope.get("app_root_path", "").rstrip("/"))):
        if mount and (path == mount or path.startswith(f"{mount}/")):
            return root, path[len(mount) :] or "/"
    return root, path


def _fields(headers: Iterable[tuple[bytes, bytes]]) -> Fields:
    fields = [(name.decode("latin-1").lower(), value.decode("latin-1").strip(" \t")) for name, value in headers]
    hosts = [field for field in fields if field[0] == "host"]
    if len(hosts) > 1 and len(set(hosts)) == 1:
        # HTTP/2 may send it twice, as :authority too, and servers pass both. Two that differ stay, and are refused.
        fields = [hosts[0], *(field for field in fields if field[0] != "host")]
    return tuple(fields)
