"""What a function's signature says, with every annotation resolved, or a sentence that tells why it cannot be."""

import inspect
import typing
from collections.abc import Callable, Container, Iterator
from types import SimpleNamespace
from typing import Any, TypeAlias

Function: TypeAlias = Callable[..., object]


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


def return_annotation(function: Function) -> object:
    """What the function returns, `inspect.Signature.empty` if it does not say or is a stream; raises TypeError."""
    if inspect.isasyncgenfunction(function) or inspect.isgeneratorfunction(function):
        return inspect.Signature.empty
    return _resolve(function, "return", _signature(function).return_annotation)


def name_of(thing: object) -> str:
    """The name its author knows it by."""
    return getattr(thing, "__qualname__", None) or repr(thing)


def _signature(function: Function) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except (NameError, ValueError) as error:
        raise TypeError(f"{name_of(function)}: its signature cannot be read ({error})") from None


def _resolve(function: Function, name: str, annotation: object) -> object:
    holder = SimpleNamespace(__annotations__={name: annotation})  # One at a time, so that we know which one fails.
    try:
        return typing.get_type_hints(holder, _namespace(function), include_extras=True)[name]
    except (NameError, AttributeError, SyntaxError, TypeError) as error:
        what = "return annotation" if name == "return" else f"annotation of parameter '{name}'"
        raise TypeError(
            f"{name_of(function)}: the {what} cannot be resolved ({error}); its types must be known at module level"
        ) from None


def _namespace(function: Function) -> dict[str, Any]:
    inner = inspect.unwrap(function)
    if not inspect.isroutine(inner):
        inner = type(inner).__call__
    return getattr(getattr(inner, "__func__", inner), "__globals__", {})
