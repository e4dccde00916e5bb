"""What all mounts offer together: every exposed name and URI, whose it is, and what it is called there.

Pure: built anew from the offers whenever one changes, never changed itself. Order is that of the mounts, then that of
each server's own list.
"""

from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import partial
from typing import Final

import msgspec

from sluicegate.hub.naming import LONGEST_NAME, Names, Naming
from sluicegate.hub.offers import Entries, Offer
from sluicegate.hub.rewriting import definition_rewritten
from sluicegate.hub.tasks import needs_task
from sluicegate.hub.uris import exposed_uri, own_uri
from sluicegate.protocol.headers import Marks, marks_of
from sluicegate.protocol.message import Params, as_array, as_object

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


def _matches(patterns: Iterable[str], names: Sequence[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns for name in names)


class Share(msgspec.Struct, frozen=True):
    """What one mount brings to the catalog."""

    mount: str
    prefix: str
    offer: Offer
    tools: Patterns = Patterns()
    """On the server's own names of its tools."""


class Entry(msgspec.Struct, frozen=True):
    """One thing that is offered: where it is, what it is called there, and its definition as clients see it."""

    mount: str
    own: str
    definition: Params
    encoded: msgspec.Raw
    marks: Marks = {}
    needs_task: bool = False
    """Whether it is a tool that can be called as a task only, which is our business and none of a client's."""
    source: Params = {}
    """The very definition that the server gave: as long as that is the same object, so may the entry be."""


class Catalog(msgspec.Struct, frozen=True):
    """All that is offered, by exposed name or URI."""

    tools: Mapping[str, Entry] = {}
    prompts: Mapping[str, Entry] = {}
    resources: Mapping[str, Entry] = {}
    templates: Mapping[str, Entry] = {}
    prefixes: Mapping[str, str] = {}
    """The prefix of every mount, also of those that offer nothing now."""
    leading_back: frozenset[str] = frozenset()
    """The mounts that are gateways with us behind them."""
    findings: Sequence[str] = ()
    """What was left out, and why: sentences for whoever runs this."""

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
    """The catalog of all shares; who comes first keeps a name that two would have (T22).

    What is in the `known` one already is taken from there: to write twenty thousand definitions anew because one
    server has another tool would hold up everybody.
    """
    shares = list(shares)
    found: dict[str, dict[str, Entry]] = {kind: {} for kind in KINDS}
    findings: list[str] = []
    for kind, member in KINDS.items():
        names = Names(naming, longest_name)
        for share in shares:
            entries: Entries = getattr(share.offer, kind)
            for definition in entries:
                own = str(definition[member])
                if kind == "tools" and not share.tools.let(own):
                    continue
                exposed = _exposed(kind, names, share.prefix, own)
                if exposed is None or exposed in found[kind]:
                    findings.append(f"{share.mount}: {own!r} of its {kind} is left out, another server has that name.")
                    continue
                old = known.of(kind).get(exposed)
                if old is None or not _is_still(old, share, definition, known):
                    old = _entry(kind, member, share, own, exposed, definition)
                found[kind][exposed] = old
    prefixes = {share.mount: share.prefix for share in shares}
    leading_back = [share.mount for share in shares if share.offer.leads_back]
    findings += [
        f"{mount} is a gateway that leads back to this one; what it has from here is left out."
        for mount in leading_back
    ]
    return Catalog(**found, prefixes=prefixes, leading_back=frozenset(leading_back), findings=findings)


def _is_still(entry: Entry, share: Share, definition: Params, known: Catalog) -> bool:
    same = entry.source is definition and entry.mount == share.mount
    return same and known.prefixes.get(share.mount) == share.prefix


def _begins_like(template: str, uri: str) -> bool:
    literal = template.partition("{")[0]
    return literal != "" and uri.startswith(literal)


def _exposed(kind: str, names: Names, prefix: str, own: str) -> str | None:
    return names.give(prefix, own) if kind in ("tools", "prompts") else exposed_uri(prefix, own)


def _entry(kind: str, member: str, share: Share, own: str, exposed: str, source: Params) -> Entry:
    definition = source
    if share.prefix:
        definition = definition_rewritten(definition, partial(exposed_uri, share.prefix))
    definition = {**definition, member: exposed}
    marks: Marks = {}
    as_task = False
    if kind == "tools":
        as_task = share.offer.takes_tasks and needs_task(definition)
        definition.pop("execution", None)  # It says which tasks may be asked for, and here none may.
        # A server of the session era, or on a pipe, may have marks that are none: a client would leave out its tool.
        found = marks_of(definition.get("inputSchema"))
        marks = found or {}
        if found is None:
            definition = {**definition, "inputSchema": _without_marks(definition.get("inputSchema"))}
    return Entry(share.mount, own, definition, msgspec.Raw(msgspec.json.encode(definition)), marks, as_task, source)


def _without_marks(schema: object) -> object:
    """The schema without any `x-mcp-header`, wherever a property could have one."""
    items = as_array(schema)
    if items is not None:
        return [_without_marks(item) for item in items]
    members = as_object(schema)
    if members is None:
        return schema
    return {key: _without_marks(value) for key, value in members.items() if key != "x-mcp-header"}


class Profile(msgspec.Struct, frozen=True):
    """A named part of the catalog: which servers, and which of their tools.

    Servers go by their name and their prefix, tools by `SERVER__TOOL` and by their own name.
    """

    servers: Sequence[str] = ("*",)
    tools: Patterns = Patterns()


EVERYTHING: Final = Profile()


def seen_through(catalog: Catalog, profile: Profile) -> Catalog:
    """The part of a catalog that a profile shows."""
    if profile == EVERYTHING:
        return catalog
    kept = {mount: prefix for mount, prefix in catalog.prefixes.items() if _matches(profile.servers, (mount, prefix))}

    def shows(kind: str, entry: Entry) -> bool:
        if entry.mount not in kept:
            return False
        if kind != "tools":
            return True
        return profile.tools.let(f"{entry.mount}__{entry.own}", f"{kept[entry.mount]}__{entry.own}", entry.own)

    parts = {kind: {name: e for name, e in catalog.of(kind).items() if shows(kind, e)} for kind in KINDS}
    return Catalog(**parts, prefixes=kept, leading_back=catalog.leading_back, findings=catalog.findings)
