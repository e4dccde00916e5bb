"""A question to the user as a form: a dataclass or Struct → the flat schema of an elicitation → an instance of it.

The one rule: a form says all that is checked. MCP knows only flat fields (text, numbers, yes or no, a choice, several
choices) and few limits on them; a type that asks for more is refused when the form is made, not when it is filled in.
"""

import datetime
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from sluicegate.activation.describe import (
    CANNOT_DESCRIBE,
    annotated_text,
    is_record,
    object_schema,
    reason,
    without_extras,
)
from sluicegate.activation.schema import read
from sluicegate.activation.signatures import name_of
from sluicegate.activation.violations import Checker, Schema

T = TypeVar("T")

_FORMATS = ("email", "uri", "date", "date-time")
_ANY_FIELD = {"type", "title", "description", "default"}
_FIELDS: Mapping[object, set[str]] = {
    "string": _ANY_FIELD | {"minLength", "maxLength", "format", "enum"},
    "number": _ANY_FIELD | {"minimum", "maximum"},
    "integer": _ANY_FIELD | {"minimum", "maximum"},
    "boolean": _ANY_FIELD,
    "array": _ANY_FIELD | {"items", "minItems", "maxItems"},
}


def schema_of(form: type) -> Schema:
    """The `requestedSchema` of a form; fields that may be None are not required.

    Raises:
        TypeError: a field that no form can show; names it and says why.
    """
    full = _full_schema(form)
    hints = typing.get_type_hints(form, include_extras=True)
    properties: Schema = {}
    for name, field in full["properties"].items():
        try:
            flat = _flat(_without_null(field)[0], full.get("$defs", {}))
        except ValueError as error:
            raise TypeError(f"{name_of(form)}: field '{name}' cannot be part of a form: {error}") from None
        if text := annotated_text(hints.get(name)):
            flat.setdefault("description", text)
        if without_extras(hints.get(name)) is datetime.datetime:
            flat["format"] = "date-time"
        properties[name] = flat
    required = [name for name in full["required"] if name not in _nullable(full)]
    return {"type": "object", "properties": properties, "required": required}


def form_value(form: type[T], content: Mapping[str, object]) -> T:
    """What the user filled in, as an instance of the form; raises InvalidArguments."""
    full = _full_schema(form)
    left_empty = {name: None for name in _nullable(full) if name in full["required"]}
    return read(left_empty | dict(content), form, Checker(full, noun="field"))


def _full_schema(form: type) -> Schema:
    if not is_record(form):
        raise TypeError(f"{name_of(form)} is no form: it should be a dataclass, a Struct or a TypedDict")
    try:
        return object_schema(form)
    except CANNOT_DESCRIBE as error:
        raise TypeError(f"{name_of(form)} is no form: {reason(error)}") from None


def _nullable(full: Schema) -> list[str]:
    return [name for name, field in full["properties"].items() if _without_null(field)[1]]


def _without_null(field: Schema) -> tuple[Schema, bool]:
    """The X of `X | None`, and whether None was allowed."""
    options: list[Schema] = field.get("anyOf", [])
    others = [option for option in options if option != {"type": "null"}]
    if len(options) != 2 or len(others) != 1:
        return field, False
    outer = {key: value for key, value in field.items() if key != "anyOf" and (key, value) != ("default", None)}
    return others[0] | outer, True


def _flat(field: Schema, definitions: Schema) -> Schema:
    """The field as MCP has it; raises ValueError with the reason why there is none."""
    if reference := field.get("$ref"):
        named: Schema = definitions[reference.removeprefix("#/$defs/")]
        if "enum" not in named:
            raise ValueError("it is an object of its own, and forms are flat")
        outer = {key: value for key, value in field.items() if key != "$ref"}
        field = {key: value for key, value in named.items() if key != "title"} | outer
    if "enum" in field:
        if not all(isinstance(option, str) for option in field["enum"]):
            raise ValueError("only strings can be chosen from")
        field = {"type": "string"} | field
    kind: Any = field.get("type")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise ValueError("it should be str, int, float, bool, a date, a choice, or a list of choices")
    if beyond := sorted(field.keys() - _FIELDS[kind]):
        raise ValueError(f"forms know no '{beyond[0]}'")
    if field.get("format", _FORMATS[0]) not in _FORMATS:
        raise ValueError(f"forms know the formats {', '.join(_FORMATS)}, not '{field['format']}'")
    if kind != "array":
        return field
    items = _flat(field.get("items", {}), definitions)
    if "enum" not in items:
        raise ValueError("a list can only hold choices, that is a Literal or an Enum")
    return field | {"items": {"type": "string", "enum": items["enum"]}}
