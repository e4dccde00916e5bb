"""Questions that a call may ask its client, and the parsing of the answers. `Call` sends them.

An invalid answer of a client counts as no answer (`InputRefused`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, Literal, TypeVar, cast

import msgspec

from sluicegate.activations.content import clean_text, members, messages_of
from sluicegate.activations.elicit_form import form_value, schema_of
from sluicegate.errors import InputRefused
from sluicegate.protocol.input_required import Question
from sluicegate.protocol.message import Params
from sluicegate.schemas.validate import Checker, InvalidArguments, Schema

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Action = Literal["accept", "decline", "cancel"]


class Elicited(msgspec.Struct, Generic[T], frozen=True):
    """The user's reaction to a question. There is content only if a form was accepted."""

    action: Action
    content: T | None = None

    @property
    def accepted(self) -> bool:
        return self.action == "accept"


class Sampled(msgspec.Struct, frozen=True):
    """The response of the client's model. `content` has its blocks unchanged."""

    role: str
    content: list[Params]
    model: str
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        """All text blocks, joined by newlines."""
        return "\n".join(str(block.get("text", "")) for block in self.content if block.get("type") == "text")


class Root(msgspec.Struct, frozen=True):
    """A folder or another URI in which the client wants the server to work."""

    uri: str
    name: str | None = None


class Ask(msgspec.Struct, Generic[T_co], frozen=True):
    """A question, and the function that parses its answer."""

    question: Question
    read: Callable[[Params], T_co]


def form(message: str, form: type[T]) -> Ask[Elicited[T]]:
    """Ask the user to fill in a form, given as a dataclass or Struct.

    Raises:
        TypeError: a field cannot be part of a form.
    """
    return Ask(_form_question(message, schema_of(form)), lambda answer: _read_form(answer, form))


def form_by_schema(message: str, schema: Mapping[str, object]) -> Ask[Elicited[Params]]:
    """Ask the user to fill in a form, given as the flat JSON Schema of an elicitation.

    Raises:
        TypeError: it is not a JSON Schema.
    """
    checker = Checker(cast(Schema, dict(schema)), noun="field").compiled()

    def read(answer: Params) -> Elicited[Params]:
        action, content = _read_elicitation(answer)
        if content is not None and (problems := checker.problems(content)):
            raise InputRefused(f"The client's answer does not match the form: {problems}.")
        return Elicited(action, content)

    return Ask(_form_question(message, schema), read)


def url(message: str, url: str) -> Ask[Elicited[None]]:
    """Ask the user to open a page, for secrets and payments, which do not belong in forms."""
    params: Params = {"mode": "url", "message": clean_text(message), "url": clean_text(url)}
    return Ask(Question("elicitation/create", params), lambda answer: Elicited(_read_elicitation(answer)[0]))


def sampling(
    messages: object,
    *,
    max_tokens: int,
    system_prompt: str | None = None,
    temperature: float | None = None,
    stop_sequences: Sequence[str] | None = None,
    model_preferences: Mapping[str, object] | None = None,
    metadata: Mapping[str, object] | None = None,
    tools: Sequence[Mapping[str, object]] | None = None,
    tool_choice: Mapping[str, object] | None = None,
) -> Ask[Sampled]:
    """Ask the client's model. Messages are a string, a message or a list of these, as a prompt returns them."""
    params = members(
        messages=messages_of(messages),
        maxTokens=max_tokens,
        systemPrompt=system_prompt,
        temperature=temperature,
        stopSequences=stop_sequences,
        modelPreferences=model_preferences,
        metadata=metadata,
        tools=tools,
        toolChoice=tool_choice,
    )
    return Ask(Question("sampling/createMessage", params), _read_sampled)


def roots() -> Ask[list[Root]]:
    """Ask in which folders the client wants the server to work."""
    return Ask(Question("roots/list", {}), _read_roots)


# ------------------------------------------------------------------------------------------------------ reading answers

_ACTIONS: Final = ("accept", "decline", "cancel")


class _SampledWire(msgspec.Struct):
    role: str
    content: Params | list[Params]
    model: str
    stopReason: str | None = None  # noqa: N815 - the name on the wire


class _RootsWire(msgspec.Struct):
    roots: list[Root]


def _form_question(message: str, schema: Mapping[str, object]) -> Question:
    # No `mode`: a form is the default in every revision, and the oldest has no `mode`.
    return Question("elicitation/create", members(message=message, requestedSchema=schema))


def _read_elicitation(answer: Params) -> tuple[Action, Params | None]:
    action, content = answer.get("action"), answer.get("content")
    if action not in _ACTIONS:
        raise InputRefused("The client's answer is invalid: its action is not accept, decline or cancel.")
    if action == "accept" and content is not None and not isinstance(content, dict):
        raise InputRefused("The client's answer is invalid: its content is not an object.")
    return action, cast(Params, content) if action == "accept" and content is not None else None


def _read_form(answer: Params, form: type[T]) -> Elicited[T]:
    action, content = _read_elicitation(answer)
    if action != "accept":
        return Elicited(action)
    try:
        return Elicited(action, form_value(form, content or {}))
    except InvalidArguments as problem:
        raise InputRefused(f"The client's answer does not match the form: {problem}.") from None


def _read_sampled(answer: Params) -> Sampled:
    try:
        wire = msgspec.convert(answer, _SampledWire)
    except msgspec.ValidationError:
        raise InputRefused("The client's answer is invalid: it is not a sampling result.") from None
    content = wire.content if isinstance(wire.content, list) else [wire.content]
    return Sampled(wire.role, content, wire.model, wire.stopReason)


def _read_roots(answer: Params) -> list[Root]:
    try:
        return msgspec.convert(answer, _RootsWire).roots
    except msgspec.ValidationError:
        raise InputRefused("The client's answer is invalid: it is not a list of roots.") from None
