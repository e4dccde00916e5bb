"""What callers see of a router's catalog, and its encoded pages.

Callers to whom the same rules apply share one view.
"""

from collections.abc import Hashable, Mapping
from functools import partial
from itertools import count, islice
from typing import Final, cast

import msgspec

from sluicegate.errors import InvalidParams, Quarantined, UnknownTarget
from sluicegate.exchange import BEING_REVIEWED, Caller, Exchange, Target
from sluicegate.hub.catalog import GATEWAY, KINDS, Catalog, Entry, Subset, seen_through, without_hidden
from sluicegate.hub.context import HubContext
from sluicegate.hub.mount import Mount
from sluicegate.protocol.message import Params, Result, as_object
from sluicegate.protocol.methods import LIST_CHANGES
from sluicegate.protocol.modern_era import SERVER_INFO_KEY, complete
from sluicegate.protocol.sealed_tokens import Sealer
from sluicegate.protocol.translate.results import reply_for_session
from sluicegate.protocol.versions import REVISIONS, SESSION_VERSIONS
from sluicegate.runtime.process_key import process_key

MAX_VIEWS: Final = 100
"""Classes of callers whose lists are kept."""

_NOTICES: Final = {
    "tools": LIST_CHANGES["toolsListChanged"],
    "prompts": LIST_CHANGES["promptsListChanged"],
    "resources": LIST_CHANGES["resourcesListChanged"],
    "templates": LIST_CHANGES["resourcesListChanged"],
}

SNAPSHOTS: Final = 16
"""Older states of the lists that cursors may still point into."""

LIST_METHODS: Final[Mapping[str, tuple[str, str]]] = {
    "tools/list": ("tools", "tools"),
    "prompts/list": ("prompts", "prompts"),
    "resources/list": ("resources", "resources"),
    "resources/templates/list": ("templates", "resourceTemplates"),
}
"""For each method: its list in a catalog, and the member of the result."""

_numbers: Final = count()


class ListPages:
    """The pages of one catalog's lists, as one router shows it to callers that see the same."""

    def __init__(self, context: HubContext, catalog: Catalog) -> None:
        self._context = context
        # With a number of its own: a cursor of one profile says nothing about the lists of another.
        self._sealer = Sealer(process_key(), f"list cursor of router {next(_numbers)}")
        self._snapshot = 0
        self._snapshots: dict[int, Catalog] = {0: catalog}
        self._pages: dict[tuple[object, ...], tuple[Result, int | None]] = {}
        """Encoded pages of the current lists, without the cursor, and where the next page starts."""

    def set_catalog(self, catalog: Catalog, *, has_changed: bool, is_narrowed: bool = False) -> None:
        """Replace the catalog. Cursors into older lists stay valid for a while, unless the new one may hide entries."""
        self._pages.clear()
        if is_narrowed:
            self._snapshots.clear()
        if has_changed:
            self._snapshot += 1
            self._snapshots.pop(self._snapshot - SNAPSHOTS, None)
        self._snapshots[self._snapshot] = catalog  # Without a change it may still be of other servers.

    def forget(self) -> None:
        """Encode pages again: the state of a server, which is part of them, has changed."""
        self._pages.clear()

    def page(self, exchange: Exchange) -> Result:
        """The page that a list request asks for.

        Raises:
            InvalidParams: its cursor was edited, belongs to another caller or is too old.
        """
        kind, _ = LIST_METHODS[exchange.method]
        cursor = exchange.params.get("cursor")
        number, start = self._snapshot, 0
        if cursor is not None:
            opened_cursor = self._sealer.open(cursor, (kind, exchange.caller.id))
            number, start = _place_in(opened_cursor) if opened_cursor is not None else (-1, 0)
        if number not in self._snapshots:
            raise InvalidParams("Invalid params: the cursor is not one that this list gave; start again without it.")
        version = exchange.profile.version
        asker = (as_object(exchange.params.get("_meta")) or {}).get(GATEWAY)
        away = self._context.mounts_of_hub(asker) if isinstance(asker, str) else None
        page, end = self._page(exchange.method, version if version in SESSION_VERSIONS else "", number, start, away)
        if end is None:
            return page
        # Cursors are bound to their caller (T12), and are all in which the pages of two callers differ.
        following = self._sealer.seal(number.to_bytes(8, "big") + end.to_bytes(8, "big"), (kind, exchange.caller.id))
        encoded = bytes(cast(msgspec.Raw, page.value))
        with_cursor = msgspec.Raw(b'%b,"nextCursor":"%b"}' % (encoded[:-1], following.encode()))
        return msgspec.structs.replace(page, value=with_cursor)

    def _page(
        self, method: str, version: str, number: int, start: int, away: frozenset[str] | None
    ) -> tuple[Result, int | None]:
        """An encoded page as callers of an older revision, if any, understand it, and where the next one starts.

        `away` is None unless a gateway asks: entries of these mounts are left out for it, and it is told our id. Other
        clients get the same bytes from every gateway of this configuration.

        It is kept for the next caller: to encode or translate a thousand entries takes milliseconds.
        """
        kind, member = LIST_METHODS[method]
        catalog, size = self._snapshots[number], self._context.page_size
        ttl_ms, scope = self._context.life(catalog.prefixes)
        if catalog.is_part:
            scope = "private"  # A shared cache must not show one profile's lists to another (T11).
        key = (kind, version, number, start, size, ttl_ms, scope, away)
        if (kept := self._pages.get(key)) is not None:
            return kept
        entries = [entry for entry in catalog.of(kind).values() if not away or entry.mount not in away]
        value: Params = {member: [entry.encoded for entry in islice(entries, start, start + size)]}
        value["_meta"] = {
            SERVER_INFO_KEY: dict(self._context.info),
            GATEWAY: True if away is None else self._context.id,
            **self._absences(catalog),
        }
        encoded = msgspec.Raw(msgspec.json.encode(complete(value, ttl_ms=ttl_ms, scope=scope)))
        result = Result(encoded, is_final=True)
        if version:
            translated = reply_for_session(method, {}, result, REVISIONS[version])
            assert isinstance(translated, Result)  # As it was one before.
            result = Result(translated.value, is_final=True, revision=version)
        page = result, start + size if start + size < len(entries) else None
        if number == self._snapshot:
            self._pages[key] = page
        return page

    def _absences(self, catalog: Catalog) -> Params:
        """The servers that are away now, so that clients can tell that the list is not complete."""
        mounts = self._context.mounts_of(catalog.prefixes)
        away = {mount.name: mount.state.value for mount in mounts if not mount.is_ready}
        return {"dev.sluicegate/servers": away} if away else {}


def _place_in(cursor: bytes) -> tuple[int, int]:
    return int.from_bytes(cursor[:8], "big"), int.from_bytes(cursor[8:], "big")


class CallerView:
    """The part of a catalog that some callers see, and its encoded pages."""

    __slots__ = ("_servers", "caller", "catalog", "lists")

    def __init__(self, context: HubContext, caller: Caller, catalog: Catalog) -> None:
        self.caller = caller
        """One of these callers."""
        self.catalog = catalog
        self.lists = ListPages(context, catalog)
        self._servers: frozenset[str] | None = None

    @property
    def servers(self) -> frozenset[str]:
        """The mounts that have anything in it."""
        if self._servers is None:
            self._servers = frozenset(entry.mount for kind in KINDS for entry in self.catalog.of(kind).values())
        return self._servers

    def set_catalog(self, catalog: Catalog, *, is_narrowed: bool) -> set[str]:
        """Replace the catalog; the notices of the lists that changed."""
        before, self.catalog, self._servers = self.catalog, catalog, None
        changed = _changed(before, catalog)
        self.lists.set_catalog(catalog, has_changed=bool(changed), is_narrowed=is_narrowed)
        return changed


class Views:
    """What each caller sees of the catalog of one router, and where it leads."""

    def __init__(self, context: HubContext, profile: Subset, catalog: Catalog) -> None:
        self.profile = profile
        self.catalog = seen_through(catalog, profile)
        """Everything that the profile shows, also what rules hide from some callers."""
        self._context = context
        self._everything = CallerView(context, Caller(), self.catalog)
        self._views: dict[Hashable, CallerView] = {}

    def of(self, caller: Caller) -> CallerView:
        """What a caller sees."""
        governor = self._context.governor
        if governor is None or not governor.can_hide:
            return self._everything
        key = governor.class_of(caller)
        if key is None:
            return self._everything
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = CallerView(self._context, caller, self._visible(caller))
            if len(self._views) > MAX_VIEWS:
                del self._views[next(iter(self._views))]
        return view

    def sees(self, caller: Caller, server: str) -> bool:
        """Whether a caller may use anything of a server, and so hear of it; an empty name is the gateway's own."""
        view = self.of(caller)
        if not view.catalog.is_part:
            return True
        if server not in view.catalog.prefixes or view is self._everything:
            return server in view.catalog.prefixes
        return server in view.servers

    @property
    def mounts(self) -> list[Mount]:
        """The mounts that the profile shows."""
        return self._context.mounts_of(self.catalog.prefixes)

    # ----------------------------------------------------------------------------------------------------- changes

    def set_catalog(self, catalog: Catalog, profile: Subset | None) -> set[str]:
        """Replace the catalog, and the profile if there is another; the notices of the lists that changed."""
        is_narrowed = profile is not None and profile != self.profile
        self.profile = profile or self.profile
        self.catalog = seen_through(catalog, self.profile)
        changed = self._everything.set_catalog(self.catalog, is_narrowed=is_narrowed)
        for view in self._views.values():
            changed |= view.set_catalog(self._visible(view.caller), is_narrowed=is_narrowed)
        return changed

    def set_rules(self) -> set[str]:
        """Apply other rules, by which callers may belong to other classes; the notices of the lists that changed."""
        before = list(self._views.values()) or [self._everything]
        self._views = {}
        return {notice for old in before for notice in _changed(old.catalog, self.of(old.caller).catalog)}

    def forget_pages(self) -> None:
        """Encode lists again."""
        for view in (self._everything, *self._views.values()):
            view.lists.forget()

    def _visible(self, caller: Caller) -> Catalog:
        governor, catalog = self._context.governor, self.catalog
        return catalog if governor is None else without_hidden(catalog, partial(governor.hides, caller))

    # ----------------------------------------------------------------------------------------------------- targets

    def entry(self, kind: str, caller: Caller, name: object) -> Entry:
        """The entry of a list that has this name; raises UnknownTarget if the caller may not use it, or it is gone."""
        catalog = self.of(caller).catalog
        entry = catalog.of(kind).get(name) if isinstance(name, str) else None
        if entry is None and isinstance(name, str) and (known := catalog.exposed(kind, name)) is not None:
            name, entry = known, catalog.of(kind).get(known)
        if entry is None:
            self.check_quarantine(kind, caller, name)
            raise self.unknown(kind, name)
        return entry

    def target(self, kind: str, caller: Caller, name: object) -> Target:
        """The target of an entry; raises UnknownTarget if the caller may not use it, or it is gone."""
        return self.entry(kind, caller, name).target

    def unknown(self, kind: str, name: object, why: str = "") -> UnknownTarget:
        """The error for a name that the caller does not see."""
        unknown = UnknownTarget(f"Unknown {kind.removesuffix('s')}: {str(name)[:200]}{why}")
        hidden = self.catalog.of(kind).get(self.catalog.exposed(kind, str(name)) or "")
        unknown.hidden = None if hidden is None else hidden.target
        return unknown

    def check_quarantine(self, kind: str, caller: Caller, name: object) -> None:
        """Raise Quarantined if an entry is quarantined and the caller could use it otherwise."""
        found = self.catalog.quarantined.get((kind, str(name)))
        if found is not None and not self._context.hides(caller, found[0].target):
            when = "yet" if found[1] == BEING_REVIEWED else "until a person has approved it"
            raise Quarantined(f"{str(name)[:200]} may not be used {when}. {found[1]}")

    def resource(self, caller: Caller, uri: object) -> tuple[Mount, Target]:
        """The mount of a URI, and what rules judge.

        Raises:
            UnknownTarget: no server has it, or the caller may not use it.
        """
        found = self.catalog.owner_of_uri(uri) if isinstance(uri, str) else None
        mount = self._context.find(found[0]) if found is not None else None
        if found is not None and mount is not None:
            entry = self.catalog.resources.get(str(uri))
            target = resource_target(mount, found[1], entry.target.definition if entry is not None else "")
            if not self._context.hides(caller, target):
                return mount, target
        raise UnknownTarget(f"Resource not found: {str(uri)[:200]}", data={"uri": uri})


def resource_target(mount: Mount, own: str, definition: str = "") -> Target:
    """The target of a resource by its own URI."""
    return Target(mount.settings.key or mount.name, "resource", own, definition, origin=mount.settings.origin)


def _changed(before: Catalog, after: Catalog) -> set[str]:
    """The notices of the lists in which two catalogs differ."""
    return {notice for kind, notice in _NOTICES.items() if _differs(before.of(kind), after.of(kind))}


def _differs(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> bool:
    if len(before) != len(after):
        return True
    pairs = zip(before.values(), after.values(), strict=True)
    return any(old is not new and old.encoded != new.encoded for old, new in pairs)
