"""How much of a message is read before it is refused (threats T4, §3): what parsers have no limits for. Pure scanning.

Counting bytes is cheap and clears nearly every message; only one that has enough brackets, colons or digits to break a
limit is looked at more closely.
"""

import math
import re
from collections.abc import Iterator
from typing import Final, cast

import msgspec

from sluicegate.protocol.message import Params


class Limits(msgspec.Struct, frozen=True):
    """How much of a client's message is read before it is refused (threats §3)."""

    depth: int = 100
    members: int = 10_000
    marks: int = 100_000
    """Commas, colons and opening brackets outside of strings: what there is to be built. Three bytes of JSON (`[],`)
    are eighty of Python, so this is counted before anything is parsed; so many are 8 MiB at most.
    """
    number_length: int = 256
    id_bytes: int = 256


DEFAULT_LIMITS: Final = Limits()
# A number that overflows a double would silently become infinity. That takes three exponent digits, or more characters
# than these.
_SAFE_NUMBER: Final = 200
_SHAPE: Final = {**dict.fromkeys(b"0123456789", b"0"), **dict.fromkeys(b"eE", b"e"), **dict.fromkeys(b"[{", b"[")}
_SHAPES: Final = b"".join(_SHAPE.get(byte, b"+" if byte == ord("+") else b" ") for byte in range(256))
# A string without an end reaches to the end of the data, so that nothing is ever looked through twice.
# (What follows on a backslash may be missing: before 3.11.5 Python takes a possessive group that fails half-way for a
# match.)
_STRING: Final = rb'"(?:[^"\\]++|\\.?)*+"?'
_up_to_string: Final = re.compile(rb'([^"]*+)(?:%b)?' % _STRING, re.DOTALL)
_IN_NUMBER: Final = rb"[0-9.eE+-]"
_IN_NUMBERS: Final = bytes(ord("0") if byte in b"0123456789.eE+-" else ord(" ") for byte in range(256))


def has_many_marks(data: bytes, most: int) -> bool:
    """Whether more than `most` commas, colons and opening brackets stand in the data, outside of strings."""
    # Nearly always there are too few of them even with those in strings.
    if len(data) <= most or _marks(data) <= most:
        return False
    found = 0
    for piece in outside_strings(data):
        found += _marks(piece)
        if found > most:
            return True
    return False


def _marks(data: bytes) -> int:
    return data.count(b",") + data.count(b":") + data.count(b"[") + data.count(b"{")


def outside_strings(data: bytes) -> Iterator[bytes]:
    """What stands between strings, piece by piece: to keep them all could take more room than the data itself."""
    return (found[1] for found in _up_to_string.finditer(data))


def may_break_limit(data: bytes, limits: Limits) -> bool:
    """Whether a message has to be looked at more closely by `limit_problem`."""
    shapes = data.translate(_SHAPES)
    return (
        shapes.count(b"[") > limits.depth
        or (len(data) > limits.members and data.count(b":") > limits.members)
        or (b"0e" in shapes and _may_overflow(shapes))
        or _may_have_long_number(data, min(_SAFE_NUMBER, limits.number_length))
    )


def _may_overflow(shapes: bytes) -> bool:
    """Whether somewhere stands what could be a number with three exponent digits. (Faster than a pattern.)"""
    return b"0e000" in shapes or b"0e+000" in shapes


def _may_have_long_number(data: bytes, limit: int) -> bool:
    """Whether somewhere more than `limit` bytes in a row could be those of a number; strings are not told apart."""
    if len(data) <= limit:
        return False
    # Of so many in a row, several of every n-th byte are next to each other: far fewer bytes to look at.
    step = (limit + 9) // 10
    return b"0" * ((limit + 1) // step) in data[::step].translate(_IN_NUMBERS)


def _has_long_number(data: bytes, limit: int) -> bool:
    # Looked for from where a number begins only: from every digit on, it would be looked through again and again.
    number = rb"(%b(?<!%b%b)%b{%d})" % (_IN_NUMBER, _IN_NUMBER, _IN_NUMBER, _IN_NUMBER, limit)
    return any(token[1] for token in re.finditer(_STRING + b"|" + number, data, re.DOTALL))


def limit_problem(data: bytes, value: object, limits: Limits) -> str | None:
    """What of a value is over a limit: all of it is walked through, without recursion."""
    # How a number was written is seen in the data only.
    limit = limits.number_length
    if _may_have_long_number(data, limit) and _has_long_number(data, limit):
        return f"a number is longer than {limit} characters"
    level: list[object] = [value]
    depth = 0
    while level:
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                members = cast(Params, item)
                if len(members) > limits.members:
                    return f"an object has more than {limits.members} members"
                inner.extend(members.values())
            elif isinstance(item, list):
                inner.extend(cast(list[object], item))
            elif isinstance(item, float) and math.isinf(item):
                return "a number is too large"
        # An empty container on the next level counts as a level: depth is what is written, not what is held.
        depth += any(isinstance(item, dict | list) for item in level)
        if depth > limits.depth:
            return f"it is nested more than {limits.depth} levels deep"
        level = inner
    return None
