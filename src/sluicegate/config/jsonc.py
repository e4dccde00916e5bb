"""Parses JSON with comments and trailing commas, and keeps the position of every key.

PURE. Everything else follows RFC 8259. Invalid text gives a `Fault` with its position, never an exception.
"""

import json
import re
from collections.abc import Iterator
from typing import Final, NoReturn, cast

import msgspec

MAX_DEPTH: Final = 100
MAX_NUMBER: Final = 256


class SyntaxFault(msgspec.Struct, frozen=True):
    """The position and the reason of an error in a text."""

    sentence: str
    offset: int
    path: tuple[str, ...] = ()
    """The path of keys to that position."""


class JsonNode(msgspec.Struct, frozen=True):
    """A value and its position: `text[start:end]`."""

    start: int
    end: int


class Scalar(JsonNode, frozen=True):
    """A string, a number, true, false or null."""

    value: str | int | float | bool | None


class JsonArray(JsonNode, frozen=True):
    """A list of values."""

    items: list[JsonNode]


class Member(msgspec.Struct, frozen=True):
    """A key of an object, and its value."""

    key: str
    key_start: int
    value: JsonNode


class JsonObject(JsonNode, frozen=True):
    """Members in order. A key may appear twice; the last one is used."""

    members: list[Member]

    def get(self, key: str) -> Member | None:
        """The last member with this key."""
        return next((member for member in reversed(self.members) if member.key == key), None)

    def effective(self) -> Iterator[Member]:
        """The last member of each key, in the order in which the keys first appear."""
        last = {member.key: member for member in self.members}
        return iter(last.values())

    def repeated(self) -> Iterator[Member]:
        """Members whose key appeared before."""
        seen: set[str] = set()
        for member in self.members:
            if member.key in seen:
                yield member
            seen.add(member.key)


def read(text: str) -> JsonNode | SyntaxFault:
    """The parsed value, or the first error."""
    try:
        return _Parser(text).document()
    except _Invalid as error:
        return error.fault


def plain(node: JsonNode) -> object:
    """The value without positions, as `json.loads` returns it."""
    match node:
        case JsonObject():
            return {member.key: plain(member.value) for member in node.members}
        case JsonArray():
            return [plain(item) for item in node.items]
        case Scalar():
            return node.value
        case _:
            raise TypeError(node)


def line_column(text: str, offset: int) -> tuple[int, int]:
    """Line and column of an offset, both from 1."""
    return text.count("\n", 0, offset) + 1, offset - text.rfind("\n", 0, offset)


def skip(text: str, at: int) -> int:
    """The offset of the next token at or after `at`, behind whitespace and comments."""
    found = _blank.match(text, at)
    return found.end() if found else at


_blank: Final = re.compile(r"(?:[ \t\r\n]+|//[^\n]*|/\*.*?\*/)*+", re.DOTALL)
_string: Final = re.compile(r'"(?:[^"\\\x00-\x1f]|\\.)*"')
_word: Final = re.compile(r"[A-Za-z0-9_$+.-]+")
_surrogate: Final = re.compile("[\ud800-\udfff]")


class _Invalid(Exception):
    """Ends parsing. Never leaves this module."""

    def __init__(self, fault: SyntaxFault) -> None:
        self.fault = fault


class _Parser:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 1 if text.startswith("\ufeff") else 0
        self._path: list[str] = []

    def document(self) -> JsonNode:
        if not self._next():
            self._stop("The file is empty.")
        node = self._value(0)
        if self._next():
            self._stop("There is more text after the end; is a bracket closed too early?")
        return node

    def _stop(self, sentence: str, offset: int | None = None) -> NoReturn:
        raise _Invalid(SyntaxFault(sentence, self._at if offset is None else offset, tuple(self._path)))

    def _next(self) -> str:
        """The first character of the next token; empty at the end."""
        self._at = skip(self._text, self._at)
        if self._text.startswith("/*", self._at):
            self._stop("This comment is not closed; end it with */.")
        return self._text[self._at : self._at + 1]

    def _value(self, depth: int) -> JsonNode:
        mark = self._next()
        if depth > MAX_DEPTH:
            self._stop(f"Nested deeper than {MAX_DEPTH} levels.")
        if mark in ("{", "["):
            return self._container(depth)
        start = self._at
        value = self._quoted() if mark == '"' else self._literal(mark)
        return Scalar(start, self._at, value)

    def _container(self, depth: int) -> JsonObject | JsonArray:
        start, outer = self._at, len(self._path)
        closing = "}" if self._text[start] == "{" else "]"
        members, items = list[Member](), list[JsonNode]()
        self._at += 1
        while (mark := self._next()) != closing:
            if not mark:
                line, _ = line_column(self._text, start)
                self._stop(f"The file ends before the {self._text[start]} of line {line} is closed; is it incomplete?")
            if mark == ",":
                self._stop("There is one comma too many.")
            if closing == "]":
                items.append(self._value(depth + 1))
            elif mark == '"':
                key_start, key = self._at, self._quoted()
                self._path[outer:] = [key]
                if self._next() != ":":
                    self._stop("Expected a colon after the key.")
                self._at += 1
                members.append(Member(key, key_start, self._value(depth + 1)))
            else:
                self._stop("Expected a key in double quotes.")
            end, mark = self._at, self._next()
            if mark == ",":
                self._at += 1
            elif mark and mark in "]}:" and mark != closing:
                self._stop(f"{mark!a} is not expected here.")
            elif mark and mark != closing:
                self._stop("A comma is missing before this.", end)
        self._at += 1
        del self._path[outer:]
        return JsonObject(start, self._at, members) if closing == "}" else JsonArray(start, self._at, items)

    def _quoted(self) -> str:
        found = _string.match(self._text, self._at)
        if found is None:
            self._stop("This string is not closed on its line; end it with a double quote.")
        try:
            value = cast(str, json.loads(found[0]))
        except ValueError as problem:
            self._stop(f"A string with an escape that is not valid in JSON: {str(problem).split(':')[0]}.")
        if _surrogate.search(value):
            self._stop("A string with half a character (a lone surrogate).")
        self._at = found.end()
        return value

    def _literal(self, mark: str) -> int | float | bool | None:
        found = _word.match(self._text, self._at)
        if found is None:
            if mark == "'":
                self._stop("Strings need double quotes, not single quotes.")
            self._stop("A value is missing here." if mark else "The file ends before a value; is it incomplete?")
        if len(found[0]) > MAX_NUMBER:
            self._stop(f"The number has more than {MAX_NUMBER} digits.")
        try:
            value = cast(int | float | bool | None, json.loads(found[0], parse_constant=_refuse))
        except ValueError:
            self._stop(f"{found[0][:40]!a} is not a value; strings need double quotes.")
        self._at = found.end()
        return value


def _refuse(constant: str) -> NoReturn:
    """NaN and Infinity are not JSON, although `json` accepts them."""
    raise ValueError(constant)
