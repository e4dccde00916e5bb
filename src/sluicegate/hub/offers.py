"""What one server offers, as it said it: every page of its lists, unknown members included, and no more than fits.

The one rule: whatever a server sends, it is looked at piece by piece, and others get their turn in between.
"""

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from sluicegate.concurrency import Turns
from sluicegate.errors import METHOD_NOT_FOUND, ErrorObject, RemoteProtocolError, UpstreamProtocolError
from sluicegate.exchange import NOBODY, Connection, Exchange
from sluicegate.hub.circles import THROUGH, gateway_of, not_from
from sluicegate.protocol.discovery import Discovery
from sluicegate.protocol.entry_shapes import PromptShape, ResourceShape, Shape, TemplateShape, ToolShape, shaped
from sluicegate.protocol.gathering import MOST_ENTRIES, MOST_MALFORMED, Gathering, Kind
from sluicegate.protocol.headers import Marks, marks_of
from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.protocol.methods import LIST_CHANGES
from sluicegate.protocol.modern import Profile
from sluicegate.protocol.pages import entries_of, is_beyond_limits, own_name, page_of, value_of

REST: Final = 64 * 1024
"""How much an entry may be beside its description and its schemas: a title, hints, icons that are addresses. Icons that
are pictures themselves, the largest that anybody puts there, have a few KiB."""

MOST_NAMED: Final = 5
"""How many of the entries that something is wrong with are told by name."""

_SCHEMAS: Final = ("inputSchema", "outputSchema")
_SPARED: Final = ((), ("icons",), ("_meta",), ("icons", "_meta"))
"""What an entry that is too large can lose before it is lost as a whole, the least first."""


class OfferLimits(msgspec.Struct, frozen=True):
    """How much one server may offer (threats §3)."""

    entries: int = 2_000
    """Of one list."""
    description: int = 16 * 1024
    schema: int = 256 * 1024
    whole: int = 8 * 1024 * 1024
    """Of all its lists together, as it sends them. Two thousand tools of 4 KiB each, which is more than those have that
    are known for it; and two million tokens, which no model takes in."""

    @property
    def entry(self) -> int:
        """Of one entry."""
        return self.description + 2 * self.schema + REST


class Offered(msgspec.Struct, frozen=True):
    """One entry of a list, as it came. Its schemas are bytes: as objects they would take twenty times the room."""

    own: str
    """What tells it apart: its name or URI at the server."""
    definition: Params
    marks: Marks = {}


Entries = tuple[Offered, ...]


class Offer(msgspec.Struct, frozen=True):
    """The four lists of a server, and how long they may be kept."""

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
    findings: tuple[str, ...] = ()
    """What else was left out, and why: sentences for whoever runs this."""


def changed_lists(before: Offer | None, after: Offer) -> frozenset[str]:
    """What a server sends when the lists change in which two of its offers differ."""
    before = before or Offer()
    pairs = {
        "toolsListChanged": (before.tools, after.tools),
        "promptsListChanged": (before.prompts, after.prompts),
        "resourcesListChanged": ((before.resources, before.templates), (after.resources, after.templates)),
    }
    return frozenset(LIST_CHANGES[flag] for flag, (old, new) in pairs.items() if old != new)


def _offered(member: str, entry: Params) -> Offered:
    marks: Marks = {}
    if "inputSchema" in entry:
        found = marks_of(entry["inputSchema"])
        # A server of the session era, or on a pipe, may have marks that are none: a client would leave out its tool.
        if found is None:
            entry = {**entry, "inputSchema": _without_marks(entry["inputSchema"])}
        marks = found or {}
    as_bytes = {name: msgspec.Raw(msgspec.json.encode(entry[name])) for name in _SCHEMAS if name in entry}
    return Offered(str(entry[member]), {**entry, **as_bytes}, marks)


def _without_marks(schema: object) -> object:
    """The schema without any `x-mcp-header`, wherever a property could have one."""
    items = as_array(schema)
    if items is not None:
        return [_without_marks(item) for item in items]
    members = as_object(schema)
    if members is None:
        return schema
    return {key: _without_marks(value) for key, value in members.items() if key != "x-mcp-header"}


class _List(msgspec.Struct, frozen=True):
    """One of the four: the capability it needs, how it is asked for, and what its entries are like."""

    capability: str
    method: str
    found_in: str
    member: str
    """What tells its entries apart."""
    shape: type[Shape]

    def kind(self) -> Kind[Offered]:
        """How it is gathered, of entries that are read already."""
        return Kind(self.method, self.found_in, lambda entry: cast(Offered, entry), lambda entry: entry.own)


LISTS: Final[Mapping[str, _List]] = {
    "tools": _List("tools", "tools/list", "tools", "name", ToolShape),
    "prompts": _List("prompts", "prompts/list", "prompts", "name", PromptShape),
    "resources": _List("resources", "resources/list", "resources", "uri", ResourceShape),
    "templates": _List("resources", "resources/templates/list", "resourceTemplates", "uriTemplate", TemplateShape),
}
"""Each list by its name in an offer."""


class _Faults(msgspec.Struct):
    """The entries of a list that something is wrong with, by name."""

    too_large: list[str] = []
    malformed: list[str] = []
    mended: list[str] = []
    lightened: list[str] = []

    def sentences(self, which: str) -> list[str]:
        """What is told of them."""
        kinds = {
            f"left out of its {which}, as too large or nested too deeply": self.too_large,
            f"left out of its {which}, as malformed": self.malformed,
            f"members left out of its {which}, as malformed": self.mended,
            f"members left out of its {which}, as too large": self.lightened,
        }
        return [f"{what}: {_named(entries)}." for what, entries in kinds.items() if entries]


def _named(entries: list[str]) -> str:
    more = f" and {len(entries) - MOST_NAMED} more" if len(entries) > MOST_NAMED else ""
    return ", ".join(entries[:MOST_NAMED]) + more


async def fetch_offer(
    name: str, connection: Connection, limits: OfferLimits, ourselves: str = "", turns: Turns | None = None
) -> Offer:
    """All that a server offers now, but for what it has from us, and what is too much.

    Raises:
        UpstreamError: it went away, or a list that it announced cannot be had.
    """
    fetching = _Fetching(name, connection, limits, ourselves, turns or Turns())
    found: dict[str, Entries] = {}
    for which, each in LISTS.items():
        if each.capability in connection.discovery.capabilities and not fetching.is_full:
            found[which] = await fetching.fetch(which, each)
    # As long as the shortest-lived of them, and for everybody only if all of them are.
    return Offer(
        **found,
        ttl_ms=min((ttl for ttl, _ in fetching.lives), default=0),
        is_public=bool(fetching.lives) and all(public for _, public in fetching.lives),
        takes_tasks=_takes_tasks(connection.discovery),
        leads_back=fetching.leads_back,
        findings=tuple(fetching.findings),
    )


def _takes_tasks(discovery: Discovery) -> bool:
    """Whether a server's tools may be called as tasks: it says so, in the only revision that has such."""
    found: object = discovery.capabilities.get("tasks") if discovery.version == "2025-11-25" else None
    for member in ("requests", "tools", "call"):
        found = (as_object(found) or {}).get(member)
    return as_object(found) is not None


class _Fetching:
    """The lists of one server, on their way here."""

    def __init__(self, name: str, connection: Connection, limits: OfferLimits, ourselves: str, turns: Turns) -> None:
        self.lives: list[tuple[int, bool]] = []
        self.leads_back = False
        self.is_full = False
        self.findings: list[str] = []
        self._name = name
        self._connection = connection
        self._limits = limits
        self._ourselves = ourselves
        self._turns = turns
        self._room = limits.whole

    async def fetch(self, which: str, each: _List) -> Entries:
        """A whole list, or as much of it as fits."""
        most = self._limits.entries
        gathering = Gathering(self._name, each.kind())
        faults = _Faults()
        params: Params | None = {}
        while params is not None and not self.is_full:
            reply = await self._connection(Exchange(each.method, params, NOBODY, Profile()))
            if isinstance(reply, ErrorObject):
                if reply.code == METHOD_NOT_FOUND:
                    return ()  # Many servers have resources but no templates, and say it in this way.
                raise UpstreamProtocolError(f"{self._name} refuses {each.method}: {reply.message[:200]}")
            self._turns.begin()
            found = page_of(reply)
            if found is None:
                self.is_full = True
                self._turns.end()
                break
            await self._turns.share()
            entries = entries_of(found.pop(each.found_in, None))
            # What is longer than we look at stays closed.
            page = {key: value_of(value) if len(memoryview(value)) <= REST else value for key, value in found.items()}
            self.lives.append(_life_of(page))
            if entries is not None:
                page[each.found_in] = await self._fitting(each, gateway_of(page), entries, faults)
            params = gathering.add(page)
            self._turns.end()
            if len(gathering.items) > most:
                self._leave_out(f"it has more than {most} {which}; the rest is left out.")
                break
            if len(faults.malformed) > MOST_MALFORMED:
                self._leave_out(f"more than {MOST_MALFORMED} of its {which} are malformed; the rest is left out.")
                break
        for sentence in faults.sentences(which):
            self._leave_out(sentence)
        if self.is_full:
            size = f"{self._limits.whole / 1024 / 1024:g} MiB"
            self._leave_out(f"its lists are larger than {size} together; the rest, from its {which} on, is left out.")
        return tuple(gathering.items[:most])

    def _leave_out(self, sentence: str) -> None:
        self.findings.append(f"{self._name}: {sentence}")

    async def _fitting(self, each: _List, gateway: str, entries: list[msgspec.Raw], faults: _Faults) -> list[Offered]:
        """The entries of a page that we take, read."""
        taken: list[Offered] = []
        for data in entries[: MOST_ENTRIES + 1]:
            await self._turns.share()
            size = len(memoryview(data))
            self._room -= min(size, self._limits.entry)  # One that is far too large does not cost all others.
            if self._room < 0:
                self.is_full = True
                break
            if size > self._limits.entry:
                faults.too_large.append(_name_in(data, each.member))
                continue
            try:
                entry = value_of(data)
            except RemoteProtocolError:
                # A number beyond all bounds, say: pages are taken apart without a look at those.
                faults.malformed.append(f"{_name_in(data, each.member)} (it cannot be decoded)")
                if len(faults.malformed) > MOST_MALFORMED:
                    break
                continue
            if is_beyond_limits(data, entry):
                faults.too_large.append(_name_in(data, each.member))
                continue
            if gateway and as_object(entry) is not None:
                kept, is_back = not_from(self._ourselves, gateway, [as_object(entry) or {}])
                self.leads_back = self.leads_back or is_back
                if not kept:
                    continue
                entry = kept[0]
            try:
                read = shaped(entry, each.shape)
            except msgspec.ValidationError as problem:
                faults.malformed.append(f"{_name_in(data, each.member)} ({problem})")
                if len(faults.malformed) > MOST_MALFORMED:
                    break
                continue
            offered = _offered(each.member, read.entry)
            spared = self._spared(offered.definition)
            if spared is None:
                faults.too_large.append(_shown(offered.own))
                continue
            if spared:
                faults.lightened.append(f"{_shown(offered.own)} ({', '.join(spared)})")
                offered = msgspec.structs.replace(offered, definition=_lighter(offered.definition, spared))
            taken.append(offered)
            if read.lost:
                faults.mended.append(f"{_shown(offered.own)} ({', '.join(read.lost)})")
        return taken

    def _spared(self, definition: Params) -> tuple[str, ...] | None:
        """The members without which an entry is small enough; None if it is not without them either."""
        limits = self._limits
        description = definition.get("description")
        if isinstance(description, str) and len(description.encode("utf-8", "replace")) > limits.description:
            return None
        rest = {key: value for key, value in definition.items() if key not in _SCHEMAS}
        schemas = (definition[key] for key in _SCHEMAS if key in definition)
        sizes = (len(memoryview(schema)) for schema in schemas if isinstance(schema, msgspec.Raw))
        if any(size > limits.schema for size in sizes):
            return None
        for spared in _SPARED:
            if len(msgspec.json.encode(_lighter(rest, spared))) <= limits.description + REST:
                return spared
        return None


def _lighter(definition: Params, spared: tuple[str, ...]) -> Params:
    kept = {key: value for key, value in definition.items() if key not in spared}
    meta = (as_object(definition.get("_meta")) or {}) if "_meta" in spared else {}
    # Without the way that an entry took, gateways in a circle would not know it for their own.
    return {**kept, "_meta": {THROUGH: meta[THROUGH]}} if THROUGH in meta else kept


def _name_in(data: msgspec.Raw, member: str) -> str:
    try:
        return _shown(own_name(data, member))
    except RemoteProtocolError:
        return _shown("?")


def _shown(own: str) -> str:
    return repr(own[:100])


def _life_of(value: Params) -> tuple[int, bool]:
    ttl = value.get("ttlMs")
    return (ttl if isinstance(ttl, int) and ttl > 0 else 0), value.get("cacheScope") == "public"
