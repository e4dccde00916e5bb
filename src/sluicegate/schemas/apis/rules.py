"""A tool's input schema as an API accepts it, and the way back for the arguments. Pure.

The steps: normalize (`normalize`), make the root one object (`merge`), replace names and keywords that the API refuses
(here), and for strict calls close all objects (`strict`). What the API lacks is stated in descriptions.
"""

from typing import Final

import msgspec

from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.schemas.apis.merge import as_one_object, choices_of, flattened, references, types_of
from sluicegate.schemas.apis.names import accepted_names
from sluicegate.schemas.apis.strict import NotStrict, closed
from sluicegate.schemas.apis.undo import Undo, renamed_keys
from sluicegate.schemas.normalize import (
    MANY,
    NAMED,
    ONE,
    Budget,
    TooComplex,
    add_description,
    normalize,
    ordered,
    state,
)


class SchemaRules(msgspec.Struct, frozen=True, kw_only=True):
    """What an API accepts as the schema of a tool's input."""

    name: str
    """A regular expression for names of tools."""
    not_at_root: frozenset[str]
    """Keywords that it refuses at the root, which is an object."""
    property_name: str | None = None
    """A regular expression for names of properties."""
    keywords: frozenset[str] | None = None
    """The keywords that it accepts; None for all."""
    formats: frozenset[str] | None = None
    """The formats that it accepts; None for all."""
    choices: frozenset[str] | None = None
    """The types of values in `enum`; None for all."""
    has_items: bool = False
    """Whether an array needs `items`."""
    has_known_required: bool = False
    """Whether `required` names only what `properties` lists."""
    has_one_type: bool = False
    """Whether a schema has one type, or one and null."""
    has_optional_recursion: bool = False
    """Whether a recursive reference is accepted only below a property that is not required."""
    has_plain_patterns: bool = False
    """Whether patterns have no groups that look around."""


class Translation(msgspec.Struct, frozen=True):
    """A schema for an API. `undo` turns arguments for it into arguments for the server's own schema."""

    schema: Params
    undo: Undo
    findings: tuple[str, ...] = ()
    """What could not be translated: sentences for the author of the agent."""
    is_strict: bool = False


_NOTES: Final = frozenset({"title", "description", "default", "examples", "deprecated"})
_BY_TYPE: Final = {
    "string": {"format", "pattern", "minLength", "maxLength"},
    "number": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "integer": {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"},
    "array": {"items", "prefixItems", "minItems", "maxItems", "uniqueItems"},
    "object": {"properties", "required", "additionalProperties"},
}


def translate(schema: object, rules: SchemaRules, strict: SchemaRules | None = None) -> Translation:
    """The schema for an API with these rules; with `strict` for strict calls, if the schema allows them."""
    findings: list[str] = []
    budget = Budget()
    try:
        own = normalize(schema, findings, budget)
        root = _object_root(own, findings, budget)
        if strict is not None:
            try:
                return _adapted(root, own, strict, findings, Budget(), is_strict=True)
            except NotStrict as reason:
                findings.append(f"Calls of this tool are not strict: {reason}")
        return _adapted(root, own, rules, findings, Budget())
    except TooComplex:
        findings.append("The schema is too complex; the model is shown a tool that takes any arguments.")
        return Translation({"type": "object", "properties": {}}, Undo(), tuple(findings))


def _adapted(
    root: Params, own: Params, rules: SchemaRules, findings: list[str], budget: Budget, *, is_strict: bool = False
) -> Translation:
    names = _replaced_names(own, rules)
    schema = _Adapter(root, rules, names, budget).whole()
    if is_strict:
        schema = closed(schema)
    undo = Undo(own, {new: old for old, new in names.items()})
    return Translation(schema, undo, tuple(findings), is_strict)


def _object_root(own: Params, findings: list[str], budget: Budget) -> Params:
    """The root as one object, for all APIs alike."""
    root = as_one_object(own, as_object(own.get("$defs")) or {}, budget)
    if "object" not in (types_of(root) or ["object"]):
        findings.append("The schema accepts no object, though arguments always are one.")
    root["type"] = "object"
    root.setdefault("properties", {})
    choices = choices_of(root)
    if choices is not None:
        root.pop("const", None)
        objects = [entry for entry in map(as_object, choices) if entry is not None] or [{}]
        root["enum"] = objects
        if not set[str]().union(*objects) <= (as_object(root["properties"]) or {}).keys():
            root.setdefault("additionalProperties", True)
    if "$defs" in own:
        root["$defs"] = own["$defs"]
    return ordered(root)


def _replaced_names(own: Params, rules: SchemaRules) -> dict[str, str]:
    """The property names that the API refuses, with their replacements."""
    if rules.property_name is None:
        return {}
    found: dict[str, None] = {}
    waiting: list[Params] = [own, *(as_object(entry) or {} for entry in (as_object(own.get("$defs")) or {}).values())]
    while waiting:
        schema = waiting.pop()
        found.update(dict.fromkeys(as_object(schema.get("properties")) or ()))
        waiting += _subschemas(schema)
    accepted = accepted_names(found, rules.property_name)
    return {name: changed for name, changed in accepted.items() if name != changed}


def _subschemas(schema: Params) -> list[Params]:
    found: list[object] = []
    for keyword, value in schema.items():
        if keyword in ONE:
            found.append(value)
        elif keyword in MANY:
            found += as_array(value) or ()
        elif keyword in NAMED:
            found += (as_object(value) or {}).values()
    return [entry for entry in map(as_object, found) if entry is not None]


class _Adapter:
    """Makes one normalized schema acceptable."""

    def __init__(self, root: Params, rules: SchemaRules, names: dict[str, str], budget: Budget) -> None:
        self._root = root
        self._rules = rules
        self._names = names
        self._budget = budget
        self._definitions = as_object(root.get("$defs")) or {}
        self._used: list[str] = []
        self._inlined: list[str] = []
        """The definitions that took the place of a reference, from the root to the schema at hand."""
        self._recursive = self._recursive_names() if rules.has_optional_recursion else frozenset[str]()

    def whole(self) -> Params:
        top = {keyword: value for keyword, value in self._root.items() if keyword != "$defs"}
        refused: Params = {keyword: top.pop(keyword) for keyword in self._rules.not_at_root & top.keys()}
        out = dict(self.schema(top))
        state(out, refused)
        done: dict[str, Params] = {}
        while self._used:
            name = self._used.pop()
            if name not in done:
                done[name] = {}  # Whatever refers to it again finds it here.
                done[name] = self.schema(as_object(self._definitions.get(name)) or {}, is_definition=True)
        if done:
            out["$defs"] = {name: done[name] for name in sorted(done)}
        return ordered(out)

    def schema(self, given: Params, *, is_definition: bool = False) -> Params:
        """One schema, with all that is in it. `is_definition`: no property lies between it and its definition."""
        self._budget.spend()
        left: Params = {}
        inlined = len(self._inlined)
        if self._rules.keywords is not None:
            given = self._limited(given, left)
        out: Params = {}
        for keyword, value in given.items():
            if keyword == "$ref":
                self._reference(out, str(value).removeprefix("#/$defs/"), is_definition)
            elif keyword in ONE:
                inner = as_object(value)
                out[keyword] = value if inner is None else self.schema(inner, is_definition=is_definition)
            elif keyword in MANY:
                parts = [as_object(part) or {} for part in as_array(value) or ()]
                out[keyword] = [self.schema(part, is_definition=is_definition) for part in parts]
            elif keyword in NAMED:
                named = as_object(value) or {}
                out[keyword] = {self._names.get(name, name): self._named(entry) for name, entry in named.items()}
            else:
                out[keyword] = value
        del self._inlined[inlined:]
        if self._names:
            self._rename(out, left)
        self._fill(out)
        state(out, left)
        return ordered(out)

    def _named(self, entry: object) -> Params:
        return self.schema(as_object(entry) or {})

    def _reference(self, out: Params, name: str, is_definition: bool) -> None:
        if is_definition and name in self._recursive:
            add_description(out, f"The same as {name}.")
            return
        out["$ref"] = f"#/$defs/{name}"
        self._used.append(name)

    def _rename(self, out: Params, left: Params) -> None:
        """Replace names where they are not names of properties, and drop what would judge the replacements."""
        if "required" in out:
            out["required"] = self._renamed(out["required"])
        if "dependentRequired" in out:
            needs = as_object(out["dependentRequired"]) or {}
            out["dependentRequired"] = {self._names.get(name, name): self._renamed(n) for name, n in needs.items()}
        for keyword in {"const", "enum", "default", "examples"} & out.keys():
            out[keyword] = renamed_keys(out[keyword], self._names)
        if "patternProperties" in out and "additionalProperties" in out:
            left["additionalProperties"] = out.pop("additionalProperties")
        for keyword in {"patternProperties", "propertyNames", "unevaluatedProperties"} & out.keys():
            left[keyword] = out.pop(keyword)

    def _renamed(self, names: object) -> list[str]:
        return [self._names.get(str(name), str(name)) for name in as_array(names) or ()]

    def _fill(self, out: Params) -> None:
        if self._rules.has_items and "array" in types_of(out):
            out.setdefault("items", {})
        if self._rules.has_known_required and "required" in out:
            properties = as_object(out.get("properties")) or {}
            missing: Params = {str(name): {} for name in as_array(out["required"]) or () if name not in properties}
            out["properties"] = {**properties, **missing}
        if self._recursive and "required" in out:
            self._loosen(out)

    def _loosen(self, out: Params) -> None:
        """Require no property that leads to a recursive definition."""
        properties = as_object(out.get("properties")) or {}
        names = [str(name) for name in as_array(out["required"]) or ()]
        bound = {name for name in names if self._leads_to_recursion(as_object(properties.get(name)) or {})}
        if bound:
            out["required"] = [name for name in names if name not in bound]
            state(out, {"required": sorted(bound)})

    def _leads_to_recursion(self, schema: Params) -> bool:
        name = str(schema.get("$ref", "")).removeprefix("#/$defs/")
        return name in self._recursive or any(map(self._leads_to_recursion, _subschemas(schema)))

    def _recursive_names(self) -> frozenset[str]:
        """The definitions that lead to themselves, or to one that does."""
        leads_to: dict[str, set[str]] = {}
        for name, entry in self._definitions.items():
            waiting, found = [as_object(entry) or {}], set[str]()
            while waiting:
                schema = waiting.pop()
                self._budget.spend()
                if "$ref" in schema:
                    found.add(str(schema["$ref"]).removeprefix("#/$defs/"))
                waiting += _subschemas(schema)
            leads_to[name] = found
        return frozenset(name for name in leads_to if self._is_reached(name, leads_to))

    def _is_reached(self, name: str, leads_to: dict[str, set[str]]) -> bool:
        seen, waiting = set[str](), list(leads_to[name])
        while waiting:
            self._budget.spend()
            following = waiting.pop()
            if following == name:
                return True
            if following not in seen:
                seen.add(following)
                waiting += leads_to.get(following, ())
        return False

    # ------------------------------------------------------------------------- APIs that accept only some keywords

    def _limited(self, given: Params, left: Params) -> Params:
        """A schema with accepted keywords only; what is lost goes to `left`."""
        rules = self._rules
        accepted = rules.keywords or frozenset()
        out = dict(self._merged(given, left))
        if "oneOf" in out and "anyOf" not in out and "oneOf" not in accepted:
            out["anyOf"] = out.pop("oneOf")
        if "const" in out and "const" not in accepted:
            out["enum"] = [out.pop("const")]
        self._limit_choices(out, left)
        if rules.formats is not None and out.get("format") not in rules.formats and "format" in out:
            left["format"] = out.pop("format")
        if rules.has_plain_patterns and any(mark in str(out.get("pattern", "")) for mark in ("(?=", "(?!", "(?<")):
            left["pattern"] = out.pop("pattern")
        _open_up(out, left, accepted)
        for keyword in out.keys() - accepted:
            left[keyword] = out.pop(keyword)
        if rules.has_one_type:
            _split_types(out)
        return ordered(out)

    def _merged(self, given: Params, left: Params) -> Params:
        """Without `allOf`, and with `$ref` alone."""
        parts = [as_object(part) or {} for part in as_array(given.get("allOf")) or ()]
        rest = {keyword: value for keyword, value in given.items() if keyword != "allOf"}
        if len(parts) == 1 and parts[0].keys() == {"$ref"} and rest.keys() <= _NOTES:
            given = {**rest, **parts[0]}
        elif parts:
            return self._inline(given, left)
        if "$ref" not in given or len(given) == 1:
            return given
        rest = {keyword: value for keyword, value in given.items() if keyword != "$ref"}
        if rest.keys() <= _NOTES:
            return {**rest, "anyOf": [{"$ref": given["$ref"]}]}
        return self._inline(given, left)

    def _inline(self, given: Params, left: Params) -> Params:
        """The schema with what it refers to in place; once, if that leads to itself."""
        names = references(given, self._definitions)
        if names.isdisjoint(self._inlined):
            self._inlined += sorted(names)
            return flattened(given, self._definitions, self._budget)
        left.update({keyword: given[keyword] for keyword in ("$ref", "allOf") if keyword in given})
        return {keyword: value for keyword, value in given.items() if keyword not in left}

    def _limit_choices(self, out: Params, left: Params) -> None:
        choices = choices_of(out)
        if choices is None:
            return
        kinds = list(dict.fromkeys(_type_of(entry) for entry in choices))
        if "type" not in out:
            out["type"] = kinds[0] if len(kinds) == 1 else kinds
        accepted = self._rules.choices
        if accepted is None or set(kinds) <= accepted:
            return
        if "null" in kinds and set(kinds) - {"null"} <= accepted and "anyOf" not in out and len(kinds) > 1:
            # Null beside the choices, as a schema of its own.
            some: Params = {"enum": [entry for entry in choices if entry is not None]}
            named = [kind for kind in types_of(out) if kind != "null"]
            some["type"] = named[0] if len(named) == 1 else named
            del out["enum"], out["type"]
            out["anyOf"] = [ordered(some), {"type": "null"}]
            return
        left["enum"] = out.pop("enum")


def _open_up(out: Params, left: Params, accepted: frozenset[str]) -> None:
    """Drop what would judge more than before once a keyword beside it is dropped, and do not hide what it names."""
    if not _unlisted(out, accepted) <= (as_object(out.get("properties")) or {}).keys():
        out.setdefault("additionalProperties", True)
    if "patternProperties" in out and "patternProperties" not in accepted:
        if "additionalProperties" in out:
            left["additionalProperties"] = out["additionalProperties"]
        out["additionalProperties"] = True
    if "prefixItems" in out and "prefixItems" not in accepted and "items" in out:
        left["items"] = out.pop("items")


def _unlisted(schema: Params, accepted: frozenset[str]) -> set[str]:
    """The properties that conditions name, where the API has no conditions."""
    found: set[str] = set()
    for keyword in {"then", "else", "dependentSchemas"} & schema.keys() - accepted:
        value = as_object(schema[keyword]) or {}
        for part in map(as_object, value.values() if keyword == "dependentSchemas" else [value]):
            found |= {*(as_object((part or {}).get("properties")) or ()), *_unlisted(part or {}, accepted)}
            found.update(str(name) for name in as_array((part or {}).get("required")) or ())
    for names in (as_object(schema.get("dependentRequired")) or {}).values():
        found.update(str(name) for name in as_array(names) or ())
    return found


def _split_types(out: Params) -> None:
    """A list of types as a union, except for one type and null."""
    kinds = types_of(out)
    named = [kind for kind in kinds if kind != "null"]
    if "integer" in named and "number" in named:
        named.remove("integer")
    if len(named) < 2:
        if len(named) == 1:
            out["type"] = [named[0], "null"] if "null" in kinds else named[0]
        return
    if "anyOf" in out:
        del out["type"]  # The union says more.
        return
    branches: list[object] = []
    choices = choices_of(out)
    if choices is not None and not any(_fits(entry, kind) for entry in choices for kind in kinds):
        choices = None  # No value is valid; a union of nothing is no schema.
    for kind in [*named, *(["null"] if "null" in kinds else [])]:
        branch: Params = {"type": kind}
        branch.update({keyword: out[keyword] for keyword in _BY_TYPE.get(kind, set[str]()) & out.keys()})
        if choices is not None:
            fitting = [entry for entry in choices if _fits(entry, kind)]
            if not fitting:
                continue
            branch["enum"] = fitting
        branches.append(ordered(branch))
    for keyword in {"type", "enum"}.union(*_BY_TYPE.values()) & out.keys():
        del out[keyword]
    out["anyOf"] = branches


def _fits(value: object, kind: str) -> bool:
    return _type_of(value) == kind or (kind == "number" and _type_of(value) == "integer")


def _type_of(value: object) -> str:
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
        case _:
            return "object"
