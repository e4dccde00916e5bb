"""What the model APIs refuse, written down a second time: this shares nothing with the translation."""

import json
import re
from collections.abc import Iterator
from typing import Any, TypeGuard

import jsonschema_rs

Json = Any
UNIONS = ("anyOf", "oneOf", "allOf")
GEMINI = {
    *("$ref", "$defs", "type", "format", "title", "description", "enum", "items", "prefixItems", "minItems"),
    *("maxItems", "minimum", "maximum", "anyOf", "properties", "additionalProperties", "required"),
}
STRICT = {
    *("$ref", "$defs", "type", "title", "description", "enum", "const", "items", "minItems", "maxItems", "pattern"),
    *("format", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf", "anyOf", "properties"),
    *("additionalProperties", "required"),
}


def breaches(api: str, definition: Json) -> list[str]:
    """Each reason for which an API would refuse a definition."""
    assert json.loads(json.dumps(definition)) == definition
    match api:
        case "anthropic":
            assert definition.keys() <= {"name", "description", "input_schema"}
            return [*_common(definition, "input_schema"), *_anthropic(definition["input_schema"])]
        case "openai":
            assert definition["type"] == "function"
            return _openai({name: value for name, value in definition.items() if name != "type"})
        case "openai-chat":
            assert definition.keys() == {"type", "function"} and definition["type"] == "function"
            return _openai(definition["function"])
        case "gemini":
            assert definition.keys() == {"name", "description", "parametersJsonSchema"} and definition["description"]
            found = _common(definition, "parametersJsonSchema")
            if not re.match("[A-Za-z_]", definition["name"]):
                found.append("the name begins with a digit or a dash")
            return [*found, *_gemini(definition["parametersJsonSchema"])]
        case _:
            raise AssertionError(api)


def is_valid(schema: Json, value: Json) -> bool:
    return jsonschema_rs.Draft202012Validator(schema).is_valid(value)


def is_object(value: Json) -> TypeGuard[dict[str, Any]]:
    return isinstance(value, dict)


def nodes(schema: Json, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Json]]:
    """Every schema in a schema, with its path."""
    if not is_object(schema):
        return
    yield path, schema
    for keyword, value in schema.items():
        here = (*path, keyword)
        if keyword in ("properties", "patternProperties", "$defs", "definitions", "dependentSchemas"):
            for name, inner in value.items():
                yield from nodes(inner, (*here, name))
        elif keyword in (*UNIONS, "prefixItems"):
            for place, inner in enumerate(value):
                yield from nodes(inner, (*here, str(place)))
        elif keyword in ("items", "additionalProperties", "not", "if", "then", "else", "contains", "propertyNames") or (
            keyword in ("unevaluatedItems", "unevaluatedProperties")
        ):
            yield from nodes(value, here)


def types(schema: Json) -> list[str]:
    found = schema.get("type", [])
    return [found] if isinstance(found, str) else found


def _common(definition: Json, member: str) -> list[str]:
    found: list[str] = []
    schema = definition[member]
    if not re.fullmatch("[A-Za-z0-9_-]{1,64}", definition["name"]):
        found.append("the name")
    if schema.get("type") != "object" or not isinstance(schema.get("properties"), dict):
        found.append("the root is not an object with properties")
    found += [f"{keyword} at the root" for keyword in (*UNIONS, "$ref") if keyword in schema]
    try:
        jsonschema_rs.Draft202012Validator(schema, retriever=_never)
    except (ValueError, jsonschema_rs.ReferencingError) as error:
        found.append(f"no JSON Schema of 2020-12: {error}")
    for path, node in nodes(schema):
        if "$ref" in node:
            name = node["$ref"].removeprefix("#/$defs/")
            if name not in schema.get("$defs", {}):
                found.append(f"{path}: {node['$ref']} leads nowhere")
        try:
            re.compile(node.get("pattern", ""))
        except re.error:
            found.append(f"{path}: the pattern is no regular expression")
    return found


def _never(uri: str) -> Json:
    raise AssertionError(f"{uri} was fetched")


def _anthropic(schema: Json) -> list[str]:
    return [
        f"{path}: the property {name!r}"
        for path, node in nodes(schema)
        for name in node.get("properties", {})
        if not re.fullmatch("[A-Za-z0-9_.-]{1,64}", name)
    ]


def _openai(function: Json) -> list[str]:
    assert function.keys() <= {"name", "description", "parameters", "strict"} and type(function["strict"]) is bool
    schema = function["parameters"]
    found = _common(function, "parameters")
    found += [f"{keyword} at the root" for keyword in ("enum", "not") if keyword in schema]
    for path, node in nodes(schema):
        if "array" in types(node) and "items" not in node:
            found.append(f"{path}: an array without items")
    return [*found, *_strict(schema)] if function["strict"] else found


def _strict(schema: Json) -> list[str]:
    found: list[str] = []
    for path, node in nodes(schema):
        found += [f"{path}: {keyword}" for keyword in node.keys() - STRICT]
        if not {"type", "anyOf", "$ref"} & node.keys():
            found.append(f"{path}: no type")
        if "$ref" in node and len(node) > 1:
            found.append(f"{path}: $ref is not alone")
        if "object" in types(node):
            if node.get("additionalProperties") is not False:
                found.append(f"{path}: an open object")
            if sorted(node.get("required", [])) != sorted(node.get("properties", {})):
                found.append(f"{path}: not all properties are required")
    return found


def _gemini(schema: Json) -> list[str]:
    found: list[str] = []
    for path, node in nodes(schema):
        found += [f"{path}: {keyword}" for keyword in node.keys() - GEMINI]
        if any(isinstance(entry, bool) or not isinstance(entry, str | int | float) for entry in node.get("enum", ())):
            found.append(f"{path}: a choice that is neither text nor number")
        if "$ref" in node and len(node) > 1:
            found.append(f"{path}: $ref is not alone")
        if len([kind for kind in types(node) if kind != "null"]) > 1:
            found.append(f"{path}: several types")
        if "array" in types(node) and "items" not in node:
            found.append(f"{path}: an array without items")
        for name in node.get("required", ()):
            if name not in node.get("properties", {}):
                found.append(f"{path}: {name!r} is required and not a property")
    if _is_endless(schema, schema, frozenset()):
        found.append("a cycle of references through required properties only")
    return found


def _is_endless(node: Json, root: Json, inside: frozenset[str]) -> bool:
    """Whether a value would have to contain itself: references are followed, properties only if they are required."""
    if not is_object(node):
        return False
    if "$ref" in node:
        if node["$ref"] in inside:
            return True
        target = root["$defs"][node["$ref"].removeprefix("#/$defs/")]
        return _is_endless(target, root, inside | {node["$ref"]})
    inner: list[Json] = [node.get("properties", {}).get(name) for name in node.get("required", ())]
    inner += [node.get("items"), node.get("additionalProperties"), *node.get("anyOf", ()), *node.get("prefixItems", ())]
    return any(_is_endless(entry, root, inside) for entry in inner)
