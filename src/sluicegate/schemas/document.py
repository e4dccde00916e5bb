"""The one reader of JSON Schema documents: references, depth, and a budget for all work. Pure.

Schemas come from servers and are hostile. Nothing is fetched: a reference to another document leads nowhere (T25).
"""

import re
from collections.abc import Mapping
from typing import Final, NamedTuple
from urllib.parse import unquote

from sluicegate.protocol.message import Params, as_array, as_object

MAX_DEPTH: Final = 48
"""Levels of a schema or of a value in it."""
MAX_NODES: Final = 20_000
"""Subschemas that are read for one purpose, each as often as it is used. The largest of 400 public tools has 600."""

TYPES: Final = ("string", "number", "integer", "boolean", "array", "object", "null")
ONE: Final = frozenset(
    {"items", "additionalProperties", "not", "if", "then", "else", "propertyNames", "contains"}
    | {"unevaluatedItems", "unevaluatedProperties"}
)
"""Keywords with one schema."""
MANY: Final = frozenset({"anyOf", "oneOf", "allOf", "prefixItems"})
"""Keywords with a list of schemas."""
NAMED: Final = frozenset({"properties", "patternProperties", "dependentSchemas"})
"""Keywords with schemas by name."""
NOTES: Final = frozenset({"title", "description", "default", "examples", "deprecated"})
"""Keywords that describe a value and refuse none."""


class TooComplex(Exception):
    """A schema needs more work than one tool is worth."""


class Budget:
    """The work that is left for one schema."""

    def __init__(self, steps: int = MAX_NODES) -> None:
        self._left = steps

    def take(self, steps: int = 1) -> bool:
        """Count some work; False if nothing is left."""
        self._left -= steps
        return self._left >= 0

    def spend(self, steps: int = 1) -> None:
        """Count some work.

        Raises:
            TooComplex: nothing is left.
        """
        if not self.take(steps):
            raise TooComplex


class Place(NamedTuple):
    """A schema in a document, and the JSON pointer that leads to it."""

    pointer: tuple[str, ...]
    schema: object


class Document:
    """A whole schema, to which the references in it lead."""

    def __init__(self, root: object, budget: Budget | None = None) -> None:
        self.root = root
        self.budget = budget or Budget()
        self._anchors: dict[str, tuple[str, ...]] | None = None
        own = (as_object(root) or {}).get("$id")
        self._id = own.rstrip("#") if isinstance(own, str) else ""

    def find(self, reference: object) -> Place | None:
        """The place that a reference leads to; None if that is not in this document."""
        pointer = self._pointer(reference) if isinstance(reference, str) else None
        if pointer is None or len(pointer) > MAX_DEPTH:
            return None
        found = self.root
        for part in pointer:
            members, items = as_object(found), as_array(found)
            if members is not None:
                found = members.get(part)
            elif items is not None and re.fullmatch("[0-9]{1,6}", part) and int(part) < len(items):
                found = items[int(part)]
            else:
                return None
        return None if found is None else Place(pointer, found)

    def resolved(self, schema: object) -> Params:
        """The schema with what its reference leads to; keywords beside a reference count more. Empty if it is none."""
        members = as_object(schema) or {}
        seen: set[tuple[str, ...]] = set()
        while "$ref" in members:
            beside = {keyword: value for keyword, value in members.items() if keyword != "$ref"}
            place = self.find(members["$ref"])
            if place is None or place.pointer in seen:
                return beside
            seen.add(place.pointer)
            members = {**(as_object(place.schema) or {}), **beside}
        return members

    def types(self, schema: object, depth: int = 0) -> frozenset[str]:
        """The JSON types that a schema allows; empty if it names none."""
        members = self.resolved(schema)
        if (named := types_of(members)) or depth > MAX_DEPTH or not self.budget.take():
            return frozenset(named)
        for keyword in ("anyOf", "oneOf"):
            if (parts := as_array(members.get(keyword))) is not None:
                return frozenset[str]().union(*(self.types(part, depth + 1) for part in parts))
        return frozenset(map(type_of_value, choices_of(members) or ()))

    def _pointer(self, reference: str) -> tuple[str, ...] | None:
        if self._id and reference.startswith(self._id):
            reference = reference[len(self._id) :] or "#"
        if not reference.startswith("#"):
            return None
        path = unquote(reference[1:])
        if not path:
            return ()
        if path.startswith("/"):
            return tuple(part.replace("~1", "/").replace("~0", "~") for part in path[1:].split("/"))
        if self._anchors is None:
            self._anchors = {}
            self._collect_anchors(self._anchors, self.root, ())
        return self._anchors.get(path)

    def _collect_anchors(self, anchors: dict[str, tuple[str, ...]], raw: object, path: tuple[str, ...]) -> None:
        members, items = as_object(raw), as_array(raw)
        if len(path) > MAX_DEPTH or (members is None and items is None) or not self.budget.take():
            return
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = (members or {}).get(keyword)
            if isinstance(name, str):
                anchors.setdefault(name, path)
        # Sorted, so that equal schemas have equal anchors.
        for key, value in sorted(members.items()) if members is not None else enumerate(items or ()):
            self._collect_anchors(anchors, value, (*path, str(key)))


def subschemas(schema: Params) -> list[Params]:
    """The schemas directly in a schema; not those behind references."""
    found: list[object] = []
    for keyword, value in schema.items():
        if keyword in ONE:
            found.append(value)
        elif keyword in MANY:
            found += as_array(value) or ()
        elif keyword in NAMED:
            found += (as_object(value) or {}).values()
    return [entry for entry in map(as_object, found) if entry is not None]


def types_of(schema: Params) -> list[str]:
    """The types that a schema itself names."""
    kinds = schema.get("type")
    return [kinds] if isinstance(kinds, str) else [str(kind) for kind in as_array(kinds) or ()]


def choices_of(schema: Params) -> list[object] | None:
    """The values that a schema enumerates, or None."""
    if "const" in schema:
        return [schema["const"]]
    return as_array(schema.get("enum"))


_TYPE_NAMES: Final[Mapping[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
}


def type_of_value(value: object) -> str:
    """The JSON type of a decoded value."""
    return _TYPE_NAMES.get(type(value), "object")
