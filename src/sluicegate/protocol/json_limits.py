"""Limits on the structure of JSON that the parsers do not have (threats T4).

Counting bytes is cheap and clears nearly every message. Only a message with enough brackets, colons or digits to
exceed a limit is examined further.
"""

import math
import re
from collections.abc import Generator, Iterator
from typing import Final, TypeVar, cast

import msgspec


class JsonLimits(msgspec.Struct, frozen=True):
    """Limits for a message of a client (T4)."""

    depth: int = 100
    members: int = 10_000
    marks: int = 100_000
    """Commas, colons and opening brackets outside of strings: three bytes of JSON (`[],`) take eighty bytes of memory.
    They are counted before parsing.
    """
    number_length: int = 256
    id_bytes: int = 256


DEFAULT_LIMITS: Final = JsonLimits()
MARKS: Final = "commas, colons and brackets"
# A number that overflows a double becomes infinity silently. It has 3 exponent digits, or more characters than this.
_SAFE_NUMBER: Final = 200
_SHAPE: Final = {**dict.fromkeys(b"0123456789", b"0"), **dict.fromkeys(b"eE", b"e"), **dict.fromkeys(b"[{", b"[")}
_SHAPES: Final = b"".join(_SHAPE.get(byte, b"+" if byte == ord("+") else b" ") for byte in range(256))
# An unterminated string extends to the end of the data, so that nothing is scanned twice. (The character after a
# backslash is optional because of a bug: before 3.11.5 a possessive group that fails half-way counts as a match.)
_STRING: Final = rb'"(?:[^"\\]++|\\.?)*+"?'
_up_to_string: Final = re.compile(rb'([^"]*+)(?:%b)?' % _STRING, re.DOTALL)
_NO_BRACKET: Final = bytes(byte for byte in range(256) if byte not in b"[]{}")
_SLICE: Final = 32 * 1024
LONG: Final = 32 * 1024
_OVERLAP: Final = 512
"""Bytes after a slice that are looked at with it: more than an exponent, or the digits that make a number long."""
_EACH_MARK: Final = (b"{", b":", b",", b"[")
_OPENING: Final = (b"{", b"[")
_WALKED_AT_ONCE: Final = 1000
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")
_bracket_runs: Final = re.compile(rb"\[++|\]++").finditer
_NUMBERS: Final = bytes(ord("0") if byte in b"0123456789.eE+-" else ord(" ") for byte in range(256))
_DIGITS: Final = bytes(ord("0") if byte in b"0123456789" else ord(" ") for byte in range(256))


T = TypeVar("T")
Steps = Generator[None, None, T]
"""Work on a long message. It pauses after short steps, so that its user can do something else meanwhile (T4)."""


def finished(steps: Steps[T]) -> T:
    """The outcome of the work, done at once."""
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return end.value


def rare_places(data: bytes, byte: bytes, most: int = 1000) -> list[int] | None:
    """Where a byte occurs; None if it occurs more than `most` times. For data that is longer than `LONG`.

    Most long messages are one long string. Searching them takes a twentieth of the time of counting, or of a search for
    several bytes; short data is counted as fast.
    """
    places: list[int] = []
    place = data.find(byte)
    while place >= 0:
        if len(places) == most:
            return None
        places.append(place)
        place = data.find(byte, place + 1)
    return places


def has_many_marks(data: bytes, most: int = DEFAULT_LIMITS.marks) -> bool:
    """Whether well-formed JSON has more than `most` commas, colons and opening brackets outside of strings."""
    if len(data) <= most or _has_few(data, _EACH_MARK, most):
        return False
    return finished(count_marks(data, most))


def _has_few(data: bytes, kinds: tuple[bytes, ...], most: int) -> bool:
    """Whether these bytes occur at most `most` times, as far as that is found out quickly."""
    most_of_each = min(most // len(kinds), 1000)
    for kind in kinds:  # A generator for `all` would take longer where the first one decides.
        if rare_places(data, kind, most_of_each) is None:
            return False
    return True


def count_marks(data: bytes, most: int) -> Steps[bool]:
    """The outcome of `has_many_marks`, in steps, and without its shortcut for short data."""
    # Nearly always there are fewer even with those in strings.
    found = 0
    for start in range(0, len(data), _SLICE):
        found += _marks(data[start : start + _SLICE])
        yield
    if found <= most:
        return False
    found = 0
    for piece in _outside(data):
        found += _marks(piece)
        if found > most:
            return True
        yield
    return False


def _marks(data: bytes) -> int:
    return data.count(b",") + data.count(b":") + data.count(b"[") + data.count(b"{")


def _outside(data: bytes) -> Iterator[bytes]:
    """Well-formed JSON in slices, with each string replaced by a quote."""
    start, in_string = 0, 0
    while start < len(data):
        piece = data[start : start + _SLICE]
        if piece.endswith(b"\\") and (len(piece) - len(piece.rstrip(b"\\"))) % 2:
            piece = data[start : start + _SLICE + 1]  # Not in the middle of an escape.
        start += len(piece)
        if b"\\" in piece:
            piece = piece.replace(b"\\\\", b"").replace(
                b'\\"', b""
            )  # Every quote that is left begins or ends a string.
        parts = piece.split(b'"')
        yield b'"'.join(parts[in_string::2])
        in_string = (in_string + len(parts) - 1) % 2


def outside_strings(data: bytes) -> Iterator[bytes]:
    """The pieces between strings, of any data."""
    return (found[1] for found in _up_to_string.finditer(data))


def may_break_limit(data: bytes, limits: JsonLimits) -> bool:
    """Whether `limit_problem` has to examine a message."""
    return finished(look_for_limits(data, limits))


def look_for_limits(data: bytes, limits: JsonLimits) -> Steps[bool]:
    """The outcome of `may_break_limit`, in steps."""
    brackets = colons = 0
    longest = limits.number_length if limits.number_length < _SAFE_NUMBER else _SAFE_NUMBER
    for start in range(0, len(data), _SLICE):
        piece = data[start : start + _SLICE + _OVERLAP]
        shapes = piece.translate(_SHAPES)
        brackets += shapes.count(b"[", 0, _SLICE)
        colons += piece.count(b":", 0, _SLICE)
        if brackets > limits.depth or colons > limits.members:
            return True
        if b"0e" in shapes and (b"0e000" in shapes or b"0e+000" in shapes):  # three exponent digits
            return True
        if len(piece) > longest and _may_have_long_number(piece, longest):
            return True
        if start:
            yield
    return False


def _may_have_long_number(data: bytes, limit: int) -> bool:
    """Whether there could be a number of more than `limit` bytes, also in strings."""
    if len(data) <= limit:
        return False
    # A number has at most three runs of digits and four other characters, so the longest run has at least this length.
    run = max(1, (limit - 2) // 3)
    # Checking every n-th byte is enough for a run of this length, and far cheaper.
    step = (run + 9) // 10
    return b"0" * (run // step) in data[::step].translate(_DIGITS)


def limit_problem(data: bytes, value: object, limits: JsonLimits) -> str | None:
    """A clause about the limit that a value exceeds, or None. Walks through the whole value, without recursion."""
    return finished(find_problem(data, value, limits))


def find_problem(data: bytes, value: object, limits: JsonLimits) -> Steps[str | None]:
    """The outcome of `limit_problem`, in steps."""
    # Only the data shows how a number was written.
    if (yield from _find_long_number(data, limits.number_length)):
        return f"a number is longer than {limits.number_length} characters"
    if (yield from _measure_depth(data, limits.depth)):
        return f"it is nested more than {limits.depth} levels deep"
    level: list[object] = [value]
    while level:
        inner: list[object] = []
        for count, item in enumerate(level, 1):
            if isinstance(item, dict):
                members = cast(dict[str, object], item)
                if len(members) > limits.members:
                    return f"an object has more than {limits.members} members"
                inner.extend(members.values())
            elif isinstance(item, list):
                inner.extend(cast(list[object], item))
            elif isinstance(item, float) and math.isinf(item):
                return "a number is too large"
            if count % _WALKED_AT_ONCE == 0:
                yield
        level = inner
    return None


def _find_long_number(data: bytes, limit: int) -> Steps[bool]:
    before = b""
    for piece in _outside(data):
        piece = before + piece
        # Split, not searched for: an expression would count the digits again from each of them.
        if _may_have_long_number(piece, limit) and max(map(len, piece.translate(_NUMBERS).split()), default=0) > limit:
            return True
        before = piece[-limit:]  # It may go on in the next slice.
        yield
    return False


def is_deep(data: bytes, limit: int = DEFAULT_LIMITS.depth) -> bool:
    """Whether this well-formed JSON is nested deeper than `limit`."""
    # Nearly always there are fewer brackets, even with those in strings.
    if (
        len(data) <= limit
        or (len(data) > LONG and _has_few(data, _OPENING, limit))
        or data.count(b"[") + data.count(b"{") <= limit
    ):
        return False
    return finished(_measure_depth(data, limit))


def _measure_depth(data: bytes, limit: int) -> Steps[bool]:
    pieces: list[bytes] = []
    for piece in _outside(data):
        pieces.append(piece.translate(_ONE_KIND, _NO_BRACKET))
        yield
    marks = b"".join(pieces)
    # Remove the innermost level repeatedly, while that removes much.
    levels, size = limit, 2 * len(marks)
    while marks and len(marks) < size * 7 // 8:
        levels, size = levels - 1, len(marks)
        marks = marks.replace(b"[]", b"")
        yield
    if levels < 0:
        return True
    # The rest is deep and narrow, so its brackets are in long runs.
    depth = 0
    for run in _bracket_runs(marks):
        depth += len(run[0]) if run[0][0] == 0x5B else -len(run[0])
        if depth > levels:
            return True
    return False
