"""Signature → JSON Schema (2020-12), and arguments → the values the function gets.

One mechanism serves both: the annotations become a `msgspec` type whose schema is what clients see and whose conversion
is what calls go through. The one rule: **what the schema allows is accepted, and nothing else** (`describe.py` has the
fine print). All work is done when a tool is defined; a call costs one conversion.
"""

import copy
import inspect
import math
from collections.abc import Container, Mapping
from typing import Any, Final, NotRequired, Protocol, TypedDict, cast

import msgspec

from sluicegate.activation.describe import (
    CANNOT_DESCRIBE,
    annotated_text,
    describe,
    is_dict,
    is_record,
    object_schema,
    reason,
    without_extras,
)
from sluicegate.activation.docstrings import split_docstring
from sluicegate.activation.signatures import (
    Function,
    annotated_parameters,
    injected_parameters,
    name_of,
    return_annotation,
)
from sluicegate.activation.violations import Checker, InvalidArguments, Schema, dotted, sentence_of

__all__ = [
    "ArgumentReader",
    "ExplicitSchema",
    "InvalidArguments",
    "Output",
    "Parameters",
    "Schema",
    "injected_parameters",
    "read",
    "return_annotation",
]

CANNOT_CONVERT: Final = (msgspec.ValidationError, TypeError)  # TypeError: an item of a set that cannot be hashed.


class ArgumentReader(Protocol):
    """What stands between a call's arguments and the function: a schema to show, and what it makes of them."""

    @property
    def schema(self) -> Schema:
        """The tool's `inputSchema`."""
        ...

    def convert(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Keyword arguments for the function; raises InvalidArguments."""
        ...


class Parameters:
    """A function's parameters as a JSON Schema and as a conversion, and what its docstring says of them."""

    def __init__(self, schema: Schema, target: Any, description: str | None, injected: dict[str, type]) -> None:
        self.schema = schema
        self.description = description
        self.injected = injected
        self._target = target
        # msgspec looks at a TypedDict anew with every conversion, which takes five times as long as the conversion; at
        # one inside a Struct it looks once.
        self._prepared: Any = msgspec.defstruct("Prepared", [("arguments", target)], array_like=True)
        self._checker = Checker(schema)
        # msgspec drops what dataclasses and most others do not know; with these the schema itself has the last word.
        self._drops_unknown = _close(schema.get("$defs", {}))

    @classmethod
    def of(cls, function: Function, *, skip: Container[type] = ()) -> "Parameters":
        """Read a function's signature and docstring.

        Args:
            function: a function, bound method or callable object; all its parameters can be given by name.
            skip: types that are no arguments but come from us; parameters of such a type are in `injected`.

        Raises:
            TypeError: a parameter that cannot be described or resolved; names the function and the parameter.
        """
        injected = injected_parameters(function, skip)
        description, texts = split_docstring(inspect.getdoc(function))
        parameters: list[tuple[inspect.Parameter, object]] = []
        for parameter, annotation in annotated_parameters(function):
            _require_named(function, parameter)
            if parameter.name not in injected:
                _require_describable(function, parameter, annotation)
                parameters.append((parameter, annotation))
        try:
            schemas, definitions = describe(annotation for _, annotation in parameters)
        except CANNOT_DESCRIBE as error:
            raise TypeError(f"{name_of(function)}: its parameters cannot be described: {reason(error)}") from None
        properties: dict[str, Schema] = {}
        required: list[str] = []
        fields: dict[str, object] = {}
        for (parameter, annotation), schema in zip(parameters, schemas, strict=True):
            name = parameter.name
            properties[name] = schema
            if text := annotated_text(annotation) or texts.get(name):
                schema.setdefault("description", text)
            if parameter.default is parameter.empty:
                required.append(name)
                fields[name] = annotation
            else:
                schema.update(_default(parameter.default, annotation))
                fields[name] = NotRequired[annotation]
        root: Schema = {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
        if definitions:
            root["$defs"] = definitions
        # A TypedDict, since what comes out of it are keyword arguments: those that were given, and no others.
        return cls(root, cast(Any, TypedDict)("Arguments", fields), description, injected)

    def convert(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Keyword arguments for the function; what was not given is left to its own defaults.

        Raises:
            InvalidArguments: names each field that is wrong, and what would be right.
        """
        try:
            values: dict[str, object] = msgspec.convert((arguments,), self._prepared).arguments
        except CANNOT_CONVERT:
            values = read(arguments, self._target, self._checker)
        if len(values) < len(arguments):
            # What it does not know a TypedDict leaves out.
            unknown = next(name for name in arguments if name not in values)
            raise InvalidArguments(self._checker.problems(arguments) or f"unknown argument '{dotted([unknown])}'")
        if self._drops_unknown and (problems := self._checker.problems(arguments)):
            raise InvalidArguments(problems)
        return values


class ExplicitSchema:
    """A JSON Schema of the author's own: arguments are checked against it and passed on as they are.

    Raises:
        TypeError: it is no schema, its root is no object, or it refers to something outside itself.
    """

    taken: Container[str] | None = None
    """The arguments that the function takes, if it does not take any whatever; what else there is will be left out."""

    def __init__(self, schema: Schema) -> None:
        if schema.get("type") != "object":
            raise TypeError('input_schema should have "type": "object" at its root')
        self.schema = copy.deepcopy(schema)
        self._checker = Checker(self.schema).compiled()

    def convert(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """The arguments, unchanged; raises InvalidArguments."""
        if problems := self._checker.problems(arguments):
            raise InvalidArguments(problems)
        return {name: value for name, value in arguments.items() if self.taken is None or name in self.taken}


class Output:
    """What a tool returns: the `outputSchema` of its definition, and values as `structuredContent`."""

    def __init__(self, schema: Schema) -> None:
        self.schema = schema

    @classmethod
    def of(cls, annotation: object, *, skip: Container[type] = ()) -> "Output | None":
        """The output of a function with this return annotation, None if it is plain content.

        Dataclasses, Structs, TypedDicts and dicts are objects. All else is None (text, numbers, lists, unions, streams,
        and the types in `skip`, such as content blocks): up to 2025-11-25 the root must be an object, and a tool whose
        schema changed with the revision would be two tools.

        Raises:
            TypeError: an object that holds something JSON Schema cannot describe.
        """
        bare = without_extras(annotation)
        if (isinstance(bare, type) and bare in skip) or not (is_record(bare) or is_dict(bare)):
            return None
        try:
            schema = object_schema(bare)
        except CANNOT_DESCRIBE as error:
            raise TypeError(f"return type {name_of(bare)} cannot be described: {reason(error)}") from None
        return cls(schema) if schema["type"] == "object" else None  # A Struct may be `array_like`.

    def encode(self, value: object) -> dict[str, object]:
        """The value in JSON's own types; raises TypeError if it is no object, whatever the annotation promised."""
        encoded: object = msgspec.to_builtins(value, str_keys=True)
        if not isinstance(encoded, dict):
            raise TypeError(f"the tool promised an object and returned {type(value).__name__}")
        return cast(dict[str, object], encoded)


def read(value: Mapping[str, object], target: Any, checker: Checker) -> Any:
    """The value as an instance of the target type; raises InvalidArguments."""
    try:
        return msgspec.convert(value, target)
    except CANNOT_CONVERT as error:
        refusal = error
    if "got `float`" in str(refusal):
        # JSON Schema takes 1.0 for an integer, msgspec does not: a second reading, paid by those who write so.
        try:
            return msgspec.convert(_with_integers(value), target)
        except CANNOT_CONVERT as error:
            refusal = error
    raise InvalidArguments(checker.problems(value) or sentence_of(refusal, checker.noun))


def _with_integers(value: object) -> object:
    match value:
        case float() if value.is_integer():
            return int(value)
        case list():
            return [_with_integers(item) for item in cast(list[object], value)]
        case Mapping():
            return {key: _with_integers(item) for key, item in cast(Mapping[str, object], value).items()}
        case _:
            return value


def _close(definitions: Mapping[str, Schema]) -> bool:
    """Let objects with named members have no others, as the arguments themselves; whether there was one to close."""
    opened = [
        schema for schema in definitions.values() if "properties" in schema and "additionalProperties" not in schema
    ]
    for schema in opened:
        schema["additionalProperties"] = False
    return bool(opened)


def _require_named(function: Function, parameter: inspect.Parameter) -> None:
    where = f"{name_of(function)}: parameter '{parameter.name}'"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TypeError(f"{where} takes any number of values; a tool has a fixed list of named arguments")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise TypeError(f"{where} is positional-only; arguments come by name")


def _require_describable(function: Function, parameter: inspect.Parameter, annotation: Any) -> None:
    try:
        describe([annotation])
        msgspec.defstruct("Arguments", [(parameter.name, annotation)])  # Refuses names such as `__x`.
    except CANNOT_DESCRIBE as error:
        where = f"{name_of(function)}: parameter '{parameter.name}'"
        raise TypeError(f"{where} cannot be described: {reason(error)}") from None


def _default(default: object, annotation: Any) -> Schema:
    """`{"default": …}`, or nothing if it is no JSON value of that type: a sentinel, infinity, None for an int."""
    try:
        encoded: object = msgspec.to_builtins(default, str_keys=True)
        msgspec.convert(encoded, annotation)
    except (TypeError, ValueError):
        return {}
    return {} if isinstance(encoded, float) and not math.isfinite(encoded) else {"default": encoded}
