"""Elicitation forms: a dataclass, Struct or model → the flat schema of an elicitation → an instance of the class.

A form's schema contains everything that is checked. MCP has only flat fields (text, numbers, booleans, one or several
choices) with few limits; other types are refused when the form is made, not when it is filled in.
"""

import datetime
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from sluicegate.activations.describe import (
    CANNOT_DESCRIBE,
    annotated_text,
    is_record,
    object_schema,
    reason,
    uses_pydantic,
    without_extras,
)
from sluicegate.activations.pydantic_types import form_of, is_of_pydantic
from sluicegate.activations.schema import read
from sluicegate.activations.signatures import name_of
from sluicegate.schemas.validate import Checker, Schema

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
        TypeError: a field cannot be part of a form; the message names it and the reason.
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
    required = [name for name in full.get("required", ()) if name not in _nullable(full)]
    return {"type": "object", "properties": properties, "required": required}


def form_value(form: type[T], content: Mapping[str, object]) -> T:
    """The user's input as an instance of the form; raises InvalidArguments."""
    full = _full_schema(form)
    left_empty = {name: None for name in _nullable(full) if name in full.get("required", ())}
    convert = form_of if uses_pydantic([form]) else read
    return convert(left_empty | dict(content), form, Checker(full, noun="field"))


def _full_schema(form: type) -> Schema:
    if not (is_record(form) or is_of_pydantic(form)):
        raise TypeError(f"{name_of(form)} is not a form: it should be a dataclass, a Struct, a TypedDict or a model")
    try:
        return object_schema(form, output=False)
    except CANNOT_DESCRIBE as error:
        raise TypeError(f"{name_of(form)} cannot be a form: {reason(error)}") from None


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
    """The field as MCP defines it; raises ValueError with the reason if MCP has no such field."""
    if reference := field.get("$ref"):
        named: Schema = definitions[reference.removeprefix("#/$defs/")]
        if "enum" not in named:
            raise ValueError("it is an object, and forms are flat")
        outer = {key: value for key, value in field.items() if key != "$ref"}
        field = {key: value for key, value in named.items() if key != "title"} | outer
    if "enum" in field:
        if not all(isinstance(option, str) for option in field["enum"]):
            raise ValueError("choices must be strings")
        field = {"type": "string"} | field
    kind: Any = field.get("type")
    if not isinstance(kind, str) or kind not in _FIELDS:
        raise ValueError("it should be str, int, float, bool, a date, a choice, or a list of choices")
    if beyond := sorted(field.keys() - _FIELDS[kind]):
        raise ValueError(f"forms do not support '{beyond[0]}'")
    if field.get("format", _FORMATS[0]) not in _FORMATS:
        raise ValueError(f"forms support the formats {', '.join(_FORMATS)}, not '{field['format']}'")
    if kind != "array":
        return field
    items = _flat(field.get("items", {}), definitions)
    if "enum" not in items:
        raise ValueError("a list can only contain choices: a Literal or an Enum")
    return field | {"items": {"type": "string", "enum": items["enum"]}}
