"""Annotation → JSON Schema that describes exactly what `msgspec.convert` accepts.

msgspec writes the schema. Where its schema and its conversion differ, this module corrects the schema:

* a set may contain duplicates, and a Decimal may be a number: the schema allows both;
* the keys of a dict must be strings, since msgspec is not exact about others;
* unions in which msgspec applies limits to the wrong member, or crashes, are refused; a union with None is allowed;
* an enumeration keeps its order in the source: small, medium, large;
* `object` means any value, as `Any` does;
* an unknown object in `Annotated[…]`, which msgspec would ignore, is refused.

If an annotation contains something of pydantic, pydantic writes the schemas (`pydantic_types.py`).

Objects are open, as in JSON Schema by default, and unknown members are dropped, unless a Struct has
`forbid_unknown_fields`; `schema.py` closes those in arguments. For a `format` (dates, UUIDs, base64), a fractional
`multipleOf` and numbers too large for a float, the conversion is stricter than the schema.
"""

import decimal
import enum
import itertools
import types
import typing
from collections.abc import Container, Iterable, Iterator, Mapping
from typing import Annotated, Any, Literal, cast

import msgspec

from sluicegate.activations.pydantic_types import is_field, is_of_pydantic, schemas_of
from sluicegate.schemas.validate import Schema

# NameError: a field's type is not defined in the module of its class. RuntimeError: a name such as `__x`.
CANNOT_DESCRIBE = (TypeError, ValueError, NameError, RuntimeError)

_HARMLESS_IN_UNIONS: Container[object] = (bool, int, float)


def describe(annotations: Iterable[object], *, output: bool = False) -> tuple[list[Schema], Schema]:
    """One schema for each annotation, and the `$defs` they share; raises one of CANNOT_DESCRIBE.

    `output`: whether the values are results, which differ from arguments for some types of pydantic.
    """
    annotations = list(annotations)
    orders: dict[frozenset[object], list[object]] = {}
    with_pydantic = uses_pydantic(annotations)
    for inner in nested(annotations):
        _require_known_extras(inner, with_pydantic)
        if with_pydantic:
            continue
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
    if with_pydantic:
        return schemas_of(annotations, output=output)
    try:
        schemas, definitions = msgspec.json.schema_components(annotations, schema_hook=_schema_of_custom_type)
    except KeyError as error:  # $defs uses the class name, then the qualified name; a third class has no free name.
        raise TypeError(f"another class has the same name as {error}") from None
    for schema in (*schemas, *definitions.values()):
        _correct(schema, orders)
    return list(schemas), definitions


def uses_pydantic(annotations: Iterable[object]) -> bool:
    """Whether an annotation is or contains something of pydantic."""
    return any(is_of_pydantic(inner) or any(map(is_field, _defaults(inner))) for inner in nested(annotations))


def object_schema(annotation: object, *, output: bool = True) -> Schema:
    """The schema of a result or form with its own members at the root, instead of a `$ref` to them."""
    (root,), definitions = describe([annotation], output=output)
    if reference := root.get("$ref"):
        name = reference.removeprefix("#/$defs/")
        root = {key: value for key, value in definitions[name].items() if key != "title"}
        rest = {key: value for key, value in definitions.items() if key != name}
        # A type that refers to itself is also needed under its name.
        definitions = definitions if _refers_to(reference, [root, rest]) else rest
    return root | ({"$defs": definitions} if definitions else {})


def reason(error: Exception) -> str:
    """Why it cannot be described, without msgspec's paragraph about hooks."""
    return (str(error).splitlines() or [repr(error)])[-1]


def annotated_text(annotation: object) -> str | None:
    """The description in `Annotated[T, "a description"]` or `Annotated[T, Doc("a description")]`."""
    extras: tuple[object, ...] = getattr(annotation, "__metadata__", ())
    texts = (getattr(extra, "documentation", extra) for extra in extras)
    return next((text for text in texts if isinstance(text, str)), None)


def without_extras(annotation: object) -> object:
    """The T of `Annotated[T, …]`."""
    return typing.get_args(annotation)[0] if typing.get_origin(annotation) is Annotated else annotation


def is_record(annotation: object) -> bool:
    """Whether a type is a dataclass, TypedDict or Struct."""
    kind: Any = _class_of(annotation)
    # Like `dataclasses.is_dataclass`, without importing that module for programs that do not use it.
    return hasattr(kind, "__dataclass_fields__") or typing.is_typeddict(kind) or issubclass(kind, msgspec.Struct)


def is_dict(annotation: object) -> bool:
    """Whether a type is a dict or Mapping, with or without the types of keys and values."""
    kind: Any = _class_of(annotation)
    return not typing.is_typeddict(kind) and issubclass(kind, Mapping)


def _class_of(annotation: object) -> type:
    kind = typing.get_origin(annotation) or annotation
    return kind if isinstance(kind, type) else type(None)


def nested(annotations: Iterable[object]) -> Iterator[object]:
    """Each annotation and all annotations inside it, including the fields of classes and the extras of `Annotated`."""
    return _nested(annotations, set())


def _nested(annotations: Iterable[object], seen: set[type]) -> Iterator[object]:
    for annotation in map(_without_alias, annotations):
        yield annotation
        yield from _nested(typing.get_args(annotation), seen)
        kind = _class_of(annotation)
        if kind not in seen and (is_record(kind) or hasattr(kind, "_fields")):  # _fields: a NamedTuple.
            seen.add(kind)
            yield from _nested(typing.get_type_hints(kind, include_extras=True).values(), seen)


def _defaults(annotation: object) -> list[object]:
    fields: Mapping[str, Any] = getattr(annotation, "__dataclass_fields__", {})
    return [field.default for field in fields.values()]


def _require_known_extras(annotation: object, with_pydantic: bool) -> None:
    for extra in getattr(annotation, "__metadata__", ()):
        if isinstance(extra, msgspec.Meta) and with_pydantic:
            raise TypeError("msgspec.Meta cannot be combined with pydantic; use pydantic.Field for all limits")
        is_text = isinstance(getattr(extra, "documentation", extra), str)
        if not (is_text or isinstance(extra, msgspec.Meta) or is_of_pydantic(extra)):
            raise TypeError(
                f"Annotated contains {extra!r:.80}, which is not supported; use msgspec.Meta or pydantic.Field"
            )


def _has_string_keys(annotation: object) -> bool:
    key = next(iter(typing.get_args(annotation)), Any)
    return any(without_extras(key) is fine for fine in (str, Any, object))


def _require_sound_union(union: object) -> None:
    members = [_without_alias(member) for member in typing.get_args(union) if member is not type(None)]
    for member, other in itertools.permutations(members, 2):
        limits = [extra for extra in getattr(member, "__metadata__", ()) if isinstance(extra, msgspec.Meta)]
        # msgspec applies limits to all members of a kind: `Annotated[int, Meta(ge=1)] | float` refuses -1.
        if limits and not _scalars(member).isdisjoint(_scalars(other)):
            raise TypeError(f"in {union} a type with limits is combined with another of the same kind")
        # msgspec 0.22 writes these to memory in one order and reads them in another, which crashes the process:
        # `tuple[int, str] | Annotated[int, Meta(ge=1)]` at once, `list[int] | Annotated[str, Meta(pattern="a")]` later.
        if other not in _HARMLESS_IN_UNIONS:
            bare = without_extras(member)
            if typing.get_origin(bare) is tuple and Ellipsis not in typing.get_args(bare):
                raise TypeError(f"in {union} a tuple of fixed length is combined with another type; use a NamedTuple")
            if any(limit.pattern for limit in limits):
                raise TypeError(f"in {union} a type with a pattern is combined with another type")


def _scalars(annotation: object) -> set[object]:
    """The simple types of its values; all number types count as one."""
    bare = without_extras(annotation)
    if typing.get_origin(bare) is Literal:
        kinds: set[object] = {type(value) for value in typing.get_args(bare)}
    elif isinstance(bare, enum.EnumMeta):
        kinds = {type(member.value) for member in cast(type[enum.Enum], bare)}
    else:
        kinds = {bare}
    return {float if kind is int or kind is decimal.Decimal else kind for kind in kinds}


def _without_alias(annotation: object) -> object:
    """The type behind a NewType or a `type` statement."""
    while inner := getattr(annotation, "__supertype__", None) or getattr(annotation, "__value__", None):
        annotation = inner
    return annotation


def _schema_of_custom_type(custom: type) -> Schema:
    if custom is object:
        return {"$comment": "any"}  # Removed below: msgspec treats an empty schema as missing.
    raise NotImplementedError


def _correct(schema: Schema, orders: Mapping[frozenset[object], list[object]]) -> None:
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
            _correct(cast(Schema, child), orders)


def _as_set(values: Iterable[object]) -> frozenset[object]:
    return frozenset((type(value), value) for value in values)  # In Python, True equals 1.


def _refers_to(reference: str, schema: object) -> bool:
    if isinstance(schema, dict):
        members = cast(Schema, schema)
        return members.get("$ref") == reference or _refers_to(reference, list(members.values()))
    return isinstance(schema, list) and any(_refers_to(reference, item) for item in cast(list[object], schema))
