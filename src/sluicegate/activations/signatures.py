"""Reads what a function says about itself: its signature with resolved annotations, and its docstring."""

import inspect
import re
import typing
from collections.abc import Callable, Container, Iterator
from types import SimpleNamespace
from typing import Any, TypeAlias

Function: TypeAlias = Callable[..., object]

_SECTION = re.compile(r"(?:Args|Arguments|Parameters|Attributes):\s*")
_ENTRY = re.compile(r"(?P<name>\w+)\s*(?:\([^)]*\))?\s*:\s*(?P<text>.*)")
_FIELD = re.compile(r":param\s+(?:[^:]*\s)?(?P<name>\w+):\s*(?P<text>.*)")
_TYPE_FIELD = re.compile(r":type\s[^:]*:")


def annotated_parameters(function: Function) -> Iterator[tuple[inspect.Parameter, object]]:
    """Each parameter and its annotation, `Any` where there is none; raises TypeError."""
    for parameter in _signature(function).parameters.values():
        if parameter.annotation is parameter.empty:
            yield parameter, Any
        else:
            yield parameter, _resolve(function, parameter.name, parameter.annotation)


def injected_parameters(function: Function, types: Container[type]) -> dict[str, type]:
    """Names and types of the parameters that are annotated with one of the types; raises TypeError."""
    return {p.name: a for p, a in annotated_parameters(function) if isinstance(a, type) and a in types}


def is_stream(function: Function) -> bool:
    """Whether a function is a generator, so that its values come one by one."""
    inner = inspect.unwrap(function)
    return inspect.isasyncgenfunction(inner) or inspect.isgeneratorfunction(inner)


def streamed_annotation(function: Function) -> object:
    """The annotation of a generator's values; `inspect.Signature.empty` if it has none. Raises TypeError."""
    arguments = typing.get_args(_resolve(function, "return", _signature(function).return_annotation))
    return arguments[0] if arguments else inspect.Signature.empty


def return_annotation(function: Function) -> object:
    """The return annotation; `inspect.Signature.empty` if there is none or it is a generator. Raises TypeError."""
    if is_stream(function):
        return inspect.Signature.empty
    return _resolve(function, "return", _signature(function).return_annotation)


def name_of(thing: object) -> str:
    return getattr(thing, "__qualname__", None) or repr(thing)


def _signature(function: Function) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (NameError, ValueError) as error:
        raise TypeError(f"{name_of(function)}: its signature cannot be read ({error})") from None


def _resolve(function: Function, name: str, annotation: object) -> object:
    holder = SimpleNamespace(__annotations__={name: annotation})  # One at a time, to know which one fails.
    try:
        return typing.get_type_hints(holder, _namespace(function), include_extras=True)[name]
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        what = "return annotation" if name == "return" else f"annotation of parameter '{name}'"
        raise TypeError(
            f"{name_of(function)}: the {what} cannot be resolved ({error}); its types must be defined at module level"
        ) from None


def _namespace(function: Function) -> dict[str, Any]:
    inner = inspect.unwrap(function)
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    return getattr(getattr(inner, "__func__", inner), "__globals__", {})


def split_docstring(docstring: str | None) -> tuple[str | None, dict[str, str]]:
    """The description without its parameters (None if nothing is left), and the text of each parameter.

    Supports Google's sections `Args:` and `Attributes:`, and Sphinx' `:param name:`. Everything else stays in the
    description: an unknown section may still help a model.
    """
    kept: list[str] = []
    texts: dict[str, list[str]] = {}
    lines = inspect.cleandoc(docstring or "").splitlines()
    while lines:
        line = lines.pop(0)
        if _SECTION.fullmatch(line):
            texts |= _entries(_indented(lines))
        elif found := _FIELD.fullmatch(line):
            texts[found["name"]] = [found["text"], *_indented(lines)]
        elif _TYPE_FIELD.match(line):
            _indented(lines)
        else:
            kept.append(line)
    description = re.sub(r"\n{3,}", "\n\n", "\n".join(kept)).strip()
    return description or None, {name: text for name, words in texts.items() if (text := " ".join(words).strip())}


def _indented(lines: list[str]) -> list[str]:
    """Take the indented block off the front of the lines; blank lines inside it are dropped."""
    taken: list[str] = []
    while lines and (not lines[0] or lines[0][0].isspace()):
        # A blank line ends the block unless it goes on below: the description keeps its paragraphs.
        if not lines[0].strip() and not (len(lines) > 1 and lines[1][:1].isspace()):
            break
        taken.append(lines.pop(0))
    return [line for line in map(str.rstrip, inspect.cleandoc("\n".join(["", *taken])).splitlines()) if line]


def _entries(block: list[str]) -> dict[str, list[str]]:
    entries: dict[str, list[str]] = {}
    words: list[str] = []
    for line in block:
        # Lines with deeper indentation continue the entry above, even if they contain a colon.
        if not line[0].isspace() and (found := _ENTRY.fullmatch(line)):
            words = entries[found["name"]] = [found["text"]]
        else:
            words.append(line.strip())
    return entries
