"""Tools to generate code for: those of our own servers, and hostile ones."""

import itertools
from collections.abc import AsyncIterator, Iterable, Mapping

import msgspec

from sluicegate.client.connect import connect
from sluicegate.demo import server as demo
from sluicegate.generate.model import GeneratedTool
from sluicegate.hub.hub import Hub
from sluicegate.protocol.message import Params
from sluicegate.server import activated, activation
from tests.public_tools import public_tools


class Seen(msgspec.Struct, tag="seen"):
    planet: str


class Lost(msgspec.Struct, tag="lost"):
    planet: str
    days: int


@activation("solar")
class Solar:
    """The planets."""

    async def watch(self, days: int) -> AsyncIterator[Seen | Lost]:
        """Watch the sky."""
        yield Seen("mars")
        yield Lost("pluto", days)

    async def mass(self, planet: str) -> dict[str, float]:
        """The mass of a planet."""
        return {planet: 1.5}


def our_hub() -> Hub:
    """A hub with the demo and an activation that has events of its own."""
    hub = Hub()
    hub.mount("demo", demo)
    hub.mount("solar", activated("solar", Solar()))
    return hub


async def our_tools() -> list[GeneratedTool]:
    async with connect(our_hub()) as client:
        found = [tool.raw for tool in await client.tools()]
    return [tool_of(str(each["name"]), each) for each in found]


def tool_of(exposed: str, definition: Params) -> GeneratedTool:
    server, _, own = exposed.partition("__")
    return (
        GeneratedTool(server, own, definition) if own else GeneratedTool(exposed.partition(".")[0], exposed, definition)
    )


def corpus() -> Iterable[GeneratedTool]:
    """The tools of public servers; skips the test where there are none."""
    for server, tools in public_tools().items():
        for tool in tools:
            yield GeneratedTool(server, str(tool["name"]), {**tool, "name": f"{server}__{tool['name']}"})


def tool(name: str = "try", server: str = "odd", **definition: object) -> GeneratedTool:
    return GeneratedTool(server, name, {"name": f"{server}__{name}", "inputSchema": {"type": "object"}, **definition})


NASTY = (
    *("*/ export const evil = 1; /*", "// @ts-nocheck", "@ts-ignore", "/// <reference path='x' />", "${evil}", "`"),
    *(
        '"""',
        '""""',
        "\\",
        '\\"""',
        "'''\nimport os\n'''",
        '"""\nimport os\n"""',
        "# pyright: ignore",
        "type: ignore",
        "# # type: ignore",
    ),
    *("\n\nimport os", "\r\rimport os", "\x0cimport os", "\u2028import os\u2029", "\x00", "\u202e", "{{}}", "%s"),
    *(
        "__proto__",
        "constructor",
        "class",
        "delete",
        "then",
        "self",
        "str",
        "dict",
        "typing",
        "runtime",
        "",
        "1",
        "é",
        "…",
    ),
    *("gateway", "index", "__init__", "../../etc/passwd", "CON", "a" * 300, "a-b", "a_b", "a.b", "A_B", "TryArguments"),
)


def _schema(text: str) -> Params:
    return {
        "type": "object",
        "description": text,
        "required": ["a"],
        "properties": {
            "a": {"enum": [text, 1, True, None, 1.5, 2**80, {"x": text}]},
            text: {"description": text, "default": text, "const": text},
            f"{text} ": {"$ref": f"#/$defs/{text.replace('~', '~0').replace('/', '~1').replace('%', '%25')}"},
            "list": {"type": "array", "items": {"type": "object", "properties": {text: True}}},
            "str": {"type": "string"},
            "also": {"type": "string"},
        },
        "$defs": {text: {"type": "object", "properties": {text: {"type": "string"}}}},
    }


def nasty() -> Iterable[GeneratedTool]:
    """Servers that put hostile texts wherever they can."""
    for place, text in enumerate(NASTY):
        schema = _schema(text)
        yield tool(text, "nasty", description=text, inputSchema=schema, outputSchema=schema)
        meta = {"dev.sluicegate/streaming": True, "dev.sluicegate/events": schema}
        yield tool(f"stream{place}", "nasty", description=text, inputSchema=schema, _meta=meta)
        yield tool("try", text, description=text)


NODE: Params = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}, "value": True}}
ODD: Mapping[str, object] = {
    "recursive": {"$ref": "#/$defs/Node", "$defs": {"Node": NODE}},
    "itself": {"type": "object", "properties": {"again": {"$ref": "#"}}},
    "circle": {"$ref": "#/$defs/A", "$defs": {"A": {"$ref": "#/$defs/B"}, "B": {"$ref": "#/$defs/A"}}},
    "own_union": {
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {"A": {"anyOf": [{"$ref": "#/$defs/A"}, {"type": "string"}]}},
    },
    "deep_list": {
        "properties": {"a": {"$ref": "#/$defs/A"}},
        "$defs": {
            "A": {"anyOf": [{"type": "array", "items": {"$ref": "#/$defs/A"}}, {"type": "string"}]},
            "B": {"type": "object", "additionalProperties": {"$ref": "#/$defs/B"}},
        },
    },
    "deep_map": {
        "properties": {"b": {"$ref": "#/$defs/B"}},
        "$defs": {"B": {"type": "object", "additionalProperties": {"$ref": "#/$defs/B"}}},
    },
    "pointer": {"properties": {"a": {"type": "object", "properties": {"x": {}}}, "b": {"$ref": "#/properties/a"}}},
    "nowhere": {"properties": {"a": {"$ref": "#/$defs/None"}, "b": {"$ref": "https://example.com/x"}}},
    "booleans": {"properties": {"a": True, "b": False}, "required": ["a", "c"], "additionalProperties": False},
    "true": True,
    "false": False,
    "nothing": {"type": "object", "additionalProperties": False},
    "types": {"properties": {"a": {"type": ["string", "null", "array", "object"]}, "b": {"type": "float"}}},
    "tuples": {
        "properties": {
            "pair": {
                "type": "array",
                "prefixItems": [{"type": "number"}, {"type": "string"}],
                "minItems": 2,
                "maxItems": 2,
            },
            "more": {"type": "array", "prefixItems": [{"type": "number"}], "items": {"type": "string"}},
            "old": {"type": "array", "items": [{"type": "number"}], "additionalItems": False},
        },
    },
    "all": {
        "allOf": [{"$ref": "#/$defs/Base"}, {"properties": {"b": {"type": "integer"}}, "required": ["b"]}],
        "$defs": {"Base": {"type": "object", "properties": {"a": {"type": "string"}}, "required": ["a"]}},
    },
    "doubling": {
        "$ref": "#/$defs/x0",
        "$defs": {f"x{n}": {"allOf": [{"$ref": f"#/$defs/x{n + 1}"}] * 2, "title": "x"} for n in range(60)},
    },
    "together": {"properties": {"a": {}, "b": {}}, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]},
    "either": {
        "type": "object",
        "properties": {"kind": {"type": "string"}},
        "oneOf": [{"properties": {"a": {"type": "string"}}}, {"properties": {"b": {"type": "string"}}}],
    },
    "open": {"properties": {"a": {"type": "string"}}, "additionalProperties": {"type": "number"}},
    "not_an_object": {"type": "string"},
    "wrong": {
        "type": 3,
        "properties": [],
        "required": {},
        "enum": {},
        "anyOf": {},
        "$ref": 5,
        "allOf": [7],
        "items": 1,
    },
    "nullable": {"properties": {"a": {"type": "string", "nullable": True}}},
}


def odd() -> Iterable[GeneratedTool]:
    """Schemas that are legal and rare, or not legal at all."""
    for (name, schema), is_output in itertools.product(ODD.items(), (False, True)):
        yield tool(f"{name}_out", outputSchema=schema) if is_output else tool(name, inputSchema=schema)
