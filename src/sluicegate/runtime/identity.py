"""How an HTTP endpoint learns which caller sent a request: the contract between the endpoint and `identify`.

Rooms do not import each other, so the types that the endpoint and an authentication share are here.
"""

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Final, Protocol

import msgspec

from sluicegate.errors import INVALID_REQUEST, ErrorObject
from sluicegate.exchange import Caller
from sluicegate.protocol.message import Response, encode

Fields = tuple[tuple[str, str], ...]
LATER: Final[Fields] = (("Retry-After", "1"),)
"""Of refusals that may pass when the request is sent again."""


class RequestHeaders(Protocol):
    """The headers of a request; names in any case."""

    def get(self, name: str) -> str | None: ...  # The values of several lines are joined by commas.
    def get_all(self, name: str) -> Sequence[str]: ...
    def __iter__(self) -> Iterator[tuple[str, str]]: ...  # Names in lower case.


class IncomingRequest(Protocol):
    """The part of an HTTP request that `identify` may use. The body may not be judged yet."""

    @property
    def method(self) -> str: ...
    @property
    def path(self) -> str: ...  # Below the mount, as sent: compare it exactly.
    @property
    def headers(self) -> RequestHeaders: ...
    @property
    def peer(self) -> str: ...  # The address of the client, without the port; empty if it is unknown.
    @property
    def scheme(self) -> str: ...  # http or https; also for a WebSocket.


class Refusal(msgspec.Struct, frozen=True):
    """A status, and a sentence that is safe to show."""

    status: int
    reason: str
    sentence: str
    headers: Fields = ()
    code: int = INVALID_REQUEST

    @property
    def error(self) -> ErrorObject:
        """The refusal as a JSON-RPC error; `retryable` if it says when to try again."""
        later = self.headers == LATER
        data = {"source": "sluicegate", "reason": self.reason, "delivered": "no", "retryable": later}
        return ErrorObject(self.code, self.sentence, data)

    @property
    def body(self) -> bytes:
        """The refusal as a JSON-RPC message, for clients that look at the body only."""
        return encode(Response(None, self.error))


Identity = Caller | Refusal
Identify = Callable[[IncomingRequest], Identity | Awaitable[Identity]]
"""Returns the caller of a request, or the refusal to send.

Called once for each request, after the checks of Host and Origin and before any route. Return an awaitable only where
it has to wait: a plain value costs neither a coroutine nor a task.
"""
