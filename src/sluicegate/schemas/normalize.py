"""Any JSON Schema of a server → a well-formed schema of draft 2020-12, whose references all lead to its `$defs`. Pure.

Nothing is fetched: a reference to another document becomes the schema that accepts everything (T25). What is malformed
is dropped, so that the result accepts at least what the original accepts. All work is bounded.
"""

import math
import re
import warnings
from collections.abc import Callable, Mapping
from typing import Final, TypeGuard

import msgspec

from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.schemas.document import MANY, MAX_DEPTH, NAMED, ONE, TYPES, Budget, Document

MAX_TRANSLATED: Final = 5_000
"""Subschemas that one translation for an API may look at. The largest of 400 public tools has about 600."""
_PATTERN_COST: Final = 5
"""What compiling a pattern takes, in subschemas."""
MAX_PATTERN: Final = 1_000
MAX_STATEMENT: Final = 600
_OPEN: Final = frozenset({"additionalProperties", "unevaluatedProperties", "unevaluatedItems"})


def state(schema: Params, left_out: Params) -> None:
    """Write into the description what the schema itself cannot say."""
    if not left_out:
        return
    text = msgspec.json.encode(left_out, order="deterministic").decode()
    if len(text) <= MAX_STATEMENT:
        sentence = f"Also applies (JSON Schema): {text}"
    else:
        sentence = f"The server also checks: {', '.join(sorted(left_out))}."
    add_description(schema, sentence)


def add_description(schema: Params, sentence: str) -> None:
    """Append a sentence to the description, once."""
    before = schema.get("description")
    if not isinstance(before, str) or not before:
        schema["description"] = sentence
    elif sentence not in before:
        schema["description"] = f"{before}\n{sentence}"


def ordered(schema: Params) -> Params:
    """The same with its keywords in one order, so that equal schemas have equal bytes."""
    return {keyword: schema[keyword] for keyword in ORDER if keyword in schema}


def normalize(schema: object, findings: list[str], budget: Budget) -> Params:
    """The normalized schema, with every definition that it refers to in `$defs`.

    Raises:
        TooComplex: it needs too much work.
    """
    return _Normalizer(schema, findings, budget).whole()


def target(reference: object, definitions: Mapping[str, object]) -> Params:
    """The definition that a normalized reference leads to."""
    name = reference.removeprefix("#/$defs/") if isinstance(reference, str) else ""
    return as_object(definitions.get(name)) or {}


class _Normalizer:
    def __init__(self, root: object, findings: list[str], budget: Budget) -> None:
        self._document = Document(root, budget)
        self._findings = findings
        self._budget = budget
        self._names: dict[tuple[str, ...], str] = {}
        self._taken: dict[str, int] = {}
        """The names in use, and how many definitions wanted each."""
        self._waiting: list[tuple[str, object]] = []

    def whole(self) -> Params:
        root = self._schema(self._document.root, 0)
        found: dict[str, Params] = {}
        while self._waiting:
            name, raw = self._waiting.pop()
            found[name] = self._schema(raw, 0)
        if found:
            root["$defs"] = {name: found[name] for name in sorted(found)}
        return root

    def _find(self, sentence: str) -> None:
        if sentence not in self._findings and len(self._findings) < 20:
            self._findings.append(sentence)

    def _schema(self, raw: object, depth: int) -> Params:
        self._budget.spend()
        if raw is False:
            return {"not": {}}
        given = as_object(raw)
        if given is None or depth > MAX_DEPTH:
            if raw is not True:
                self._find("A part of the schema is no schema, or is nested too deep; it accepts everything.")
            return {}
        out: Params = {}
        stated: Params = {}
        for keyword, value in ordered(_modern(given)).items():
            if keyword == "$ref":
                name = self._name_of(value)
                if name is not None:
                    out["$ref"] = f"#/$defs/{name}"
            elif keyword in ONE:
                out[keyword] = value if keyword in _OPEN and isinstance(value, bool) else self._schema(value, depth + 1)
            elif keyword in MANY:
                entries = as_array(value)
                if entries:
                    out[keyword] = [self._schema(entry, depth + 1) for entry in entries]
            elif keyword in NAMED:
                entries = as_object(value)
                if entries is not None:
                    out[keyword] = {str(name): self._schema(entry, depth + 1) for name, entry in entries.items()}
            elif keyword in _READ:
                self._value(out, stated, keyword, value)
        self._patterns(out, stated)
        state(out, stated)
        return ordered(out) if stated else out

    def _value(self, out: Params, stated: Params, keyword: str, value: object) -> None:
        if keyword == "pattern" and isinstance(value, str):
            self._budget.spend(_PATTERN_COST)
            if not is_regex(value):
                stated[keyword] = value[:MAX_PATTERN]
                return
        read = _READ[keyword](value)
        if read is not None:
            out[keyword] = read[0]
        elif keyword not in ("description", "title", "examples"):
            self._find(f"The keyword {keyword!r} has a value that JSON Schema does not allow; it is left out.")

    def _patterns(self, out: Params, stated: Params) -> None:
        """Leave out patterns that are no regular expression, and then accept the names that they would match."""
        patterns = as_object(out.get("patternProperties"))
        if patterns is None:
            return
        self._budget.spend(_PATTERN_COST * len(patterns))
        kept = {name: schema for name, schema in patterns.items() if is_regex(name)}
        if len(kept) == len(patterns):
            return
        out["patternProperties"] = kept
        for keyword in ("additionalProperties", "unevaluatedProperties"):
            if keyword in out:
                stated[keyword] = out.pop(keyword)
        stated["patternProperties"] = [name[:100] for name in patterns if name not in kept]

    def _name_of(self, reference: object) -> str | None:
        """The name in `$defs` of what a reference leads to; None if that is not in this document."""
        place = self._document.find(reference)
        if place is None:
            self._find(
                f"The reference {str(reference)[:100]!r} leads out of the schema or nowhere; it is not followed."
            )
            return None
        pointer = place.pointer
        if pointer not in self._names:
            self._budget.spend(len(pointer) + 1)
            base = re.sub(r"[^A-Za-z0-9_-]", "_", pointer[-1])[:40] if pointer else "root"
            name = base or "_"
            while name in self._taken:
                self._budget.spend()
                self._taken[base] = self._taken.get(base, 1) + 1
                name = f"{base}_{self._taken[base]}"
            self._taken.setdefault(name, 1)
            self._names[pointer] = name
            self._waiting.append((name, place.schema))
        return self._names[pointer]


def _modern(given: Params) -> Params:
    """A schema of an older draft, or of OpenAPI, with the keywords of 2020-12."""
    out = dict(given)
    tuple_items = as_array(out.get("items"))
    if tuple_items is not None:
        out.pop("items")
        out["prefixItems"] = tuple_items
        if "additionalItems" in out:
            out["items"] = out["additionalItems"]
    for bound, exclusive in (("minimum", "exclusiveMinimum"), ("maximum", "exclusiveMaximum")):
        if isinstance(out.get(exclusive), bool):
            if out.pop(exclusive) and bound in out:
                out[exclusive] = out.pop(bound)
    dependencies = as_object(out.pop("dependencies", None))
    for name, value in (dependencies or {}).items():
        keyword = "dependentRequired" if isinstance(value, list) else "dependentSchemas"
        out[keyword] = {**(as_object(out.get(keyword)) or {}), name: value}
    if "$dynamicRef" in out and "$ref" not in out:
        out["$ref"] = out["$dynamicRef"]
    if "$recursiveRef" in out and "$ref" not in out:
        out["$ref"] = out["$recursiveRef"]
    if out.get("nullable") is True:
        _allow_null(out)
    return out


def _allow_null(out: Params) -> None:
    kinds = out.get("type")
    if isinstance(kinds, str):
        out["type"] = [kinds, "null"]
    choices = as_array(out.get("enum"))
    if choices is not None and None not in choices:
        out["enum"] = [*choices, None]


def is_regex(pattern: str) -> bool:
    """Whether APIs that check patterns as Python does accept this one."""
    if len(pattern) > MAX_PATTERN:
        return False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            re.compile(pattern)
        except (re.error, RecursionError, OverflowError):
            return False
    return True


# Readers of values: a tuple with the value to keep, or None if it is not allowed.
_Read = tuple[object] | None


def _kinds(value: object) -> _Read:
    if isinstance(value, str):
        return (value,) if value in TYPES else None
    named = [entry for entry in as_array(value) or () if isinstance(entry, str)]
    kept = [kind for kind in dict.fromkeys(named) if kind in TYPES]
    if len(kept) < len(set(named)):
        return None  # A type that we do not know accepts values that we do not know.
    return None if not kept else (kept[0],) if len(kept) == 1 else (kept,)


def _strings(value: object) -> _Read:
    array = as_array(value)
    if array is None or not all(isinstance(entry, str) for entry in array):
        return None
    return (list(dict.fromkeys(array)),)


def _string(value: object) -> _Read:
    return (value,) if isinstance(value, str) else None


def _flag(value: object) -> _Read:
    return (value,) if isinstance(value, bool) else None


def _number(value: object) -> _Read:
    return (value,) if _is_number(value) else None


def _is_number(value: object) -> TypeGuard[int | float]:
    """Whether it is a number that every JSON parser reads."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return math.isfinite(value) if isinstance(value, float) else abs(value) < 2**63


def _positive(value: object) -> _Read:
    return (value,) if _is_number(value) and value > 0 else None


def _count(value: object) -> _Read:
    return (int(value),) if _is_number(value) and value >= 0 and value == int(value) else None


def _data(value: object) -> _Read:
    return (value,) if _is_plain(value, MAX_DEPTH) else None


def _examples(value: object) -> _Read:
    return _data(value) if as_array(value) is not None else None


def _choices(value: object) -> _Read:
    array = as_array(value)
    if not array or not _is_plain(array, MAX_DEPTH):
        return None
    distinct = {msgspec.json.encode(entry, order="deterministic"): entry for entry in array}
    return (list(distinct.values()),)


def _needs(value: object) -> _Read:
    given = as_object(value)
    if given is None or any(_strings(names) is None for names in given.values()):
        return None
    return ({name: list(dict.fromkeys(as_array(names) or ())) for name, names in given.items()},)


def _is_plain(value: object, left: int) -> bool:
    """Whether it is JSON of a few levels, with numbers that every parser reads."""
    if value is None or isinstance(value, str | bool):
        return True
    inner = as_object(value)
    entries = list(inner.values()) if inner is not None else as_array(value)
    if entries is None:
        return _is_number(value)
    return left > 0 and all(_is_plain(entry, left - 1) for entry in entries)


_READ: Final[Mapping[str, Callable[[object], _Read]]] = {
    "title": _string,
    "description": _string,
    "type": _kinds,
    "format": _string,
    "const": _data,
    "enum": _choices,
    "default": _data,
    "examples": _examples,
    "deprecated": _flag,
    "pattern": _string,
    "minLength": _count,
    "maxLength": _count,
    "minimum": _number,
    "maximum": _number,
    "exclusiveMinimum": _number,
    "exclusiveMaximum": _number,
    "multipleOf": _positive,
    "minItems": _count,
    "maxItems": _count,
    "uniqueItems": _flag,
    "minContains": _count,
    "maxContains": _count,
    "minProperties": _count,
    "maxProperties": _count,
    "required": _strings,
    "dependentRequired": _needs,
    "contentEncoding": _string,
    "contentMediaType": _string,
}

ORDER: Final = tuple(
    dict.fromkeys(
        [
            *("$ref", "title", "description", "type", "format", "const", "enum", "default", "properties"),
            *("required", "additionalProperties", "items", "prefixItems", "anyOf", "oneOf", "allOf"),
            *_READ,
            *("patternProperties", "propertyNames", "dependentSchemas", "contains", "not", "if", "then", "else"),
            *("unevaluatedItems", "unevaluatedProperties", "$defs"),
        ]
    )
)
"""All keywords of a normalized schema, in the order in which they are written."""
