"""What callers see of a router's catalog: callers to whom the same rules apply share one view and its pages."""

from collections.abc import Hashable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Final

from sluicegate.exchange import Caller
from sluicegate.hub.catalog import KINDS, Catalog, Entry, without_hidden
from sluicegate.hub.list_pages import ListPages
from sluicegate.protocol.methods import LIST_CHANGES

if TYPE_CHECKING:
    from sluicegate.hub.hub import Hub

MAX_VIEWS: Final = 100
"""Classes of callers whose lists are kept."""

_NOTICES: Final = {
    "tools": LIST_CHANGES["toolsListChanged"],
    "prompts": LIST_CHANGES["promptsListChanged"],
    "resources": LIST_CHANGES["resourcesListChanged"],
    "templates": LIST_CHANGES["resourcesListChanged"],
}


class CallerView:
    """The part of a catalog that some callers see, and its encoded pages."""

    __slots__ = ("_servers", "caller", "catalog", "lists")

    def __init__(self, hub: "Hub", caller: Caller, catalog: Catalog) -> None:
        self.caller = caller
        """One of these callers."""
        self.catalog = catalog
        self.lists = ListPages(hub, catalog)
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
    """The views of one router."""

    def __init__(self, hub: "Hub", catalog: Catalog) -> None:
        self._hub = hub
        self._everything = CallerView(hub, Caller(), catalog)
        self._views: dict[Hashable, CallerView] = {}

    def of(self, caller: Caller) -> CallerView:
        """What a caller sees."""
        governor = self._hub.governor
        key = None if governor is None else governor.class_of(caller)
        if key is None:
            return self._everything
        view = self._views.get(key)
        if view is None:
            view = self._views[key] = CallerView(self._hub, caller, self._visible(caller))
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

    def set_catalog(self, catalog: Catalog, *, is_narrowed: bool) -> set[str]:
        """Replace the catalog; the notices of the lists that changed for any caller."""
        changed = self._everything.set_catalog(catalog, is_narrowed=is_narrowed)
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
        governor, catalog = self._hub.governor, self._everything.catalog
        return catalog if governor is None else without_hidden(catalog, partial(governor.hides, caller))


def _changed(before: Catalog, after: Catalog) -> set[str]:
    """The notices of the lists in which two catalogs differ."""
    return {notice for kind, notice in _NOTICES.items() if _differs(before.of(kind), after.of(kind))}


def _differs(before: Mapping[str, Entry], after: Mapping[str, Entry]) -> bool:
    if len(before) != len(after):
        return True
    pairs = zip(before.values(), after.values(), strict=True)
    return any(old is not new and old.encoded != new.encoded for old, new in pairs)
