"""`key=value` words of a command line, converted to the types of the tool's schema.

Pure except for `reader` and what it uses, which read files and stdin.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Final, cast

from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.text.similar import close_matches

Read = Callable[[str], str]
"""Returns the text of a file; `-` is stdin. Raises ValueError with a sentence if it cannot be read."""

_TRUE: Final = frozenset({"true", "yes", "on", "1"})
_FALSE: Final = frozenset({"false", "no", "off", "0"})
_MAX_DEPTH: Final = 16


class Wrong(ValueError):
    """A word that does not fit the tool's schema; the message is a sentence."""


def input_text(text: str) -> str:
    """The JSON that `--input` names: `@FILE` is that of a file, `-` and `@-` that of stdin. Raises Wrong."""
    if text in ("-", "@-"):
        return _text_of_stdin()
    try:
        return text_of(text[1:]) if text.startswith("@") else text
    except ValueError as problem:
        raise Wrong(f"--input: {problem}") from None


def reader(words: Sequence[str]) -> Read:
    """Reads the files that words name. Stdin is read now, if a word names it; raises Wrong if it is no text."""
    piped = _text_of_stdin() if any(word.partition("=")[2] == "@-" for word in words) else ""
    return lambda file: piped if file == "-" else text_of(file)


def text_of(file: str) -> str:
    """The text of a file. Raises ValueError with a sentence if it has none."""
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            return opened.read()
    except UnicodeDecodeError:
        raise ValueError(f"{file} is not text in UTF-8.") from None
    except OSError as problem:
        raise ValueError(f"{file} cannot be read: {problem.strerror}.") from None


def _text_of_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise Wrong("stdin is not text in UTF-8.") from None


def typed_arguments(words: Sequence[str], schema: Params, read: Read) -> Params:
    """The arguments that the words give. A repeated key makes a list; `a.b=1` sets `b` in the object `a`.

    Raises:
        Wrong: a word has no key, the tool has no such key, a value has the wrong type, or a required one is missing.
    """
    known = as_object(schema.get("properties")) or {}
    found: dict[str, list[str]] = {}
    inner: dict[str, list[str]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise Wrong(f"{word!r} is not an argument: write key=value.{_usage(schema)}")
        head, dot, rest = key.partition(".")
        if dot and key not in known and head in known:
            inner.setdefault(head, []).append(f"{rest}={value}")
            continue
        if known and key not in known and not schema.get("additionalProperties"):
            meant = "".join(f" Did you mean {each!r}?" for each in close_matches(key, known))
            raise Wrong(f"the tool has no argument {key!r}.{meant}{_usage(schema)}")
        found.setdefault(key, []).append(value)
    arguments: Params = {}
    for key, values in found.items():
        wanted = resolved(known.get(key, schema.get("additionalProperties")), schema)
        texts = [_text(key, value, read) for value in values]
        arguments[key] = _value(key, texts, wanted, schema)
    for key, nested in inner.items():
        if key in arguments:
            raise Wrong(f"{key} is given both as a whole and in parts.")
        arguments[key] = _members(key, nested, schema, read)
    missing = [str(key) for key in as_array(schema.get("required")) or [] if key not in arguments]
    if missing:
        raise Wrong(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing.{_usage(schema)}")
    return arguments


def _members(key: str, words: Sequence[str], root: Params, read: Read) -> Params:
    """The object under a key, of which each word gives a member."""
    wanted = resolved((as_object(root.get("properties")) or {})[key], root)
    for choices in ("anyOf", "oneOf"):  # An object or null, say.
        options = [resolved(each, root) for each in as_array(wanted.get(choices)) or []]
        wanted = next((each for each in options if "object" in _types(each, root, 0)), wanted)
    types = _types(wanted, root, 0)
    if types and "object" not in types:
        raise Wrong(f"{key} is not an object, so it has no {words[0].partition('=')[0]!r}.")
    # References in it are to the whole schema.
    shared = {name: root[name] for name in ("$defs", "definitions") if name in root}
    try:
        return typed_arguments(words, {**wanted, **shared}, read)
    except Wrong as problem:
        raise Wrong(f"in {key}: {problem}") from None


def json_arguments(text: str) -> Params:
    """The arguments in a JSON object. Raises Wrong if the text is not one."""
    try:
        value: object = json.loads(text)
    except ValueError as problem:
        raise Wrong(f"the arguments are not JSON: {problem}.") from None
    arguments = as_object(value)
    if arguments is None:
        raise Wrong("the arguments are not a JSON object.")
    return arguments


def one_value(key: str, text: str, schema: Params, root: Params) -> object:
    """A text as a value of the schema's type. Raises Wrong if it cannot be converted."""
    return _value(key, [text], resolved(schema, root), root)


def types_of(schema: object, root: Params) -> frozenset[str]:
    """The JSON types that a schema allows; empty if it names none."""
    return _types(resolved(schema, root), root, 0)


def _text(key: str, value: str, read: Read) -> str:
    if value.startswith("@@"):
        return value[1:]
    if value.startswith("@") and len(value) > 1:
        try:
            return read(value[1:])
        except ValueError as problem:
            raise Wrong(f"{key}: {problem}") from None
    return value


def _value(key: str, texts: list[str], wanted: Params, root: Params) -> object:
    types = _types(wanted, root, 0)
    is_list = "array" in types
    if len(texts) > 1 or (is_list and not types - {"array", "null"} and not texts[0].lstrip().startswith("[")):
        if types and not is_list:
            raise Wrong(f"{key} is given {len(texts)} times but is not a list.")
        items = resolved(wanted.get("items"), root)
        return [_value(key, [text], items, root) for text in texts]
    value = _read(key, texts[0], types)
    allowed = as_array(wanted.get("enum"))
    if allowed is not None and value not in allowed:
        raise Wrong(f"{key} must be one of {', '.join(map(str, allowed))}; not {texts[0]!r}.")
    return value


def _read(key: str, text: str, types: frozenset[str]) -> object:
    """The text as the first type that fits; strings accept everything, so they come last."""
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
                raise Wrong(f"{key} is not JSON: {problem}.") from None
    if "string" in types:
        return text
    if "boolean" in types and lowered in _TRUE | _FALSE:
        return lowered in _TRUE
    kinds = " or ".join(words for kind, words in _KINDS.items() if kind in types)
    raise Wrong(f"{key} must be {kinds}; {text!r} is not.")


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


def resolved(schema: object, root: Params) -> Params:
    """The schema behind a chain of references within the same document."""
    for _ in range(_MAX_DEPTH):
        members = as_object(schema) or {}
        ref = members.get("$ref")
        if not isinstance(ref, str) or not ref.startswith("#/"):
            return members
        schema = root
        for part in ref[2:].split("/"):
            schema = (as_object(schema) or {}).get(part.replace("~1", "/").replace("~0", "~"))
    return {}


def _types(schema: Params, root: Params, depth: int) -> frozenset[str]:
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    several = as_array(named)
    if several is not None:
        return frozenset(str(each) for each in several)
    for key in ("anyOf", "oneOf"):
        choices = as_array(schema.get(key))
        if choices is not None and depth < _MAX_DEPTH:
            return frozenset[str]().union(*(_types(resolved(each, root), root, depth + 1) for each in choices))
    values = as_array(schema.get("enum")) or ([schema["const"]] if "const" in schema else [])
    return frozenset(_TYPE_NAMES[type(value)] for value in values)


_TYPE_NAMES: Final[Mapping[type, str]] = {
    type(None): "null",
    bool: "boolean",
    int: "integer",
    float: "number",
    str: "string",
    list: "array",
    dict: "object",
}
_KINDS: Final[Mapping[str, str]] = {
    "integer": "a whole number",
    "number": "a number",
    "boolean": "true or false",
    "string": "a text",
    "array": "a list (JSON, or the key several times)",
    "object": "a JSON object",
    "null": "null",
}


def _usage(schema: Params) -> str:
    """The arguments of the tool, for an error message."""
    known = as_object(schema.get("properties")) or {}
    if not known:
        return ""
    required = as_array(schema.get("required")) or []
    parts: list[str] = []
    for key, wanted in known.items():
        word = f"{key}=<{'|'.join(sorted(types_of(wanted, schema))) or 'value'}>"
        parts.append(word if key in required else f"[{word}]")
    return f" It takes: {' '.join(parts)}"
