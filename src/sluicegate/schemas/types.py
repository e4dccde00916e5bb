"""JSON Schema → types that every language can write. Pure.

Objects with named members become named types, and so does what `$ref` points to. A type is at least as wide as its
schema: limits, patterns and conditions are left out, and what cannot be expressed is `Unknown`. Schemas are hostile:
recursion, depth and size are bounded.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, Literal

import msgspec

from sluicegate.protocol.canonical_json import canonical_json
from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.schemas.document import MAX_DEPTH, Document, Place

PlainName = Literal["string", "integer", "number", "boolean", "null"]
_PLAIN: Final[Mapping[object, PlainName]] = {name: name for name in ("string", "integer", "number", "boolean", "null")}
_EXACT: Final = 2**53 - 1


class Unknown(msgspec.Struct, frozen=True):
    """Any value."""


class Never(msgspec.Struct, frozen=True):
    """No value at all."""


class Plain(msgspec.Struct, frozen=True):
    """A string, number, boolean or null."""

    name: PlainName


class Const(msgspec.Struct, frozen=True):
    """One value."""

    value: str | int | bool | None
    spelling: str
    """Its JSON, since 1 and true are equal in Python."""


class ArrayType(msgspec.Struct, frozen=True):
    """Any number of items."""

    item: "Type"


class Tuple(msgspec.Struct, frozen=True):
    """Exactly these items."""

    items: tuple["Type", ...]


class Map(msgspec.Struct, frozen=True):
    """An object with any names."""

    value: "Type" = Unknown()


class Property(msgspec.Struct, frozen=True):
    """A named member of an object."""

    name: str
    type: "Type"
    is_required: bool
    doc: str


class ObjectType(msgspec.Struct, frozen=True):
    """An object with these members; `is_open` if it may have others."""

    properties: tuple[Property, ...]
    is_open: bool


class Union(msgspec.Struct, frozen=True):
    """One of several types: at least two, none of them a union."""

    members: tuple["Type", ...]


class Ref(msgspec.Struct, frozen=True):
    """The declared type of this name."""

    name: str


Type = Unknown | Never | Plain | Const | ArrayType | Tuple | Map | ObjectType | Union | Ref


class Declared(msgspec.Struct, frozen=True):
    """A type with a name. Only declared types are objects with named members."""

    name: str
    type: Type
    doc: str


class SchemaTypes:
    """The types of all schemas of one server. `take` makes a wanted name unique."""

    def __init__(self, take: Callable[[str], str]) -> None:
        self.take = take
        self._declared: dict[str, Declared] = {}
        self.shared: dict[tuple[str, bytes], str] = {}
        """Names of what `$ref` points to, by label and content: the same definition in two tools is one type."""

    def root(self, schema: object, prefix: str, name: str) -> Type:
        """The type of a whole schema, declared under this name."""
        kind = _Root(self, schema, prefix).declared_as(name)
        if all(isinstance(each, Never) for each in self._resolved(kind, set())):
            self.declare(kind.name, Unknown(), "")  # No function returns nothing at all.
        return kind

    def declare(self, name: str, kind: Type, doc: str) -> None:
        self._declared[name] = Declared(name, kind, doc)

    def declared(self) -> list[Declared]:
        """All declared types; those that are nothing but themselves (`A` is `A`) are any value."""
        return [
            msgspec.structs.replace(each, type=Unknown()) if self._is_circular(each.name) else each
            for each in self._declared.values()
        ]

    def is_object(self, kind: Type) -> bool:
        """Whether all its values are objects."""
        return all(isinstance(each, ObjectType | Map) for each in self._resolved(kind, set()))

    def may_be_empty(self, kind: Type) -> bool:
        """Whether `{}` is one of its values."""
        return any(
            isinstance(each, Map) or (isinstance(each, ObjectType) and not any(p.is_required for p in each.properties))
            for each in self._resolved(kind, set())
        )

    def _resolved(self, kind: Type, seen: set[str]) -> Iterator[Type]:
        """The members of a union and the types behind names; Unknown for a name that leads back to itself."""
        if isinstance(kind, Union):
            for member in kind.members:
                yield from self._resolved(member, seen)
        elif isinstance(kind, Ref):
            if kind.name in seen or self._is_circular(kind.name):
                yield Unknown()
            else:
                yield from self._resolved(self._declared[kind.name].type, {*seen, kind.name})
        else:
            yield kind

    def _is_circular(self, name: str) -> bool:
        seen: set[str] = set()
        following = list(_direct(self._declared[name].type))
        while following:
            each = following.pop()
            if each == name:
                return True
            if each not in seen:
                seen.add(each)
                following += _direct(self._declared[each].type)
        return False


def _direct(kind: Type) -> Iterator[str]:
    """The names that a type consists of, not those inside its items or members."""
    if isinstance(kind, Ref):
        yield kind.name
    elif isinstance(kind, Union):
        yield from (member.name for member in kind.members if isinstance(member, Ref))


class _Root:
    """One schema, to which the `$ref` in it refer."""

    def __init__(self, types: SchemaTypes, schema: object, prefix: str) -> None:
        self._types = types
        self._document = Document(schema)
        self._prefix = prefix
        self._names: dict[tuple[str, ...], str] = {}

    def declared_as(self, wanted: str) -> Ref:
        name = self._names[()] = self._types.take(wanted)
        return self._declare(name, self._document.root, 0)

    def _declare(self, name: str, schema: object, depth: int) -> Ref:
        # The place in the order is taken first, and the name may be referred to.
        self._types.declare(name, Unknown(), "")
        self._types.declare(name, self._shape(schema, name, depth), _doc(as_object(schema) or {}))
        return Ref(name)

    def _type(self, schema: object, name: str, depth: int, *, has_doc: bool = False) -> Type:
        """The type of a schema inside another; `has_doc` if its description is written where it is used."""
        kind = self._shape(schema, name, depth)
        if not isinstance(kind, ObjectType):
            return kind
        taken = self._types.take(name)
        self._types.declare(taken, kind, "" if has_doc else _doc(as_object(schema) or {}))
        return Ref(taken)

    def _shape(self, schema: object, name: str, depth: int) -> Type:
        """The type of a schema; an object with named members is returned as it is, those inside it are declared."""
        is_in_budget = self._document.budget.take()
        members = as_object(schema)
        if members is None:
            return Never() if schema is False else Unknown()
        if depth > MAX_DEPTH or not is_in_budget:
            return Unknown()
        if isinstance(reference := members.get("$ref"), str):
            return self._reference(reference, depth)
        if parts := as_array(members.get("allOf")):
            if len(parts) == 1 and _SHAPING.isdisjoint(members.keys() - {"allOf"}):
                return self._shape(parts[0], name, depth + 1)
            members = self._merged(members)
        kind = self._plain_shape(members, name, depth)
        return union([kind, Plain("null")]) if members.get("nullable") is True else kind

    def _plain_shape(self, members: Params, name: str, depth: int) -> Type:
        if "const" in members:
            return _literal(members["const"])
        if (values := as_array(members.get("enum"))) is not None:
            return union(map(_literal, values))
        for keyword in ("anyOf", "oneOf"):
            if choices := as_array(members.get(keyword)):
                rest = {key: value for key, value in members.items() if key != keyword}
                return self._choice(rest, choices, name, depth)
        kinds = as_array(members.get("type"))
        if kinds is not None:
            return union(self._of_kind(kind, members, name, depth) for kind in kinds)
        return self._of_kind(members.get("type", _implied(members)), members, name, depth)

    def _choice(self, rest: Params, choices: Sequence[object], name: str, depth: int) -> Type:
        if not any(choice is True or _SHAPING.intersection(as_object(choice) or {}) for choice in choices):
            return self._plain_shape(rest, name, depth)  # They only say which members are required together.
        if "properties" in rest:
            choices = [self._merged({**rest, "allOf": [choice]}) for choice in choices]
        kinds = [self._type(choice, f"{name}{place}", depth + 1) for place, choice in enumerate(choices, 1)]
        if any(isinstance(kind, Unknown) for kind in kinds):
            return self._plain_shape(rest, name, depth)
        return union(kinds)

    def _of_kind(self, kind: object, members: Params, name: str, depth: int) -> Type:
        if kind == "object":
            return self._object(members, name, depth)
        if kind == "array":
            return self._array(members, name, depth)
        # A string first: what a server sends here may not be hashable.
        plain = _PLAIN.get(kind) if isinstance(kind, str) else None
        return Unknown() if plain is None else Plain(plain)

    def _object(self, members: Params, name: str, depth: int) -> Type:
        required = [each for each in as_array(members.get("required")) or [] if isinstance(each, str)]
        properties = as_object(members.get("properties")) or {}
        more = members.get("additionalProperties")
        if not properties and not required:
            if "patternProperties" in members:
                return Map()
            return Map(self._type(True if more is None else more, f"{name}Value", depth + 1))
        # What is required need not be described.
        schemas: Params = {**properties, **{each: True for each in required if each not in properties}}
        found = [
            Property(
                each,
                self._type(schema, name + _label(each), depth + 1, has_doc=True),
                each in required,
                _doc(as_object(schema) or {}),
            )
            for each, schema in schemas.items()
        ]
        return ObjectType(tuple(found), is_open=more is True or as_object(more) is not None)

    def _array(self, members: Params, name: str, depth: int) -> Type:
        first = as_array(members.get("prefixItems")) or as_array(members.get("items")) or []
        if not first:
            return ArrayType(self._type(members.get("items", True), f"{name}Item", depth + 1))
        kinds = [self._type(each, f"{name}{place}", depth + 1) for place, each in enumerate(first, 1)]
        if members.get("minItems") == members.get("maxItems") == len(first):
            return Tuple(tuple(kinds))
        more = members.get("additionalItems" if "prefixItems" not in members else "items", True)
        return ArrayType(union([*kinds, self._type(more, f"{name}Item", depth + 1)]))

    # ------------------------------------------------------------------------------------------------- references

    def _reference(self, reference: str, depth: int) -> Type:
        place = self._document.find(reference)
        if place is None:
            return Unknown()
        pointer = place.pointer
        if pointer not in self._names:
            label = _label(pointer[-1])
            label = label if label[0].isalpha() else self._prefix + label
            digest = self._digest(place)
            if digest is None:
                return Unknown()
            key = (label, digest)
            if key in self._types.shared:
                self._names[pointer] = self._types.shared[key]
            else:
                wanted = self._types.take(label)
                self._names[pointer] = self._types.shared[key] = wanted
                self._declare(wanted, place.schema, depth + 1)
        return Ref(self._names[pointer])

    def _digest(self, place: Place) -> bytes | None:
        """A digest of what is referred to, and of everything that this refers to in turn; None if that is too much."""
        seen: dict[str, object] = {}
        following: list[Place | None] = [place]
        while following:
            here = following.pop()
            if not self._document.budget.take():
                return None
            name = "/".join(part.replace("/", "~1") for part in here.pointer) if here is not None else ""
            if here is not None and name not in seen:
                seen[name] = here.schema
                following += map(self._document.find, _references(here.schema))
        return hashlib.sha256(canonical_json(seen)).digest()

    def _merged(self, members: Params) -> Params:
        """One schema for all parts of `allOf`. Each definition is used once, however often it is referred to."""
        merged: Params = {}
        seen: set[tuple[str, ...]] = set()
        following: list[object] = [members]
        while following and self._document.budget.take():
            part = as_object(following.pop(0)) or {}
            if isinstance(reference := part.get("$ref"), str):
                place = self._document.find(reference)
                if place is not None and place.pointer not in seen:
                    seen.add(place.pointer)
                    following.insert(0, place.schema)
                continue
            following[:0] = as_array(part.get("allOf")) or []
            own = {key: value for key, value in part.items() if key != "allOf"}
            properties = (as_object(own.get("properties")) or {}) | (as_object(merged.get("properties")) or {})
            required = [*(as_array(merged.get("required")) or []), *(as_array(own.get("required")) or [])]
            merged = {**own, **merged}
            merged |= {"properties": properties} if properties else {}
            merged |= {"required": required} if required else {}
        # It would mean the members of one part only.
        merged.pop("additionalProperties", None)
        return merged


_SHAPING: Final = frozenset(
    "$ref allOf anyOf oneOf type properties enum const items prefixItems additionalProperties".split()
)
"""Keywords that say more about a value than limits do."""


def _implied(members: Params) -> str | None:
    """The type that the keywords of a schema without `type` are for."""
    if any(keyword in members for keyword in ("properties", "required", "additionalProperties")):
        return "object"
    return "array" if "items" in members or "prefixItems" in members else None


def _literal(value: object) -> Type:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return Const(value, json.dumps(value))
    if isinstance(value, int):
        return Const(value, json.dumps(value)) if abs(value) <= _EXACT else Plain("integer")
    if isinstance(value, float):
        return Plain("number")
    return Map() if as_object(value) is not None else ArrayType(Unknown())


def union(kinds: Iterable[Type]) -> Type:
    """One of these types, each named once."""
    found: dict[Type, None] = {}
    for kind in kinds:
        for member in kind.members if isinstance(kind, Union) else (kind,):
            if isinstance(member, Unknown):
                return member
            if not isinstance(member, Never):
                found[member] = None
    members = tuple(found)
    return members[0] if len(members) == 1 else Union(members) if members else Never()


def _references(schema: object) -> Iterator[str]:
    following = [schema]
    while following:
        here = following.pop()
        if (members := as_object(here)) is not None:
            if isinstance(reference := members.get("$ref"), str):
                yield reference
            following += members.values()
        else:
            following += as_array(here) or []


def _label(text: str) -> str:
    """A text as a part of the name of a type."""
    return "".join(word[0].upper() + word[1:] for word in re.findall("[A-Za-z0-9]+", text)) or "Type"


def _doc(members: Params) -> str:
    description = members.get("description")
    doc = description.strip() if isinstance(description, str) else ""
    if members.get("default") is None:
        return doc
    return f"{doc}\nDefault: {json.dumps(members['default'], ensure_ascii=False):.200}".strip()
