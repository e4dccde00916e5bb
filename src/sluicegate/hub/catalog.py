"""What all mounts offer together: every exposed name and URI, with its mount and its name there.

Pure: a catalog is immutable and rebuilt whenever an offer changes. Entries are in the order of the mounts, and then of
each server's own list.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final, Literal

import msgspec

from sluicegate.errors import InvalidParams
from sluicegate.exchange import Target
from sluicegate.hub.naming import (
    MAX_TOOL_NAME,
    Naming,
    definition_rewritten,
    exposed_uri,
    head_of,
    heads_of,
    names_for,
    native_name,
    own_uri,
)
from sluicegate.protocol.definition_digest import HOPS
from sluicegate.protocol.headers import Marks
from sluicegate.protocol.message import Params, as_object
from sluicegate.protocol.types import METHOD_KEY, STREAMING_KEY
from sluicegate.text.globs import name_matches
from sluicegate.text.tool_names import own_names, whole_names

KINDS: Final[Mapping[str, str]] = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "templates": "uriTemplate",
}
"""The four lists, and the member that identifies their entries."""


REST: Final = 64 * 1024
"""Bytes of an entry beside its description and its schemas: a title, hints, icons. Embedded icons have a few KiB."""


class OfferLimits(msgspec.Struct, frozen=True):
    """Limits of what one server may offer (T4)."""

    entries: int = 2_000
    """Of one list."""
    description: int = 16 * 1024
    schema: int = 256 * 1024
    whole: int = 8 * 1024 * 1024
    """Bytes of all its lists together: two thousand tools of 4 KiB each, or two million tokens."""

    @property
    def entry(self) -> int:
        """Bytes of one entry."""
        return self.description + 2 * self.schema + REST


class Offered(msgspec.Struct, frozen=True):
    """One entry of a list, as it came. Its schemas are bytes: as objects they would take twenty times the memory."""

    own: str
    """Its name or URI at the server."""
    definition: Params
    marks: Marks = {}
    digest: str = ""
    """Of the whole definition; see `definition_digest`."""
    salient: str = ""
    """The argument that says most about a call of this tool; empty if there is none."""


SALIENT: Final = ("command", "path", "file_path", "uri", "url", "query", "sql")
"""Arguments that say most about a call, the most telling first."""


def salient_argument(schema: object) -> str:
    """The salient argument of a tool with this schema; empty if it has none."""
    properties = as_object((as_object(schema) or {}).get("properties")) or {}
    return next((name for name in SALIENT if name in properties), "")


Entries = tuple[Offered, ...]


class Offer(msgspec.Struct, frozen=True):
    """The four lists of a server, and how long they may be cached."""

    tools: Entries = ()
    prompts: Entries = ()
    resources: Entries = ()
    templates: Entries = ()
    ttl_ms: int = 0
    is_public: bool = False
    takes_tasks: bool = False
    """Whether its tools may be called as tasks of 2025-11-25."""
    is_gateway: bool = False
    hub_id: str = ""
    """The id of that gateway, until it ends."""
    """Whether it is another sluicegate gateway: requests to it carry the number of gateways behind them."""
    findings: tuple[str, ...] = ()
    """What else was left out, and why: sentences for the operator."""
    extensions: Params = {}
    """The extensions of the protocol that it declares, with their settings."""
    failures: Mapping[str, str] = {}
    """The lists that could not be fetched, and why, in the server's own words: they are as they were before."""


class Patterns(msgspec.Struct, frozen=True):
    """Lets names through that match one of `only` and none of `hide`."""

    only: Sequence[str] = ("*",)
    hide: Sequence[str] = ()

    @property
    def lets_all(self) -> bool:
        """Whether everything is let through: the usual case, checked for every tool at every change."""
        return not self.hide and "*" in self.only

    def let(self, *names: str) -> bool:
        """Whether an entry with these names is let through."""
        if self.lets_all:
            return True
        return _matches(self.only, names) and not _matches(self.hide, names)


def _matches(patterns: Iterable[str], names: Collection[str]) -> bool:
    return any(name_matches(name, pattern) for pattern in patterns for name in names)


class Share(msgspec.Struct, frozen=True):
    """What one mount adds to the catalog."""

    mount: str
    prefix: str
    offer: Offer
    tools: Patterns = Patterns()
    """Apply to the server's own names of its tools."""
    is_awaited: bool = False
    """Whether its first offer is still to come."""
    key: str = ""
    """Another name that profiles may use."""
    origin: str = ""
    """A digest of the server's command or URL."""

    def offered(self, kind: str) -> Entries:
        """What it adds to one of the four lists."""
        entries: Entries = getattr(self.offer, kind)
        if kind != "tools" or self.tools.lets_all:
            return entries
        names = {self.mount, self.key, self.prefix} - {""}
        return tuple(entry for entry in entries if self.tools.let(*own_names(names, entry.own)))


class Entry(msgspec.Struct, frozen=True):
    """One exposed entry: its mount, its name there, and its definition as clients see it."""

    mount: str
    own: str
    encoded: msgspec.Raw
    marks: Marks = {}
    target: Target = Target("", "tool", "")
    """What rules judge and the audit log records."""
    needs_task: bool = False
    """Whether the server runs this tool only as a task, which clients do not see."""
    is_stream: bool = False
    """Whether this tool sends events before its result."""
    source: Offered | None = None
    """What the server offered; while it is the same object, the entry is reused."""
    has_page: bool = False
    """Whether it is a page of MCP Apps, or names the one that shows it, which need not be listed."""

    @property
    def definition(self) -> Params:
        """Its definition, decoded."""
        return _definition.decode(self.encoded)


_definition: Final = msgspec.json.Decoder(Params)


class Catalog(msgspec.Struct, frozen=True):
    """All entries by exposed name or URI."""

    tools: Mapping[str, Entry] = {}
    prompts: Mapping[str, Entry] = {}
    resources: Mapping[str, Entry] = {}
    templates: Mapping[str, Entry] = {}
    prefixes: Mapping[str, str] = {}
    """The prefix of every mount, also of those without entries."""
    keys: Mapping[str, str] = {}
    """For each mount the other name that profiles may use."""
    findings: Sequence[str] = ()
    """What was left out, and why: sentences for the operator."""
    rule: tuple[Naming, int] = ("prefix", MAX_TOOL_NAME)
    """How names were made, and how long they may be."""
    awaited: frozenset[str] = frozenset()
    """The mounts whose first offer was still to come."""
    quarantined: Mapping[tuple[str, str], tuple[Entry, str]] = {}
    """Entries that may not be used, by list and exposed name, with the reason. They keep their names."""
    is_part: bool = False
    """Whether a profile shows only some of it."""
    page_tools: Mapping[str, Sequence[tuple[str, str]]] = {}
    """The tools of servers with pages, by their own names: the mounts that have them, and their exposed names.

    Also those that are hidden or left out."""

    def of(self, kind: str) -> Mapping[str, Entry]:
        """The entries of one of the four lists."""
        entries: Mapping[str, Entry] = getattr(self, kind)
        return entries

    def mount_named(self, name: str) -> str | None:
        """The mount with this name, key or prefix."""
        if name in self.prefixes:
            return name
        others = (pair for names in (self.keys, self.prefixes) for pair in names.items())
        return next((mount for mount, other in others if name and other == name and mount in self.prefixes), None)

    def exposed(self, kind: str, name: str) -> str | None:
        """The exposed name of a tool or prompt, given by any of its names; None if there is none, or several.

        A server may be called by its name, its key or its prefix, with `mcp__` in front or without, and with `.` or
        `__` behind it, whatever `naming` says. Names are not split: those of the servers are compared, and what is left
        is looked up.
        """
        if name in self.of(kind):
            return name
        if kind not in _NAMED:
            return None
        found: set[str] = set()
        for text in {name, name.removeprefix("mcp__")}:
            for mount, prefix in self.prefixes.items():
                for head in heads_of(mount, prefix, self.keys.get(mount, "")):
                    if text.startswith(head):
                        found.update(self._exposed(kind, mount, text[len(head) :]))
        return found.pop() if len(found) == 1 else None

    def exposed_to_page(self, own: str) -> str | None:
        """The exposed name of a tool that a page of its own server calls; None if there is none, or several.

        Pages of MCP Apps are written for one server. They call its tools by their own names, and hosts forward these
        calls without saying which page they came from. So only tools of servers that have pages count, and all of them:
        a call for a tool that is hidden from the caller must not reach another server (T22).
        """
        owners = self.page_tools.get(own, ())
        return owners[0][1] if len(owners) == 1 and owners[0][1] in self.tools else None

    def _exposed(self, kind: str, mount: str, rest: str) -> Iterator[str]:
        prefix, key = self.prefixes[mount], self.keys.get(mount, "")
        dotted, namespace = rest.replace("__", "."), prefix or key  # Activations call their tools by their whole names.
        for own in {rest, dotted, f"{namespace}.{rest}", f"{namespace}.{dotted}"}:
            for name in names_for(prefix, own, *self.rule, key=key):
                entry = self.of(kind).get(name) or self.quarantined.get((kind, name), (None,))[0]
                if entry is not None and entry.mount == mount and entry.own == own:
                    yield name

    def owner_of_uri(self, uri: str) -> tuple[str, str] | None:
        """The mount of a client's URI, and the URI there; None if no mount has it.

        The order of the attempts keeps a URI that leaked from one server (in a text, say) from reaching another.
        """
        exact = self.resources.get(uri)
        if exact is not None:
            return exact.mount, exact.own
        owners = {entry.mount for entry in self.resources.values() if entry.own == uri}
        if len(owners) == 1:
            return owners.pop(), uri
        for mount, prefix in self.prefixes.items():
            own = own_uri(prefix, uri) if prefix else None
            if own is not None:
                return mount, own
        # Only the mount matters here: the server itself finds the template.
        found = {entry.mount for entry in self.templates.values() if _begins_like(entry.own, uri)}
        if len(found) == 1:
            return found.pop(), uri
        bare = [mount for mount, prefix in self.prefixes.items() if not prefix]
        return (bare[0], uri) if bare else None


EMPTY: Final = Catalog()

_NAMED: Final = ("tools", "prompts")
"""The lists whose entries have names rather than URIs."""


def build_catalog(
    shares: Iterable[Share],
    *,
    naming: Naming = "prefix",
    longest_name: int = MAX_TOOL_NAME,
    known: Catalog = EMPTY,
) -> Catalog:
    """The catalog of all shares, in which no server takes the name of another (T22).

    A server keeps a name that it has in the `known` catalog while it offers the entry. Otherwise, and among servers
    that start, the first in the order gets the name, so that names are the same after a restart.

    Entries of the known catalog are reused: encoding twenty thousand definitions again would block the event loop.
    """
    shares = list(shares)
    found: dict[str, dict[str, Entry]] = {}
    findings = [finding for share in shares for finding in share.offer.findings]
    for kind in KINDS:
        found[kind] = {}
        listed = [(share, share.offered(kind)) for share in shares]
        owners = _Owners(kind, listed, (naming, longest_name), known)
        for share, entries in listed:
            for offered in entries:
                exposed = owners.name(share, offered.own, found[kind])
                if exposed is None:
                    what = f"{share.mount}: {offered.own[:100]!r} of its {kind}"
                    findings.append(f"{what} is left out, since another server has that name.")
                    continue
                old = known.of(kind).get(exposed)
                if old is None or not _is_still(old, share, offered, known):
                    old = _entry(kind, share, offered, exposed)
                found[kind][exposed] = old
        if naming == "collide" and kind in _NAMED:
            findings += _collisions(kind, found[kind])
    return Catalog(
        found["tools"],
        found["prompts"],
        found["resources"],
        found["templates"],
        prefixes={share.mount: share.prefix for share in shares},
        keys={share.mount: share.key for share in shares},
        findings=findings,
        rule=(naming, longest_name),
        awaited=frozenset(share.mount for share in shares if share.is_awaited),
        page_tools=_page_tools(shares, found),
    )


def _page_tools(shares: Sequence[Share], found: Mapping[str, Mapping[str, Entry]]) -> dict[str, list[tuple[str, str]]]:
    with_pages = {entry.mount for entries in found.values() for entry in entries.values() if entry.has_page}
    names = {(e.mount, e.own): name for name, e in found["tools"].items() if e.mount in with_pages}
    owners: dict[str, list[tuple[str, str]]] = {}
    for mount, own in ((s.mount, tool.own) for s in shares if s.mount in with_pages for tool in s.offer.tools):
        owners.setdefault(own, []).append((mount, names.get((mount, own), "")))
    return owners


def _collisions(kind: str, entries: Mapping[str, Entry]) -> Iterator[str]:
    """Sentences about names that have a prefix because another server has them without."""
    what = kind.removesuffix("s")
    for exposed, entry in entries.items():
        bare = entry.own.replace(".", "__")
        other = entries.get(bare)
        if exposed != bare and other is not None and other.mount != entry.mount:
            why = f"since {other.mount} has a {what} of that name"
            way_out = '`naming = "prefix"` gives every name its prefix.'
            yield f"{entry.mount}: its {what} {entry.own[:100]!r} is called {exposed}, {why}. {way_out}"


def definitions_of(catalog: Catalog) -> dict[Target, Params]:
    """The definitions in a catalog that are reviewed before it is shown."""
    entries = (entry for kind in KINDS for entry in catalog.of(kind).values())
    return {entry.target: entry.source.definition for entry in entries if entry.source is not None}


def without_quarantined(catalog: Catalog, whys: Mapping[Target, str]) -> Catalog:
    """The catalog without the entries that may not be used; `whys` are the reasons."""
    if not whys:
        return catalog
    entries = {(kind, name): entry for kind in KINDS for name, entry in catalog.of(kind).items()}
    quarantined = {place: (entry, whys[entry.target]) for place, entry in entries.items() if entry.target in whys}
    left = {
        kind: {name: entry for name, entry in catalog.of(kind).items() if (kind, name) not in quarantined}
        for kind in KINDS
    }
    return msgspec.structs.replace(catalog, **left, quarantined=quarantined)


class _Owners:
    """The owners of the names of one list."""

    def __init__(
        self, kind: str, listed: Sequence[tuple[Share, Entries]], rule: tuple[Naming, int], known: Catalog
    ) -> None:
        self._is_uri = kind not in ("tools", "prompts")
        self._listed = listed
        self._owns: dict[str, set[str]] = {}
        self._rule = rule
        self._awaited = known.awaited
        self._known: Mapping[str, Entry] = {}
        if known.rule == rule:
            away = {name: entry for (which, name), (entry, _) in known.quarantined.items() if which == kind}
            self._known = {**known.of(kind), **away} if away else known.of(kind)
        self._prefixes = [share.prefix for share, _ in listed if share.prefix]
        self._heads = tuple(head.lower() for prefix in self._prefixes for head in _all_heads(prefix))
        # Mounts whose prefix is the same as before, and what they offer.
        self._present = {
            share.mount: (share, {offered.own for offered in entries})
            for share, entries in listed
            if known.prefixes.get(share.mount) == share.prefix
        }

    def name(self, share: Share, own: str, taken: Mapping[str, Entry]) -> str | None:
        """The exposed name of an entry of a share; None if all possible names are taken."""
        if self._is_uri:
            names = iter((exposed_uri(share.prefix, own),))
        else:
            names = names_for(share.prefix, own, *self._rule, key=share.key)
            if "." in own and (plain := own.replace(".", "__")) in self._owns_of(share.mount):
                # The tool that is really called so gets the name without dots.
                kept = set(names_for(share.prefix, plain, *self._rule, key=share.key))
                names = (name for name in names if name not in kept)
        best = None
        for name in names:
            if name in taken or self._imitates_another(share, name):
                continue
            entry = self._known.get(name)
            if entry is not None and entry.mount == share.mount and entry.own == own and share.mount in self._present:
                return name
            if best is None and (share.mount in self._awaited or not self._is_held(name)):
                best = name
        return best

    def _owns_of(self, mount: str) -> set[str]:
        if mount not in self._owns:
            of_mount = (entries for share, entries in self._listed if share.mount == mount)
            self._owns[mount] = {offered.own for entries in of_mount for offered in entries}
        return self._owns[mount]

    def _is_held(self, name: str) -> bool:
        """Whether a mount has this name already and still offers the entry."""
        entry = self._known.get(name)
        if entry is None or entry.mount not in self._present:
            return False
        share, offered = self._present[entry.mount]
        return entry.own in offered and not self._imitates_another(share, name)

    def _imitates_another(self, share: Share, name: str) -> bool:
        """Whether a name has the prefix of another server and not of its own."""
        if self._is_uri:
            if share.prefix and own_uri(share.prefix, name) is not None:
                return False
            return any(own_uri(prefix, name) is not None for prefix in self._prefixes)
        if share.prefix and name.startswith(_all_heads(share.prefix)):
            return False
        return name.lower().startswith(self._heads)


def _all_heads(prefix: str) -> tuple[str, ...]:
    """How the names of tools of a server may begin, under every naming."""
    return *heads_of(prefix), head_of(prefix, "claude")


def _is_still(entry: Entry, share: Share, offered: Offered, known: Catalog) -> bool:
    if entry.source is not offered or entry.mount != share.mount or entry.target.origin != share.origin:
        return False
    return known.prefixes.get(share.mount) == share.prefix


def _begins_like(template: str, uri: str) -> bool:
    literal = template.partition("{")[0]
    return literal != "" and uri.startswith(literal)


def _entry(kind: str, share: Share, offered: Offered, exposed: str) -> Entry:
    definition = offered.definition
    if share.prefix:
        definition = definition_rewritten(definition, partial(exposed_uri, share.prefix))
    definition = {**definition, KINDS[kind]: exposed}
    as_task = kind == "tools" and share.offer.takes_tasks and needs_task(definition)
    if kind == "tools":
        definition.pop("execution", None)  # It announces legacy tasks, which we do not offer.
        definition = _with_method(definition, share, offered.own)
    encoded = msgspec.json.encode(definition)
    has_page = kind != "prompts" and b'"ui://' in encoded
    server, kind_of_target = share.key or share.mount, _TARGETS[kind]
    target = Target(server, kind_of_target, offered.own, offered.digest, offered.salient, share.origin)
    is_stream = (as_object(definition.get("_meta")) or {}).get(STREAMING_KEY) is True
    raw = msgspec.Raw(encoded)
    return Entry(share.mount, offered.own, raw, offered.marks, target, as_task, is_stream, offered, has_page)


def _with_method(definition: Params, share: Share, own: str) -> Params:
    """The definition of a tool with its native name, if that cannot be told from the exposed one.

    A server cannot give its tool the native name of another (T22).
    """
    meta = as_object(definition.get("_meta")) or {}
    native = native_name(share.prefix or share.key, own)
    if str(definition["name"]).removeprefix("mcp__").replace("__", ".", 1) != native and "." in own:
        return {**definition, "_meta": {**meta, METHOD_KEY: native}}
    if METHOD_KEY not in meta:
        return definition
    return {**definition, "_meta": {name: value for name, value in meta.items() if name != METHOD_KEY}}


_TARGETS: Final[Mapping[str, Literal["tool", "prompt", "resource"]]] = {
    "tools": "tool",
    "prompts": "prompt",
    "resources": "resource",
    "templates": "resource",
}


def needs_task(tool: Params) -> bool:
    """Whether a tool can only be called as a task."""
    return (as_object(tool.get("execution")) or {}).get("taskSupport") == "required"


class Subset(msgspec.Struct, frozen=True):
    """A named part of the catalog: which servers, and which of their tools.

    Servers match by name, key and prefix; tools match by `SERVER__TOOL` and by their own name.
    """

    servers: Sequence[str] = ("*",)
    tools: Patterns = Patterns()


EVERYTHING: Final = Subset()


def seen_through(catalog: Catalog, profile: Subset) -> Catalog:
    """The part of a catalog that a profile shows."""
    if profile == EVERYTHING:
        return catalog
    names = {mount: {mount, prefix, catalog.keys[mount]} - {""} for mount, prefix in catalog.prefixes.items()}
    kept = {mount: prefix for mount, prefix in catalog.prefixes.items() if _matches(profile.servers, names[mount])}

    def shows(kind: str, entry: Entry) -> bool:
        if entry.mount not in kept:
            return False
        if kind != "tools":
            return True
        return profile.tools.lets_all or profile.tools.let(*whole_names(names[entry.mount], entry.own))

    parts = {kind: {name: e for name, e in catalog.of(kind).items() if shows(kind, e)} for kind in KINDS}
    pages = {own: [each for each in owners if each[0] in kept] for own, owners in catalog.page_tools.items()}
    return msgspec.structs.replace(catalog, **parts, prefixes=kept, page_tools=pages, is_part=True)


def without_hidden(catalog: Catalog, is_hidden: Callable[[Target], bool]) -> Catalog:
    """The part of a catalog that a caller may use."""
    parts = {kind: {name: e for name, e in catalog.of(kind).items() if not is_hidden(e.target)} for kind in KINDS}
    # A server that is denied as a whole is not there at all: nothing tells that it exists (T33).
    prefixes = {
        mount: prefix
        for mount, prefix in catalog.prefixes.items()
        if not is_hidden(Target(catalog.keys[mount] or mount, "instructions", ""))
    }
    # Also if nothing is hidden: other callers may see less, so the lists must not be cached for all (T11).
    return msgspec.structs.replace(catalog, **parts, prefixes=prefixes, is_part=True)


GATEWAY: Final = "dev.sluicegate/gateway"
"""In `_meta` of every page of our lists: marks us as a gateway.

A gateway that asks another one for lists has its own id there. It gets the id of the other one, and no entries that
came from itself.
"""
MAX_HOPS: Final = 8
"""Gateways that mount each other would otherwise list each other's entries, and forward requests, without end."""


def with_hop(value: Params) -> Params:
    """A list entry, or the params of a request, with one more gateway counted.

    Raises:
        InvalidParams: it passed too many.
    """
    meta = as_object(value.get("_meta")) or {}
    hops = meta.get(HOPS, 0)
    if not isinstance(hops, int) or hops >= MAX_HOPS:
        raise InvalidParams(
            f"The request passed through {MAX_HOPS} gateways already. They probably mount each other;"
            " remove one of these entries from its configuration."
        )
    return {**value, "_meta": {**meta, HOPS: hops + 1}}
