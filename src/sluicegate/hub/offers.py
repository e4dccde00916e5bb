"""What one server offers, as it said it: every page of its lists, unknown members included."""

import logging
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from sluicegate.errors import METHOD_NOT_FOUND, ErrorObject, UpstreamProtocolError
from sluicegate.exchange import NOBODY, Connection, Exchange
from sluicegate.hub.circles import gateway_of, not_from
from sluicegate.protocol.discovery import Discovery
from sluicegate.protocol.gathering import Gathering, Kind
from sluicegate.protocol.message import Params, as_object, opened
from sluicegate.protocol.methods import LIST_CHANGES
from sluicegate.protocol.modern import Profile
from sluicegate.protocol.read_types import (
    read_prompt,
    read_resource,
    read_resource_template,
    read_tool,
)

log = logging.getLogger("sluicegate")

Entries = tuple[Params, ...]


class OfferLimits(msgspec.Struct, frozen=True):
    """How much one server may offer (threats §3)."""

    entries: int = 2_000
    """Of one list."""
    description: int = 16 * 1024
    schema: int = 256 * 1024


class Offer(msgspec.Struct, frozen=True):
    """The four lists of a server, each entry as it came, and how long they may be kept."""

    tools: Entries = ()
    prompts: Entries = ()
    resources: Entries = ()
    templates: Entries = ()
    ttl_ms: int = 0
    is_public: bool = False
    takes_tasks: bool = False
    """Whether its tools may be called as tasks of 2025-11-25."""
    leads_back: bool = False
    """Whether it is a gateway that has some of its offer from us, which is left out."""


def changed_lists(before: Offer | None, after: Offer) -> frozenset[str]:
    """What a server sends when the lists change in which two of its offers differ."""
    before = before or Offer()
    pairs = {
        "toolsListChanged": (before.tools, after.tools),
        "promptsListChanged": (before.prompts, after.prompts),
        "resourcesListChanged": ((before.resources, before.templates), (after.resources, after.templates)),
    }
    return frozenset(LIST_CHANGES[flag] for flag, (old, new) in pairs.items() if old != new)


def _as_it_came(read: Callable[[object], object]) -> Callable[[object], Params]:
    """An entry unchanged, if it is one at all: what we do not know of it others may."""

    def check(entry: object) -> Params:
        read(entry)
        return as_object(entry) or {}

    return check


def _text_of(member: str) -> Callable[[Params], str]:
    return lambda entry: str(entry[member])


LISTS: Final[Mapping[str, tuple[str, Kind[Params]]]] = {
    "tools": ("tools", Kind("tools/list", "tools", _as_it_came(read_tool), _text_of("name"))),
    "prompts": ("prompts", Kind("prompts/list", "prompts", _as_it_came(read_prompt), _text_of("name"))),
    "resources": ("resources", Kind("resources/list", "resources", _as_it_came(read_resource), _text_of("uri"))),
    "templates": (
        "resources",
        Kind(
            "resources/templates/list",
            "resourceTemplates",
            _as_it_came(read_resource_template),
            _text_of("uriTemplate"),
        ),
    ),
}
"""Each list by its name in an offer: the capability it needs, and how it is gathered."""


async def fetch_offer(name: str, connection: Connection, limits: OfferLimits, ourselves: str = "") -> Offer:
    """All that a server offers now, but for what it has from us.

    Raises:
        UpstreamError: it went away, or a list that it announced cannot be had.
    """
    found: dict[str, Entries] = {}
    leads_back = False
    lives: list[tuple[int, bool]] = []
    for member, (capability, kind) in LISTS.items():
        if capability in connection.discovery.capabilities:
            gateway, entries = await _fetch(name, connection, kind, lives, limits)
            if gateway:
                kept, is_back = not_from(ourselves, gateway, entries)
                entries, leads_back = tuple(kept), leads_back or is_back
            found[member] = entries
    # As long as the shortest-lived of them, and for everybody only if all of them are.
    ttl_ms = min((ttl for ttl, _ in lives), default=0)
    is_public = bool(lives) and all(public for _, public in lives)
    takes_tasks = _takes_tasks(connection.discovery)
    return Offer(**found, ttl_ms=ttl_ms, is_public=is_public, takes_tasks=takes_tasks, leads_back=leads_back)


def _takes_tasks(discovery: Discovery) -> bool:
    """Whether a server's tools may be called as tasks: it says so, in the only revision that has such."""
    found: object = discovery.capabilities.get("tasks") if discovery.version == "2025-11-25" else None
    for member in ("requests", "tools", "call"):
        found = (as_object(found) or {}).get(member)
    return as_object(found) is not None


async def _fetch(
    name: str, connection: Connection, kind: Kind[Params], lives: list[tuple[int, bool]], limits: OfferLimits
) -> tuple[str, Entries]:
    """A whole list, and the gateway that it is of, if it is one's."""
    gathering = Gathering(name, kind)
    gateway = ""
    params: Params | None = {}
    while params is not None:
        reply = await connection(Exchange(kind.method, params, NOBODY, Profile()))
        if isinstance(reply, ErrorObject):
            if reply.code == METHOD_NOT_FOUND:
                return "", ()  # Many servers have resources but no templates, and say it in this way.
            raise UpstreamProtocolError(f"{name} refuses {kind.method}: {reply.message[:200]}")
        value = opened(reply)
        lives.append(_life_of(value))
        gateway = gateway_of(value)
        params = gathering.add(value)
        if len(gathering.items) > limits.entries:
            log.warning("%s: %s has more than %d entries; the rest is left out.", name, kind.method, limits.entries)
            break
    return gateway, tuple(entry for entry in gathering.items[: limits.entries] if _fits(name, kind, entry, limits))


def _life_of(value: Params) -> tuple[int, bool]:
    ttl = value.get("ttlMs")
    return (ttl if isinstance(ttl, int) and ttl > 0 else 0), value.get("cacheScope") == "public"


def _fits(name: str, kind: Kind[Params], entry: Params, limits: OfferLimits) -> bool:
    description = entry.get("description")
    too_large = isinstance(description, str) and len(description.encode("utf-8", "replace")) > limits.description
    for schema in ("inputSchema", "outputSchema"):
        if schema in entry and not too_large:
            too_large = len(msgspec.json.encode(entry[schema])) > limits.schema
    if too_large:
        log.warning("%s: %s has an entry that is too large, which is left out.", name, kind.method)
    return not too_large
