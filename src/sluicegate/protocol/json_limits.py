"""Limits on the structure of JSON that the parsers do not have (threats T4, §3).

Counting bytes is cheap and clears nearly every message. Only a message with enough brackets, colons or digits to
exceed a limit is examined further.
"""

import math
import re
from collections.abc import Iterator
from typing import Final, cast

import msgspec


class Limits(msgspec.Struct, frozen=True):
    """Limits for a message of a client (threats §3)."""

    depth: int = 100
    members: int = 10_000
    marks: int = 100_000
    """Commas, colons and opening brackets outside of strings: three bytes of JSON (`[],`) take eighty bytes of memory.
    They are counted before parsing.
    """
    number_length: int = 256
    id_bytes: int = 256


DEFAULT_LIMITS: Final = Limits()
MARKS: Final = "commas, colons and brackets"
# A number that overflows a double becomes infinity silently. It has 3 exponent digits, or more characters than this.
_SAFE_NUMBER: Final = 200
_SHAPE: Final = {**dict.fromkeys(b"0123456789", b"0"), **dict.fromkeys(b"eE", b"e"), **dict.fromkeys(b"[{", b"[")}
_SHAPES: Final = b"".join(_SHAPE.get(byte, b"+" if byte == ord("+") else b" ") for byte in range(256))
# An unterminated string extends to the end of the data, so that nothing is scanned twice. (The character after a
# backslash is optional because of a bug: before 3.11.5 a possessive group that fails half-way counts as a match.)
_STRING: Final = rb'"(?:[^"\\]++|\\.?)*+"?'
_up_to_string: Final = re.compile(rb'([^"]*+)(?:%b)?' % _STRING, re.DOTALL)
_NEITHER_BRACKET_NOR_QUOTE: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_NEITHER_MARK_NOR_QUOTE: Final = bytes(byte for byte in range(256) if byte not in b',:[{"')
_SLICE: Final = 64 * 1024
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_bracket_runs: Final = re.compile(rb"\[++|\]++").finditer
_IN_NUMBER: Final = rb"[0-9.eE+-]"
_DIGITS: Final = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))


def has_many_marks(data: bytes, most: int = DEFAULT_LIMITS.marks) -> bool:
    """Whether well-formed JSON has more than `most` commas, colons and opening brackets outside of strings."""
    # Nearly always there are fewer even with those in strings.
    if len(data) <= most or _marks(data) <= most:
        return False
    found, in_string = 0, 0
    for piece in _slices(data):
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(
                b'\\"', b""
            )  # Every quote that is left begins or ends a string.
        parts = piece.translate(None, _NEITHER_MARK_NOR_QUOTE).split(b'"')
        found += sum(map(len, parts[in_string::2]))
        if found > most:
            return True
        in_string = (in_string + len(parts) - 1) % 2
    return False


def _slices(data: bytes) -> Iterator[bytes]:
    """Slices of JSON that do not end within an escape sequence of two characters."""
    start = 0
    while start < len(data):
        piece = data[start : start + _SLICE]
        if piece.endswith(b"\\") and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = data[start : start + _SLICE + 1]
        start += len(piece)
        yield piece


def _marks(data: bytes) -> int:
    return data.count(b",") + data.count(b":") + data.count(b"[") + data.count(b"{")


def outside_strings(data: bytes) -> Iterator[bytes]:
    """The pieces between strings."""
    return (found[1] for found in _up_to_string.finditer(data))


def may_break_limit(data: bytes, limits: Limits) -> bool:
    """Whether `limit_problem` has to examine a message."""
    shapes = data.translate(_SHAPES)
    return (
        shapes.count(b"[") > limits.depth
        or (len(data) > limits.members and data.count(b":") > limits.members)
        or (b"0e" in shapes and (b"0e000" in shapes or b"0e+000" in shapes))  # three exponent digits
        or _may_have_long_number(data, min(_SAFE_NUMBER, limits.number_length))
    )


def _may_have_long_number(data: bytes, limit: int) -> bool:
    """Whether there could be a number of more than `limit` bytes, also in strings."""
    if len(data) <= limit:
        return False
    # A number has at most three runs of digits and four other characters, so the longest run has at least this length.
    run = max(1, (limit - 2) // 3)
    # Checking every n-th byte is enough for a run of this length, and far cheaper.
    step = (run + 9) // 10
    return b"0" * (run // step) in data[::step].translate(_DIGITS)


def _has_long_number(data: bytes, limit: int) -> bool:
    # Only from the beginning of a number: otherwise each of its digits would start another scan.
    number = rb"(%b(?<!%b%b)%b{%d})" % (_IN_NUMBER, _IN_NUMBER, _IN_NUMBER, _IN_NUMBER, limit)
    return any(token[1] for token in re.finditer(_STRING + b"|" + number, data, re.DOTALL))


def limit_problem(data: bytes, value: object, limits: Limits) -> str | None:
    """Which limit a value exceeds, or None. Walks through the whole value, without recursion."""
    # Only the data shows how a number was written.
    limit = limits.number_length
    if _may_have_long_number(data, limit) and _has_long_number(data, limit):
        return f"a number is longer than {limit} characters"
    if is_deep(data, limits.depth):
        return f"it is nested more than {limits.depth} levels deep"
    level: list[object] = [value]
    while level:
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                members = cast(dict[str, object], item)
                if len(members) > limits.members:
                    return f"an object has more than {limits.members} members"
                inner.extend(members.values())
            elif isinstance(item, list):
                inner.extend(cast(list[object], item))
            elif isinstance(item, float) and math.isinf(item):
                return "a number is too large"
        level = inner
    return None


def is_deep(data: bytes, limit: int = DEFAULT_LIMITS.depth) -> bool:
    """Whether this well-formed JSON is nested deeper than `limit`."""
    # Nearly always there are fewer brackets, even with those in strings.
    if len(data) <= limit or data.count(b"[") + data.count(b"{") <= limit:
        return False
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # Every quote that is left begins or ends a string.
    # Every second piece between quotes is a string, which is left out.
    marks = b"".join(data.translate(_ONE_KIND, _NEITHER_BRACKET_NOR_QUOTE).replace(b'""', b"").split(b'"')[::2])
    # Remove the innermost level repeatedly, while that removes much.
    levels, size = limit, 2 * len(marks)
    while marks and len(marks) < size * 7 // 8:
        levels, size = levels - 1, len(marks)
        marks = marks.replace(b"[]", b"")
    if levels < 0:
        return True
    # The rest is deep and narrow, so its brackets are in long runs.
    depth = 0
    for run in _bracket_runs(marks):
        depth += len(run[0]) if run[0][0] == 0x5B else -len(run[0])
        if depth > levels:
            return True
    return False
