"""A prompt: a function that returns messages; and completions, which help to fill in its arguments."""

import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, TypedDict, cast

from sluicegate.activation.binding import Binding
from sluicegate.activation.call import Call
from sluicegate.activation.content import clean_text, echo, members, prompt_messages_of
from sluicegate.activation.invoke import Function, awaited, errors_shown_safely
from sluicegate.activation.schema import InvalidArguments
from sluicegate.activation.tools import check_options, function_name
from sluicegate.errors import InvalidParams
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Params

MOST_COMPLETIONS: Final = 100


class PromptOptions(TypedDict, total=False):
    """What an author may say of a prompt beyond its function; all of it has a default."""

    name: str
    title: str
    description: str
    icons: Sequence[Mapping[str, object]]
    meta: Mapping[str, object]


class Prompt:
    """A function that makes messages out of arguments.

    Raises:
        TypeError: a parameter that cannot be described, or an option that there is not.
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
        """The messages, and what they are for.

        Raises:
            InvalidParams: an argument is missing, unknown, or not a string of the right form.
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
    """A function that proposes values for an argument, from what was typed so far and from the other arguments."""

    def __init__(self, function: Function) -> None:
        self._outcome = awaited(function)
        self._names = list(inspect.signature(function).parameters)[:2]
        if not self._names:
            raise TypeError("a completer takes the value typed so far, and if it likes the other arguments as a dict")

    async def complete(self, value: str, context: Mapping[str, str]) -> Params:
        """The `completion` of a result: the first hundred values, and how many there are."""
        arguments = dict(zip(self._names, (value, dict(context)), strict=False))
        with errors_shown_safely("The completion"):
            proposed = await self._outcome(**arguments)
            if isinstance(proposed, str) or inspect.isgenerator(proposed):
                raise TypeError("a completer returns a list of strings")
            values = [clean_text(item) for item in cast(Iterable[object], proposed or ())]
        first = values[:MOST_COMPLETIONS]
        return {"values": first, "total": len(values), "hasMore": len(values) > len(first)}
