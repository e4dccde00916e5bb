"""A model's arguments as the server wants them: its own property names, and no null that it does not allow. Pure.

A null is dropped only if the server's schema provably refuses it there, so arguments that are valid stay as they are.
"""

from collections.abc import Callable, Mapping
from typing import Final

from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.schemas.document import MAX_DEPTH, Budget, TooComplex, choices_of, types_of
from sluicegate.schemas.normalize import MAX_TRANSLATED, target

_MAX_NESTED: Final = 12


class Undo:
    """Turns arguments for the translated schema into arguments for the server's own."""

    def __init__(self, schema: Params | None = None, names: Mapping[str, str] | None = None) -> None:
        """`schema` is the server's, normalized; `names` are the server's property names by their replacements."""
        self._schema = schema
        self._names = names or {}

    def __call__(self, arguments: Params) -> Params:
        """The arguments to send. The given ones are not changed."""
        renamed = as_object(renamed_keys(arguments, self._names)) if self._names else arguments
        if renamed is None or self._schema is None or not _has_null(renamed, 0):
            return renamed or {}
        try:
            restored = _Nulls(as_object(self._schema.get("$defs")) or {}).dropped(renamed, self._schema, 0)
        except TooComplex:
            return renamed
        return as_object(restored) or {}


def renamed_keys(value: object, names: Mapping[str, str], depth: int = 0) -> object:
    """The value with the keys of all its objects replaced."""
    inner = as_object(value)
    if depth > MAX_DEPTH:
        return value
    if inner is not None:
        return {names.get(key, key): renamed_keys(entry, names, depth + 1) for key, entry in inner.items()}
    array = as_array(value)
    return value if array is None else [renamed_keys(entry, names, depth + 1) for entry in array]


def _has_null(value: object, depth: int) -> bool:
    inner = as_object(value)
    entries = inner.values() if inner is not None else as_array(value) or ()
    return value is None or (depth < MAX_DEPTH and any(_has_null(entry, depth + 1) for entry in entries))


class _Nulls:
    def __init__(self, definitions: Params) -> None:
        self._definitions = definitions
        self._budget = Budget(MAX_TRANSLATED)

    def dropped(self, value: object, schema: Params, depth: int) -> object:
        inner, array = as_object(value), as_array(value)
        if depth > MAX_DEPTH or not schema:
            return value
        if inner is not None:
            return {
                name: self.dropped(entry, self._child(schema, _property(name), inner), depth + 1)
                for name, entry in inner.items()
                if entry is not None or not self._drops(schema, name, inner)
            }
        if array is not None:
            return [
                self.dropped(entry, self._child(schema, _item(place), None), depth + 1)
                for place, entry in enumerate(array)
            ]
        return value

    def _drops(self, schema: Params, name: str, within: Params) -> bool:
        return self._refuses(schema, name, within, 0) and not self._requires(schema, name, 0)

    def _refuses(self, schema: Params, name: str, within: Params, nested: int) -> bool:
        """Whether no valid object has null for this name."""
        self._budget.spend()
        if nested > _MAX_NESTED:
            return False
        own = (as_object(schema.get("properties")) or {}).get(name)
        if own is not None:
            if self._excludes_null(as_object(own) or {}, 0):
                return True
        elif schema.get("additionalProperties") is False and "patternProperties" not in schema:
            return True
        if any(self._refuses(part, name, within, nested + 1) for part in self._parts(schema)):
            return True
        for union in self._unions(schema):
            possible = [part for part in union if self._may_match(part, within, nested + 1)]
            if possible and all(self._refuses(part, name, within, nested + 1) for part in possible):
                return True
        return False

    def _requires(self, schema: Params, name: str, nested: int) -> bool:
        if nested > _MAX_NESTED:
            return False
        required = as_array(schema.get("required")) or ()
        self._budget.spend(1 + len(required) // 100)
        if name in required:
            return True
        return any(self._requires(part, name, nested + 1) for part in self._parts(schema))

    def _excludes_null(self, schema: Params, nested: int) -> bool:
        """Whether null is certainly not valid."""
        self._budget.spend()
        if nested > _MAX_NESTED:
            return False
        kinds, choices = types_of(schema), choices_of(schema)
        if (kinds and "null" not in kinds) or (choices is not None and None not in choices) or schema.get("not") == {}:
            return True
        if any(self._excludes_null(part, nested + 1) for part in self._parts(schema)):
            return True
        return any(all(self._excludes_null(part, nested + 1) for part in union) for union in self._unions(schema))

    def _may_match(self, schema: Params, value: Params, nested: int) -> bool:
        """Whether an object might be valid, once nulls are dropped."""
        self._budget.spend()
        if nested > _MAX_NESTED:
            return True
        if "object" not in (types_of(schema) or ["object"]):
            return False
        if any(name not in value for name in as_array(schema.get("required")) or ()):
            return False
        properties = as_object(schema.get("properties")) or {}
        closed = schema.get("additionalProperties") is False and "patternProperties" not in schema
        for name, entry in value.items():
            if entry is None:
                continue
            if name not in properties:
                if closed:
                    return False
                continue
            choices = choices_of(as_object(properties[name]) or {})
            if choices is not None and entry not in choices:
                return False
        return all(self._may_match(part, value, nested + 1) for part in self._parts(schema))

    def _child(
        self, schema: Params, step: Callable[[Params], object], within: Params | None, nested: int = 0
    ) -> Params:
        """The schema of one property or item: what all parts say about it, and what one of each union says."""
        self._budget.spend()
        if nested > _MAX_NESTED:
            return {}
        found = [as_object(step(schema)) or {}]
        found += [self._child(part, step, within, nested + 1) for part in self._parts(schema)]
        for union in self._unions(schema):
            possible = [part for part in union if within is None or self._may_match(part, within, nested + 1)]
            choices = [self._child(part, step, within, nested + 1) for part in possible]
            if choices and all(choices):
                found.append({"anyOf": choices} if len(choices) > 1 else choices[0])
        found = [part for part in found if part]
        return found[0] if len(found) == 1 else {"allOf": found} if found else {}

    def _parts(self, schema: Params) -> list[Params]:
        parts = [as_object(part) or {} for part in as_array(schema.get("allOf")) or ()]
        return [*parts, target(schema["$ref"], self._definitions)] if "$ref" in schema else parts

    def _unions(self, schema: Params) -> list[list[Params]]:
        unions = [as_array(schema.get(keyword)) for keyword in ("anyOf", "oneOf")]
        return [[as_object(part) or {} for part in union] for union in unions if union]


def _property(name: str) -> Callable[[Params], object]:
    def step(schema: Params) -> object:
        properties = as_object(schema.get("properties")) or {}
        if name in properties:
            return properties[name]
        return None if "patternProperties" in schema else schema.get("additionalProperties")

    return step


def _item(place: int) -> Callable[[Params], object]:
    def step(schema: Params) -> object:
        prefix = as_array(schema.get("prefixItems")) or []
        return prefix[place] if place < len(prefix) else schema.get("items")

    return step
