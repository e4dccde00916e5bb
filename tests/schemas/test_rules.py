"""Schemas for model APIs: no API refuses them, valid arguments stay valid, and `undo` leads back to the server."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sluicegate.protocol.types import Tool
from sluicegate.schemas.apis.rules import Translation, translate
from sluicegate.toolbox.definitions import APIS, define
from tests.schemas.acceptance import breaches, is_object, is_valid, nodes
from tests.schemas.corpus import recorded
from tests.schemas.strategies import PLAIN_NAMES, fitting, schemas, tool_schemas

Json = Any
FORMS = [(api, strict) for api in APIS for strict in (False, True)]


def translated(schema: Json, api: str = "anthropic", *, strict: bool = False) -> Translation:
    return translate(schema, APIS[api].rules, APIS[api].strict if strict else None)


def definition(schema: Json, api: str, *, strict: bool = False) -> Json:
    (defined,) = define([Tool(name="tool", description="Does it.", input_schema=schema)], api, strict=strict).values()
    return defined.definition


# ------------------------------------------------------------------------------------------------------- any schema


@pytest.mark.parametrize(("api", "strict"), FORMS)
def test_no_recorded_tool_is_refused(api: str, strict: bool) -> None:
    tools = recorded()
    defined = define(tools, api, strict=strict)
    assert len(defined) == len({tool.name for tool in tools})
    found = {name: breaches(api, entry.definition) for name, entry in defined.items()}
    assert not {name: reasons for name, reasons in found.items() if reasons}


def test_most_recorded_tools_can_be_called_strictly() -> None:
    defined = define(recorded(), "openai", strict=True).values()
    strict = [entry for entry in defined if entry.definition["strict"]]
    assert len(strict) > 0.9 * len(defined)
    assert all(entry.findings for entry in defined if not entry.definition["strict"])


@settings(max_examples=60, deadline=None)
@given(schema=tool_schemas())
def test_no_generated_schema_is_refused(schema: Json) -> None:
    for api, strict in FORMS:
        made = definition(schema, api, strict=strict)
        assert not breaches(api, made), (api, strict, made)


@settings(max_examples=60, deadline=None)
@given(schema=tool_schemas(PLAIN_NAMES, broken=False), data=st.data())
def test_valid_arguments_are_valid_for_the_api_and_come_back_unchanged(schema: Json, data: st.DataObject) -> None:
    arguments = data.draw(fitting(schema))
    if not is_valid(schema, arguments):
        return
    for api, strict in FORMS:
        translation = translated(schema, api, strict=strict)
        assert translation.undo(arguments) == arguments
        if not translation.is_strict:
            assert is_valid(translation.schema, arguments), (api, translation.schema)


@settings(max_examples=40, deadline=None)
@given(branches=st.lists(schemas(PLAIN_NAMES, broken=False), min_size=2, max_size=3), data=st.data())
def test_arguments_for_one_branch_of_a_root_union_are_valid(branches: list[Json], data: st.DataObject) -> None:
    closed = [
        {"type": "object", "properties": {name: branch}, "required": [name], "additionalProperties": False}
        for name, branch in zip(["a", "b", "kind"], branches, strict=False)
    ]
    schema = {"oneOf": closed, "$defs": {"one": {"type": "string"}, "two/x": {}}}
    arguments = data.draw(fitting(data.draw(st.sampled_from(closed)), schema))
    if is_valid(schema, arguments):
        for api in APIS:
            translation = translated(schema, api)
            assert is_valid(translation.schema, arguments), (api, translation.schema)
            assert translation.undo(arguments) == arguments


@settings(max_examples=30, deadline=None)
@given(schema=tool_schemas())
def test_equal_schemas_give_equal_bytes_and_are_not_changed(schema: Json) -> None:
    before = json.dumps(schema)
    shuffled: Json = {name: schema[name] for name in sorted(schema, reverse=True)} if is_object(schema) else schema
    for api, strict in FORMS:
        assert json.dumps(definition(schema, api, strict=strict)) == json.dumps(
            definition(shuffled, api, strict=strict)
        )
    assert json.dumps(schema) == before


# --------------------------------------------------------------------------------------------------------- the root


UNION = {
    "oneOf": [
        {
            "properties": {"kind": {"const": "file"}, "path": {"type": "string"}},
            "required": ["kind", "path"],
        },
        {
            "properties": {"kind": {"const": "url"}, "url": {"type": "string"}, "path": {"type": "integer"}},
            "required": ["kind", "url"],
        },
    ],
    "type": "object",
    "properties": {"verbose": {"type": "boolean"}},
}


@pytest.mark.parametrize("api", APIS)
def test_a_root_union_becomes_one_object_with_the_properties_of_all_branches(api: str) -> None:
    schema = translated(UNION, api).schema
    assert list(schema["properties"]) == ["verbose", "kind", "path", "url"]  # pyright: ignore
    assert schema["required"] == ["kind"]
    properties: Json = schema["properties"]
    assert properties["path"] == {"anyOf": [{"type": "string"}, {"type": "integer"}]}
    assert is_valid(schema, {"kind": "url", "url": "x"}) and not is_valid(schema, {"kind": "other"})


@pytest.mark.parametrize("api", APIS)
def test_the_description_states_a_root_union(api: str) -> None:
    made = definition({"oneOf": [{"required": ["a"]}, {"required": ["b"]}]}, api)
    made = made.get("function", made)
    statement = 'Also applies (JSON Schema): {"oneOf":[{"required":["a"]},{"required":["b"]}]}'
    assert made["description"] == f"Does it.\n\n{statement}"


def test_a_property_of_the_root_is_not_narrowed_by_one_branch() -> None:
    schema = {
        "properties": {"value": {}, "kind": {"enum": ["a", "b"]}},
        "anyOf": [
            {"properties": {"kind": {"const": "a"}, "value": {"type": "string"}}},
            {"properties": {"kind": {"const": "b"}}},
        ],
    }
    assert is_valid(translated(schema).schema, {"kind": "b", "value": 3})


def test_alternatives_of_required_properties_are_stated() -> None:
    schema = {
        "type": "object",
        "properties": {"id": {"type": "string"}, "name": {"type": "string"}},
        "anyOf": [{"required": ["id"]}, {"required": ["name"]}],
    }
    made = definition(schema, "anthropic")
    assert "required" not in made["input_schema"]
    assert made["description"] == (
        'Does it.\n\nAlso applies (JSON Schema): {"anyOf":[{"required":["id"]},{"required":["name"]}]}'
    )


def test_a_root_with_parts_that_must_all_hold_lists_and_requires_their_properties() -> None:
    schema = {
        "allOf": [
            {"$ref": "#/definitions/base"},
            {"type": "object", "properties": {"b": {"type": "null"}}, "required": ["b"]},
        ],
        "definitions": {"base": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}},
    }
    for api in APIS:
        made = translated(schema, api).schema
        assert made["properties"] == {"a": {"type": "integer"}, "b": {"type": "null"}}
        assert made["required"] == ["a", "b"]


def test_a_root_that_is_a_reference_is_what_it_refers_to() -> None:
    base: Json = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
    schema = {"$ref": "#/definitions/base", "definitions": {"base": base}}
    for api in APIS:
        assert translated(schema, api).schema == base


def test_a_closed_root_lists_only_its_own_properties() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "null"}},
        "additionalProperties": False,
        "anyOf": [{"properties": {"b": {"type": "null"}}}, {"required": ["a"]}],
    }
    assert translated(schema).schema["properties"] == {"a": {"type": "null"}}


@pytest.mark.parametrize(
    "schema", [True, {}, None, "x", {"type": ["object", "null"]}, {"$ref": "#"}, {"type": "array"}]
)
def test_any_root_becomes_an_object(schema: Json) -> None:
    for api in APIS:
        made = translated(schema, api).schema
        assert (made["type"], made["properties"]) == ("object", {})


def test_keywords_that_openai_refuses_at_the_root_are_stated() -> None:
    schema = {"type": "object", "properties": {}, "not": {"required": ["a"]}}
    made = definition(schema, "openai")
    assert made["description"] == 'Does it.\n\nAlso applies (JSON Schema): {"not":{"required":["a"]}}'
    assert "not" in definition(schema, "anthropic")["input_schema"]


# ------------------------------------------------------------------------------------------------------- references


def test_references_move_to_defs_and_only_what_is_used_stays() -> None:
    schema = {
        "type": "object",
        "properties": {
            "a": {"$ref": "#/definitions/A%20b"},
            "c": {"$ref": "#/properties/d/items"},
            "d": {"type": "array", "items": {"type": "string"}},
            "e": {"$ref": "#here"},
        },
        "definitions": {"A b": {"type": "integer"}, "unused": {}, "x": {"$anchor": "here", "type": "null"}},
    }
    made: Json = translated(schema).schema
    assert made["$defs"] == {"A_b": {"type": "integer"}, "items": {"type": "string"}, "x": {"type": "null"}}
    assert [made["properties"][name] for name in "ace"] == [
        {"$ref": "#/$defs/A_b"},
        {"$ref": "#/$defs/items"},
        {"$ref": "#/$defs/x"},
    ]


@pytest.mark.parametrize("reference", ["https://example.com/a.json", "file:///etc/passwd", "other.json#/a", "#/no", 7])
def test_references_to_other_documents_accept_everything_and_are_reported(reference: Json) -> None:
    translation = translated({"type": "object", "properties": {"a": {"$ref": reference}}})
    assert translation.schema["properties"] == {"a": {}}
    assert "it is not followed" in translation.findings[0]


def test_a_recursive_schema_stays_recursive() -> None:
    schema = {
        "type": "object",
        "properties": {"children": {"type": "array", "items": {"$ref": "#"}}, "name": {"type": "string"}},
        "required": ["name"],
    }
    for api in APIS:
        made = translated(schema, api).schema
        assert is_valid(made, {"name": "a", "children": [{"name": "b", "children": []}]})
        assert not is_valid(made, {"name": "a", "children": [{"name": 1}]})


def test_gemini_gets_recursion_only_below_optional_properties() -> None:
    schema = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["next"]}
    made = definition(schema, "gemini")
    assert not breaches("gemini", made)
    assert '{"required":["next"]}' in made["description"]


# ------------------------------------------------------------------------------------------------------------- names


def test_property_names_that_anthropic_refuses_are_replaced_and_restored() -> None:
    schema = {
        "type": "object",
        "properties": {"a b": {"$ref": "#/$defs/x"}, "ok": {"default": {"$filter": 1}}},
        "required": ["a b"],
        "additionalProperties": False,
        "$defs": {"x": {"type": "object", "properties": {"$filter": {"type": "string"}, "n" * 65: {}}}},
    }
    translation = translated(schema)
    assert not breaches("anthropic", definition(schema, "anthropic"))
    properties: Json = translation.schema["properties"]
    first = next(iter(properties))
    inner: Json = translation.schema["$defs"]
    dollar, long = inner["x"]["properties"]
    assert translation.schema["required"] == [first] and properties["ok"]["default"] == {dollar: 1}
    sent: Json = {first: {dollar: "x", long: 1}, "ok": 2}
    assert is_valid(translation.schema, sent)
    assert translation.undo(sent) == {"a b": {"$filter": "x", "n" * 65: 1}, "ok": 2}
    assert translated(schema, "openai").schema["required"] == ["a b"]


def test_two_names_that_look_alike_stay_two() -> None:
    schema: Json = {"type": "object", "properties": {"a b": {}, "a/b": {}, "a_b": {}}}
    properties: Json = translated(schema).schema["properties"]
    assert len(properties) == 3 and "a_b" in properties


# --------------------------------------------------------------------------------------------------- what is lacking


def test_keywords_that_gemini_lacks_are_stated_in_descriptions() -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "number", "exclusiveMinimum": 0, "description": "How many."},
            "k": {"const": "x"},
            "u": {"type": "string", "format": "uuid"},
            "s": {"type": ["string", "array"], "items": {"type": "string"}, "minLength": 1},
            "e": {"enum": ["a", None]},
        },
    }
    assert translated(schema, "gemini").schema["properties"] == {
        "n": {"description": 'How many.\nAlso applies (JSON Schema): {"exclusiveMinimum":0}', "type": "number"},
        "k": {"type": "string", "enum": ["x"]},
        "u": {"description": 'Also applies (JSON Schema): {"format":"uuid"}', "type": "string"},
        "s": {
            "description": 'Also applies (JSON Schema): {"minLength":1}',
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
        },
        "e": {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "null"}]},
    }


def test_choices_that_no_type_accepts_leave_the_types() -> None:
    schema = {"type": "object", "properties": {"a": {"type": ["number", "boolean"], "enum": ["x"]}}}
    assert translated(schema, "gemini").schema["properties"] == {
        "a": {"anyOf": [{"type": "number"}, {"type": "boolean"}]},
    }


def test_older_drafts_and_openapi_are_understood() -> None:
    schema = {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "minimum": 0, "exclusiveMinimum": True},
            "t": {"type": "array", "items": [{"type": "string"}], "additionalItems": False},
            "o": {"type": "string", "nullable": True},
        },
        "dependencies": {"n": ["t"], "t": {"required": ["o"]}},
    }
    assert translated(schema).schema == {
        "type": "object",
        "properties": {
            "n": {"type": "integer", "exclusiveMinimum": 0},
            "t": {"type": "array", "items": {"not": {}}, "prefixItems": [{"type": "string"}]},
            "o": {"type": ["string", "null"]},
        },
        "dependentRequired": {"n": ["t"]},
        "dependentSchemas": {"t": {"required": ["o"]}},
    }


def test_malformed_keywords_are_left_out_and_reported() -> None:
    schema = {
        "type": "object",
        "properties": {"a": {"type": "any", "required": True, "minLength": -1}, "b": 7, "c": {"pattern": "("}},
    }
    translation = translated(schema)
    assert translation.schema["properties"] == {
        "a": {},
        "b": {},
        "c": {"description": 'Also applies (JSON Schema): {"pattern":"("}'},
    }
    assert len(translation.findings) == 4


def test_arrays_for_openai_have_items() -> None:
    schema = {"type": "object", "properties": {"a": {"type": ["array", "null"]}}}
    assert translated(schema, "openai").schema["properties"] == {"a": {"type": ["array", "null"], "items": {}}}


# ------------------------------------------------------------------------------------------------------------ bounds


def chain(keyword: str, length: int = 30) -> Json:
    links = {f"d{n}": {keyword: [{"$ref": f"#/$defs/d{n + 1}"}] * 3} for n in range(length)}
    return {keyword: [{"$ref": "#/$defs/d0"}] * 3, "$defs": {**links, f"d{length}": {"type": "object"}}}


def deep(length: int) -> Json:
    schema: Json = {}
    for _ in range(length):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


BOMBS = {
    "allOf": chain("allOf"),
    "anyOf": chain("anyOf"),
    "nested": deep(400),
    "wide": {"type": "object", "properties": {f"p{n}": {"type": "string"} for n in range(20_000)}},
    "own allOf": {"allOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "own anyOf": {"anyOf": [{"$ref": "#"}, {"$ref": "#"}]},
    "inner allOf": {"type": "object", "properties": {"a": chain("allOf")}, "$defs": chain("allOf")["$defs"]},
    "pointers": {"type": "object", "properties": {"a": {"$ref": "#" + "/properties/a" * 300}}},
    "value": {"type": "object", "properties": {"a": {"default": deep(400)}}},
    "pattern": {"type": "object", "properties": {"a": {"pattern": "(" * 900 + ")" * 900}, "b": {"pattern": "(a+)+$"}}},
}


@pytest.mark.parametrize("bomb", BOMBS)
def test_hostile_schemas_take_bounded_work(bomb: str) -> None:
    for api, strict in FORMS:
        assert not breaches(api, definition(BOMBS[bomb], api, strict=strict))
        assert sum(1 for _ in nodes(translated(BOMBS[bomb], api, strict=strict).schema)) <= 5_000


def test_deep_arguments_come_back_unchanged() -> None:
    value: Json = None
    for _ in range(900):
        value = {"a": value}
    assert translated({"type": "object", "properties": {"a b": {}}}).undo(value) == value


def test_a_reference_with_more_beside_it_becomes_a_union_of_one() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/node", "minProperties": 1}}}
    schema = {
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/node", "maxProperties": 3}},
        "$defs": {"node": node},
    }
    made: Json = translated(schema, "gemini").schema
    assert made["properties"]["a"] == {
        "description": 'Also applies (JSON Schema): {"maxProperties":3}',
        "anyOf": [{"$ref": "#/$defs/node"}],
    }


def test_several_parts_of_a_property_are_stated_where_the_api_has_no_all_of() -> None:
    inner: Json = {"allOf": [{"minimum": 1}, {"maximum": 9}], "type": "integer"}
    schema = {"type": "object", "properties": {"a": inner}}
    assert translated(schema).schema["properties"] == {"a": inner}
    assert translated(schema, "gemini").schema["properties"] == {
        "a": {
            "type": "integer",
            "description": 'Also applies (JSON Schema): {"allOf":[{"minimum":1},{"maximum":9}]}',
        }
    }
    translation = translated(schema, "openai", strict=True)
    assert not translation.is_strict and "must all hold" in translation.findings[-1]
    assert translation.undo({"a": 5}) == {"a": 5}
