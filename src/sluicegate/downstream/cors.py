"""Answers that web pages of allowed origins may read (CORS). Pages of all other origins get no such header (T7).

A page on an allowed origin is a client like any other: it sends no cookies, so there are no credentials to allow, and
`*` covers all headers but `Authorization`. A browser asks first, by OPTIONS, whether the page may send its request.
"""

from collections.abc import Callable
from typing import Final

from sluicegate.downstream.http_response import HttpRequest
from sluicegate.runtime.identity import Fields, RequestHeaders

_EXPOSED: Final = (("Access-Control-Expose-Headers", "Mcp-Session-Id, Retry-After, WWW-Authenticate"),)
_PREFLIGHT: Final[Fields] = (
    ("Access-Control-Allow-Methods", "GET, POST, DELETE"),
    ("Access-Control-Allow-Headers", "*, Authorization"),
    ("Access-Control-Max-Age", "600"),
)


def for_page(request: HttpRequest, origin: str) -> HttpRequest | None:
    """The request, with answers that pages of this origin can read; None if it was a preflight, which is answered."""
    allow = (("Access-Control-Allow-Origin", origin), ("Vary", "Origin"))
    if request.method == "OPTIONS" and request.headers.get("access-control-request-method") is not None:
        request.respond(204, (*allow, *_PREFLIGHT))
        return None
    return _ReadableByPage(request, (*allow, *_EXPOSED))


class _ReadableByPage:
    """A request whose answers have more headers."""

    __slots__ = ("_fields", "_request")

    def __init__(self, request: HttpRequest, fields: Fields) -> None:
        self._request = request
        self._fields = fields

    def respond(self, status: int, headers: Fields = (), body: bytes = b"") -> None:
        self._request.respond(status, (*headers, *self._fields), body)

    def start(self, status: int, headers: Fields = ()) -> None:
        self._request.start(status, (*headers, *self._fields))

    # All else is the request's own.

    @property
    def method(self) -> str:
        return self._request.method

    @property
    def path(self) -> str:
        return self._request.path

    @property
    def headers(self) -> RequestHeaders:
        return self._request.headers

    @property
    def peer(self) -> str:
        return self._request.peer

    @property
    def scheme(self) -> str:
        return self._request.scheme

    @property
    def root(self) -> str:
        return self._request.root

    @property
    def query(self) -> str:
        return self._request.query

    @property
    def body(self) -> bytes:
        return self._request.body

    @property
    def disconnected(self) -> bool:
        return self._request.disconnected

    @property
    def is_behind(self) -> bool:
        return self._request.is_behind

    @property
    def unsent(self) -> int:
        return self._request.unsent

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        self._request.on_disconnect(callback)

    def write(self, data: bytes) -> None:
        self._request.write(data)

    async def drain(self) -> None:
        await self._request.drain()

    def end(self) -> None:
        self._request.end()

    def refused(self, reason: str) -> None:
        self._request.refused(reason)

    def abort(self) -> None:
        self._request.abort()
