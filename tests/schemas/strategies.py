"""Strategies: JSON Schemas as servers write them, and arguments that fit them more or less."""

from typing import Any

from hypothesis import strategies as st

from tests.schemas.acceptance import is_object, types

Json = Any
EMPTY: Json = {}
NAMES = st.sampled_from(["a", "b", "kind", "a b", "$x", "né", "x" * 70, "", "0", "a.b-c"])
PLAIN_NAMES = st.sampled_from(["a", "b", "kind", "c_d"])
SCALARS = st.one_of(st.none(), st.booleans(), st.integers(-3, 3), st.sampled_from(["", "a", "b", "x y"]))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=2) | st.dictionaries(PLAIN_NAMES, inner, max_size=2), max_leaves=4
)
TYPES = ["string", "number", "integer", "boolean", "array", "object", "null"]
DEFINITIONS = ["one", "two/x"]
REFERENCES = [
    *("#/$defs/one", "#/$defs/two~1x", "#/definitions/one", "#", "#/$defs/nowhere", "https://example.com/schema.json"),
    *("#anchor", "#/properties/a"),
]
KEYWORDS: dict[str, st.SearchStrategy[Json]] = {
    "description": st.sampled_from(["about it", ""]),
    "enum": st.lists(VALUES, min_size=1, max_size=3),
    "const": VALUES,
    "default": VALUES,
    "format": st.sampled_from(["date-time", "uri", "uuid"]),
    "pattern": st.sampled_from(["^a", "(?=a)", "(", r"\p{L}"]),
    "minLength": st.integers(0, 2),
    "exclusiveMinimum": st.sampled_from([0, True]),
    "minimum": st.integers(-2, 2),
    "maximum": st.integers(-2, 2),
    "maxItems": st.integers(0, 3),
    "minProperties": st.integers(0, 2),
    "$schema": st.just("http://json-schema.org/draft-07/schema#"),
    "x-unknown": st.just({"$ref": "#/nowhere"}),
    "$anchor": st.just("anchor"),
    "nullable": st.booleans(),
}


def schemas(names: st.SearchStrategy[str] = NAMES, *, broken: bool = True) -> st.SearchStrategy[Json]:
    """Any schema, of any draft; `broken`: also what is no JSON Schema, or has references to elsewhere."""
    keywords = dict(KEYWORDS)
    references = REFERENCES
    if broken:
        keywords["type"] = st.sampled_from([*TYPES, "any", [], ["string", "null"], ["array", "object", 3], 7])
        keywords["required"] = st.one_of(st.lists(names, max_size=2), st.just(True))
    else:
        for keyword in ("pattern", "exclusiveMinimum", "nullable", "$anchor", "$schema"):
            del keywords[keyword]
        keywords["type"] = st.one_of(st.sampled_from(TYPES), st.lists(st.sampled_from(TYPES), min_size=1, unique=True))
        keywords["required"] = st.lists(names, max_size=2, unique=True)
        keywords["exclusiveMinimum"] = st.integers(-1, 1)
        references = REFERENCES[:2]
    keywords["$ref"] = st.sampled_from(references)

    def nested(inner: st.SearchStrategy[Json]) -> st.SearchStrategy[Json]:
        any_schema = st.one_of(inner, st.booleans())
        some = st.lists(inner, min_size=1, max_size=2)
        named = st.dictionaries(names, any_schema, max_size=3)
        structure: dict[str, st.SearchStrategy[Json]] = {
            "properties": named,
            "additionalProperties": any_schema,
            "patternProperties": st.dictionaries(st.sampled_from(["^a", "b$"]), inner, max_size=1),
            "propertyNames": inner,
            "items": st.one_of(any_schema, some) if broken else any_schema,
            "prefixItems": some,
            "contains": inner,
            **dict.fromkeys(("anyOf", "oneOf", "allOf"), some),
            **dict.fromkeys(("not", "if", "then", "else"), inner),
            "dependentSchemas": st.dictionaries(names, inner, max_size=1),
            "dependentRequired": st.dictionaries(names, st.lists(names, max_size=1), max_size=1),
        }
        common = st.fixed_dictionaries(
            {"type": st.just("object"), "properties": named}, optional={"required": keywords["required"]}
        )
        return st.one_of(common, st.fixed_dictionaries({}, optional={**structure, **keywords}))

    leaf = st.one_of(
        st.fixed_dictionaries({"type": st.sampled_from(TYPES)}),
        st.fixed_dictionaries({}, optional=keywords),
        st.fixed_dictionaries({"$ref": keywords["$ref"]}),
    )
    return st.recursive(leaf, nested, max_leaves=6)


def tool_schemas(names: st.SearchStrategy[str] = NAMES, *, broken: bool = True) -> st.SearchStrategy[Json]:
    """Schemas of tools: mostly an object with properties and definitions."""
    inner = schemas(names, broken=broken)
    definitions = st.fixed_dictionaries(dict.fromkeys(DEFINITIONS, inner))
    members: dict[str, st.SearchStrategy[Json]] = {
        "properties": st.dictionaries(names, inner, max_size=3),
        "required": st.lists(names, max_size=2, unique=True),
    }
    optional: dict[str, st.SearchStrategy[Json]] = {
        "definitions": definitions,
        "additionalProperties": st.booleans(),
        "description": st.just("the arguments"),
    }
    common = st.fixed_dictionaries({"type": st.just("object"), **members, "$defs": definitions}, optional=optional)
    if not broken:
        return common
    unions = st.lists(inner, min_size=1, max_size=3)
    odd: dict[str, st.SearchStrategy[Json]] = {
        "anyOf": unions,
        "oneOf": unions,
        "allOf": unions,
        "not": inner,
        "enum": st.just([EMPTY]),
        "$ref": st.just("#/$defs/one"),
    }
    return st.one_of(common, inner, st.fixed_dictionaries({"$defs": definitions}, optional={**members, **odd}))


@st.composite
def fitting(draw: st.DrawFn, schema: Json, root: Json = None, left: int = 6) -> Json:
    """A value that fits a schema, or nearly."""
    root = schema if root is None else root
    if not is_object(schema) or left == 0:
        return draw(SCALARS)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return draw(st.sampled_from(schema["enum"]))
    if str(schema.get("$ref", "")).startswith("#/$defs/"):
        name = schema["$ref"].removeprefix("#/$defs/").replace("~1", "/")
        return draw(fitting(root.get("$defs", {}).get(name, True), root, left - 1))
    for union in ("anyOf", "oneOf", "allOf"):
        if union in schema and not schema.get("properties"):
            return draw(fitting(draw(st.sampled_from(schema[union])), root, left - 1))
    kinds = types(schema) or ["object" if "properties" in schema else "any"]
    kind = draw(st.sampled_from(kinds))
    match kind:
        case "object":
            members = {
                name: draw(fitting(inner, root, left - 1))
                for name, inner in schema.get("properties", {}).items()
                if name in schema.get("required", ()) or draw(st.booleans())
            }
            missing = [name for name in schema.get("required", ()) if name not in members]
            return {**members, **{name: draw(SCALARS) for name in missing}}
        case "array":
            return draw(st.lists(fitting(schema.get("items", True), root, left - 1), max_size=2))
        case "string":
            return draw(st.sampled_from(["", "a", "ab"]))
        case "integer" | "number":
            return draw(st.integers(-2, 3))
        case "boolean":
            return draw(st.booleans())
        case "null":
            return None
        case _:
            return draw(VALUES)
