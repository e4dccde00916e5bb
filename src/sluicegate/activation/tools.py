"""A tool: a function, what is told about it, and what stands between its caller and itself."""

import inspect
import re
from collections.abc import Mapping, Sequence
from typing import Final, TypedDict, cast

from sluicegate.activation.call import Call
from sluicegate.activation.content import members
from sluicegate.activation.define import EVENTS
from sluicegate.activation.docstrings import split_docstring
from sluicegate.activation.invoke import Function, awaited
from sluicegate.activation.schema import (
    ArgumentReader,
    ExplicitSchema,
    Output,
    Parameters,
    Schema,
    injected_parameters,
    return_annotation,
)
from sluicegate.activation.violations import Checker
from sluicegate.protocol.headers import marks_of

INJECTED: Final = frozenset({Call})

_tool_name: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")


class ToolOptions(TypedDict, total=False):
    """What an author may say of a tool beyond its function; all of it has a default.

    `annotations` are hints such as `{"readOnlyHint": True}`. `input_schema` replaces the schema made from the
    signature; arguments are then passed on unconverted. `output_schema` replaces the one made from the return
    annotation.
    """

    name: str
    title: str
    description: str
    annotations: Mapping[str, object]
    input_schema: Schema
    output_schema: Schema
    icons: Sequence[Mapping[str, object]]
    meta: Mapping[str, object]


class Tool:
    """A function that can be called by its name.

    Attributes:
        outcome: the function, to be awaited.
        read: what makes its keyword arguments of those of a call; raises InvalidArguments.
        injected: the parameters that are no arguments but get the `Call`.
        promise: what structured results are held to, if it has an `outputSchema`.
        marks: the arguments that a call over HTTP repeats in headers.

    Raises:
        TypeError: a parameter or a schema that cannot be described, or the two do not fit each other; or an option
            that there is not.
        ValueError: a name that no tool can have.
    """

    def __init__(self, function: Function, options: ToolOptions) -> None:
        check_options("tool", options, ToolOptions)
        self.outcome = awaited(function)
        self.name = options.get("name") or function_name(function, "tool")
        if not _tool_name.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is no name for a tool: 1 to 128 of A-Z a-z 0-9 _ - . are")
        reader: ArgumentReader
        if "input_schema" in options:
            reader = explicit = ExplicitSchema(options["input_schema"])
            self.injected = injected_parameters(function, INJECTED)
            explicit.taken = _taken(function, explicit.schema, self.injected)
            description = split_docstring(inspect.getdoc(function))[0]
        else:
            reader = parameters = Parameters.of(function, skip=INJECTED)
            self.injected = parameters.injected
            description = parameters.description
        self.read = reader.convert
        marks = marks_of(reader.schema)
        if marks is None:
            raise TypeError("x-mcp-header is a header's name, each but once, on a string, integer or boolean property")
        self.marks = marks
        output_schema = _output_schema(function, options)
        self.promise = None if output_schema is None else Checker(output_schema, noun="field")
        if self.promise is not None and "output_schema" in options:
            self.promise.compiled()
        self.definition = members(
            name=self.name,
            title=options.get("title"),
            description=options.get("description") or description,
            input_schema=reader.schema,
            output_schema=output_schema,
            annotations=options.get("annotations"),
            icons=options.get("icons"),
            meta=options.get("meta"),
        )


def check_options(kind: str, options: Mapping[str, object], known: type) -> None:
    """Let options pass that a TypedDict has; raises TypeError for another, which is most likely a slip of the pen."""
    if unknown := sorted(options.keys() - known.__annotations__.keys()):
        raise TypeError(f"a {kind} has no option '{unknown[0]}'; there are {', '.join(known.__annotations__)}")


def function_name(function: Function, kind: str) -> str:
    """The name of a function that has one of its own; raises ValueError for a lambda and the like."""
    name: object = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"this {kind} has no name of its own: give one with name=")
    return name


def _taken(function: Function, schema: Schema, injected: Mapping[str, type]) -> frozenset[str] | None:
    """What a function takes by name, None if it takes anything; raises TypeError if the schema does not ensure it."""
    parameters = inspect.signature(function).parameters
    required = cast(Sequence[str], schema.get("required", ()))
    for name, parameter in parameters.items():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and parameter.default is parameter.empty and name not in required and name not in injected:
            raise TypeError(f"parameter '{name}' has no default, so input_schema should require it")
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return frozenset(parameters)


def _output_schema(function: Function, options: ToolOptions) -> Schema | None:
    if "output_schema" not in options:
        output = Output.of(return_annotation(function), skip=EVENTS)
        return None if output is None else output.schema
    # 2026-07-28 allows any root; a tool that only some of our clients may see is not worth that.
    if options["output_schema"].get("type") != "object":
        raise TypeError('output_schema should have "type": "object" at its root')
    return options["output_schema"]
