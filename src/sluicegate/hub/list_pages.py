"""Pages of the lists that clients see, cached in encoded form."""

from collections.abc import Mapping
from itertools import count, islice
from typing import TYPE_CHECKING, Final, cast

import msgspec

from sluicegate.errors import InvalidParams
from sluicegate.exchange import Exchange
from sluicegate.hub.catalog import GATEWAY, Catalog
from sluicegate.protocol.message import Params, Result
from sluicegate.protocol.modern_era import SERVER_INFO_KEY, complete
from sluicegate.protocol.sealed_tokens import Sealer
from sluicegate.protocol.translate.results import reply_for_session
from sluicegate.protocol.versions import REVISIONS, SESSION_VERSIONS
from sluicegate.runtime.process_key import process_key

if TYPE_CHECKING:
    from sluicegate.hub.hub import Hub

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

    def __init__(self, hub: "Hub", catalog: Catalog) -> None:
        self._hub = hub
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
        page, end = self._page(exchange.method, version if version in SESSION_VERSIONS else "", number, start)
        if end is None:
            return page
        # Cursors are bound to their caller (T12), and are all in which the pages of two callers differ.
        following = self._sealer.seal(number.to_bytes(8, "big") + end.to_bytes(8, "big"), (kind, exchange.caller.id))
        encoded = bytes(cast(msgspec.Raw, page.value))
        with_cursor = msgspec.Raw(b'%b,"nextCursor":"%b"}' % (encoded[:-1], following.encode()))
        return msgspec.structs.replace(page, value=with_cursor)

    def _page(self, method: str, version: str, number: int, start: int) -> tuple[Result, int | None]:
        """An encoded page as callers of an older revision, if any, understand it, and where the next one starts.

        It is kept for the next caller: to encode or translate a thousand entries takes milliseconds.
        """
        kind, member = LIST_METHODS[method]
        catalog, size = self._snapshots[number], self._hub.page_size
        ttl_ms, scope = self._hub.life(catalog.prefixes)
        if catalog.is_part:
            scope = "private"  # A shared cache must not show one profile's lists to another (T11).
        key = (kind, version, number, start, size, ttl_ms, scope)
        if (kept := self._pages.get(key)) is not None:
            return kept
        entries = catalog.of(kind).values()
        value: Params = {member: [entry.encoded for entry in islice(entries, start, start + size)]}
        value["_meta"] = {SERVER_INFO_KEY: dict(self._hub.info), GATEWAY: True, **self._absences(catalog)}
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
        mounts = ((name, self._hub.find(name)) for name in catalog.prefixes)
        away = {name: mount.state.value for name, mount in mounts if mount is not None and not mount.is_ready}
        return {"dev.sluicegate/servers": away} if away else {}


def _place_in(cursor: bytes) -> tuple[int, int]:
    return int.from_bytes(cursor[:8], "big"), int.from_bytes(cursor[8:], "big")
