"""Signatures that use pydantic: models, `Annotated[int, Field(ge=1)]`, `x: int = Field(3)`.

pydantic is not a dependency. It is imported only if a signature contains one of its types, so the program has
imported it already. It then reads the whole signature, since msgspec would ignore its limits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import msgspec

from sluicegate.schemas.validate import Checker, InvalidArguments, Schema, dotted

if TYPE_CHECKING:
    from pydantic import TypeAdapter

T = TypeVar("T")

_PACKAGES = frozenset({"pydantic", "pydantic_core", "pydantic_settings", "pydantic_extra_types", "annotated_types"})


def is_of_pydantic(thing: object) -> bool:
    """Whether an object is a type, value or marker of pydantic, including models and dataclasses made with pydantic."""
    kind = cast(type[object], thing) if isinstance(thing, type) else type(thing)
    return "__pydantic_validator__" in vars(kind) or any(
        base.__module__.partition(".")[0] in _PACKAGES for base in kind.__mro__
    )


def with_default_of_field(annotation: object, default: object) -> object:
    """The annotation for `x: int = Field(3)`: `Annotated[int, Field(3)]`. Others are unchanged."""
    return Annotated[cast(Any, annotation), default] if is_field(default) else annotation


def is_field(default: object) -> bool:
    """Whether a parameter's default is what `pydantic.Field` returns."""
    return type(default).__name__ == "FieldInfo" and is_of_pydantic(default)


def default_of(annotation: object) -> Callable[[], object] | None:
    """Returns the default that a `Field` in the annotation gives; None if it gives none."""
    adapter = _adapter(annotation)
    if adapter.get_default_value() is None:
        return None
    return lambda: cast(Any, adapter.get_default_value()).value


def schemas_of(annotations: Sequence[object], *, output: bool) -> tuple[list[Schema], Schema]:
    """One schema for each annotation, and the `$defs` they share; raises TypeError if pydantic cannot describe one."""
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError
    from pydantic.json_schema import GenerateJsonSchema

    class WithoutTitles(GenerateJsonSchema):
        def field_title_should_be_set(self, schema: Any) -> bool:
            return False  # It would only repeat the name of the field.

    mode = "serialization" if output else "validation"
    try:
        inputs = [(number, mode, _adapter(annotation)) for number, annotation in enumerate(annotations)]
        schemas, shared = TypeAdapter.json_schemas(cast(Any, inputs), schema_generator=WithoutTitles)
    except PydanticUserError as error:
        raise TypeError(str(error).partition("\n")[0]) from None
    return [schemas[number, cast(Any, mode)] for number in range(len(inputs))], shared.get("$defs", {})


class PydanticReader:
    """Validates arguments against their schema, as for other tools, and then lets pydantic convert them."""

    def __init__(self, schema: Schema, annotations: Mapping[str, object]) -> None:
        self.schema = schema
        self._checker = Checker(schema)
        self._adapters = {name: _adapter(annotation) for name, annotation in annotations.items()}
        self._defaults = {name: default for name, a in annotations.items() if (default := default_of(a)) is not None}

    def convert(self, arguments: Mapping[str, object]) -> dict[str, object]:
        """Keyword arguments for the function; raises InvalidArguments."""
        if problems := self._checker.problems(arguments):
            raise InvalidArguments(problems)
        values = {name: default() for name, default in self._defaults.items() if name not in arguments}
        for name, value in arguments.items():
            values[name] = _validated(self._adapters[name], value, "argument", [name])
        return values


def form_of(content: Mapping[str, object], form: type[T], checker: Checker) -> T:
    """The content of a form as an instance of its class; raises InvalidArguments."""
    if problems := checker.problems(content):
        raise InvalidArguments(problems)
    return _validated(_adapter(form), content, checker.noun, [])


def encode_hook(value: object) -> object:
    """For msgspec's encoder: a value of pydantic in JSON types; raises TypeError for other types."""
    if not is_of_pydantic(value):
        raise TypeError(f"Encoding objects of type {type(value).__name__} is unsupported")
    from pydantic_core import PydanticSerializationError, to_jsonable_python

    try:
        return to_jsonable_python(value, by_alias=True)
    except PydanticSerializationError as error:
        raise TypeError(str(error)) from None


def _adapter(annotation: object) -> "TypeAdapter[Any]":
    from pydantic import TypeAdapter
    from pydantic.errors import PydanticUserError

    fields = [extra for extra in getattr(annotation, "__metadata__", ()) if is_field(extra)]
    if any(field.alias or field.validation_alias for field in fields):
        raise TypeError("a parameter cannot have an alias: arguments are passed by its name")
    try:
        return TypeAdapter[Any](cast(Any, annotation))
    except PydanticUserError as error:
        raise TypeError(str(error).partition("\n")[0]) from None


def _validated(adapter: "TypeAdapter[Any]", value: object, noun: str, path: list[str | int]) -> Any:
    from pydantic import ValidationError

    try:
        # As JSON, since strict models take a date as text only in JSON.
        return adapter.validate_json(msgspec.json.encode(value))
    except ValidationError as refusal:
        errors = refusal.errors(include_url=False, include_input=False)
        places = [(dotted([*path, *error["loc"]]), error["msg"]) for error in errors[:8]]
    sentences = [f"{noun} '{place}' is not valid: {text}" if place else f"not valid: {text}" for place, text in places]
    raise InvalidArguments("; ".join(sentences))
