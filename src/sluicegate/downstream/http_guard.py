"""Checks of an HTTP request's head: Host, Origin, Content-Type, Accept (T5, T7).

They are made before the body is read, on every route, with and without authentication.
"""

import re
from collections.abc import Mapping
from typing import Final

import msgspec

from sluicegate.errors import OVERLOADED, RATE_LIMITED, SHUTTING_DOWN
from sluicegate.protocol.headers import VERSION, Claims
from sluicegate.protocol.versions import SESSION_VERSIONS
from sluicegate.runtime.identity import LATER, Refusal, RequestHeaders
from sluicegate.runtime.quota import Exceeded

_host: Final = re.compile(r"(\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::([0-9]{1,5}))?")
_blanks: Final = re.compile(r"[ \t]")
_never: Final = re.compile(r"q=0(?:\.0*)?")
LOOPBACK: Final = frozenset({"localhost", "127.0.0.1", "[::1]"})

JSON: Final = "application/json"
EVENT_STREAM: Final = "text/event-stream"


class HostPolicy(msgspec.Struct, frozen=True):
    """Which requests are let in: `hosts` are our own names, `origins` the web pages that may send requests.

    Neither is case-sensitive.
    """

    hosts: frozenset[str] = LOOPBACK
    origins: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        for field in ("hosts", "origins"):
            names: frozenset[str] = getattr(self, field)
            msgspec.structs.force_setattr(self, field, frozenset(name.lower() for name in names))

    def check(self, headers: RequestHeaders) -> Refusal | None:
        """Why a request is refused, or None."""
        hosts = headers.get_all("host")
        found = _host.fullmatch(hosts[0].lower()) if len(hosts) == 1 else None
        # A listed name with a port allows that port only; one without allows any.
        if found is None or not {found[1], found[0]} & self.hosts:
            return Refusal(421, "bad_host", "This server does not answer to that Host name.")
        origins = headers.get_all("origin")
        if origins and (len(origins) > 1 or not self._may_speak(origins[0].lower(), found[0])):
            return Refusal(403, "bad_origin", "Web pages of that Origin may not use this server.")
        return None

    def page(self, headers: RequestHeaders) -> str | None:
        """The origin of the web page that sent a request, if it is one of `origins`."""
        origin = headers.get("origin")
        return origin if origin is not None and origin.lower() in self.origins else None

    def _may_speak(self, origin: str, host: str) -> bool:
        return origin in self.origins or origin in (f"http://{host}", f"https://{host}")


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients of an endpoint may have at once, beside calls."""

    streams: int = 10_000
    """Responses that stay open without a call: GET streams, subscriptions, channels of the oldest transport."""
    streams_of_one: int = 50
    sessions: int = 10_000
    sessions_of_one: int = 100
    sessions_idle: int = 1000
    """Sessions of the local user that are kept while no request uses them. Many clients never end theirs, and the limit
    of one caller does not hold for the local user, who stands for all clients that are not authenticated."""
    session_idle: float = 30 * 60.0
    """Seconds after which an unused session ends."""
    session_lifetime: float = 24 * 3600.0
    """Seconds after which any session ends."""
    session_bytes: int = 256 * 1024 * 1024
    """Memory of all sessions, without their events. Beyond it, those that have been idle for longest end."""
    remembered: int = 256 * 1024 * 1024
    """Bytes of events that are kept for clients of all sessions that may come back for them."""


LARGE_BODY: Final = 128 * 1024
"""Bytes beyond which a body is checked and parsed in many turns of the loop, so that other clients do not wait (T4)."""


class Accepted(msgspec.Struct, frozen=True):
    """The media types that a client accepts."""

    json: bool
    events: bool


def check_body(headers: RequestHeaders) -> Refusal | None:
    """Why the body of a POST is not read, or None: web pages can send anything but JSON without asking first (T7)."""
    kinds = headers.get_all("content-type")
    if len(kinds) != 1 or kinds[0].split(";")[0].strip().lower() != JSON:
        return Refusal(415, "unsupported_media", f"Send the message as {JSON}.")
    encoding = headers.get("content-encoding")
    if encoding is not None and encoding.strip().lower() != "identity":
        return Refusal(415, "unsupported_media", "Send the message without a content encoding.")
    return None


def accepted(headers: RequestHeaders) -> Accepted:
    """What the client accepts; without the header, everything."""
    header = headers.get("accept")
    if header is None:
        return Accepted(True, True)
    wanted: dict[str, bool] = {}
    for part in _blanks.sub("", header.lower()).split(","):
        kind, *options = part.split(";")
        wanted[kind] = not any(_never.fullmatch(option) for option in options)
    return Accepted(_takes(wanted, JSON), _takes(wanted, EVENT_STREAM))


def _takes(wanted: Mapping[str, bool], kind: str) -> bool:
    """Whether a media type is accepted: its own entry counts before wildcards."""
    family = kind.split("/")[0] + "/*"
    return next((wanted[said] for said in (kind, family, "*/*") if said in wanted), False)


SESSION_HEADER: Final = "Mcp-Session-Id"


class HeadFacts(msgspec.Struct, frozen=True):
    """What follows from the headers of a request alone."""

    refusal: Refusal | None
    """Why the request is refused, whatever it asks."""
    post_refusal: Refusal | None
    """Why its body is not read, if it is a POST."""
    page: str | None
    """The allowed origin that they name: the browser needs it in the answer."""
    takes: Accepted
    session: str | None
    """The session that they name. Repeated headers are joined by commas, and no session or revision has a comma."""
    version: str | None
    """The revision that they name."""
    names_modern: bool
    claims: Claims
    """What they claim about a message of 2026-07-28."""


MAX_KNOWN: Final = 512
MAX_KNOWN_LENGTH: Final = 2048


class HeadFactsCache:
    """Facts about heads: a client sends few different ones, and `http1` gives the same object for the same bytes.

    Long heads are not cached: 512 of them would take 16 MiB.
    """

    def __init__(self, hosts: HostPolicy) -> None:
        self.known: dict[RequestHeaders, HeadFacts] = {}
        """Public, so that requests save a call."""
        self._hosts = hosts

    def look_at(self, headers: RequestHeaders) -> HeadFacts:
        """The facts about a head, cached or not."""
        facts = self.known.get(headers) or self._facts(headers)
        if sum(len(name) + len(value) for name, value in headers) <= MAX_KNOWN_LENGTH:
            if len(self.known) >= MAX_KNOWN:
                self.known.clear()  # Simpler than LRU; the few in use are back at once.
            self.known[headers] = facts
        return facts

    def _facts(self, headers: RequestHeaders) -> HeadFacts:
        takes = accepted(headers)
        refusal = check_body(headers)
        if refusal is None and not (takes.json or takes.events):
            refusal = NOT_ACCEPTABLE
        names_modern = any(version not in SESSION_VERSIONS for version in headers.get_all(VERSION))
        session, version = headers.get(SESSION_HEADER), headers.get(VERSION)
        check, page = self._hosts.check(headers), self._hosts.page(headers)
        return HeadFacts(check, refusal, page, takes, session, version, names_modern, Claims(headers.get_all))


NOT_ACCEPTABLE: Final = Refusal(406, "not_acceptable", f"Accept {JSON} and {EVENT_STREAM}.")
NOT_FOUND: Final = Refusal(404, "not_found", "There is nothing here.")
STOPPING: Final = Refusal(503, "shutting_down", "The server is about to stop.", LATER, SHUTTING_DOWN)


def too_many(exceeded: Exceeded, what: str) -> Refusal:
    """The refusal of one more stream or session."""
    if exceeded is Exceeded.PER_CALLER:
        return Refusal(429, "rate_limited", f"You have too many {what}; try again later.", LATER, RATE_LIMITED)
    return Refusal(503, "overloaded", f"There are too many {what}; try again later.", LATER, OVERLOADED)
