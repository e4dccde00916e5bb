"""Validation of values, with errors as sentences that name the field and what is expected. Pure.

Sentences contain names and parts of the schema, never the values that were sent: these may be secret or huge.
`jsonschema_rs` is imported when the first schema is compiled: one given by an author, or one that a value violates.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from itertools import islice
from typing import TYPE_CHECKING, Any, NoReturn, TypeAlias, cast

from sluicegate.schemas.document import type_of_value
from sluicegate.text.similar import close_matches

if TYPE_CHECKING:
    from jsonschema_rs import ValidationError, Validator

Schema: TypeAlias = dict[str, Any]

_MAX_PROBLEMS = 8
_SMALL = 200
_MAX_NAME = 80

# What is expected, for keywords that are limits.
_LIMITS = {
    "minimum": "be >= {}",
    "maximum": "be <= {}",
    "exclusiveMinimum": "be > {}",
    "exclusiveMaximum": "be < {}",
    "multipleOf": "be a multiple of {}",
    "minLength": "have at least {} characters",
    "maxLength": "have at most {} characters",
    "minItems": "have at least {} items",
    "maxItems": "have at most {} items",
    "additionalItems": "have at most {} items",
    "minProperties": "have at least {} members",
    "maxProperties": "have at most {} members",
    "pattern": "match the pattern {}",
}

_FORMATS = {
    "email": "an e-mail address, as in ada@example.org",
    "uri": "a URI, as in https://example.org",
    "date": "a date, as in 2026-07-28",
    "date-time": "a date and time, as in 2026-07-28T12:00:00Z",
}


class InvalidArguments(ValueError):
    """Arguments that do not match their schema. The message is safe to show and says what is expected."""


class Checker:
    """Validates values against a JSON Schema, which is compiled at most once."""

    def __init__(self, schema: Schema, noun: str = "argument", *, formats: bool = False) -> None:
        """`formats`: whether `format` is validated as well, which JSON Schema treats as a hint by default."""
        self._schema = schema
        self._formats = formats
        self.noun = noun

    def compiled(self) -> "Checker":
        """This checker, compiled now instead of on first use.

        Raises:
            TypeError: it is not a schema, or it refers to another document.
        """
        if isinstance(self._validator, TypeError):
            raise self._validator
        return self

    @cached_property
    def _validator(self) -> "Validator | TypeError":
        import jsonschema_rs

        try:
            # Draft 2020-12 unless `$schema` names another. The default retriever fetches URLs and opens files (T25).
            return jsonschema_rs.validator_for(self._schema, retriever=_refuse, validate_formats=self._formats)
        except (ValueError, jsonschema_rs.ReferencingError) as error:
            return TypeError(f"it is not a usable JSON Schema: {str(error).splitlines()[0]}")

    def problems(self, value: Mapping[str, object]) -> str:
        """The first problems, joined by semicolons; empty if the value is valid, or if the schema is not usable."""
        validator = self._validator
        if isinstance(validator, TypeError):
            return ""  # A `pattern` in Python's own syntax, or the schema of another server, which checks by itself.
        try:
            errors = _errors(validator, dict(value))
        except ValueError:
            # Not JSON: a lone surrogate has no UTF-8. The strict parser refuses it before.
            return f"the {self.noun}s are not valid JSON"
        if not errors:
            return ""
        sentences = dict.fromkeys(sentence for error in errors for sentence in self._sentences(error))
        return "; ".join(list(sentences)[:_MAX_PROBLEMS])

    def _sentences(self, error: "ValidationError") -> Iterable[str]:
        path, kind = error.instance_path, error.kind
        subject = f"{self.noun} '{dotted(path)}'" if path else f"the {self.noun}s"
        match kind.name:
            case "required":
                return [f"missing required {self.noun} '{dotted([*path, kind.value])}'"]
            case "additionalProperties" | "unevaluatedProperties":
                names: list[str] = kind.value[:_MAX_PROBLEMS]
                return [f"unknown {self.noun} '{dotted([*path, name])}'{self._hint(path, name)}" for name in names]
            case "type":
                return [f"{subject} should be {_wanted(error)}, got {type_of_value(error.instance)}"]
            case "enum" | "const":
                return [f"{subject} should be {_wanted(error)}"]
            case "anyOf" | "oneOf" if isinstance(kind.value, list):
                return self._of_the_closest(error, subject)
            case "format":
                return [f"{subject} should be {_FORMATS.get(kind.value, f'of the format {kind.value!r}')}"]
            case "falseSchema":
                return [f"{subject} should not be there"]
            case "uniqueItems":
                return [f"{subject} should not contain the same item twice"]
            case "propertyNames":
                return [f"{subject} has a member with an invalid name: {kind.value.kind.name}"]
            case name if name in _LIMITS:
                return [f"{subject} should {_LIMITS[name].format(kind.value)}"]
            case name:
                return [f"{subject} does not satisfy '{name}'"]

    def _of_the_closest(self, error: "ValidationError", subject: str) -> Iterable[str]:
        """Explain a union by the branch that the value's type selects, else by naming all branches."""
        branches: list[list[ValidationError]] = error.kind.value
        if not all(branches):
            return [f"{subject} matches more than one of the alternatives"]
        meant = [branch for branch in branches if not _is_of_another_kind(branch, error)]
        if meant:
            return [sentence for inner in min(meant, key=len) for sentence in self._sentences(inner)]
        wanted = dict.fromkeys(_wanted(inner) for branch in branches for inner in branch[:1])
        return [f"{subject} should be {' or '.join(wanted)}, got {type_of_value(error.instance)}"]

    def _hint(self, path: Sequence[str | int], name: str) -> str:
        close = [] if path else close_matches(name, self._schema.get("properties", ()))
        return f" (did you mean '{close[0]}'?)" if close else ""


def dotted(path: Iterable[str | int]) -> str:
    """A path such as `filters[0].op`."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{_short(part)}" for part in path)
    return text.removeprefix(".")


def sentence_of(refusal: Exception, noun: str) -> str:
    """A sentence made of msgspec's error, for what a schema cannot express, such as the text of a date."""
    text, _, place = str(refusal).partition(" - at `")
    path = place.rpartition("$")[2].strip("`.")
    text = re.sub("`", "", text)
    wanted = text.removeprefix("Expected ")
    expected = f"should be {wanted}" if wanted != text else f"is not valid: {text[:1].lower()}{text[1:]}"
    return f"{noun} '{_short(path)}' {expected}" if path else f"the {noun}s: {text}"


def _refuse(uri: str) -> NoReturn:
    raise ValueError(f"a schema may only refer to itself, not to {_short(uri)}")


def _errors(validator: "Validator", value: dict[str, object]) -> list["ValidationError"]:
    if validator.is_valid(value):
        return []
    if _is_small(value):
        return list(islice(validator.iter_errors(value), _MAX_PROBLEMS))
    # `iter_errors` collects all errors first: a long list of invalid items would take seconds.
    try:
        validator.validate(value)
    except ValueError as error:
        if hasattr(error, "kind"):
            return [cast("ValidationError", error)]
        raise
    return []


def _is_of_another_kind(branch: list["ValidationError"], union: "ValidationError") -> bool:
    return any(e.kind.name in ("type", "enum", "const") and e.instance_path == union.instance_path for e in branch)


def _wanted(error: "ValidationError") -> str:
    match error.kind.name:
        case "type":
            return " or ".join(error.kind.value)
        case "enum":
            return "one of " + ", ".join(repr(option) for option in error.kind.value)
        case "const":
            return repr(error.kind.value)
        case name:
            return f"what '{name}' requires"


def _is_small(value: object) -> bool:
    """Whether it contains few values, without looking at more than these."""
    waiting, seen = [value], 0
    while waiting and seen + len(waiting) <= _SMALL:
        item, seen = waiting.pop(), seen + 1
        inner = cast(Mapping[str, object], item).values() if isinstance(item, dict) else item
        if isinstance(item, dict | list):
            waiting += islice(cast(Iterable[object], inner), _SMALL)
    return not waiting


def _short(text: str) -> str:
    return text if len(text) <= _MAX_NAME else f"{text[:_MAX_NAME]}…"
