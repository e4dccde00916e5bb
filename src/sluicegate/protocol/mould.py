"""A request but for what is another each time: its id, its arguments, its progress token. Whatever else is of the same
bytes means the same, so that only these have to be read.
"""

import re
from collections.abc import Mapping
from contextlib import suppress
from itertools import islice
from typing import Final

import jiter
import msgspec

from sluicegate.protocol.message import Params, RequestId, as_object

ARGUMENTS: Final = "arguments"
_LONGEST: Final = 16 * 1024
"""Bytes of a request of which a mould is made, and of what it keeps of it a quarter."""
_MOST_TRIES: Final = 8
_SIGN: Final = b'"the member of a mould"'
_members: Final = msgspec.json.Decoder(dict[str, msgspec.Raw]).decode
_plain_string: Final = re.compile(rb'"([^"\\\x00-\x1f\x7f-\xff]{0,64})"').fullmatch

Holes = Mapping[str, tuple[str, ...]]
"""What changes, by the name of the member and the way to it."""


class Mould:
    """The bytes of a request with holes in it: at most one for `arguments`, the others for a short id or name."""

    __slots__ = ("_after", "_before", "_first", "_last", "_pivot")

    def __init__(self, literals: list[bytes], names: list[str]) -> None:
        """So many literals, and between each two of them the hole of that name."""
        pivot = names.index(ARGUMENTS) if ARGUMENTS in names else len(names) - 1
        self._first, self._last = literals[0], literals[-1]
        self._pivot = names[pivot]
        # Those in front of the arguments are found from the front and those behind from behind, because the arguments
        # alone can hold what looks like a seam.
        self._before = list(zip(names[:pivot], literals[1 : pivot + 1], strict=True))
        self._after = list(zip(names[:pivot:-1], literals[-2:pivot:-1], strict=True))

    def read(self, data: bytes) -> tuple[dict[str, RequestId], Params | None] | None:
        """What fills the short holes, by their names, and the arguments if there is a hole for them; None if the data
        does not fit.
        """
        first, last = self._first, self._last
        if not data.startswith(first) or not data.endswith(last):
            return None
        middle = data[len(first) : len(data) - len(last)]
        found: dict[str, RequestId] = {}
        for name, literal in self._before:
            piece, seam, middle = middle.partition(literal)
            value = _short(piece)
            if not seam or value is None:
                return None
            found[name] = value
        for name, literal in self._after:
            middle, seam, piece = middle.rpartition(literal)
            value = _short(piece)
            if not seam or value is None:
                return None
            found[name] = value
        if self._pivot != ARGUMENTS:
            value = _short(middle)
            if value is None:
                return None
            found[self._pivot] = value
            return found, None
        try:
            # One value and nothing behind it: so all around it is what it was.
            arguments = as_object(jiter.from_json(middle, allow_inf_nan=False, catch_duplicate_keys=True))
        except ValueError:
            return None
        return None if arguments is None else (found, arguments)


def mould_of(data: bytes, holes: Holes) -> Mould | None:
    """The mould of a request that was read and found good, or None if it does not make a good one."""
    if len(data) > _LONGEST:
        return None
    cuts: list[tuple[int, int, str]] = []
    for name, way in holes.items():
        try:
            cut = _cut(data, way)
        except (msgspec.DecodeError, KeyError, RecursionError):
            cut = None
        if cut is None:
            return None
        cuts.append((*cut, name))
    cuts.sort()
    edges = [0, *(edge for begin, end, _ in cuts for edge in (begin, end)), len(data)]
    literals = [data[begin:end] for begin, end in zip(edges[::2], edges[1::2], strict=True)]
    # A seam of nothing could be anywhere; but between two members there is a comma at least.
    if sum(map(len, literals)) > _LONGEST // 4 or not all(literals):
        return None
    mould = Mould(literals, [name for _, _, name in cuts])
    return mould if mould.read(data) is not None else None


def _cut(data: bytes, way: tuple[str, ...]) -> tuple[int, int] | None:
    """Where in the data the member stands to which this way leads."""
    raw = _value_at(data, way)
    # By the name alone: a pattern with the value in it would take as long to make as the value is.
    for found in islice(re.finditer(rb'"%b"\s*+:\s*+' % way[-1].encode(), data), _MOST_TRIES):
        begin, end = found.end(), found.end() + len(raw)
        # Only in the right place another value changes the member, and nothing else.
        if data[begin:end] == raw:
            with suppress(msgspec.DecodeError, KeyError):
                if _value_at(data[:begin] + _SIGN + data[end:], way) == _SIGN:
                    return begin, end
    return None


def _value_at(data: bytes, way: tuple[str, ...]) -> bytes:
    for name in way:
        data = bytes(_members(data)[name])
    return data


def _short(piece: bytes) -> RequestId | None:
    """The id, token or name that these bytes are, if they are in the way that nearly all are."""
    if piece.isdigit():
        return int(piece) if len(piece) <= 15 and (piece[0] != 0x30 or len(piece) == 1) else None
    found = _plain_string(piece)
    return None if found is None else found[1].decode("ascii")
