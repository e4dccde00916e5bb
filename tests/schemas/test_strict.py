"""Strict calls: closed schemas, and arguments without the nulls that stand for what is absent."""

from typing import Any

import pytest

from sluicegate.schemas.apis.rules import Translation, translate
from sluicegate.toolbox.definitions import APIS
from tests.schemas.acceptance import is_valid

Json = Any


def translated(schema: Json, *, strict: bool = True) -> Translation:
    api = APIS["openai"]
    return translate(schema, api.rules, api.strict if strict else None)


STRICT = {
    "type": "object",
    "properties": {
        "path": {"type": "string", "minLength": 1},
        "limit": {"type": "integer", "default": 5},
        "mode": {"enum": ["r", "w"], "description": "How."},
        "options": {"$ref": "#/$defs/Options", "description": "More."},
        "note": {"type": ["string", "null"]},
    },
    "required": ["path"],
    "$defs": {"Options": {"type": "object", "properties": {"deep": {"type": "boolean"}}}},
}


def test_strict_schemas_close_objects_and_make_optional_properties_nullable() -> None:
    translation = translated(STRICT)
    assert translation.is_strict
    made: Json = translation.schema
    assert made["required"] == list(made["properties"]) and made["additionalProperties"] is False
    assert made["properties"]["limit"]["type"] == ["integer", "null"]
    assert made["properties"]["mode"] == {
        "description": "How.",
        "anyOf": [{"type": "string", "enum": ["r", "w"]}, {"type": "null"}],
    }
    assert made["properties"]["options"] == {
        "description": "More.",
        "anyOf": [{"$ref": "#/$defs/Options"}, {"type": "null"}],
    }
    assert made["$defs"]["Options"]["properties"] == {"deep": {"type": ["boolean", "null"]}}


def test_nulls_that_the_server_does_not_allow_are_dropped() -> None:
    translation = translated(STRICT)
    sent: Json = {"path": "a", "limit": None, "mode": None, "options": {"deep": None}, "note": None}
    assert is_valid(translation.schema, sent)
    assert translation.undo(sent) == {"path": "a", "options": {}, "note": None}


def test_nulls_in_a_branch_of_a_union_are_judged_by_that_branch() -> None:
    branches = [
        {"type": "object", "properties": {"k": {"const": "a"}, "x": {"type": "string"}}, "required": ["k"]},
        {"type": "object", "properties": {"k": {"const": "b"}, "x": {"type": ["string", "null"]}}, "required": ["k"]},
    ]
    schema = {"type": "object", "properties": {"u": {"type": "array", "items": {"anyOf": branches}}}}
    translation = translated(schema)
    sent: Json = {"u": [{"k": "a", "x": None}, {"k": "b", "x": None}]}
    assert is_valid(translation.schema, sent)
    assert translation.undo(sent) == {"u": [{"k": "a"}, {"k": "b", "x": None}]}


PAIR = {"type": "object", "properties": {"b": {"type": "string"}, "c": {"type": "string"}}}


@pytest.mark.parametrize(
    ("inner", "reason"),
    [
        ({"type": "object"}, "`a` may have any properties."),
        ({"type": "object", "properties": {"b": {"type": "null"}}, "additionalProperties": True}, "any properties."),
        ({"type": "object", "properties": {}, "patternProperties": {"^x": {}}}, "`a` may have any properties."),
        ({}, "`a` can be anything."),
        ({"type": "array"}, "an item of `a` can be anything."),
        ({"properties": {"b": {"type": "null"}}}, "`a` can be anything."),
        ({"enum": [str(number) for number in range(1001)]}, "too many properties or choices."),
        ({**PAIR, "anyOf": [{**PAIR, "required": ["b"]}, PAIR]}, "`a` is an object and a union at once."),
        ({**PAIR, "if": {"required": ["b"]}, "then": {"required": ["d"]}}, "`a` may have any properties."),
        ({**PAIR, "dependentSchemas": {"b": {"properties": {"d": {"type": "null"}}}}}, "`a` may have any properties."),
        ({**PAIR, "allOf": [{"required": ["b"]}, {"required": ["c"]}]}, "several schemas that must all hold."),
        ({"anyOf": [PAIR], "oneOf": [{"properties": {"d": {"type": "null"}}}]}, "several schemas that must all hold."),
        ({**PAIR, "dependentRequired": {"b": ["d"]}}, "`a` may have any properties."),
    ],
)
def test_the_finding_names_the_reason_why_a_tool_is_not_strict(inner: Json, reason: str) -> None:
    schema = {"type": "object", "properties": {"a": inner}}
    translation = translated(schema)
    assert not translation.is_strict and translation.findings[-1].endswith(reason)
    assert translation.schema == translated(schema, strict=False).schema


@pytest.mark.parametrize("condition", [{"then": {"required": ["c"]}}, {"dependentRequired": {"b": ["c"]}}])
def test_conditions_on_listed_properties_are_strict(condition: Json) -> None:
    assert translated({**PAIR, "if": {"required": ["b"]}, **condition}).is_strict


def test_choices_of_the_whole_arguments_are_not_hidden() -> None:
    translation = translated({"type": "object", "enum": [{"a": 1}, {"a": 2}]})
    assert not translation.is_strict and is_valid(translation.schema, {"a": 1})


def test_a_deep_schema_is_not_strict() -> None:
    schema: Json = {"type": "string"}
    for _ in range(11):
        schema = {"type": "object", "properties": {"a": schema}}
    assert not translated(schema).is_strict
    assert translated(schema["properties"]["a"]).is_strict
