"""What all mounts offer together: every exposed name and URI, whose it is, and what it is called there.

Pure: built anew from the offers whenever one changes, never changed itself. Order is that of the mounts, then that of
each server's own list.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Final

import msgspec

from sluicegate.hub.naming import LONGEST_NAME, Naming, head_of, names_for
from sluicegate.hub.offers import Entries, Offer, Offered
from sluicegate.hub.rewriting import definition_rewritten
from sluicegate.hub.tasks import needs_task
from sluicegate.hub.uris import exposed_uri, own_uri
from sluicegate.protocol.headers import Marks
from sluicegate.protocol.message import Params

KINDS: Final[Mapping[str, str]] = {
    "tools": "name",
    "prompts": "name",
    "resources": "uri",
    "templates": "uriTemplate",
}
"""The four lists, and the member that tells their entries apart."""


class Patterns(msgspec.Struct, frozen=True):
    """Which names are let through: those that match one of `only` and none of `hide`."""

    only: Sequence[str] = ("*",)
    hide: Sequence[str] = ()

    def let(self, *names: str) -> bool:
        """Whether something that goes by these names is let through."""
        if not self.hide and "*" in self.only:
            return True  # Nearly always, and asked for every tool whenever one changes.
        return _matches(self.only, names) and not _matches(self.hide, names)


def _matches(patterns: Iterable[str], names: Collection[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


class Share(msgspec.Struct, frozen=True):
    """What one mount brings to the catalog."""

    mount: str
    prefix: str
    offer: Offer
    tools: Patterns = Patterns()
    """On the server's own names of its tools."""
    is_awaited: bool = False
    """Whether it has yet to say for the first time what it offers."""
    key: str = ""
    """Another name by which profiles know it."""

    def offered(self, kind: str) -> Entries:
        """What it brings to one of the four lists."""
        entries: Entries = getattr(self.offer, kind)
        return tuple(entry for entry in entries if self.tools.let(entry.own)) if kind == "tools" else entries


class Entry(msgspec.Struct, frozen=True):
    """One thing that is offered: where it is, what it is called there, and its definition as clients see it."""

    mount: str
    own: str
    encoded: msgspec.Raw
    marks: Marks = {}
    needs_task: bool = False
    """Whether it is a tool that can be called as a task only, which is our business and none of a client's."""
    source: Offered | None = None
    """The very thing that the server offered: as long as that is the same object, so may the entry be."""

    @property
    def definition(self) -> Params:
        """Its definition, opened."""
        return _definition.decode(self.encoded)


_definition: Final = msgspec.json.Decoder(Params)


class Catalog(msgspec.Struct, frozen=True):
    """All that is offered, by exposed name or URI."""

    tools: Mapping[str, Entry] = {}
    prompts: Mapping[str, Entry] = {}
    resources: Mapping[str, Entry] = {}
    templates: Mapping[str, Entry] = {}
    prefixes: Mapping[str, str] = {}
    """The prefix of every mount, also of those that offer nothing now."""
    keys: Mapping[str, str] = {}
    """The other name of each by which profiles know it."""
    leading_back: frozenset[str] = frozenset()
    """The mounts that are gateways with us behind them."""
    findings: Sequence[str] = ()
    """What was left out, and why: sentences for whoever runs this."""
    rule: tuple[Naming, int] = ("prefix", LONGEST_NAME)
    """How names were made, and how long they may be."""
    awaited: frozenset[str] = frozenset()
    """The mounts that had yet to say for the first time what they offer."""

    def of(self, kind: str) -> Mapping[str, Entry]:
        """The entries of one of the four lists."""
        entries: Mapping[str, Entry] = getattr(self, kind)
        return entries

    def owner_of_uri(self, uri: str) -> tuple[str, str] | None:
        """The mount that a client's URI belongs to, and what it is there; None if nobody has it.

        Tried in an order that keeps a URI that leaked from one server (in a text, say) from reaching another by
        accident.
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
        # Which of a server's own templates is meant is the server's business; here it is enough whose they are.
        found = {entry.mount for entry in self.templates.values() if _begins_like(entry.own, uri)}
        if len(found) == 1:
            return found.pop(), uri
        # Not to one that would pass it on to us again, and so on until nobody has a place left.
        bare = [mount for mount, prefix in self.prefixes.items() if not prefix and mount not in self.leading_back]
        return (bare[0], uri) if bare else None


EMPTY: Final = Catalog()


def build_catalog(
    shares: Iterable[Share],
    *,
    naming: Naming = "prefix",
    longest_name: int = LONGEST_NAME,
    known: Catalog = EMPTY,
) -> Catalog:
    """The catalog of all shares, in which nobody takes a name that another has (T22).

    Who has one in the `known` catalog keeps it for as long as it offers what goes by it; else, and among servers that
    start, who comes first gets it: so the same servers have the same names after a restart.

    What is in the known one is also taken from there: to write twenty thousand definitions anew because one server has
    another tool would hold up everybody.
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
                    findings.append(f"{what} is left out, that name is another server's.")
                    continue
                old = known.of(kind).get(exposed)
                if old is None or not _is_still(old, share, offered, known):
                    old = _entry(kind, share, offered, exposed)
                found[kind][exposed] = old
    leading_back = [share.mount for share in shares if share.offer.leads_back]
    findings += [
        f"{mount} is a gateway that leads back to this one; what it has from here is left out."
        for mount in leading_back
    ]
    return Catalog(
        **found,
        prefixes={share.mount: share.prefix for share in shares},
        keys={share.mount: share.key for share in shares},
        leading_back=frozenset(leading_back),
        findings=findings,
        rule=(naming, longest_name),
        awaited=frozenset(share.mount for share in shares if share.is_awaited),
    )


class _Owners:
    """Whose the names of one list are, and may become."""

    def __init__(
        self, kind: str, listed: Sequence[tuple[Share, Entries]], rule: tuple[Naming, int], known: Catalog
    ) -> None:
        self._is_uri = kind not in ("tools", "prompts")
        self._rule = rule
        self._awaited = known.awaited
        self._known: Mapping[str, Entry] = known.of(kind) if known.rule == rule else {}
        self._prefixes = [share.prefix for share, _ in listed if share.prefix]
        self._heads = tuple(head_of(prefix, rule[0]).lower() for prefix in self._prefixes)
        # Those whose names are made as before, and what they offer.
        self._present = {
            share.mount: (share, {offered.own for offered in entries})
            for share, entries in listed
            if known.prefixes.get(share.mount) == share.prefix
        }

    def name(self, share: Share, own: str, taken: Mapping[str, Entry]) -> str | None:
        """The exposed name of something that a share offers; None if it can have none."""
        names = (exposed_uri(share.prefix, own),) if self._is_uri else names_for(share.prefix, own, *self._rule)
        best = None
        for name in names:
            if name in taken or self._looks_like_anothers(share, name):
                continue
            entry = self._known.get(name)
            if entry is not None and entry.mount == share.mount and entry.own == own and share.mount in self._present:
                return name
            if best is None and (share.mount in self._awaited or not self._is_held(name)):
                best = name
        return best

    def _is_held(self, name: str) -> bool:
        """Whether somebody has a name already, and still offers what goes by it."""
        entry = self._known.get(name)
        if entry is None or entry.mount not in self._present:
            return False
        share, offered = self._present[entry.mount]
        return entry.own in offered and not self._looks_like_anothers(share, name)

    def _looks_like_anothers(self, share: Share, name: str) -> bool:
        """Whether a name that does not begin like those of its own server begins like those of another."""
        if self._is_uri:
            if share.prefix and own_uri(share.prefix, name) is not None:
                return False
            return any(own_uri(prefix, name) is not None for prefix in self._prefixes)
        if share.prefix and name.startswith(head_of(share.prefix, self._rule[0])):
            return False
        return name.lower().startswith(self._heads)


def _is_still(entry: Entry, share: Share, offered: Offered, known: Catalog) -> bool:
    same = entry.source is offered and entry.mount == share.mount
    return same and known.prefixes.get(share.mount) == share.prefix


def _begins_like(template: str, uri: str) -> bool:
    literal = template.partition("{")[0]
    return literal != "" and uri.startswith(literal)


def _entry(kind: str, share: Share, offered: Offered, exposed: str) -> Entry:
    definition = offered.definition
    if share.prefix:
        definition = definition_rewritten(definition, partial(exposed_uri, share.prefix))
    definition = {**definition, KINDS[kind]: exposed}
    as_task = False
    if kind == "tools":
        as_task = share.offer.takes_tasks and needs_task(definition)
        definition.pop("execution", None)  # It says which tasks may be asked for, and here none may.
    encoded = msgspec.Raw(msgspec.json.encode(definition))
    return Entry(share.mount, offered.own, encoded, offered.marks, as_task, offered)


class Profile(msgspec.Struct, frozen=True):
    """A named part of the catalog: which servers, and which of their tools.

    Servers go by their name, their key and their prefix, tools by `SERVER__TOOL` and by their own name.
    """

    servers: Sequence[str] = ("*",)
    tools: Patterns = Patterns()


EVERYTHING: Final = Profile()


def seen_through(catalog: Catalog, profile: Profile) -> Catalog:
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
        return profile.tools.let(entry.own, *(f"{name}__{entry.own}" for name in names[entry.mount]))

    parts = {kind: {name: e for name, e in catalog.of(kind).items() if shows(kind, e)} for kind in KINDS}
    return msgspec.structs.replace(catalog, **parts, prefixes=kept)
