"""Globs: `*` and `?` stop at the separator, `**` does not; `[a-z]`, `[!a]`, `{a,b}`; `\\` escapes. Pure.

A glob matches the whole text, case-sensitively, in time linear in the text whatever the glob (T19): literal ends are
compared first, and what is left between them is read once, with all possible positions kept as bits of one number.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, NamedTuple

MAX_SIZE: Final = 1024
"""Characters of a glob."""
MAX_ALTERNATIVES: Final = 32
"""Texts that all `{a,b}` of a glob may stand for together."""
MAX_POSITIONS: Final = 512
"""Characters between the first and the last wildcard, in all alternatives together."""

_SPECIAL: Final = frozenset("*?[]{}\\")
_END: Final = 0x110000
"""One more than the last code point."""
_REMEMBERED: Final = 512
"""Characters for which a glob remembers where they lead."""


class BadGlob(ValueError):
    """A glob that cannot be read; the message is the end of a sentence: "... is not closed"."""


class Chars(NamedTuple):
    """One character of several: `?`, `[a-z]` or `[!a]`, as ranges of code points, the end of each exclusive."""

    ranges: Sequence[tuple[int, int]]


class Star(NamedTuple):
    """Any number of characters; without the separator unless it `crosses` it."""

    crosses: bool


Token = str | Chars | Star
"""A text, one character of several, or a star."""


class Glob:
    """A compiled glob."""

    __slots__ = (
        "_automaton",
        "_exact",
        "_head",
        "_heads",
        "_simple",
        "is_rooted",
        "matches_all",
        "separator",
        "source",
    )

    def __init__(self, source: str, separator: str = "/") -> None:
        """Raises BadGlob if the source cannot be read."""
        self.source = source
        self.separator = separator
        exact: set[str] = set()
        simple: list[tuple[str, Star, str]] = []
        rest: list[_Ends] = []
        for alternative in _Parser(source, separator).parse():
            head, inner, tail = ends = _ends(_joined(alternative))
            if not inner:
                exact.add(head)
            elif len(inner) == 1 and isinstance(inner[0], Star):
                simple.append((head, inner[0], tail))
            else:
                rest.append(ends)
        self._exact = frozenset(exact)
        self._simple = tuple(simple)
        self._automaton = _Automaton(rest, separator) if rest else None
        self._heads = tuple(head for head, star, tail in simple if star.crosses and not tail)
        """It matches everything that begins with one of these."""
        beginnings = [*exact, *(head for head, _, _ in simple), *(head for head, _, _ in rest)]
        self._head = _common_prefix(beginnings)
        """The text that everything it matches begins with."""
        self.is_rooted = bool(separator) and any(each.startswith(separator) for each in beginnings)
        """Whether it, or one of its alternatives, matches only texts that begin with the separator."""
        self.matches_all = "" in self._heads

    def matches(self, text: str) -> bool:
        """Whether the glob matches the whole text."""
        if text in self._exact:
            return True
        for head, star, tail in self._simple:
            if text.startswith(head) and text.endswith(tail) and len(text) >= len(head) + len(tail):
                if star.crosses or text.find(self.separator, len(head), len(text) - len(tail)) < 0:
                    return True
        return self._automaton is not None and self._automaton.accepts(text)

    @property
    def literal(self) -> str | None:
        """The only text that it matches; None if it may match others."""
        is_one = len(self._exact) == 1 and not self._simple and self._automaton is None
        return next(iter(self._exact)) if is_one else None

    def covers(self, other: "Glob") -> bool:
        """Whether it surely matches every text that the other one matches; False if that is hard to tell."""
        if self.source == other.source or self.matches_all:
            return True
        if not other._simple and other._automaton is None:
            return all(self.matches(text) for text in other._exact)
        return other._head.startswith(self._heads)


@lru_cache(maxsize=4096)
def glob(source: str, separator: str = "/") -> Glob:
    """The compiled glob. Raises BadGlob if the source cannot be read."""
    return Glob(source, separator)


def name_glob(source: str) -> Glob:
    """A glob on names, which have no separator: `*` matches everything. Raises BadGlob."""
    return glob(source, "")


def name_matches(name: str, source: str) -> bool:
    """Whether a glob matches the whole name. Raises BadGlob."""
    return glob(source, "").matches(name)


def escape(text: str) -> str:
    """A glob that matches this text only."""
    return "".join(f"\\{char}" if char in _SPECIAL else char for char in text)


# ---------------------------------------------------------------------------------------------------------- parsing


class _Parser:
    """Reads a glob into its alternatives, each a list of tokens."""

    def __init__(self, source: str, separator: str) -> None:
        if len(source) > MAX_SIZE:
            raise BadGlob(f"is longer than {MAX_SIZE} characters")
        self._source = source
        self._separators = [(ord(separator), ord(separator) + 1)] if separator else []
        self._place = 0

    def parse(self) -> list[list[Token]]:
        found = self._sequence(depth=0)
        if self._place < len(self._source):
            raise BadGlob(r"has a } without a {; write \} for the character")
        return found

    def _sequence(self, depth: int) -> list[list[Token]]:
        """The alternatives up to the end, or inside braces up to the next comma or closing brace."""
        found: list[list[Token]] = [[]]
        while self._place < len(self._source):
            char = self._source[self._place]
            if char == "}" or (char == "," and depth):
                break
            if char == "{":
                choices = self._braces(depth)
                found = [[*left, *right] for left in found for right in choices]
                if len(found) > MAX_ALTERNATIVES:
                    raise BadGlob(f"has more than {MAX_ALTERNATIVES} alternatives")
            else:
                token = self._token(char)
                for each in found:
                    each.append(token)
        return found

    def _braces(self, depth: int) -> list[list[Token]]:
        if depth == 8:
            raise BadGlob("has braces that are nested too deeply")
        found: list[list[Token]] = []
        while True:
            self._place += 1  # The brace, or the comma.
            found += self._sequence(depth + 1)
            if self._place == len(self._source):
                raise BadGlob(r"has a { that is not closed; write \{ for the character")
            if len(found) > MAX_ALTERNATIVES:
                raise BadGlob(f"has more than {MAX_ALTERNATIVES} alternatives")
            if self._source[self._place] == "}":
                self._place += 1
                return found

    def _token(self, char: str) -> Token:
        self._place += 1
        match char:
            case "*":
                stars = len(self._source[self._place :]) - len(self._source[self._place :].lstrip("*"))
                self._place += stars
                return Star(bool(stars) or not self._separators)
            case "?":
                return Chars(_others(self._separators))
            case "[":
                return self._class()
            case "]":
                raise BadGlob(r"has a ] without a [; write \] for the character")
            case "\\":
                return self._escaped()
            case _:
                return char

    def _escaped(self) -> str:
        if self._place == len(self._source):
            raise BadGlob(r"ends in a backslash; write \\ for the character")
        self._place += 1
        return self._source[self._place - 1]

    def _class(self) -> Chars:
        if self._peek() == "^":
            raise BadGlob("has a [^; write [! for all other characters")
        is_negated = self._peek() == "!"
        self._place += is_negated
        ranges: list[tuple[int, int]] = []
        while self._peek() != "]" or not ranges:
            first = last = self._class_char()
            if self._peek() == "-" and self._peek(1) != "]":
                self._place += 1
                last = self._class_char()
            if last < first:
                raise BadGlob(f"has the empty range {first}-{last}")
            ranges.append((ord(first), ord(last) + 1))
        self._place += 1
        others = ranges if is_negated else _others(ranges)
        return Chars(_others([*others, *self._separators]))

    def _class_char(self) -> str:
        char = self._peek()
        self._place += 1
        return self._escaped() if char == "\\" else char

    def _peek(self, ahead: int = 0) -> str:
        if self._place + ahead >= len(self._source):
            raise BadGlob(r"has a [ that is not closed; write \[ for the character")
        return self._source[self._place + ahead]


def _others(ranges: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """All code points that are in none of the ranges."""
    found: list[tuple[int, int]] = []
    place = 0
    for first, end in sorted(ranges):
        if place < first:
            found.append((place, first))
        place = max(place, end)
    return [*found, (place, _END)] if place < _END else found


def _joined(tokens: Sequence[Token]) -> list[Token]:
    """The tokens with neighbouring texts and neighbouring stars made one."""
    found: list[Token] = []
    for token in tokens:
        last = found[-1] if found else None
        if isinstance(token, str) and isinstance(last, str):
            found[-1] = last + token
        elif isinstance(token, Star) and isinstance(last, Star):
            found[-1] = Star(token.crosses or last.crosses)
        else:
            found.append(token)
    return found


_Ends = tuple[str, Sequence[Token], str]


def _ends(tokens: Sequence[Token]) -> _Ends:
    """The text at the beginning, what is between, and the text at the end."""
    head = tail = ""
    if tokens and isinstance(tokens[0], str):
        head, tokens = tokens[0], tokens[1:]
    if tokens and isinstance(tokens[-1], str):
        tail, tokens = tokens[-1], tokens[:-1]
    return head, tokens, tail


def _common_prefix(texts: Iterable[str]) -> str:
    """The longest text that all begin with."""
    first, *others = texts
    while not all(text.startswith(first) for text in others):
        first = first[:-1]
    return first


# --------------------------------------------------------------------------------------------------------- matching


class _Moves(dict[str, int]):
    """For each character, the positions from which it leads to the next one. Filled when a character is first met."""

    def __init__(self, moves: Sequence[tuple[int, int, int]]) -> None:
        """Each move is a range of code points, its end exclusive, and a position."""
        super().__init__()
        self._bounds = sorted({0, *(first for first, _, _ in moves), *(end for _, end, _ in moves)})
        self._masks = [0] * len(self._bounds)
        for first, end, position in moves:
            for index in range(bisect_right(self._bounds, first) - 1, bisect_right(self._bounds, end - 1)):
                self._masks[index] |= 1 << position

    def __missing__(self, char: str) -> int:
        mask = self._masks[bisect_right(self._bounds, ord(char)) - 1]
        if len(self) < _REMEMBERED:  # Texts of others choose the characters.
            self[char] = mask
        return mask


class _Automaton:
    """Several alternatives as one nondeterministic automaton. Bit n of a number says that position n can be reached."""

    __slots__ = ("_cross", "_final", "_first", "_head", "_moves", "_needed", "_separator", "_stay", "_tail")

    def __init__(self, alternatives: Sequence[_Ends], separator: str) -> None:
        self._head = _common_prefix(head for head, _, _ in alternatives)
        self._tail = _common_prefix(tail[::-1] for _, _, tail in alternatives)[::-1]
        # The longest text of each alternative. Without one of them nothing matches, and a search is faster than steps.
        longest = [
            max((token for token in (head, *inner, tail) if isinstance(token, str)), key=len)
            for head, inner, tail in alternatives
        ]
        self._needed = tuple(longest) if all(longest) else ("",)
        self._separator = separator
        self._first = self._final = self._stay = self._cross = 0
        moves: list[tuple[int, int, int]] = []
        place = 0
        for head, inner, tail in alternatives:
            self._first |= 1 << place
            for token in (head[len(self._head) :], *inner, tail[: len(tail) - len(self._tail)]):
                match token:
                    case Star():
                        self._stay |= 1 << place
                        self._cross |= token.crosses << place
                    case Chars():
                        moves += [(first, end, place) for first, end in token.ranges]
                        place += 1
                    case str():
                        moves += [(ord(char), ord(char) + 1, place + index) for index, char in enumerate(token)]
                        place += len(token)
            self._final |= 1 << place
            place += 1
        if place > MAX_POSITIONS:
            raise BadGlob("is too long for its number of wildcards and alternatives")
        self._moves = _Moves(moves)

    def accepts(self, text: str) -> bool:
        head, tail = self._head, self._tail
        if not (text.startswith(head) and text.endswith(tail) and len(text) >= len(head) + len(tail)):
            return False
        for needed in self._needed:  # A generator would take as long as the match itself.
            if needed in text:
                break
        else:
            return False
        inner = text[len(head) : len(text) - len(tail)]
        moves, stay, cross, separator, reached = self._moves, self._stay, self._cross, self._separator, self._first
        for char in inner:
            reached = (reached & moves[char]) << 1 | (reached & (cross if char == separator else stay))
            if not reached:
                return False
        return bool(reached & self._final)
