"""The root of an input schema as one object, which every API wants. Pure; works on normalized schemas.

None of 630 public tools has a union, a reference or `allOf` at its root. Where a server does, the properties of all
parts are listed, those that every part requires are required, and the parts themselves go into the description: the
model reads them there, and the server checks the arguments.
"""

from typing import Final

import msgspec

from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.schemas.document import MAX_DEPTH, NOTES, Budget, choices_of, types_of
from sluicegate.schemas.normalize import ordered, state, target

_PARTS: Final = ("$ref", "allOf", "anyOf", "oneOf")


def object_root(own: Params, findings: list[str], budget: Budget) -> Params:
    """The root as one object, for all APIs alike. It accepts at least the objects that the schema accepts.

    Raises:
        TooComplex: it needs too much work.
    """
    definitions = as_object(own.get("$defs")) or {}
    root = _behind_reference({keyword: value for keyword, value in own.items() if keyword != "$defs"}, definitions)
    if "object" not in (types_of(root) or ["object"]):
        findings.append("The schema accepts no object, though arguments always are one.")
    root["type"] = "object"
    root.setdefault("properties", {})
    parts: Params = {keyword: root.pop(keyword) for keyword in _PARTS if keyword in root}
    if parts:
        if "unevaluatedProperties" in root:  # It would judge the properties that only the parts know.
            parts["unevaluatedProperties"] = root.pop("unevaluatedProperties")
        _list_properties(root, _Parts(parts, definitions, budget))
        state(root, parts)
    choices = choices_of(root)
    if choices is not None:
        root.pop("const", None)
        objects = [entry for entry in map(as_object, choices) if entry is not None] or [{}]
        root["enum"] = objects
        if not set[str]().union(*objects) <= (as_object(root["properties"]) or {}).keys():
            root.setdefault("additionalProperties", True)
    if definitions:
        root["$defs"] = definitions
    return ordered(root)


def _behind_reference(root: Params, definitions: Params) -> Params:
    """The definition that a root leads to, if the root has nothing else but notes; else the root."""
    for _ in range(MAX_DEPTH):
        if root.keys() - NOTES != {"$ref"}:
            break
        notes = {keyword: value for keyword, value in root.items() if keyword != "$ref"}
        root = {**target(root["$ref"], definitions), **notes}
    return dict(root)


def _list_properties(root: Params, parts: "_Parts") -> None:
    properties = dict(as_object(root["properties"]) or {})
    if root.get("additionalProperties") is not False:  # A closed root accepts only its own properties.
        for name, schemas in parts.properties.items():
            distinct = list({msgspec.json.encode(schema, order="deterministic"): schema for schema in schemas}.values())
            properties.setdefault(name, distinct[0] if len(distinct) == 1 else {"anyOf": distinct})
    required = dict.fromkeys([*(as_array(root.get("required")) or ()), *parts.required])
    root["properties"] = properties
    root.update({"required": list(required)} if required else {})


class _Parts:
    """The properties that the parts of a schema name, and those that all its objects have."""

    def __init__(self, parts: Params, definitions: Params, budget: Budget) -> None:
        self.properties: dict[str, list[object]] = {}
        self._definitions = definitions
        self._budget = budget
        self._known: dict[str, list[object]] = {}
        """What definitions require, by their references. Each is read once, also if it leads to itself."""
        self.required = self._required(parts, 0)

    def _required(self, schema: Params, depth: int) -> list[object]:
        """The names that a schema certainly requires. Its properties are noted on the way."""
        self._budget.spend()
        if depth > MAX_DEPTH:
            return []
        for name, inner in (as_object(schema.get("properties")) or {}).items():
            self.properties.setdefault(name, []).append(inner)
        found = list(as_array(schema.get("required")) or ())
        if "$ref" in schema:
            found += self._of_definition(str(schema["$ref"]), depth)
        for part in as_array(schema.get("allOf")) or ():
            found += self._required(as_object(part) or {}, depth + 1)
        for keyword in ("anyOf", "oneOf"):
            branches = [as_object(branch) or {} for branch in as_array(schema.get(keyword)) or ()]
            branches = [branch for branch in branches if "object" in (types_of(branch) or ["object"])]
            needed = [self._required(branch, depth + 1) for branch in branches]
            if needed:
                shared = set(needed[0]).intersection(*needed[1:])
                found += [name for name in needed[0] if name in shared]
        return found

    def _of_definition(self, reference: str, depth: int) -> list[object]:
        if reference not in self._known:
            self._known[reference] = []
            self._known[reference] = self._required(target(reference, self._definitions), depth + 1)
        return self._known[reference]
