"""Tools, resources and prompts: functions with a definition for clients and a conversion of their arguments."""

import inspect
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypedDict, cast

import msgspec

from sluicegate.activations.call import Call
from sluicegate.activations.content import clean_text, contents_of, echo, members, prompt_messages_of
from sluicegate.activations.describe import nested, uses_pydantic
from sluicegate.activations.invoke import Function, awaited, errors_shown_safely
from sluicegate.activations.pydantic_types import is_field
from sluicegate.activations.schema import (
    ArgumentReader,
    ExplicitSchema,
    Parameters,
    Schema,
    as_result,
    events_schema_of,
    output_schema_of,
)
from sluicegate.activations.signatures import (
    annotated_parameters,
    injected_parameters,
    is_stream,
    name_of,
    return_annotation,
    split_docstring,
    streamed_annotation,
)
from sluicegate.activations.templates import Template
from sluicegate.activations.values import EVENTS
from sluicegate.errors import InvalidParams, UnknownTarget
from sluicegate.exchange import Exchange
from sluicegate.protocol.headers import marks_of
from sluicegate.protocol.message import Params
from sluicegate.protocol.types import EVENTS_KEY, STREAMING_KEY
from sluicegate.schemas.validate import Checker, InvalidArguments, sentence_of

INJECTED: Final = frozenset({Call})

_tool_name: Final = re.compile(r"[A-Za-z0-9_.-]{1,128}")
_uri: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:\S+")

MAX_COMPLETIONS: Final = 100

TAGS_KEY: Final = "dev.sluicegate/tags"


# ---------------------------------------------------------------------------------------------------------------- tools


class ToolOptions(TypedDict, total=False):
    """Options of a tool; all are optional.

    `annotations` are hints such as `{"readOnlyHint": True}`. `input_schema` replaces the schema made from the
    signature; arguments are then passed on unconverted. `output_schema` replaces the one made from the return
    annotation. `tags` are under `dev.sluicegate/tags` in the `_meta` of the definition.
    """

    name: str
    title: str
    description: str
    annotations: Mapping[str, object]
    input_schema: Schema
    output_schema: Schema
    icons: Sequence[Mapping[str, object]]
    meta: Mapping[str, object]
    tags: Iterable[str]


class ToolDefinition:
    """A function that can be called by its name.

    Attributes:
        outcome: the function as a coroutine function.
        read: converts the arguments of a call to keyword arguments; raises InvalidArguments.
        injected: the parameters that get the `Call`.
        promise: validates structured results, if there is an `outputSchema`.
        returns_dataclasses: whether its results contain some.
        wraps: whether its values are not objects, so that the structured result is `{"result": value}`.
        marks: the arguments that calls over HTTP repeat in headers.

    Raises:
        TypeError: a parameter or a schema cannot be described, the two do not match, or an option is unknown.
        ValueError: the name is not a valid tool name.
    """

    def __init__(self, function: Function, options: ToolOptions) -> None:
        check_options("tool", options, ToolOptions)
        self.outcome = awaited(function)
        self.name = options.get("name") or function_name(function, "tool")
        if not _tool_name.fullmatch(self.name):
            raise ValueError(f"{self.name!r} is not a valid tool name: use 1 to 128 characters of A-Z a-z 0-9 _ - .")
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
            raise TypeError("x-mcp-header must be a unique header name on a string, integer or boolean property")
        self.marks = marks
        output_schema, self.wraps = _output_schema(function, options)
        returned = () if output_schema is None else nested([return_annotation(function)])
        self.returns_dataclasses = any(hasattr(inner, "__dataclass_fields__") for inner in returned)
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
            meta=_meta(function, options),
        )
        self.is_stream = is_stream(function)


def _meta(function: Function, options: ToolOptions) -> Mapping[str, object] | None:
    meta = {**options.get("meta", {})}
    if is_stream(function):
        meta[STREAMING_KEY] = True
        if (events := events_schema_of(streamed_annotation(function))) is not None:
            meta[EVENTS_KEY] = events
    if "tags" in options:
        tags: object = options["tags"]
        if isinstance(tags, str):
            raise TypeError(f"tags is a list of strings: tags=[{tags!r}]")
        meta[TAGS_KEY] = sorted(set(options["tags"]))
    return meta or None


def _taken(function: Function, schema: Schema, injected: Mapping[str, type]) -> frozenset[str] | None:
    """The names of a function's parameters; None if it takes any. Raises TypeError if the schema must require one."""
    parameters = inspect.signature(function).parameters
    required = cast(Sequence[str], schema.get("required", ()))
    for name, parameter in parameters.items():
        named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
        if named and parameter.default is parameter.empty and name not in required and name not in injected:
            raise TypeError(f"parameter '{name}' has no default, so input_schema should require it")
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return None
    return frozenset(parameters)


def _output_schema(function: Function, options: ToolOptions) -> tuple[Schema | None, bool]:
    """The `outputSchema`, and whether it describes a value under `result`.

    2026-07-28 allows any root, but such a tool would be hidden from older clients.
    """
    if "output_schema" not in options:
        schema = output_schema_of(return_annotation(function), skip=EVENTS)
        wraps = schema is not None and schema.get("type") != "object"
        return (as_result(schema) if schema is not None and wraps else schema), wraps
    if options["output_schema"].get("type") != "object":
        raise TypeError('output_schema should have "type": "object" at its root')
    return options["output_schema"], False


# ------------------------------------------------------------------------------------------------ resources and prompts


class Binding:
    """The parameters of a function whose arguments are strings: that of a prompt or of a URI template.

    Each is converted to the type of its parameter: `page: int` gets a number.

    Raises:
        TypeError: a parameter cannot be described; the message names the function and the parameter.
    """

    def __init__(self, function: Function) -> None:
        parameters = Parameters.of(function, skip=INJECTED)
        self.description = parameters.description
        self.required = frozenset(cast(list[str], parameters.schema["required"]))
        self.properties: dict[str, Schema] = parameters.schema["properties"]
        self._injected = parameters.injected
        named = {p.name: (annotation, p.default) for p, annotation in annotated_parameters(function)}
        if any(is_field(default) or uses_pydantic([annotation]) for annotation, default in named.values()):
            raise TypeError(f"{name_of(function)}: pydantic is supported in tools only")
        fields: list[Any] = [(name, *self._field(name, *named[name])) for name in self.properties]
        self._struct = msgspec.defstruct("Arguments", fields, kw_only=True)

    def bind(self, arguments: Mapping[str, str], call: Call) -> dict[str, object]:
        """The keyword arguments of the function.

        Raises:
            InvalidArguments: an argument is missing, unknown, or not of its type.
        """
        if missing := sorted(self.required - arguments.keys()):
            raise InvalidArguments(f"missing required argument '{missing[0]}'")
        if unknown := sorted(arguments.keys() - self.properties.keys()):
            raise InvalidArguments(f"unknown argument '{unknown[0][:80]}'")
        try:
            values = msgspec.convert(arguments, self._struct, strict=False)
        except msgspec.ValidationError as refusal:
            raise InvalidArguments(sentence_of(refusal, "argument")) from None
        bound: dict[str, object] = {name: getattr(values, name) for name in arguments}
        return bound | dict.fromkeys(self._injected, call)

    def _field(self, name: str, annotation: object, default: object) -> tuple[Any, ...]:
        # UNSET only marks the field as optional: the function has its own default.
        return (annotation,) if name in self.required else (annotation, msgspec.UNSET)


class ResourceOptions(TypedDict, total=False):
    """Options of a resource; all are optional. `size` is in bytes and ignored for templates."""

    name: str
    title: str
    description: str
    mime_type: str
    size: int
    annotations: Mapping[str, object]
    icons: Sequence[Mapping[str, object]]
    meta: Mapping[str, object]


class ResourceDefinition:
    """A function for a URI, or for a URI template if it contains a `{variable}`.

    Raises:
        TypeError: the function's parameters are not the variables of the URI, or an option is unknown.
        ValueError: it is not a URI, or the template is invalid.
    """

    def __init__(self, uri: str, function: Function, options: ResourceOptions) -> None:
        check_options("resource", options, ResourceOptions)
        if not _uri.fullmatch(uri):
            raise ValueError(
                f"{uri!r} is not a URI of a resource: it should begin with a scheme, as 'note://today' does"
            )
        self.uri = uri
        self._outcome = awaited(function)
        self._mime_type = options.get("mime_type")
        self._binding = Binding(function)
        self.template = Template(uri) if "{" in uri or "}" in uri else None
        names = set(self.template.names if self.template is not None else ())
        if unbound := sorted(names - self._binding.properties.keys()):
            raise TypeError(f"the resource {uri} has a variable '{unbound[0]}' that its function does not take")
        if unknown := sorted(self._binding.required - names):
            raise TypeError(f"the resource {uri} has no variable for the parameter '{unknown[0]}' of its function")
        self.definition = members(
            uri=uri if self.template is None else None,
            uri_template=uri if self.template is not None else None,
            name=options.get("name") or function_name(function, "resource"),
            title=options.get("title"),
            description=options.get("description") or self._binding.description,
            mime_type=self._mime_type,
            size=options.get("size") if self.template is None else None,
            annotations=options.get("annotations"),
            icons=options.get("icons"),
            meta=options.get("meta"),
        )

    async def read(self, uri: str, variables: Mapping[str, str], exchange: Exchange) -> Params:
        """The result of reading it.

        Raises:
            UnknownTarget: the function returned None, or a variable is not of its type.
            ToolError: the function failed.
        """
        call = Call(exchange)
        try:
            values = self._binding.bind(variables, call)
        except InvalidArguments:
            raise not_found(uri) from None
        with errors_shown_safely(f"The resource {echo(uri)}"):
            contents = contents_of(await self._outcome(**values), uri, self._mime_type)
        call.end()
        if not contents:
            raise not_found(uri)
        return {"contents": contents}


def not_found(uri: str) -> UnknownTarget:
    """The error for a URI without a resource."""
    return UnknownTarget(f"Resource not found: {echo(uri)}", data={"uri": uri})


class PromptOptions(TypedDict, total=False):
    """Options of a prompt; all are optional."""

    name: str
    title: str
    description: str
    icons: Sequence[Mapping[str, object]]
    meta: Mapping[str, object]


class PromptDefinition:
    """A function that returns messages.

    Raises:
        TypeError: a parameter cannot be described, or an option is unknown.
    """

    def __init__(self, function: Function, options: PromptOptions) -> None:
        check_options("prompt", options, PromptOptions)
        self.name = options.get("name") or function_name(function, "prompt")
        self._outcome = awaited(function)
        self._binding = Binding(function)
        self._description = options.get("description") or self._binding.description
        arguments = [
            members(name=name, description=schema.get("description"), required=name in self._binding.required)
            for name, schema in self._binding.properties.items()
        ]
        self.definition = members(
            name=self.name,
            title=options.get("title"),
            description=self._description,
            arguments=arguments,
            icons=options.get("icons"),
            meta=options.get("meta"),
        )

    async def get(self, arguments: Mapping[str, object], exchange: Exchange) -> Params:
        """The messages and their description.

        Raises:
            InvalidParams: an argument is missing, unknown, or not a string of its type.
            ToolError: the function failed.
        """
        call = Call(exchange)
        for name, value in arguments.items():
            if not isinstance(value, str):
                raise InvalidParams(f"Invalid params: argument '{echo(name)}' should be a string.")
        try:
            values = self._binding.bind(cast(Mapping[str, str], arguments), call)
        except InvalidArguments as refusal:
            raise InvalidParams(f"Invalid params: {refusal}.") from None
        with errors_shown_safely(f"The prompt '{self.name}'"):
            messages = prompt_messages_of(await self._outcome(**values))
        call.end()
        return members(description=self._description) | {"messages": messages}


class Completer:
    """A function that proposes values for an argument, given the text typed so far and the other arguments."""

    def __init__(self, function: Function) -> None:
        self._outcome = awaited(function)
        self._names = list(inspect.signature(function).parameters)[:2]
        if not self._names:
            raise TypeError("a completer takes the text typed so far and, optionally, a dict of the other arguments")

    async def complete(self, value: str, context: Mapping[str, str]) -> Params:
        """The `completion` of a result: the first hundred values, and how many there are."""
        arguments = dict(zip(self._names, (value, dict(context)), strict=False))
        with errors_shown_safely("The completion"):
            proposed = await self._outcome(**arguments)
            if isinstance(proposed, str) or inspect.isgenerator(proposed):
                raise TypeError("a completer returns a list of strings")
            values = [clean_text(item) for item in cast(Iterable[object], proposed or ())]
        first = values[:MAX_COMPLETIONS]
        return {"values": first, "total": len(values), "hasMore": len(values) > len(first)}


# --------------------------------------------------------------------------------------------------------------- shared


def check_options(kind: str, options: Mapping[str, object], known: type) -> None:
    """Raise TypeError for an option that the TypedDict does not have."""
    if unknown := sorted(options.keys() - known.__annotations__.keys()):
        raise TypeError(f"a {kind} has no option '{unknown[0]}'; the options are {', '.join(known.__annotations__)}")


def function_name(function: Function, kind: str) -> str:
    """The name of a function; raises ValueError for a lambda and other functions without a name."""
    name: object = getattr(function, "__name__", None)
    if not isinstance(name, str) or not name.isidentifier():
        raise ValueError(f"this {kind} has no name: set one with name=")
    return name
