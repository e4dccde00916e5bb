"""`key=value` words of a command line, converted to the types of the tool's schema.

Pure except for `reader` and what it uses, which read files and stdin.
"""

import json
import sys
from collections.abc import Callable, Sequence

from sluicegate.protocol.message import Params, as_array, as_object
from sluicegate.schemas.fields import Field, Wrong, usage, whole
from sluicegate.text.similar import close_matches

Read = Callable[[str], str]
"""Returns the text of a file; `-` is stdin. Raises ValueError with a sentence if it cannot be read."""


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
    return _members(words, whole(schema), read)


def _members(words: Sequence[str], within: Field, read: Read) -> Params:
    """The members of an object, each given by a word."""
    known = within.members
    found: dict[str, list[str]] = {}
    inner: dict[str, list[str]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals or not key:
            raise Wrong(f"{word!r} is not an argument: write key=value.{_takes(within)}")
        head, dot, rest = key.partition(".")
        if dot and key not in known and head in known:
            inner.setdefault(head, []).append(f"{rest}={value}")
            continue
        if known and key not in known and not within.schema.get("additionalProperties"):
            meant = "".join(f" Did you mean {each!r}?" for each in close_matches(key, known))
            raise Wrong(f"the tool has no argument {key!r}.{meant}{_takes(within)}")
        found.setdefault(key, []).append(value)
    arguments: Params = {}
    for key, values in found.items():
        field = known.get(key) or within.further.named(key)
        arguments[key] = field.value([_text(key, value, read) for value in values])
    for key, nested in inner.items():
        if key in arguments:
            raise Wrong(f"{key} is given both as a whole and in parts.")
        arguments[key] = _object(known[key], nested, read)
    missing = [str(key) for key in as_array(within.schema.get("required")) or [] if key not in arguments]
    if missing:
        raise Wrong(f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} missing.{_takes(within)}")
    return arguments


def _object(field: Field, words: Sequence[str], read: Read) -> Params:
    """The object under a key, of which each word gives a member."""
    wanted = next((part for part in field.alternatives if "object" in part.types), field)  # An object or null, say.
    if wanted.types and "object" not in wanted.types:
        raise Wrong(f"{field.name} is not an object, so it has no {words[0].partition('=')[0]!r}.")
    try:
        return _members(words, wanted, read)
    except Wrong as problem:
        raise Wrong(f"in {field.name}: {problem}") from None


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


def _text(key: str, value: str, read: Read) -> str:
    if value.startswith("@@"):
        return value[1:]
    if value.startswith("@") and len(value) > 1:
        try:
            return read(value[1:])
        except ValueError as problem:
            raise Wrong(f"{key}: {problem}") from None
    return value


def _takes(field: Field) -> str:
    """The arguments of the tool, for an error message."""
    words = usage(field)
    return f" It takes: {words}" if words else ""
