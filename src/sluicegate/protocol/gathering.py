"""A server's list, gathered from its pages.

The one rule: whatever a server does with its cursors, the gathering ends, and what was found up to there is kept.
"""

import logging
from collections.abc import Callable
from typing import Final, Generic, TypeVar

import msgspec

from sluicegate.errors import UpstreamProtocolError
from sluicegate.protocol.message import Params, as_array

log = logging.getLogger("sluicegate")

T = TypeVar("T")

MOST_PAGES: Final = 64
"""After so many pages a list is taken for endless."""

MOST_ENTRIES: Final = 20_000
"""How many entries of a list are looked at, readable or not: a page of bytes can hold millions."""

MOST_MALFORMED: Final = 1000
"""How many entries may be unreadable before the rest of a list is not worth reading either."""

MOST_WARNINGS: Final = 5
"""How many of a list's faults are told; to tell them takes longer than to find them."""


class Kind(msgspec.Struct, Generic[T], frozen=True):
    """One of the four lists: how to ask for it, where its entries are, and what tells them apart."""

    method: str
    member: str
    read: Callable[[object], T]
    key: Callable[[T], str]


class Gathering(Generic[T]):
    """One list as its pages come in: each entry once, in the server's order, without those that cannot be read."""

    def __init__(self, who: str, kind: Kind[T]) -> None:
        self._who = who
        self._kind = kind
        self._found: dict[str, T] = {}
        self._entries = 0
        self._pages = 0
        self._malformed = 0
        self._warnings = 0
        self._cursors: set[str] = set()

    @property
    def items(self) -> list[T]:
        """What was found so far."""
        return list(self._found.values())

    def add(self, page: Params) -> Params | None:
        """Take in a page; the params that ask for the next one, or None after the last.

        Raises:
            UpstreamProtocolError: the page has no list.
        """
        entries = as_array(page.get(self._kind.member))
        if entries is None:
            raise UpstreamProtocolError(
                f"The answer of {self._who} to {self._kind.method} has no list of {self._kind.member}."
            )
        self._pages += 1
        left = MOST_ENTRIES - self._entries
        items = self._readable(entries[:left])
        # Some servers mean the end by an empty cursor, and begin anew when it is sent back to them.
        if items and all(self._kind.key(item) in self._found for item in items):
            return self._stop("sent a page again")
        for item in items:
            if self._found.setdefault(self._kind.key(item), item) is not item:
                self._warn(f"has {self._kind.key(item)[:100]!r} twice; the first one is kept")
        if self._malformed > MOST_MALFORMED:
            return self._stop(f"has more than {MOST_MALFORMED} malformed entries")
        if len(entries) > left:
            return self._stop(f"has more than {MOST_ENTRIES} entries")
        cursor = page.get("nextCursor")
        if cursor is None:
            return None
        if not isinstance(cursor, str):
            return self._stop("has a cursor that is no string")
        if cursor in self._cursors:
            return self._stop("sent a cursor again")
        if self._pages >= MOST_PAGES:
            return self._stop(f"has more than {MOST_PAGES} pages")
        self._cursors.add(cursor)
        return {"cursor": cursor}

    def _readable(self, entries: list[object]) -> list[T]:
        items: list[T] = []
        for entry in entries:
            try:
                items.append(self._kind.read(entry))
            except msgspec.ValidationError as problem:
                self._malformed += 1
                if self._malformed > MOST_MALFORMED:
                    break
                self._warn(f"has a malformed entry, number {self._entries}, which is skipped: {problem}")
            self._entries += 1
        return items

    def _stop(self, problem: str) -> None:
        log.warning("%s: %s %s; the list ends here.", self._who, self._kind.method, problem)

    def _warn(self, problem: str) -> None:
        self._warnings += 1
        if self._warnings <= MOST_WARNINGS:
            log.warning("%s: %s %s.", self._who, self._kind.method, problem)
        elif self._warnings == MOST_WARNINGS + 1:
            log.warning("%s: %s has more faults, which are not told.", self._who, self._kind.method)
