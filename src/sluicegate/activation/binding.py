"""Functions whose arguments are strings on the wire: those of prompts, and those of URI templates.

Annotations still hold: `page: int` gets a number. A string that cannot be read as one is refused, and its argument
named.
"""

from collections.abc import Mapping
from typing import Any, cast

import msgspec

from sluicegate.activation.call import Call
from sluicegate.activation.invoke import Function
from sluicegate.activation.schema import InvalidArguments, Parameters, Schema
from sluicegate.activation.signatures import annotated_parameters
from sluicegate.activation.tools import INJECTED
from sluicegate.activation.violations import sentence_of


class Binding:
    """What a function takes, and values for it out of strings.

    Raises:
        TypeError: a parameter that cannot be described; names the function and the parameter.
    """

    def __init__(self, function: Function) -> None:
        parameters = Parameters.of(function, skip=INJECTED)
        self.description = parameters.description
        self.required = frozenset(cast(list[str], parameters.schema["required"]))
        self.properties: dict[str, Schema] = parameters.schema["properties"]
        self._injected = parameters.injected
        named = {p.name: (annotation, p.default) for p, annotation in annotated_parameters(function)}
        fields: list[Any] = [(name, *self._field(name, *named[name])) for name in self.properties]
        self._struct = msgspec.defstruct("Arguments", fields, kw_only=True)

    def bind(self, arguments: Mapping[str, str], call: Call) -> dict[str, object]:
        """The keyword arguments of the function.

        Raises:
            InvalidArguments: names the argument that is missing, unknown, or no value of its type.
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
        # A default is never read, the function has its own; UNSET only marks that nothing need be given.
        return (annotation,) if name in self.required else (annotation, msgspec.UNSET)
