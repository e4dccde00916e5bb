"""Annotation → JSON Schema, such that it says exactly what `msgspec.convert` accepts.

msgspec writes the schema; where its schema and its conversion differ, it is settled here:

* a set may be given with repetitions, and a Decimal as a number, too: the schema allows it;
* the keys of a dict are plain strings, since neither half is exact about others;
* unions in which msgspec loses track of limits, or crashes, are refused; one with None is always fine;
* an enumeration keeps the order of its author: small, medium, large;
* `object` means any value, as `Any` does.

Objects are open, as JSON Schema is by default, and what they do not know is dropped, unless a Struct says
`forbid_unknown_fields`; `schema.py` closes those in arguments. A schema can only hint at a `format` (dates, UUIDs,
base64), at a fraction in `multipleOf`, at numbers too large for a float: there conversion is the stricter half.
"""

import decimal
import enum
import itertools
import types
import typing
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, cast

import msgspec

from sluicegate.activation.violations import Schema

# NameError: a field's type that is not known where its class was written. RuntimeError: a name such as `__x`.
CANNOT_DESCRIBE = (TypeError, ValueError, NameError, RuntimeError)

_HARMLESS_IN_UNIONS: Container[object] = (bool, int, float)


def describe(annotations: Iterable[object]) -> tuple[list[Schema], Schema]:
    """One schema for each annotation, and the `$defs` they share; raises one of CANNOT_DESCRIBE."""
    annotations = list(annotations)
    orders: dict[frozenset[object], list[object]] = {}
    for inner in _nested(annotations, set()):
        if typing.get_origin(inner) is Literal:
            values = list(typing.get_args(inner))
            orders[_as_set(values)] = values
        elif isinstance(inner, enum.EnumMeta):
            values = [member.value for member in cast(type[enum.Enum], inner)]
            orders[_as_set(values)] = values
        elif is_dict(inner) and not _has_string_keys(inner):
            raise TypeError(f"the keys of {inner} must be str, as those of a JSON object are")
        elif typing.get_origin(inner) in (typing.Union, types.UnionType):
            _require_sound_union(inner)
    try:
        schemas, definitions = msgspec.json.schema_components(annotations, schema_hook=_schema_of_custom_type)
    except (
        KeyError
    ) as error:  # In $defs a class goes by its name, then by its qualified name, and then there is no other.
        raise TypeError(f"another class has the same name as {error}") from None
    for schema in (*schemas, *definitions.values()):
        _settle(schema, orders)
    return list(schemas), definitions


def object_schema(annotation: object) -> Schema:
    """The schema of a class or dict with its own members at the root, instead of a `$ref` to them."""
    (root,), definitions = describe([annotation])
    if reference := root.get("$ref"):
        name = reference.removeprefix("#/$defs/")
        root = {key: value for key, value in definitions[name].items() if key != "title"}
        rest = {key: value for key, value in definitions.items() if key != name}
        # A type that refers to itself is needed under its name, too.
        definitions = definitions if _refers_to(reference, [root, rest]) else rest
    return root | ({"$defs": definitions} if definitions else {})


def reason(error: Exception) -> str:
    """Why it cannot be described, without the paragraph on hooks that msgspec writes first."""
    return (str(error).splitlines() or [repr(error)])[-1]


def annotated_text(annotation: object) -> str | None:
    """The plain string of `Annotated[T, "a description"]`."""
    extras: tuple[object, ...] = getattr(annotation, "__metadata__", ())
    return next((extra for extra in extras if isinstance(extra, str)), None)


def without_extras(annotation: object) -> object:
    """The T of `Annotated[T, …]`."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation


def is_record(annotation: object) -> bool:
    """Whether it is a dataclass, TypedDict or Struct."""
    kind: Any = _class_of(annotation)
    # As `dataclasses.is_dataclass` asks it: whoever has one has imported that module, and nobody else need to.
    return hasattr(kind, "__dataclass_fields__") or typing.is_typeddict(kind) or issubclass(kind, msgspec.Struct)


def is_dict(annotation: object) -> bool:
    """Whether it is a dict or Mapping, with or without the types of keys and values."""
    kind: Any = _class_of(annotation)
    return not typing.is_typeddict(kind) and issubclass(kind, Mapping)


def _class_of(annotation: object) -> type:
    kind = typing.get_origin(annotation) or annotation
    return kind if isinstance(kind, type) else type(None)


def _nested(annotations: Iterable[object], seen: set[type]) -> Iterator[object]:
    """Each annotation and all inside it, through the fields of classes."""
    for annotation in map(_without_alias, annotations):
        yield annotation
        yield from _nested(typing.get_args(annotation), seen)
        kind = _class_of(annotation)
        if kind not in seen and (is_record(kind) or hasattr(kind, "_fields")):  # _fields: a NamedTuple.
            seen.add(kind)
            yield from _nested(typing.get_type_hints(kind, include_extras=True).values(), seen)


def _has_string_keys(annotation: object) -> bool:
    key = next(iter(typing.get_args(annotation)), Any)
    return any(without_extras(key) is fine for fine in (str, Any, object))


def _require_sound_union(union: object) -> None:
    members = [_without_alias(member) for member in typing.get_args(union) if member is not type(None)]
    for member, other in itertools.permutations(members, 2):
        limits = [extra for extra in getattr(member, "__metadata__", ()) if isinstance(extra, msgspec.Meta)]
        # msgspec puts the limits of one member on all of its kind: `Annotated[int, Meta(ge=1)] | float` refuses -1.
        if limits and not _scalars(member).isdisjoint(_scalars(other)):
            raise TypeError(f"in {union} a type with limits stands beside another of its kind")
        # msgspec 0.22 lays these out in memory in one order and reads them in another, which ends the process:
        # `tuple[int, str] | Annotated[int, Meta(ge=1)]` at once, `list[int] | Annotated[str, Meta(pattern="a")]` later.
        if other not in _HARMLESS_IN_UNIONS:
            bare = without_extras(member)
            if typing.get_origin(bare) is tuple and Ellipsis not in typing.get_args(bare):
                raise TypeError(f"in {union} a tuple of fixed length stands beside another type; a NamedTuple may")
            if any(limit.pattern for limit in limits):
                raise TypeError(f"in {union} a pattern stands beside another type")


def _scalars(annotation: object) -> set[object]:
    """The simple types of the values it takes, all numbers being one."""
    bare = without_extras(annotation)
    if typing.get_origin(bare) is Literal:
        kinds: set[object] = {type(value) for value in typing.get_args(bare)}
    elif isinstance(bare, enum.EnumMeta):
        kinds = {type(member.value) for member in cast(type[enum.Enum], bare)}
    else:
        kinds = {bare}
    return {float if kind is int or kind is decimal.Decimal else kind for kind in kinds}


def _without_alias(annotation: object) -> object:
    """What a NewType or a `type` statement stands for."""
    while inner := getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None):
        annotation = inner
    return annotation


def _schema_of_custom_type(custom: type) -> Schema:
    if custom is object:
        return {"$comment": "any"}  # Removed again below: msgspec takes an empty schema for a missing one.
    raise NotImplementedError


def _settle(schema: Schema, orders: Mapping[frozenset[object], list[object]]) -> None:
    for noise in ("uniqueItems", "discriminator", "$comment"):
        schema.pop(noise, None)
    if schema.get("format") == "decimal":
        schema["type"] = ["string", "number"]
    if values := schema.get("enum"):
        schema["enum"] = orders.get(_as_set(values), values)
    inner = [schema.get(key) for key in ("items", "additionalProperties", "propertyNames")]
    inner += [*schema.get("prefixItems", ()), *schema.get("anyOf", ()), *schema.get("properties", {}).values()]
    for child in inner:
        if isinstance(child, dict):
            _settle(cast(Schema, child), orders)


def _as_set(values: Iterable[object]) -> frozenset[object]:
    return frozenset((type(value), value) for value in values)  # For Python True and 1 are the same.


def _refers_to(reference: str, schema: object) -> bool:
    if isinstance(schema, dict):
        members = cast(Schema, schema)
        return members.get("$ref") == reference or _refers_to(reference, list(members.values()))
    return isinstance(schema, list) and any(_refers_to(reference, item) for item in cast(list[object], schema))
