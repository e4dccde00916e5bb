"""Namespaces: objects whose methods are tools called `namespace.method`, with other namespaces inside them.

Every public method is a tool: a generator is a stream of events, anything else has one result. `children()` names the
namespaces inside; `child(name)` returns the object of one, which is asked for again with every call.
"""

import functools
import inspect
import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any, Final, Protocol, runtime_checkable

from sluicegate.activations.invoke import awaited
from sluicegate.activations.signatures import Function
from sluicegate.errors import ConfigError

_NAME: Final = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,30}")
_NO_TOOLS: Final = frozenset({"children", "child", "connect", "extend"})
"""Methods that are not tools."""
_TAKEN: Final = frozenset({"schema", "hash"})
"""Names that every namespace has already."""

MAX_DEPTH: Final = 8
"""Namespaces inside each other."""


@runtime_checkable
class Parent(Protocol):
    """An object with namespaces inside."""

    def children(self) -> Sequence[str]: ...
    def child(self, name: str) -> object: ...


@runtime_checkable
class Extending(Protocol):
    """An object that adds more than tools to its server."""

    def extend(self, server: Any, /) -> None: ...


def check_name(name: str) -> None:
    """Raise ConfigError if a namespace cannot have this name."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"A namespace has 1 to 31 letters, digits, - and _, and begins with a letter; {name!r} does not."
        )


def description_of(thing: object) -> str | None:
    """The docstring of its own class; None if it has none."""
    return inspect.getdoc(type(thing)) if type(thing).__doc__ else None


def methods_of(namespace: str, thing: object, inner: dict[str, str]) -> Iterator[tuple[str, Function]]:
    """All tools of a namespace and of those inside it, as full names and functions.

    The descriptions of the namespaces inside are added to `inner`.

    Raises:
        ConfigError: a name is not valid, or both a method and a namespace have it.
    """
    yield from _methods(namespace, thing, lambda: thing, 0, inner)


def _methods(
    namespace: str, thing: object, find: Callable[[], object], depth: int, inner: dict[str, str]
) -> Iterator[tuple[str, Function]]:
    own = dict(_public(thing))
    for name, method in own.items():
        yield f"{namespace}.{name}", _called_on(find, name, method) if depth else method
    if not isinstance(thing, Parent):
        return
    if depth == MAX_DEPTH:
        raise ConfigError(f"{namespace}: at most {MAX_DEPTH} namespaces may be inside each other.")
    for name in thing.children():
        check_name(name)
        if name in own:
            raise ConfigError(f"{namespace} has both a method and a namespace called {name}; rename one of them.")
        full, child = f"{namespace}.{name}", thing.child(name)
        inner[full] = description_of(child) or ""
        yield from _methods(full, child, _child_of(find, name), depth + 1, inner)


def _public(thing: object) -> Iterator[tuple[str, Function]]:
    for name in dir(type(thing)):
        # Looked up in the class first: a property must not run.
        if name.startswith("_") or name in _NO_TOOLS or not inspect.isroutine(getattr(type(thing), name, None)):
            continue
        if name in _TAKEN:
            raise ConfigError(f"{type(thing).__name__} has a method called {name}, as every namespace; rename it.")
        yield name, getattr(thing, name)


def _child_of(find: Callable[[], object], name: str) -> Callable[[], object]:
    def child() -> object:
        parent = find()
        assert isinstance(parent, Parent)
        return parent.child(name)

    return child


def _called_on(find: Callable[[], object], name: str, method: Function) -> Function:
    """A function with the signature of a method that calls it on the object that is there then."""

    @functools.wraps(method)
    async def call(*args: object, **kwargs: object) -> object:
        function: Callable[..., Awaitable[object]] = awaited(getattr(find(), name))
        return await function(*args, **kwargs)

    return call
