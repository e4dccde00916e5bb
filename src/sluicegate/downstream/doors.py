"""May an HTTP request come in at all? Where it comes from, for whom it is, what it brings, what it takes (T5, T7).

Decided before anything of its body is looked at, on every route, with and without authentication.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, Protocol

import msgspec

from sluicegate.errors import INVALID_REQUEST, ErrorObject
from sluicegate.protocol.message import Response, encode

_host: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_blanks: Final = re.compile(r"[ \t]")
_never: Final = re.compile(r"q=0(?:\.0*)?")
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})

JSON: Final = "application/json"
EVENTS: Final = "text/event-stream"

Fields = tuple[tuple[str, str], ...]
LATER: Final[Fields] = (("Retry-After", "1"),)
"""For what may pass when it is tried again."""


class Headers(Protocol):
    """The headers of a request; names in any case."""

    def get(self, name: str) -> str | None: ...  # What several lines say is joined by commas.
    def get_all(self, name: str) -> Sequence[str]: ...
    def __iter__(self) -> Iterator[tuple[str, str]]: ...  # Names in lower case.


class Refusal(msgspec.Struct, frozen=True):
    """A status, and a sentence that is safe to show."""

    status: int
    reason: str
    sentence: str
    headers: Fields = ()
    code: int = INVALID_REQUEST

    @property
    def error(self) -> ErrorObject:
        """The refusal as JSON-RPC says it. The same request may pass later if it is told when to try again."""
        later = self.headers == LATER
        data = {"source": "sluicegate", "reason": self.reason, "delivered": "no", "retryable": later}
        return ErrorObject(self.code, self.sentence, data)

    @property
    def body(self) -> bytes:
        """The refusal as a message, for clients that read nothing else."""
        return encode(Response(None, self.error))


class Doors(msgspec.Struct, frozen=True):
    """Who may come in: `hosts` are names that we answer to, `origins` the web pages that may speak to us.

    Both in any case: neither a host name nor what an origin is made of knows one.
    """

    hosts: frozenset[str] = LOOPBACK
    origins: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for field in ("hosts", "origins"):
            names: frozenset[str] = getattr(self, field)
            msgspec.structs.force_setattr(self, field, frozenset(name.lower() for name in names))

    def check(self, headers: Headers) -> Refusal | None:
        """Why a request may not come in, or None if it may."""
        hosts = headers.get_all("host")
        found = _host.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        # A name with a port of the list's own is held to that port; without one, any port is meant.
        if found is None or not {found[1], found[0]} & self.hosts:
            return Refusal(421, "bad_host", "This server does not answer to that host name.")
        origins = headers.get_all("origin")
        if origins and (len(origins) > 1 or not self._may_speak(origins[0].lower(), found[0])):
            return Refusal(403, "bad_origin", "Pages of that origin may not speak to this server.")
        return None

    def _may_speak(self, origin: str, host: str) -> bool:
        return origin in self.origins or origin in (f"http://{host}", f"https://{host}")


class Accepted(msgspec.Struct, frozen=True):
    """What a client takes for an answer."""

    json: bool
    events: bool


def check_body(headers: Headers) -> Refusal | None:
    """Why the body of a POST is not read, or None if it is: only JSON can be sent by no web page unasked."""
    kinds = headers.get_all("content-type")
    if len(kinds) != 1 or kinds[0].split(";")[0].strip().lower() != JSON:
        return Refusal(415, "unsupported_media", f"Send the message as {JSON}.")
    encoding = headers.get("content-encoding")
    if encoding is not None and encoding.strip().lower() != "identity":
        return Refusal(415, "unsupported_media", "Send the message without a content encoding.")
    return None


def accepted(headers: Headers) -> Accepted:
    """What the client takes; one that says nothing takes everything."""
    header = headers.get("accept")
    if header is None:
        return Accepted(True, True)
    wanted: dict[str, bool] = {}
    for part in _blanks.sub("", header.lower()).split(","):
        kind, *options = part.split(";")
        wanted[kind] = not any(_never.fullmatch(option) for option in options)
    return Accepted(_takes(wanted, JSON), _takes(wanted, EVENTS))


def _takes(wanted: Mapping[str, bool], kind: str) -> bool:
    """Whether a kind is wanted: what is said of it alone counts more than what is said of all."""
    family = kind.split("/")[0] + "/*"
    return next((wanted[said] for said in (kind, family, "*/*") if said in wanted), False)


NOT_ACCEPTABLE: Final = Refusal(406, "not_acceptable", f"Accept {JSON} and {EVENTS}.")
NOT_FOUND: Final = Refusal(404, "not_found", "There is nothing here.")
