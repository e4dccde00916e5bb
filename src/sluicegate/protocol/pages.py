"""A page of a server's list, of which each entry is opened on its own: a page as a whole may be anything."""

from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

import msgspec

from sluicegate.errors import RemoteProtocolError
from sluicegate.protocol.bounds import DEFAULT_LIMITS, limit_problem, may_break_limit
from sluicegate.protocol.message import Result

MOST_COMMAS: Final = 1_000_000
"""How many commas a page may have: one with more is not opened, for a piece of two bytes (`1,`) takes sixty of memory.
What fits into a server's share of the lists has fewer, unless it is made of nothing else."""

LONGEST_NAME: Final = 64 * 1024
"""How long the name of an entry may be that is not opened otherwise."""

_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_items: Final = msgspec.json.Decoder(list[msgspec.Raw])


def page_of(reply: Result) -> dict[str, msgspec.Raw] | None:
    """The members of a page, none of them opened; None for a page of more pieces than anybody should open.

    Raises:
        RemoteProtocolError: it is no object.
    """
    data = as_raw(reply.value)
    if bytes(data).count(b",") > MOST_COMMAS:
        return None
    with _decoding():
        return _members.decode(data)


def as_raw(value: object) -> msgspec.Raw:
    """The value as bytes, if it is not that already."""
    return value if isinstance(value, msgspec.Raw) else msgspec.Raw(msgspec.json.encode(value))


def entries_of(member: msgspec.Raw | None) -> list[msgspec.Raw] | None:
    """The entries that a member of a page has, none of them opened; None if it is no list."""
    if member is None or bytes(memoryview(member)[:1]) != b"[":
        return None
    with _decoding():
        return _items.decode(member)


def value_of(data: msgspec.Raw) -> object:
    """The value.

    Raises:
        RemoteProtocolError: it is none.
    """
    with _decoding():
        return msgspec.json.decode(data)


def is_beyond_limits(data: msgspec.Raw, value: object) -> bool:
    """Whether an entry is nested too deeply for anybody to follow, or has numbers that are none any more."""
    found = bytes(data)
    return may_break_limit(found, DEFAULT_LIMITS) and limit_problem(found, value, DEFAULT_LIMITS) is not None


def own_name(data: msgspec.Raw, member: str) -> str:
    """What an entry that is not to be opened is called, if that can be seen; else a question mark."""
    with _decoding():
        name = _members.decode(data).get(member) if bytes(memoryview(data)[:1]) == b"{" else None
        if name is None or len(memoryview(name)) > LONGEST_NAME:
            return "?"
        return str(msgspec.json.decode(name))


@contextmanager
def _decoding() -> Generator[None]:
    try:
        yield
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise RemoteProtocolError("The answer's result cannot be decoded.") from None
