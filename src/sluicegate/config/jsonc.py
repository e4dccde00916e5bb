"""JSON as people write it: with comments and trailing commas, and with the place of every key.

PURE. Everything else is as RFC 8259 has it. What is not even that becomes a `Fault` with its place, never an exception.
"""

import json
import re
from collections.abc import Iterator
from typing import Final, NoReturn

import msgspec

DEEPEST: Final = 100
LONGEST_NUMBER: Final = 256


class Fault(msgspec.Struct, frozen=True):
    """Where and why a text cannot be read."""

    sentence: str
    offset: int
    path: tuple[str, ...] = ()
    """The keys that lead there."""


class Node(msgspec.Struct, frozen=True):
    """A value and where it stands: `text[start:end]`."""

    start: int
    end: int


class Scalar(Node, frozen=True):
    """A string, a number, true, false or null."""

    value: str | int | float | bool | None


class Array(Node, frozen=True):
    """Values in order."""

    items: list[Node]


class Member(msgspec.Struct, frozen=True):
    """One key of an object, and what it holds."""

    key: str
    key_start: int
    value: Node


class Object(Node, frozen=True):
    """Members in order. A key may be there twice; the last one counts, as everywhere else."""

    members: list[Member]

    def get(self, key: str) -> Member | None:
        """The member that counts for this key."""
        return next((member for member in reversed(self.members) if member.key == key), None)

    def effective(self) -> Iterator[Member]:
        """The members that count, each at the place where its key stands first."""
        last = {member.key: member for member in self.members}
        return iter(last.values())

    def repeated(self) -> Iterator[Member]:
        """Members whose key stood there before."""
        seen: set[str] = set()
        for member in self.members:
            if member.key in seen:
                yield member
            seen.add(member.key)


def read(text: str) -> Node | Fault:
    """The value that the text is, or what is wrong with it."""
    reader = _Reader(text)
    try:
        return reader.document()
    except _Unreadable:
        return reader.fault


def plain(node: Node) -> object:
    """The value without its places, as `json.loads` gives it."""
    match node:
        case Object():
            return {member.key: plain(member.value) for member in node.members}
        case Array():
            return [plain(item) for item in node.items]
        case Scalar():
            return node.value
        case _:
            raise TypeError(node)


def line_column(text: str, offset: int) -> tuple[int, int]:
    """Line and column of a place, both from 1."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def skip(text: str, at: int) -> int:
    """The place of the next thing that is neither a blank nor a comment, in a text that can be read."""
    reader = _Reader(text)
    return reader.skipped(at)


_blank: Final = re.compile(r"[ \t\r\n]+")
_string: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_number: Final = re.compile(r"-?(?:0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_word: Final = re.compile(r"[A-Za-z0-9_$+.-]+")
_surrogate: Final = re.compile("[\ud800-\udfff]")
_WORDS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}


class _Unreadable(Exception):
    """Leaves the reader, whose `fault` says why; nobody outside of it sees this."""


class _Reader:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 1 if text.startswith("\ufeff") else 0
        self._path: list[str] = []
        self.fault = Fault("", 0)

    def document(self) -> Node:
        self._skip()
        if self._at >= len(self._text):
            self._stop("There is nothing in it.")
        node = self._value(0)
        self._skip()
        if self._at < len(self._text):
            self._stop("Something stands after the end; is a bracket closed too early?")
        return node

    def skipped(self, at: int) -> int:
        self._at = at
        self._skip()
        return self._at

    def _stop(self, sentence: str, offset: int | None = None) -> NoReturn:
        self.fault = Fault(sentence, self._at if offset is None else offset, tuple(self._path))
        raise _Unreadable

    def _skip(self) -> None:
        """Move over blanks and comments."""
        text = self._text
        while self._at < len(text):
            if found := _blank.match(text, self._at):
                self._at = found.end()
            elif text.startswith("//", self._at):
                end = text.find("\n", self._at)
                self._at = len(text) if end < 0 else end
            elif text.startswith("/*", self._at):
                end = text.find("*/", self._at + 2)
                if end < 0:
                    self._stop("This comment is not closed; end it with */.")
                self._at = end + 2
            else:
                return

    def _value(self, depth: int) -> Node:
        if depth > DEEPEST:
            self._stop(f"Nested deeper than {DEEPEST} levels.")
        start, mark = self._at, self._text[self._at : self._at + 1]
        if mark == "{":
            members = self._members(depth)
            return Object(start, self._at, members)
        if mark == "[":
            items = self._items(depth)
            return Array(start, self._at, items)
        if mark == '"':
            value = self._quoted()
            return Scalar(start, self._at, value)
        if (found := _number.match(self._text, start)) and not _word.match(self._text, found.end()):
            if len(found[0]) > LONGEST_NUMBER:
                self._stop(f"A number of more than {LONGEST_NUMBER} digits.")
            self._at = found.end()
            return Scalar(start, self._at, float(found[0]) if found[1] or found[2] else int(found[0]))
        if found := _word.match(self._text, start):
            if found[0] not in _WORDS:
                self._stop(f"{found[0][:40]!a} is no value; a string stands in double quotes.")
            self._at = found.end()
            return Scalar(start, self._at, _WORDS[found[0]])
        if mark == "'":
            self._stop("A string stands in double quotes, not in single ones.")
        if not mark:
            self._stop("The file ends before a value; is it written only half?")
        if mark in ",]}":
            self._stop("A value is missing here.")
        self._stop(f"{mark!a} begins no value.")

    def _quoted(self) -> str:
        found = _string.match(self._text, self._at)
        if found is None:
            self._stop("This string is not closed on its line; end it with a double quote.")
        try:
            value: object = json.loads(found[0])
        except ValueError as problem:
            self._stop(f"A string with an escape that JSON does not have: {str(problem).split(':')[0]}.")
        if _surrogate.search(str(value)):
            self._stop("A string with half a character (a lone surrogate).")
        self._at = found.end()
        return str(value)

    def _members(self, depth: int) -> list[Member]:
        opening, members = self._at, list[Member]()
        self._at += 1
        while True:
            self._skip()
            mark = self._text[self._at : self._at + 1]
            if mark == "}":
                self._at += 1
                return members
            if not mark:
                self._unclosed(opening, "{")
            if mark != '"':
                self._stop("A key in double quotes should stand here." if mark != "," else "There is a comma too many.")
            start, key = self._at, self._quoted()
            self._path.append(key)
            self._skip()
            if self._text[self._at : self._at + 1] != ":":
                self._stop("A colon should stand after the key.")
            self._at += 1
            self._skip()
            members.append(Member(key, start, self._value(depth + 1)))
            self._separator("}", opening)
            self._path.pop()

    def _items(self, depth: int) -> list[Node]:
        opening, items = self._at, list[Node]()
        self._at += 1
        while True:
            self._skip()
            mark = self._text[self._at : self._at + 1]
            if mark == "]":
                self._at += 1
                return items
            if not mark:
                self._unclosed(opening, "[")
            if mark == ",":
                self._stop("There is a comma too many.")
            items.append(self._value(depth + 1))
            self._separator("]", opening)

    def _separator(self, closing: str, opening: int) -> None:
        end = self._at
        self._skip()
        mark = self._text[self._at : self._at + 1]
        if mark == ",":
            self._at += 1
        elif not mark:
            self._unclosed(opening, self._text[opening])
        elif mark != closing:
            wrong = mark in "]}:"
            self._stop(
                f"{mark!a} does not fit here." if wrong else "A comma is missing before this.", None if wrong else end
            )

    def _unclosed(self, opening: int, bracket: str) -> NoReturn:
        line, _ = line_column(self._text, opening)
        self._stop(f"The file ends, and the {bracket} of line {line} is not closed; is it written only half?")
