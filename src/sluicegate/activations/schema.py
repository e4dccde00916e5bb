"""Signature → JSON Schema (2020-12), and arguments → the values that the function gets.

Both use the same `msgspec` type, made of the annotations: clients see its schema, and calls are converted with it.
**Exactly what the schema allows is accepted** (`describe.py` lists the exceptions). The work is done when a tool is
defined; a call costs one conversion.
"""

import copy
import inspect
import math
import types
import typing
from collections.abc import AsyncIterable, Awaitable, Container, Iterator, Mapping
from typing import Any, Final, NotRequired, Protocol, TypedDict, cast

import msgspec

from sluicegate.activations.content import with_defaults
from sluicegate.activations.describe import (
    CANNOT_DESCRIBE,
    annotated_text,
    describe,
    nested,
    object_schema,
    reason,
    uses_pydantic,
    without_extras,
)
from sluicegate.activations.pydantic_types import PydanticReader, default_of, is_field, with_default_of_field
from sluicegate.activations.signatures import (
    Function,
    annotated_parameters,
    injected_parameters,
    name_of,
    split_docstring,
)
from sluicegate.schemas.validate import Checker, InvalidArguments, Schema, dotted, sentence_of

CANNOT_CONVERT: Final = (msgspec.ValidationError, TypeError)  # TypeError: an item of a set that cannot be hashed.

RESULT: Final = "result"
"""The only member of a structured result that is not an object itself, as in the official SDKs."""

_NOT_DESCRIBED: Final = (str, None, type(None), object, Any, typing.NoReturn, typing.Never)
_STREAMS: Final = (Iterator, AsyncIterable, Awaitable)


class ArgumentReader(Protocol):
    """Validates and converts the arguments of a call, and provides the schema for clients."""

    @property
    def schema(self) -> Schema:
        """The tool's `inputSchema`."""
        ...

    def convert(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Keyword arguments for the function; raises InvalidArguments."""
        ...


class Parameters:
    """A function's parameters as a JSON Schema and as a conversion, with the descriptions of its docstring."""

    def __init__(self, reader: ArgumentReader, description: str | None, injected: dict[str, type]) -> None:
        self.schema = reader.schema
        self.convert = reader.convert
        self.description = description
        self.injected = injected

    @classmethod
    def of(cls, function: Function, *, skip: Container[type] = ()) -> "Parameters":
        """Read a function's signature and docstring.

        Args:
            function: a function, bound method or callable object; all its parameters can be given by name.
            skip: types that are injected and not arguments; parameters of such a type are in `injected`.

        Raises:
            TypeError: a parameter cannot be described or resolved; the message names the function and the parameter.
        """
        injected = injected_parameters(function, skip)
        description, texts = split_docstring(inspect.getdoc(function))
        parameters: list[tuple[inspect.Parameter, object]] = []
        for parameter, annotation in annotated_parameters(function):
            _require_named(function, parameter)
            if parameter.name not in injected:
                annotation = with_default_of_field(annotation, parameter.default)
                _require_describable(function, parameter, annotation)
                parameters.append((parameter, annotation))
        annotations = {parameter.name: annotation for parameter, annotation in parameters}
        with_pydantic = uses_pydantic(annotations.values())
        try:
            schemas, definitions = describe(annotations.values())
        except CANNOT_DESCRIBE as error:
            raise TypeError(f"{name_of(function)}: its parameters cannot be described: {reason(error)}") from None
        properties: dict[str, Schema] = {}
        required: list[str] = []
        for (parameter, annotation), schema in zip(parameters, schemas, strict=True):
            name = parameter.name
            properties[name] = schema
            if text := annotated_text(annotation) or texts.get(name):
                schema.setdefault("description", text)
            if with_pydantic and default_of(annotation) is not None:
                continue  # pydantic has written the default.
            if parameter.default is parameter.empty or is_field(parameter.default):
                required.append(name)
            else:
                schema.update(_default(parameter.default, annotation))
        root: Schema = {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }
        if definitions:
            root["$defs"] = definitions
        _describe_members(definitions)
        drops_unknown = _close(definitions)
        reader: ArgumentReader
        if with_pydantic:
            reader = PydanticReader(root, annotations)
        else:
            reader = _MsgspecReader(root, annotations, drops_unknown=drops_unknown)
        return cls(reader, description, injected)


class _MsgspecReader:
    """Arguments of any type that msgspec can convert."""

    def __init__(self, schema: Schema, annotations: Mapping[str, object], *, drops_unknown: bool) -> None:
        self.schema = schema
        fields = {
            name: annotation if name in schema["required"] else NotRequired[cast(Any, annotation)]
            for name, annotation in annotations.items()
        }
        # A TypedDict, since its conversion returns only the keyword arguments that were given.
        self._target = cast(Any, TypedDict)("Arguments", fields)
        # msgspec inspects a TypedDict at every conversion, which takes five times as long as the conversion itself. It
        # inspects one inside a Struct only once.
        self._prepared: Any = msgspec.defstruct("Prepared", [("arguments", self._target)], array_like=True)
        self._checker = Checker(schema)
        # msgspec drops unknown members of dataclasses and most other types; for these the schema is checked as well.
        self._drops_unknown = drops_unknown
        self._has_dataclasses = any(hasattr(inner, "__dataclass_fields__") for inner in nested(annotations.values()))

    def convert(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Keyword arguments for the function; arguments that were not given are left to its defaults.

        Raises:
            InvalidArguments: names each invalid field and the expected value.
        """
        try:
            values: dict[str, object] = msgspec.convert((arguments,), self._prepared).arguments
        except CANNOT_CONVERT:
            values = read(arguments, self._target, self._checker)
        if len(values) < len(arguments):
            # A TypedDict drops unknown members.
            unknown = next(name for name in arguments if name not in values)
            raise InvalidArguments(self._checker.problems(arguments) or f"unknown argument '{dotted([unknown])}'")
        if self._drops_unknown and (problems := self._checker.problems(arguments)):
            raise InvalidArguments(problems)
        return with_defaults(values) if self._has_dataclasses else values


class ExplicitSchema:
    """A JSON Schema given by the author: arguments are validated against it and passed on unchanged.

    Raises:
        TypeError: it is not a schema, its root is not an object, or it refers to another document.
    """

    taken: Container[str] | None = None
    """The arguments that the function takes; others are dropped. None if it takes any."""

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


def output_schema_of(annotation: object, *, skip: Container[type] = ()) -> Schema | None:
    """The schema of the values of a function with this return annotation, None if they are plain content.

    Content is text, the types in `skip` (such as images), streams, and what has no annotation.

    Raises:
        TypeError: JSON Schema cannot describe the type.
    """
    bare = without_extras(annotation)
    if bare is inspect.Signature.empty or bare in _NOT_DESCRIBED:
        return None
    if bare is bytes:
        raise TypeError("a tool cannot return bytes of an unknown type; use Image, Audio or EmbeddedResource")
    try:
        if any(_is_content(inner, skip) for inner in nested([bare])) or bare == str | None:
            return None
        return object_schema(annotation)
    except CANNOT_DESCRIBE as error:
        raise TypeError(f"return type {name_of(bare)} cannot be described: {reason(error)}") from None


def events_schema_of(annotation: object) -> Schema | None:
    """The schema of the tagged Structs that a stream is annotated with; None if there are none.

    Raises:
        TypeError: JSON Schema cannot describe one.
    """
    union = typing.get_args(annotation) if _is_union(annotation) else (annotation,)
    own = [kind for kind in union if isinstance(kind, type) and _is_tagged(kind)]
    if not own:
        return None
    try:
        schemas, definitions = describe(own, output=True)
    except CANNOT_DESCRIBE as error:
        raise TypeError(f"its events cannot be described: {reason(error)}") from None
    return {"anyOf": schemas} | ({"$defs": definitions} if definitions else {})


def _is_union(annotation: object) -> bool:
    return typing.get_origin(annotation) in (typing.Union, types.UnionType)


def _is_tagged(kind: type) -> bool:
    return issubclass(kind, msgspec.Struct) and kind.__struct_config__.tag is not None


def as_result(schema: Schema) -> Schema:
    """The schema of `{"result": value}`."""
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    root: Schema = {"type": "object", "properties": {RESULT: inner}, "required": [RESULT]}
    return root | ({"$defs": schema["$defs"]} if "$defs" in schema else {})


def _is_content(annotation: object, skip: Container[type]) -> bool:
    kind = typing.get_origin(annotation) or annotation
    return isinstance(kind, type) and (kind in skip or issubclass(kind, _STREAMS))


def read(value: Mapping[str, object], target: Any, checker: Checker) -> Any:
    """The value as an instance of the target type; raises InvalidArguments."""
    try:
        return with_defaults(msgspec.convert(value, target))
    except CANNOT_CONVERT as error:
        refusal = error
    if "got `float`" in str(refusal):
        # JSON Schema accepts 1.0 as an integer, msgspec does not. Only such calls pay for a second conversion.
        try:
            return with_defaults(msgspec.convert(_with_integers(value), target))
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


def _describe_members(definitions: Mapping[str, Schema]) -> None:
    """Move descriptions from a class's docstring to its fields, and always state `required`, even if it is empty."""
    for schema in definitions.values():
        members: Mapping[str, Schema] = schema.get("properties", {})
        if members:
            schema.setdefault("required", [])
        description, texts = split_docstring(schema.get("description"))
        if texts.keys() <= members.keys() and texts:
            for name, text in texts.items():
                members[name].setdefault("description", text)
            schema.pop("description")
            schema |= {} if description is None else {"description": description}


def _close(definitions: Mapping[str, Schema]) -> bool:
    """Forbid unknown members in objects with named members; return whether there was such an object."""
    opened = [
        schema for schema in definitions.values() if "properties" in schema and "additionalProperties" not in schema
    ]
    for schema in opened:
        schema["additionalProperties"] = False
    return bool(opened)


def _require_named(function: Function, parameter: inspect.Parameter) -> None:
    where = f"{name_of(function)}: parameter '{parameter.name}'"
    if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
        raise TypeError(f"{where} takes any number of values; a tool needs a fixed list of named arguments")
    if parameter.kind is parameter.POSITIONAL_ONLY:
        raise TypeError(f"{where} is positional-only; arguments are passed by name")


def _require_describable(function: Function, parameter: inspect.Parameter, annotation: Any) -> None:
    try:
        describe([annotation])
        msgspec.defstruct("Arguments", [(parameter.name, object)])  # Refuses names such as `__x`.
    except CANNOT_DESCRIBE as error:
        where = f"{name_of(function)}: parameter '{parameter.name}'"
        raise TypeError(f"{where} cannot be described: {reason(error)}") from None


def _default(default: object, annotation: Any) -> Schema:
    """`{"default": …}`, or nothing if it is not a JSON value of that type: a sentinel, infinity, None for an int."""
    try:
        encoded: object = msgspec.to_builtins(default, str_keys=True)
        msgspec.convert(encoded, annotation)
    except (TypeError, ValueError):
        return {}
    return {} if isinstance(encoded, float) and not math.isfinite(encoded) else {"default": encoded}
