"""Pages of lists: our own pages have sealed cursors; the pages of servers may be malformed or endless."""

import logging
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, TypeVar

import msgspec

from sluicegate.errors import InvalidParams, RemoteProtocolError, UpstreamProtocolError
from sluicegate.protocol.json_limits import DEFAULT_LIMITS, limit_problem, may_break_limit
from sluicegate.protocol.message import Params, Result, as_array, as_object
from sluicegate.protocol.sealed_tokens import Sealer

log = logging.getLogger("sluicegate")

T = TypeVar("T")

# ------------------------------------------------------------------------------------------------------------ our lists


def page(items: Sequence[T], cursor: object, kind: str, size: int, sealer: Sealer) -> tuple[Sequence[T], str | None]:
    """One page of a list, and the cursor of the next page or None at the end.

    Raises:
        InvalidParams: the cursor is not one of this list.
    """
    start = 0
    if cursor is not None:
        payload = sealer.open(cursor, (kind,))
        if payload is None:
            raise InvalidParams("Invalid params: the cursor is not one that this list gave; start again without it.")
        start = int.from_bytes(payload, "big")
    end = start + size
    following = sealer.seal(end.to_bytes(8, "big"), (kind,)) if end < len(items) else None
    return items[start:end], following


# ------------------------------------------------------------------------------------------------- one page of a server

MAX_COMMAS: Final = 1_000_000
"""Commas in a page. One with more is not decoded: two bytes of JSON (`1,`) take sixty bytes of memory."""

MAX_ENTRY_NAME: Final = 64 * 1024
"""Bytes of the name of an entry that is not decoded otherwise."""

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])


def page_of(reply: Result) -> dict[str, msgspec.Raw] | None:
    """The raw members of a page; None for a page that is too large to decode.

    Raises:
        RemoteProtocolError: it is not an object.
    """
    data = as_raw(reply.value)
    if bytes(data).count(b",") > MAX_COMMAS:
        return None
    with _decoding():
        return _members.decode(data)


def as_raw(value: object) -> msgspec.Raw:
    """The value as raw JSON."""
    return value if isinstance(value, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(value))


def entries_of(member: msgspec.Raw | None) -> list[msgspec.Raw] | None:
    """The raw entries in a member of a page; None if it is not a list."""
    if member is None or bytes(memoryview(member)[:1]) != b"[":
        return None
    with _decoding():
        return _items.decode(member)


def value_of(data: msgspec.Raw) -> object:
    """The decoded value.

    Raises:
        RemoteProtocolError: it cannot be decoded.
    """
    with _decoding():
        return msgspec.json.decode(data)


def is_beyond_limits(data: msgspec.Raw, value: object) -> bool:
    """Whether an entry is nested too deeply, or has numbers that overflow."""
    found = bytes(data)
    return may_break_limit(found, DEFAULT_LIMITS) and limit_problem(found, value, DEFAULT_LIMITS) is not None


def own_name(data: msgspec.Raw, member: str) -> str:
    """The name of a raw entry, or a question mark if it has none."""
    with _decoding():
        name = _members.decode(data).get(member) if bytes(memoryview(data)[:1]) == b"{" else None
        if name is None or len(memoryview(name)) > MAX_ENTRY_NAME:
            return "?"
        return str(msgspec.json.decode(name))


@contextmanager
def _decoding() -> Generator[None]:
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RemoteProtocolError("The answer's result cannot be decoded.") from None


# -------------------------------------------------------------------------------------- a server's list, from its pages

MAX_PAGES: Final = 64
"""A list with more pages is taken for endless."""

MAX_ENTRIES: Final = 20_000
"""Entries of a list that are read, valid or not."""

MAX_MALFORMED: Final = 1000
"""Malformed entries after which the rest of a list is not read."""

MAX_WARNINGS: Final = 5
"""Faults of a list that are logged."""


_COMPLETE: Final[Params] = {"inputSchema": {}}
"""Stands for an entry that is read already."""


class Kind(msgspec.Struct, Generic[T], frozen=True):
    """One of the four lists: its method, the member with its entries, and their key."""

    method: str
    member: str
    read: Callable[[object], T]
    key: Callable[[T], str]


class Gathering(Generic[T]):
    """One list, from its pages: each entry once, in the server's order, without malformed ones."""

    def __init__(self, server: str, kind: Kind[T]) -> None:
        self._server = server
        self._kind = kind
        self._found: dict[str, T] = {}
        self._entries = 0
        self._pages = 0
        self._malformed = 0
        self._warnings = 0
        self._cursors: set[str] = set()

    @property
    def items(self) -> list[T]:
        """The entries so far."""
        return list(self._found.values())

    def add(self, page: Params) -> Params | None:
        """Add a page; returns the params that request the next one, or None after the last.

        Raises:
            UpstreamProtocolError: the page has no list.
        """
        if page.get(self._kind.member) is None:
            self._warn(f"has no {self._kind.member}, which is read as an empty list")
            page = {**page, self._kind.member: []}
        entries = as_array(page[self._kind.member])
        if entries is None:
            raise UpstreamProtocolError(
                f"The answer of {self._server} to {self._kind.method} has no list of {self._kind.member}."
            )
        self._pages += 1
        left = MAX_ENTRIES - self._entries
        items = self._readable(entries[:left])
        # Some servers end a list with an empty cursor, and send the first page again when they get it back.
        if items and all(self._kind.key(item) in self._found for item in items):
            return self._stop("sent a page again")
        for item in items:
            if self._found.setdefault(self._kind.key(item), item) is not item:
                self._warn(f"has {self._kind.key(item)[:100]!r} twice; the first one is kept")
        if self._malformed > MAX_MALFORMED:
            return self._stop(f"has more than {MAX_MALFORMED} malformed entries")
        if len(entries) > left:
            return self._stop(f"has more than {MAX_ENTRIES} entries")
        cursor = page.get("nextCursor")
        if cursor is None:
            return None
        if not isinstance(cursor, str):
            return self._stop("has a cursor that is no string")
        if cursor in self._cursors:
            return self._stop("sent a cursor again")
        if self._pages >= MAX_PAGES:
            return self._stop(f"has more than {MAX_PAGES} pages")
        self._cursors.add(cursor)
        return {"cursor": cursor}

    def _readable(self, entries: list[object]) -> list[T]:
        items: list[T] = []
        for entry in entries:
            try:
                items.append(self._kind.read(entry))
                if self._kind.method == "tools/list" and (as_object(entry) or _COMPLETE).get("inputSchema") is None:
                    self._warn(
                        f"has {self._kind.key(items[-1])[:100]!r} without inputSchema; it may take any arguments"
                    )
            except msgspec.ValidationError as problem:
                self._malformed += 1
                if self._malformed > MAX_MALFORMED:
                    break
                self._warn(f"has a malformed entry, number {self._entries}, which is skipped: {problem}")
            self._entries += 1
        return items

    def _stop(self, problem: str) -> None:
        log.warning("%s: %s %s; the list ends here.", self._server, self._kind.method, problem)

    def _warn(self, problem: str) -> None:
        self._warnings += 1
        if self._warnings <= MAX_WARNINGS:
            log.warning("%s: %s %s.", self._server, self._kind.method, problem)
        elif self._warnings == MAX_WARNINGS + 1:
            log.warning("%s: %s has more faults, which are not logged.", self._server, self._kind.method)
