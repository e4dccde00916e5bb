"""Two schemas as one: both must hold, or one of several. Pure; works on normalized schemas.

The merged schema accepts at least what the parts accept together. Where a part cannot be merged, it stays in `allOf`.
"""

from collections.abc import Sequence
from typing import Final, cast

import msgspec

from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.schemas.normalize import Budget, TooComplex, add_description, ordered, state, target

_LARGER: Final = frozenset(
    {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"},
)
_SMALLER: Final = frozenset(
    {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"},
)
_NOTES: Final = frozenset({"title", "description", "default", "examples", "deprecated"})
# Keywords that are read together: they are merged as a whole, or not at all.
_GROUPS: Final = (frozenset({"if", "then", "else"}), frozenset({"contains", "minContains", "maxContains"}))
_MAX_NESTED: Final = 12
_MAX_FORMS: Final = 20
_FORM: Final = frozenset({"title", "description", "type", "properties", "required", "additionalProperties", "$defs"})


def both(first: Params, second: Params, budget: Budget) -> Params:
    """A schema that accepts what both accept, and where they cannot be merged also more.

    Raises:
        TooComplex: it needs too much work.
    """
    budget.spend()
    out = dict(first)
    apart: Params = {}
    for group in _GROUPS:
        if group & out.keys() and group & second.keys():
            apart.update({keyword: second[keyword] for keyword in group & second.keys()})
    for keyword, value in second.items():
        if keyword in apart:
            continue
        if keyword not in out or out[keyword] == value:
            out[keyword] = value
        elif keyword not in _NOTES and not _merged(out, keyword, value, budget):
            apart[keyword] = value
    if apart:
        out["allOf"] = [*(as_array(out.get("allOf")) or ()), apart]
    return ordered(out)


def _merged(out: Params, keyword: str, value: object, budget: Budget) -> bool:
    """Merge one keyword that both have with different values; False if that is not possible."""
    mine = out[keyword]
    if keyword in _LARGER or keyword in _SMALLER:
        numbers = (cast(float, mine), cast(float, value))
        out[keyword] = max(numbers) if keyword in _LARGER else min(numbers)
    elif keyword == "properties" or keyword == "dependentSchemas" or keyword == "patternProperties":
        ours, theirs = as_object(mine) or {}, as_object(value) or {}
        united = dict(ours)
        for name, schema in theirs.items():
            inner = as_object(ours.get(name))
            united[name] = schema if inner is None else both(inner, as_object(schema) or {}, budget)
        out[keyword] = united
    elif keyword == "required":
        out[keyword] = list(dict.fromkeys([*(as_array(mine) or ()), *(as_array(value) or ())]))
    elif keyword == "type":
        shared = _shared_types(types_of(out), types_of({"type": value}))
        if not shared:
            return False
        out[keyword] = shared[0] if len(shared) == 1 else shared
    elif keyword == "enum":
        theirs = {_bytes(entry) for entry in as_array(value) or ()}
        shared = [entry for entry in as_array(mine) or () if _bytes(entry) in theirs]
        if not shared:
            return False
        out[keyword] = shared
    elif keyword == "additionalProperties":
        if mine is False or value is False:
            out[keyword] = False
        else:
            out[keyword] = both(as_object(mine) or {}, as_object(value) or {}, budget) or True
    elif keyword == "items":
        out[keyword] = both(as_object(mine) or {}, as_object(value) or {}, budget)
    elif keyword == "allOf":
        out[keyword] = [*(as_array(mine) or ()), *(as_array(value) or ())]
    elif keyword == "uniqueItems":
        out[keyword] = True
    else:
        return False
    return True


def types_of(schema: Params) -> list[str]:
    """The types that a schema names."""
    kinds = schema.get("type")
    return [kinds] if isinstance(kinds, str) else [str(kind) for kind in as_array(kinds) or ()]


def _shared_types(first: Sequence[str], second: Sequence[str]) -> list[str]:
    shared = [kind for kind in first if kind in second or (kind == "integer" and "number" in second)]
    return shared + [kind for kind in second if kind == "integer" and "number" in first and kind not in shared]


def _bytes(value: object) -> bytes:
    return msgspec.json.encode(value, order="deterministic")


def flattened(schema: Params, definitions: Params, budget: Budget, inside: tuple[str, ...] = ()) -> Params:
    """A schema without `$ref` and `allOf` at its top, except for what cannot be merged.

    Raises:
        TooComplex: it needs too much work.
    """
    if "$ref" not in schema and "allOf" not in schema:
        return schema
    if len(inside) > _MAX_NESTED:
        raise TooComplex
    out = {keyword: value for keyword, value in schema.items() if keyword not in ("$ref", "allOf")}
    parts = [as_object(part) or {} for part in as_array(schema.get("allOf")) or ()]
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in inside:  # A schema that is itself adds nothing to itself.
        inside = (*inside, reference)
        parts.insert(0, target(reference, definitions))
    kept: list[object] = []
    for part in parts:
        out = both(out, flattened(part, definitions, budget, inside), budget)
        kept += as_array(out.pop("allOf", None)) or ()
    if kept:
        out["allOf"] = kept
    return ordered(out)


def references(schema: Params, definitions: Params) -> set[str]:
    """The references that `flattened` follows."""
    found: set[str] = set()
    waiting = [schema]
    while waiting:
        part = waiting.pop()
        waiting += [as_object(inner) or {} for inner in as_array(part.get("allOf")) or ()]
        reference = part.get("$ref")
        if isinstance(reference, str) and reference not in found:
            found.add(reference)
            waiting.append(target(reference, definitions))
    return found


def as_one_object(schema: Params, definitions: Params, budget: Budget, depth: int = 0) -> Params:
    """A root with unions and references as one object: the properties of all branches, required what all require.

    Raises:
        TooComplex: it needs too much work.
    """
    if depth > _MAX_NESTED:
        raise TooComplex
    out = dict(flattened(schema, definitions, budget))
    left: Params = {}
    for part in as_array(out.pop("allOf", None)) or ():
        inner = as_object(part) or {}
        union = {keyword: inner[keyword] for keyword in ("anyOf", "oneOf") if keyword in inner}
        if union:
            out = both(out, as_one_object(union, definitions, budget, depth + 1), budget)
        left.update({keyword: value for keyword, value in inner.items() if keyword not in union})
    for keyword in ("anyOf", "oneOf"):
        branches = [as_object(branch) or {} for branch in as_array(out.pop(keyword, None)) or ()]
        if branches:
            objects = [as_one_object(branch, definitions, budget, depth + 1) for branch in branches]
            objects = [branch for branch in objects if "object" in (types_of(branch) or ["object"])]
            out = _with_forms(out, objects, budget)
    for part in as_array(out.pop("allOf", None)) or ():
        left.update(as_object(part) or {})
    state(out, left)
    return out


def _with_forms(base: Params, forms: Sequence[Params], budget: Budget) -> Params:
    if len(forms) < 2:
        return both(base, forms[0], budget) if forms else base
    united = _one_of(forms, budget)
    known = as_object(base.get("properties")) or {}
    is_closed = base.get("additionalProperties") is False
    united["properties"] = {
        name: schema
        for name, schema in (as_object(united["properties"]) or {}).items()
        # A closed base accepts only its own properties. A form that does not mention one of those accepts all of it.
        if (all(_speaks_of(form, name) for form in forms) if name in known else not is_closed)
    }
    out = both(base, united, budget)
    described = dict.fromkeys(_described(form) for form in forms[:_MAX_FORMS])
    if len(described) > 1:
        lines = [f"{number}. {text}" for number, text in enumerate(described, 1)]
        add_description(out, "\n".join(["The arguments have one of these forms:", *lines]))
    return out


def _speaks_of(form: Params, name: str) -> bool:
    return name in (as_object(form.get("properties")) or {}) or form.get("additionalProperties") is False


def _one_of(forms: Sequence[Params], budget: Budget) -> Params:
    offered: dict[str, list[Params]] = {}
    for form in forms:
        budget.spend()
        for name, schema in (as_object(form.get("properties")) or {}).items():
            offered.setdefault(name, []).append(as_object(schema) or {})
    out: Params = {"type": "object", "properties": {name: any_of(schemas) for name, schemas in offered.items()}}
    needed = [as_array(form.get("required")) or [] for form in forms]
    shared = list(dict.fromkeys(needed[0]))
    for names in map(set, needed[1:]):
        shared = [name for name in shared if name in names]
    if shared:
        out["required"] = shared
    if all(form.get("additionalProperties") is False for form in forms):
        out["additionalProperties"] = False
    return out


def any_of(schemas: Sequence[Params]) -> Params:
    """A schema that accepts what one of the schemas accepts."""
    distinct = list({_bytes(schema): schema for schema in schemas}.values())
    if len(distinct) == 1:
        return distinct[0]
    bare = [{keyword: value for keyword, value in schema.items() if keyword not in _NOTES} for schema in distinct]
    if all(schema and schema.keys() <= {"type", "const", "enum"} for schema in bare) and all(
        "const" in schema or "enum" in schema for schema in bare
    ):
        choices = [entry for schema in bare for entry in choices_of(schema) or ()]
        kinds = list(dict.fromkeys(kind for schema in bare for kind in types_of(schema)))
        out: Params = {"enum": list({_bytes(entry): entry for entry in choices}.values())}
        if kinds and all("type" in schema for schema in bare):
            out["type"] = kinds[0] if len(kinds) == 1 else kinds
        return ordered(out)
    return {"anyOf": list(distinct)}


def choices_of(schema: Params) -> list[object] | None:
    """The values that a schema enumerates, or None."""
    if "const" in schema:
        return [schema["const"]]
    return as_array(schema.get("enum"))


def _listed(names: Sequence[str]) -> str:
    return ", ".join(f"`{name}`" for name in names[:30])


def _described(form: Params) -> str:
    """One form of the arguments in words."""
    parts: list[str] = []
    for keyword in ("title", "description"):
        text = form.get(keyword)
        if isinstance(text, str) and text:
            parts.append(text[:200].rstrip(". "))
            break
    properties = as_object(form.get("properties")) or {}
    for name, schema in list(properties.items())[:50]:
        choices = choices_of(as_object(schema) or {})
        if choices is not None and len(choices) <= 5:
            parts.append(f"`{name}` is {' or '.join(_bytes(choice).decode()[:50] for choice in choices)}")
    required = dict.fromkeys(str(name) for name in as_array(form.get("required")) or ())
    if required:
        parts.append(f"requires {_listed(list(required))}")
    optional = [name for name in properties if name not in required]
    if optional:
        parts.append(f"may have {_listed(optional)}")
    further = {keyword: value for keyword, value in form.items() if keyword not in _FORM}
    if further:
        text = _bytes(further).decode()
        parts.append(text if len(text) <= 200 else f"with {', '.join(further)}")
    return "; ".join(parts) or "any arguments"
