"""A schema for strict calls: all objects closed, all properties required, optional ones nullable. Pure.

OpenAI generates arguments that fit such a schema exactly. A schema for which that is not possible is not strict.
"""

from typing import Final

from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.schemas.document import types_of
from sluicegate.schemas.normalize import ordered

MAX_PROPERTIES: Final = 5_000
MAX_LEVELS: Final = 10
MAX_CHOICES: Final = 1_000
MAX_CHARACTERS: Final = 120_000
"""Of the names of properties and definitions, and of all choices."""


class NotStrict(Exception):
    """Why a schema cannot be strict, as a sentence for the author of the agent."""


def closed(schema: Params) -> Params:
    """The schema for strict calls.

    Raises:
        NotStrict: it has an object that cannot be closed, accepts anything somewhere, or is too large.
    """
    closing = _Closing(as_object(schema.get("$defs")) or {})
    return closing.whole(schema)


class _Closing:
    def __init__(self, definitions: Params) -> None:
        self._definitions = definitions
        self._properties = 0
        self._choices = 0
        self._characters = 0
        self._levels_of: dict[str, int] = {}

    def whole(self, schema: Params) -> Params:
        top = {keyword: value for keyword, value in schema.items() if keyword != "$defs"}
        out = self._schema(top, "the arguments", is_root=True)
        if self._definitions:
            self._characters += sum(map(len, self._definitions))
            definitions = {name: self._schema(as_object(d) or {}, name) for name, d in self._definitions.items()}
            out["$defs"] = definitions
        if self._properties > MAX_PROPERTIES or self._choices > MAX_CHOICES or self._characters > MAX_CHARACTERS:
            raise NotStrict("the schema has too many properties or choices.")
        if self._levels(top) > MAX_LEVELS:
            raise NotStrict(f"the schema has more than {MAX_LEVELS} levels.")
        return ordered(out)

    def _schema(self, schema: Params, where: str, *, is_root: bool = False) -> Params:
        out = dict(schema)
        kinds = types_of(schema)
        if not kinds and not schema.keys() & {"$ref", "anyOf"}:
            raise NotStrict(f"{where} can be anything.")
        for entry in as_array(schema.get("enum")) or ():
            self._choices += 1
            self._characters += len(entry) if isinstance(entry, str) else 4
        if "object" in kinds and "anyOf" in schema:
            raise NotStrict(f"{where} is an object and a union at once.")
        if "object" in kinds:
            self._close(out, where, is_root)
        elif "properties" in schema or "required" in schema:
            raise NotStrict(f"{where} has properties, but its type is not object.")
        if "array" in kinds:
            out["items"] = self._schema(as_object(schema.get("items")) or {}, f"an item of {where}")
        else:
            out.pop("items", None)
        if "anyOf" in schema:
            out["anyOf"] = [self._schema(as_object(part) or {}, where) for part in as_array(schema["anyOf"]) or ()]
        return ordered(out)

    def _close(self, out: Params, where: str, is_root: bool) -> None:
        properties = as_object(out.get("properties"))
        is_open = out.get("additionalProperties", False) is not False
        if is_open or (not properties and "additionalProperties" not in out and not is_root):
            raise NotStrict(f"{where} may have any properties.")
        required = set(as_array(out.get("required")) or ())
        inner: Params = {}
        for name, entry in (properties or {}).items():
            self._properties += 1
            self._characters += len(name)
            schema = self._schema(as_object(entry) or {}, f"`{name}`")
            inner[name] = schema if name in required else self._nullable(schema)
        out["properties"] = inner
        out["required"] = list(inner)
        out["additionalProperties"] = False

    def _nullable(self, schema: Params) -> Params:
        kinds = types_of(schema)
        branches = as_array(schema.get("anyOf"))
        if "null" in kinds and "enum" not in schema:
            return schema
        if branches is not None and not kinds:
            has_null = any("null" in types_of(as_object(branch) or {}) for branch in branches)
            return schema if has_null else ordered({**schema, "anyOf": [*branches, {"type": "null"}]})
        if kinds and "enum" not in schema and branches is None:
            return ordered({**schema, "type": [*kinds, "null"]})
        notes = {keyword: schema[keyword] for keyword in ("title", "description") if keyword in schema}
        rest = {keyword: value for keyword, value in schema.items() if keyword not in notes}
        return ordered({**notes, "anyOf": [rest, {"type": "null"}]})

    def _levels(self, schema: Params) -> int:
        name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
        if name:
            if name not in self._levels_of:
                self._levels_of[name] = 0  # A definition that leads to itself is not unrolled.
                self._levels_of[name] = self._levels(as_object(self._definitions.get(name)) or {})
            return self._levels_of[name]
        inner = [*(as_object(schema.get("properties")) or {}).values(), schema.get("items")]
        below = [self._levels(entry) for entry in map(as_object, inner) if entry is not None]
        beside = [self._levels(as_object(part) or {}) for part in as_array(schema.get("anyOf")) or ()]
        is_level = bool({"object", "array"} & set(types_of(schema)))
        return max([is_level + max(below, default=0), *beside])
