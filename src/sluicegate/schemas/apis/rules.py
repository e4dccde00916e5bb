"""A tool's input schema as an API accepts it, and the way back for the arguments. Pure.

The steps: normalize (`normalize`), make the root one object (`root`), replace names and keywords that the API refuses
(here), and for strict calls close all objects (`strict`). What the API lacks is stated in descriptions.
"""

import hashlib
import re
from collections.abc import Iterable
from typing import Final

import msgspec

from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.schemas.apis.root import object_root
from sluicegate.schemas.apis.strict import NotStrict, closed
from sluicegate.schemas.apis.undo import Undo, renamed_keys
from sluicegate.schemas.document import (
    MANY,
    NAMED,
    ONE,
    Budget,
    TooComplex,
    choices_of,
    subschemas,
    type_of_value,
    types_of,
)
from sluicegate.schemas.normalize import MAX_TRANSLATED, add_description, normalize, ordered, state


class SchemaRules(msgspec.Struct, frozen=True, kw_only=True):
    """What an API accepts as the schema of a tool's input."""

    name: str
    """A regular expression for names of tools."""
    not_at_root: frozenset[str]
    """Keywords that it refuses at the root, which is an object."""
    property_name: str | None = None
    """A regular expression for names of properties."""
    keywords: frozenset[str] | None = None
    """The keywords that it accepts, never `allOf` or `oneOf`; None for all."""
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


_DIGEST: Final = 8
"""Hexadecimal digits in a replaced name."""
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
    budget = Budget(MAX_TRANSLATED)
    try:
        own = normalize(schema, findings, budget)
        root = object_root(own, findings, budget)
        if strict is not None:
            try:
                return _adapted(root, own, strict, findings, is_strict=True)
            except NotStrict as reason:
                findings.append(f"Calls of this tool are not strict: {reason}")
        return _adapted(root, own, rules, findings)
    except TooComplex:
        findings.append("The schema is too complex; the model is shown a tool that takes any arguments.")
        return Translation({"type": "object", "properties": {}}, Undo(), tuple(findings))


def _adapted(
    root: Params, own: Params, rules: SchemaRules, findings: list[str], *, is_strict: bool = False
) -> Translation:
    names = _replaced_names(own, rules)
    adapter = _Adapter(root, rules, names)
    schema = adapter.whole()
    if is_strict:
        if adapter.has_lost_parts:
            raise NotStrict("a part of it has several schemas that must all hold.")
        schema = closed(schema)
    undo = Undo(own, {new: old for old, new in names.items()})
    return Translation(schema, undo, tuple(findings), is_strict)


def _replaced_names(own: Params, rules: SchemaRules) -> dict[str, str]:
    """The property names that the API refuses, with their replacements."""
    if rules.property_name is None:
        return {}
    found: dict[str, None] = {}
    waiting: list[Params] = [own, *(as_object(entry) or {} for entry in (as_object(own.get("$defs")) or {}).values())]
    while waiting:
        schema = waiting.pop()
        found.update(dict.fromkeys(as_object(schema.get("properties")) or ()))
        waiting += subschemas(schema)
    accepted = accepted_names(found, rules.property_name)
    return {name: changed for name, changed in accepted.items() if name != changed}


def accepted_names(names: Iterable[str], pattern: str, longest: int = 64) -> dict[str, str]:
    """An accepted name for each name. Names that are accepted already stay; others get a digest of what they were."""
    names = list(dict.fromkeys(names))
    is_accepted = re.compile(pattern).fullmatch
    taken = {name for name in names if is_accepted(name)}
    out: dict[str, str] = {}
    for name in names:
        if name in taken:
            out[name] = name
            continue
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
        if not re.match(r"[A-Za-z_]", plain):
            plain = f"_{plain}"
        # The digest alone would be unique; a server that guesses it gets a longer one.
        for length in range(_DIGEST, longest, 4):
            changed = f"{plain[: longest - length - 1]}_{digest[:length]}"
            if changed not in taken:
                break
        else:
            raise AssertionError("sixty-four hexadecimal digits were all taken")
        taken.add(changed)
        out[name] = changed
    return out


class _Adapter:
    """Makes one normalized schema acceptable."""

    def __init__(self, root: Params, rules: SchemaRules, names: dict[str, str]) -> None:
        self._root = root
        self._rules = rules
        self._names = names
        self._budget = Budget(MAX_TRANSLATED)
        self._definitions = as_object(root.get("$defs")) or {}
        self._used: list[str] = []
        self.has_lost_parts = False
        """Whether a schema that must also hold is stated only in a description. It may name further properties."""
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
        return name in self._recursive or any(map(self._leads_to_recursion, subschemas(schema)))

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
                waiting += subschemas(schema)
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
        out = dict(self._with_one_union(given, left))
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

    def _with_one_union(self, given: Params, left: Params) -> Params:
        """The schema without `allOf` and `oneOf`, and with `$ref` alone. `anyOf` with one schema takes their place.

        Of several schemas that must all hold, none is kept here: what is lost goes to `left`.
        """
        if given.keys() == {"$ref"}:
            return given
        parts: list[Params] = [{"$ref": given["$ref"]}] if "$ref" in given else []
        parts += [as_object(part) or {} for part in as_array(given.get("allOf")) or ()]
        out = {keyword: value for keyword, value in given.items() if keyword not in ("$ref", "allOf")}
        if len(parts) == 1 and not out:
            return self._with_one_union(parts[0], left)
        if len(parts) == 1 and out.keys().isdisjoint({"anyOf", "oneOf"}):
            out["anyOf"] = parts
        elif parts:
            left.update({keyword: given[keyword] for keyword in ("$ref", "allOf") if keyword in given})
            self.has_lost_parts = True
        if "oneOf" in out and "anyOf" not in out:
            out["anyOf"] = out.pop("oneOf")
        elif "oneOf" in out:
            left["oneOf"] = out.pop("oneOf")
            self.has_lost_parts = True
        return out

    def _limit_choices(self, out: Params, left: Params) -> None:
        choices = choices_of(out)
        if choices is None:
            return
        kinds = list(dict.fromkeys(type_of_value(entry) for entry in choices))
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
    return type_of_value(value) == kind or (kind == "number" and type_of_value(value) == "integer")
