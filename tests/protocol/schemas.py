"""The official schemas of the protocol revisions, in two readings: by the letter and by the spirit.

By the letter most objects are open, so a message with a field that the revision never had is still valid. By the spirit
an object has only the members its revision names; `_meta` and the schemas that tools bring along stay open, which is
their purpose.

The schemas are read from a folder beside the project, if it is there, and else from the conformance suite, which lacks
the oldest revision.
"""

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any, cast

import jsonschema_rs
import pytest

from sluicegate.protocol.versions import SUPPORTED_VERSIONS

ROOT = Path(__file__).parents[2]
FOLDER = ROOT.parent / "shared" / "schema"
NODE = ROOT / ".strangers" / "npm" / "node"
SUITE = NODE.parent / "node_modules" / "@modelcontextprotocol" / "conformance" / "dist" / "index.js"
IN_SUITE = ("2025-03-26", "2025-06-18", "2025-11-25", "2026-07-28")

Json = dict[str, Any]

# Members of which the schema names some and means any.
OPEN = {"_meta", "inputSchema", "outputSchema", "data"}


def has_schema(version: str) -> bool:
    """Whether the schema of a revision is on this machine."""
    return (FOLDER / f"{version}.json").exists() or (version in IN_SUITE and SUITE.exists())


VERSIONS = [version for version in SUPPORTED_VERSIONS if has_schema(version)]
"""The revisions whose schemas are on this machine."""

needs_schemas = pytest.mark.skipif(
    IN_SUITE[-1] not in VERSIONS, reason="the conformance suite is not installed: run ./scripts/strangers"
)


@cache
def suite_schemas() -> dict[str, Json]:
    """The schemas that the conformance suite contains, by their revisions."""
    program = Path(__file__).with_name("suite_schemas.mjs")
    done = subprocess.run([NODE, program, SUITE], capture_output=True, check=True, timeout=60)
    schemas: dict[str, Json] = dict(zip(IN_SUITE, json.loads(done.stdout), strict=True))
    # The suite has earlier texts of two revisions, in which forms can have no limits such as 0.5.
    for schema in (schemas["2025-06-18"]["definitions"], schemas["2025-11-25"]["$defs"]):
        for member in {"minimum", "maximum", "default"}.intersection(schema["NumberSchema"]["properties"]):
            schema["NumberSchema"]["properties"][member]["type"] = "number"
    return schemas


@cache
def definitions(version: str) -> tuple[str, Json]:
    """The name of the place where a revision keeps its definitions, and the definitions; skips a test without them."""
    if not has_schema(version):
        pytest.skip(f"no installed package has the official schema of {version}")
    file = FOLDER / f"{version}.json"
    schema = cast(Json, json.loads(file.read_text(encoding="utf-8"))) if file.exists() else suite_schemas()[version]
    place = "$defs" if "$defs" in schema else "definitions"
    return place, cast(Json, schema[place])


def problems(version: str, definition: str, value: object, *, by_letter: bool = False) -> list[str]:
    """What is wrong with a value, by the letter of the definition and, unless told otherwise, by its spirit."""
    found = [
        f"{error.message} at {error.instance_path}" for error in _validator(version, definition).iter_errors(value)
    ]
    if not found and not by_letter:
        strict = _validator(version, definition, closed=True)
        found = [f"{error.message} at {error.instance_path}" for error in strict.iter_errors(value)]
    return found


@cache
def _validator(version: str, definition: str, closed: bool = False) -> jsonschema_rs.Validator:
    place, known = definitions(version)
    if definition not in known:
        raise LookupError(f"{version} has no definition of {definition}")
    if closed:
        known = {name: _closed(part, name) for name, part in known.items()}
    dialect = (
        "https://json-schema.org/draft/2020-12/schema"
        if place == "$defs"
        else "http://json-schema.org/draft-07/schema#"
    )
    schema = {"$schema": dialect, "$ref": f"#/{place}/{definition}", place: known}
    return jsonschema_rs.validator_for(schema, validate_formats=True)


def _closed(schema: object, name: str) -> object:
    """A schema whose objects have no members but those it names. A composed one stays open: no part of it is all."""
    if isinstance(schema, list):
        return [_closed(item, "") for item in cast(list[object], schema)]
    if not isinstance(schema, dict) or "allOf" in schema:
        return cast(object, schema)
    members = {key: _closed(value, key) for key, value in cast(Json, schema).items() if key != "properties"}
    properties = cast(Json | None, schema.get("properties"))  # pyright: ignore[reportUnknownMemberType]
    if properties is None or name in OPEN or name.endswith("MetaObject"):
        return {**members, "properties": properties} if properties is not None else members
    named: Json = {key: _closed(value, key) for key, value in properties.items()}
    if "method" in named:
        named = {"jsonrpc": {}, "id": {}, **named}  # Before 2025-11-25 a message's definition left its envelope out,
    if name == "params":
        named = {"_meta": {}, **named}  # and named `_meta` only in the definition of all requests.
    return {"additionalProperties": False, **members, "properties": named}
