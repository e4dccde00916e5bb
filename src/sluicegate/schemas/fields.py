"""The fields of an input schema: in words, and as what a person types into a form or on a command line. Pure."""

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Final, NamedTuple, cast

from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.schemas.document import Document

MAX_DESCRIBED: Final = 4
"""Objects inside each other whose fields are described."""

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_KINDS: Final[Mapping[str, str]] = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a text",
    "array": "a list (JSON, or the key several times)",
    "object": "a JSON object",
    "null": "null",
}


class Wrong(ValueError):
    """A text that does not fit the schema; the message is a sentence."""


class Choice(NamedTuple):
    """One of the values that a field may have, and its title."""

    value: object
    title: str


class Field:
    """One value of a schema: a member of an object, an item of a list, or the whole."""

    def __init__(self, name: str, schema: object, document: Document, *, is_required: bool = False) -> None:
        self.name = name
        self.is_required = is_required
        self.schema = document.resolved(schema)
        self.document = document

    def named(self, name: str) -> "Field":
        """The same field with another name in its messages."""
        return Field(name, self.schema, self.document, is_required=self.is_required)

    @cached_property
    def types(self) -> frozenset[str]:
        """The JSON types that it may have; empty if the schema names none."""
        return self.document.types(self.schema)

    @cached_property
    def members(self) -> "dict[str, Field]":
        """The fields of an object, by name."""
        required = as_array(self.schema.get("required")) or []
        return {
            name: Field(name, schema, self.document, is_required=name in required)
            for name, schema in (as_object(self.schema.get("properties")) or {}).items()
        }

    @cached_property
    def further(self) -> "Field":
        """What an object accepts under other names."""
        return Field(self.name, self.schema.get("additionalProperties"), self.document)

    @cached_property
    def items(self) -> "Field":
        """An item of a list."""
        return Field(self.name, self.schema.get("items"), self.document)

    @cached_property
    def alternatives(self) -> "list[Field]":
        """The schemas of which the value may fit one, such as an object or null."""
        parts = [part for key in ("anyOf", "oneOf") for part in as_array(self.schema.get(key)) or []]
        return [Field(self.name, part, self.document) for part in parts]

    @cached_property
    def choices(self) -> list[Choice]:
        """The values that the schema lists, in any of the ways that the revisions of the protocol have."""
        values = as_array(self.schema.get("enum"))
        if values is not None:
            titles = as_array(self.schema.get("enumNames")) or []
            if len(titles) != len(values):
                titles = values
            return [Choice(value, plain(title)) for value, title in zip(values, titles, strict=True)]
        found: list[Choice] = []
        for part in as_array(self.schema.get("oneOf")) or as_array(self.schema.get("anyOf")) or []:
            option = as_object(part) or {}
            if "const" not in option:
                return []
            found.append(Choice(option["const"], plain(option.get("title", option["const"]))))
        return found

    @property
    def description(self) -> str:
        """The description; empty if there is none."""
        text = self.schema.get("description")
        return text if isinstance(text, str) else ""

    def value(self, texts: Sequence[str]) -> object:
        """The value that one text means, or several, which are the items of a list.

        Raises:
            Wrong: the texts cannot be converted to the types of the field.
        """
        is_list = "array" in self.types
        is_item = is_list and not self.types - {"array", "null"} and not texts[0].lstrip().startswith("[")
        if len(texts) > 1 or is_item:
            if self.types and not is_list:
                raise Wrong(f"{self.name} is given {len(texts)} times but is not a list.")
            return [self.items.value([text]) for text in texts]
        value = self._read(texts[0])
        allowed = as_array(self.schema.get("enum"))
        if allowed is not None and value not in allowed:
            raise Wrong(f"{self.name} must be one of {', '.join(map(str, allowed))}; not {texts[0]!r}.")
        return value

    def _read(self, text: str) -> object:
        """The text as the first type that fits; strings accept everything, so they come last."""
        types = self.types
        if not types:
            try:
                return cast(object, json.loads(text))
            except ValueError:
                return text
        lowered = text.strip().lower()
        if "null" in types and lowered == "null":
            return None
        if "boolean" in types and lowered in ("true", "false"):
            return lowered == "true"
        if types & {"integer", "number"} and (number := _number(text, whole="number" not in types)) is not None:
            return number
        if types & {"array", "object"} and text.lstrip()[:1] in ("[", "{"):
            try:
                return cast(object, json.loads(text))
            except ValueError as problem:
                if "string" not in types:
                    raise Wrong(f"{self.name} is not JSON: {problem}.") from None
        if "string" in types:
            return text
        if "boolean" in types and lowered in _TRUE | _FALSE:
            return lowered in _TRUE
        kinds = " or ".join(words for kind, words in _KINDS.items() if kind in types)
        raise Wrong(f"{self.name} must be {kinds}; {text!r} is not.")


def whole(schema: Params) -> Field:
    """A whole schema as one field, whose members are the arguments of a tool or the fields of a form."""
    return Field("", schema, Document(schema))


def plain(value: object) -> str:
    """A text as it is, and any other value as JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _number(text: str, *, whole: bool) -> int | float | None:
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = float(text)
    except ValueError:
        return None
    if number.is_integer() and whole:
        return int(number)
    # JSON has no infinity and no NaN.
    return number if not whole and abs(number) != float("inf") and number == number else None


# --------------------------------------------------------------------------------------------------------- in words

_BOUNDS: Final = {
    "minimum": "at least",
    "maximum": "at most",
    "minLength": "length at least",
    "maxLength": "length up to",
}


def usage(field: Field) -> str:
    """The arguments of a tool as words of a command line: `path=<string> [limit=<integer>]`."""
    parts: list[str] = []
    for name, member in field.members.items():
        word = f"{name}=<{'|'.join(sorted(member.types)) or 'value'}>"
        parts.append(word if member.is_required else f"[{word}]")
    return " ".join(parts)


def description_lines(field: Field, depth: int = 1) -> Iterator[str]:
    """The members of an object with their types and descriptions, and those of objects in it."""
    for name, member in field.members.items():
        if not field.document.budget.take():
            return  # A schema may refer to itself in many places.
        indent = "  " * depth
        yield f"{indent}{name}: {', '.join([_kinds(member), *_notes(member)])}"
        if text := " ".join(member.description.split()):
            yield f"{indent}    {text}"
        if depth < MAX_DESCRIBED:
            for inner in (member, member.items, *member.alternatives):
                yield from description_lines(inner, depth + 1)


def _kinds(field: Field) -> str:
    kinds = " or ".join(sorted(field.types)) or "anything"
    of = " or ".join(sorted(field.items.types)) if kinds == "array" else ""
    return f"array of {of}" if of else kinds


def _notes(field: Field) -> Iterator[str]:
    schema = field.schema
    if not field.is_required:
        yield "optional"
    if values := as_array(schema.get("enum")) or as_array(field.items.schema.get("enum")):
        yield f"one of {', '.join(map(str, values))}"
    if "default" in schema:
        yield f"default {json.dumps(schema['default'])}"
    for bound, words in _BOUNDS.items():
        if bound in schema:
            yield f"{words} {schema[bound]}"
