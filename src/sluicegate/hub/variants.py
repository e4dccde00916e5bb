"""Lists as servers show them to clients that declare an extension: with other tools, or other definitions of them.

What a client declares and a server offers is told to the server when its lists are fetched. Where they are not the
lists of all others, these clients have a router of their own, over a catalog with these lists.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Final

import msgspec

from sluicegate.errors import SluicegateError
from sluicegate.exchange import Connection, Exchange, Handler
from sluicegate.hub.catalog import KINDS, Catalog, Offer
from sluicegate.hub.fetch_catalog import fetch_offer
from sluicegate.hub.list_pages import LIST_METHODS
from sluicegate.hub.mount import Mount
from sluicegate.protocol.extensions import common, may_vary
from sluicegate.protocol.message import Params, Reply
from sluicegate.protocol.modern_era import ClientProfile, Discovery
from sluicegate.runtime.task_scope import Turns

if TYPE_CHECKING:
    from sluicegate.hub.hub import Hub
    from sluicegate.hub.router import Router

log = logging.getLogger("sluicegate")

MAX_VARIANTS: Final = 16
"""Sets of extensions, with their settings, whose lists are kept."""

FETCHES_WITHIN: Final = 5.0
"""Seconds for the lists of one server; after that its clients get the lists of all others."""

_METHODS: Final = frozenset({*LIST_METHODS, "tools/call", "prompts/get", "resources/read", "completion/complete"})
"""What depends on the lists."""

Declared = tuple[str, bytes]
"""A mount, and the extensions that it is told of, as JSON."""
Key = tuple[Declared, ...]


class _Fetched(msgspec.Struct, frozen=True):
    usual: Offer
    """What the server offers to all others; as long as it is the same object, nothing has changed."""
    offer: Offer


class Variants:
    """The routers of one router's clients that declare extensions."""

    def __init__(self, hub: "Hub", router: "Router", make: "Callable[[Catalog], Router] | None") -> None:
        """`make` returns a router of the same profile without variants; None if this is one of these."""
        self._hub = hub
        self._router = router
        self._make = make
        self._routers: dict[Key, Router | None] = {}
        """None where the lists are those of all others."""
        self._fetched: dict[Declared, _Fetched] = {}
        self._offering: tuple[str, ...] = ()
        """The mounts whose lists may vary."""
        self._lock = asyncio.Lock()

    def key_of(self, exchange: Exchange) -> Key:
        """What servers are told of the client's extensions; empty if there is nothing to tell."""
        profile = exchange.profile
        if not self._offering or "extensions" not in profile.capabilities or exchange.method not in _METHODS:
            return ()
        return tuple(
            (mount.name, msgspec.json.encode(told, order="deterministic"))
            for mount in map(self._hub.find, self._offering)
            # A session-era server was told once, for all callers.
            if mount is not None and mount.offer is not None and not mount.calls.is_session_era
            if (told := common(profile, mount.offer.extensions))
        )

    async def answer(self, key: Key, exchange: Exchange, usual: Handler) -> Reply:
        """The reply of the router for this key; `usual` answers if there is none."""
        if key not in self._routers:
            async with self._lock:
                if key not in self._routers:
                    await self._fetch(key)
        router = self._routers.get(key)
        return await (usual if router is None else router)(exchange)

    async def _fetch(self, key: Key) -> None:
        for declared in key:
            mount = self._hub.find(declared[0])
            if mount is not None and mount.offer is not None and self._valid(declared) is None:
                self._fetched[declared] = await _fetch(mount, mount.offer, msgspec.json.decode(declared[1]))
        offers = self._offers(key)
        if offers is not None and self._make is not None:
            self._routers[key] = self._make(_part(await self._hub.reviewed_catalog_with(offers))) if offers else None
        if len(self._routers) > MAX_VARIANTS:
            self._drop(next(iter(self._routers)))
        kept = {declared for known in self._routers for declared in known}
        self._fetched = {declared: found for declared, found in self._fetched.items() if declared in kept}

    def _valid(self, declared: Declared) -> _Fetched | None:
        mount, found = self._hub.find(declared[0]), self._fetched.get(declared)
        return found if mount is not None and found is not None and found.usual is mount.offer else None

    def _offers(self, key: Key) -> dict[str, Offer] | None:
        """The offers that are not the usual ones; None if they have to be fetched."""
        found = {declared[0]: self._valid(declared) for declared in key}
        if not all(found.values()):
            return None
        return {name: each.offer for name, each in found.items() if each is not None and each.offer is not each.usual}

    def _drop(self, key: Key) -> None:
        router = self._routers.pop(key)
        if router is not None:
            router.set_catalog(self._hub.catalog)  # Calls in progress look their target up again.

    # --------------------------------------------------------------------------------------------- changes

    def refresh(self) -> None:
        """Apply a change of the catalog, of the profile, or of rules."""
        if self._make is None:
            return
        mounts = map(self._hub.find, self._router.catalog.prefixes)
        self._offering = tuple(
            mount.name for mount in mounts if mount is not None and mount.offer and may_vary(mount.offer.extensions)
        )
        for key, router in list(self._routers.items()):
            offers = self._offers(key)
            catalog = None if offers is None else self._hub.catalog_with(offers)
            if catalog is None:
                self._drop(key)
            elif router is not None:
                router.set_catalog(_part(catalog), self._router.profile)
                router.set_rules()

    def forget_pages(self) -> None:
        """Encode lists again."""
        for router in self._routers.values():
            if router is not None:
                router.forget_pages()

    def outdate(self, mount: Mount) -> None:
        """Fetch the lists of a mount again: it says that they have changed, though the usual ones have not."""
        self._fetched = {declared: found for declared, found in self._fetched.items() if declared[0] != mount.name}
        self.refresh()

    def open(self) -> None:
        """Forget what belongs to another event loop."""
        self._lock = asyncio.Lock()


class _Declaring:
    """A connection on which every request comes from a client with this profile."""

    def __init__(self, connection: Connection, profile: ClientProfile) -> None:
        self.wait_closed = connection.wait_closed
        self._connection = connection
        self._profile = profile

    @property
    def discovery(self) -> Discovery:
        return self._connection.discovery

    def __call__(self, exchange: Exchange) -> Awaitable[Reply]:
        return self._connection(msgspec.structs.replace(exchange, profile=self._profile))


async def _fetch(mount: Mount, usual: Offer, extensions: Params) -> _Fetched:
    connection = mount.connection
    if connection is None:
        return _Fetched(usual, usual)
    declaring = _Declaring(connection, ClientProfile(capabilities={"extensions": extensions}))
    try:
        async with asyncio.timeout(FETCHES_WITHIN):
            offer = await fetch_offer(mount.name, declaring, mount.settings.offers, Turns())
    except (TimeoutError, SluicegateError) as problem:
        log.warning("%s: its lists for clients with extensions could not be fetched: %r", mount.name, problem)
        return _Fetched(usual, usual)
    is_usual = all(getattr(offer, kind) == getattr(usual, kind) for kind in KINDS)
    # Without their settings, which clients choose: a server must not have a first sight for each of them (T21).
    return _Fetched(usual, usual if is_usual else msgspec.structs.replace(offer, variant=",".join(sorted(extensions))))


def _part(catalog: Catalog) -> Catalog:
    # Not for a shared cache (T11): other clients see other lists.
    return msgspec.structs.replace(catalog, is_part=True)
