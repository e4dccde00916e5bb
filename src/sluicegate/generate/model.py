"""Tools → servers, functions and types, as every language writes them. Pure.

All strings come from servers and are hostile. Names of functions, types and files are made here, of ASCII letters,
digits and `_`, and suit all languages; everything else has to be quoted or escaped where it is written.
"""

import keyword
import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from sluicegate.protocol.definition_digest import interface_digest
from sluicegate.protocol.headers import Marks, marks_of
from sluicegate.protocol.message import Params, as_object
from sluicegate.protocol.types import EVENTS_KEY, STREAMING_KEY
from sluicegate.schemas.types import Declared, Map, SchemaTypes, Type

MAX_NAME: Final = 80

_RESERVED: Final = frozenset(
    {
        *keyword.kwlist,
        *keyword.softkwlist,
        *"break case catch const debugger default delete do enum export extends function instanceof new null".split(),
        *"super switch this throw typeof undefined var void let static implements interface package private".split(),
        *"public protected arguments eval self".split(),
        # Members of every object: an instance with a `then` would be called by `await`.
        *"constructor prototype then toString toJSON toLocaleString valueOf hasOwnProperty".split(),
        *"isPrototypeOf propertyIsEnumerable".split(),
        # Files and names of the generated code itself.
        *"index gateway hashes runtime typing str dict object".split(),
    }
)
"""Names that a function or file cannot have."""
_RESERVED_TYPES: Final = frozenset(
    {
        *"Array AsyncIterable Client False Gateway None Promise Tools True".split(),
        *"HASHES bool dict float int list object runtime str typing".split(),
    }
)
"""Names that a type cannot have, since the generated code uses them."""


class Names:
    """Hands out names, each once. Letters of different case do not make a name different: files may have it."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self._taken = {name.lower() for name in reserved}
        self._last: dict[str, int] = {}

    def take(self, wanted: str) -> str:
        """The wanted name, or one that is like it and free."""
        wanted = wanted[:MAX_NAME]
        name, number = wanted, self._last.get(wanted, 1)
        while name.lower() in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._last[wanted] = number
        self._taken.add(name.lower())
        return name


class Function(msgspec.Struct, frozen=True):
    """One tool."""

    name: str
    tool: str
    """The name to call it by, as clients see it."""
    doc: str
    arguments: Type
    takes_nothing: bool
    """Whether it can be called without arguments."""
    result: Type | None
    """What its structured result is; None if its result is text."""
    events: Type | None
    """The events of its own, if it is a stream of events that has some."""
    is_stream: bool
    hash: str
    marks: Marks
    """The arguments that HTTP requests repeat in headers."""


class Module(msgspec.Struct, frozen=True):
    """The tools of one server: a file with a class."""

    name: str
    class_name: str
    server: str
    functions: Sequence[Function]
    types: Sequence[Declared]


class GeneratedTool(msgspec.Struct, frozen=True):
    """A tool of the catalog: its server, its name there, and its definition as clients see it."""

    server: str
    own: str
    definition: Params


def modules_of(tools: Iterable[GeneratedTool]) -> list[Module]:
    """One module for each server, in the order of their names, with functions in the order of their tools' names."""
    by_server: dict[str, list[GeneratedTool]] = {}
    for tool in tools:
        by_server.setdefault(tool.server, []).append(tool)
    files, classes = Names(_RESERVED), Names(_RESERVED_TYPES)
    return [
        _module(
            server, sorted(by_server[server], key=lambda tool: (tool.own, str(tool.definition["name"]))), files, classes
        )
        for server in sorted(by_server)
    ]


def _module(server: str, tools: Sequence[GeneratedTool], files: Names, classes: Names) -> Module:
    name, class_name = files.take(identifier(server)), classes.take(type_name(server))
    names = Names(_RESERVED)
    # Tools of an activation are called `namespace.method`.
    taken = [names.take(identifier(tool.own.removeprefix(f"{server}."))) for tool in tools]
    # In a class of Python, the name of a method hides a type of that name.
    types = SchemaTypes(Names({*_RESERVED_TYPES, class_name, *taken}).take)
    functions = [_function(tool, function, types) for tool, function in zip(tools, taken, strict=True)]
    return Module(name, class_name, server, functions, types.declared())


def _function(tool: GeneratedTool, name: str, types: SchemaTypes) -> Function:
    definition = tool.definition
    title = type_name(name)
    schema = decoded(definition.get("inputSchema", True))
    arguments = types.root(schema, title, f"{title}Arguments")
    if not types.is_object(arguments):
        arguments = Map()
    result = events = None
    if "outputSchema" in definition:
        result = types.root(decoded(definition["outputSchema"]), title, f"{title}Result")
    meta = as_object(definition.get("_meta")) or {}
    is_stream = meta.get(STREAMING_KEY) is True
    if is_stream and EVENTS_KEY in meta:
        events = types.root(decoded(meta[EVENTS_KEY]), title, f"{title}Event")
    description = definition.get("description")
    return Function(
        name=name,
        tool=str(definition["name"]),
        doc=description if isinstance(description, str) else "",
        arguments=arguments,
        takes_nothing=types.may_be_empty(arguments),
        result=result,
        events=events,
        is_stream=is_stream,
        hash=interface_digest({**definition, "name": tool.own}),
        marks=marks_of(schema) or {},
    )


def decoded(value: object) -> object:
    """A member of a definition as plain values; schemas may still be bytes."""
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value


def identifier(text: str) -> str:
    """A name for a function or file: the text itself where that is possible."""
    name = re.sub(r"[^A-Za-z0-9_]", "_", text)
    if not re.match("[A-Za-z]", name):
        name = f"tool_{name.lstrip('_')}"
    return f"{name}_" if name.lower() in _LOWER_RESERVED else name


def type_name(text: str) -> str:
    """A name for a type or class: `read_file` becomes `ReadFile`."""
    words = re.findall("[A-Za-z0-9]+", text)
    name = "".join(word[0].upper() + word[1:] for word in words)
    return name if re.match("[A-Z]", name) else f"Tool{name}"


_LOWER_RESERVED: Final = frozenset(name.lower() for name in _RESERVED)
