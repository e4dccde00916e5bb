"""What a call may ask of its client, and how the answers are read. Made here, sent by `Call`.

An answer comes from a client and is judged as such: one that cannot be read counts as none (`InputRefused`).
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final, Generic, Literal, TypeVar, cast

import msgspec

from sluicegate.activation.content import clean_text, members, messages_of
from sluicegate.activation.forms import form_value, schema_of
from sluicegate.activation.schema import InvalidArguments, Schema
from sluicegate.activation.violations import Checker
from sluicegate.errors import InputRefused
from sluicegate.protocol.input_required import Question
from sluicegate.protocol.message import Params

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Action = Literal["accept", "decline", "cancel"]


class Elicited(msgspec.Struct, Generic[T], frozen=True):
    """What the user did with a question. There is content only if a form was accepted."""

    action: Action
    content: T | None = None

    @property
    def accepted(self) -> bool:
        """Whether the user said yes."""
        return self.action == "accept"


class Sampled(msgspec.Struct, frozen=True):
    """What the client's model said. `content` holds its blocks as they came."""

    role: str
    content: list[Params]
    model: str
    stop_reason: str | None = None

    @property
    def text(self) -> str:
        """All text blocks, joined by newlines."""
        return "\n".join(str(block.get("text", "")) for block in self.content if block.get("type") == "text")


class Root(msgspec.Struct, frozen=True):
    """A place that the client wants a server to keep to."""

    uri: str
    name: str | None = None


class Ask(msgspec.Struct, Generic[T_co], frozen=True):
    """A question, and what its answer means."""

    question: Question
    read: Callable[[Params], T_co]


def form(message: str, form: type[T]) -> Ask[Elicited[T]]:
    """Ask the user to fill in a form, given as a dataclass or Struct.

    Raises:
        TypeError: a field that no form can show.
    """
    return Ask(_form_question(message, schema_of(form)), lambda answer: _read_form(answer, form))


def form_by_schema(message: str, schema: Mapping[str, object]) -> Ask[Elicited[Params]]:
    """Ask the user to fill in a form, given as the flat JSON Schema of an elicitation.

    Raises:
        TypeError: it is no JSON Schema.
    """
    checker = Checker(cast(Schema, dict(schema)), noun="field").compiled()

    def read(answer: Params) -> Elicited[Params]:
        action, content = _read_elicitation(answer)
        if content is not None and (problems := checker.problems(content)):
            raise InputRefused(f"The client's answer does not fit the form: {problems}.")
        return Elicited(action, content)

    return Ask(_form_question(message, schema), read)


def url(message: str, url: str) -> Ask[Elicited[None]]:
    """Ask the user to open a page: the way for secrets and payments, which do not belong into forms."""
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
    """Ask the client's model. Messages are what a prompt may return: a string, messages, or a list of these."""
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
    """Ask where the client wants us to work."""
    return Ask(Question("roots/list", {}), _read_roots)


# ---------------------------------------------------------------------------------------------------- reading answers

_ACTIONS: Final = ("accept", "decline", "cancel")


class _SampledWire(msgspec.Struct):
    role: str
    content: Params | list[Params]
    model: str
    stopReason: str | None = None  # noqa: N815 - the name on the wire


class _RootsWire(msgspec.Struct):
    roots: list[Root]


def _form_question(message: str, schema: Mapping[str, object]) -> Question:
    # No `mode`: a form is what every revision takes for granted, and the oldest of them has no word for it.
    return Question("elicitation/create", members(message=message, requestedSchema=schema))


def _read_elicitation(answer: Params) -> tuple[Action, Params | None]:
    action, content = answer.get("action"), answer.get("content")
    if action not in _ACTIONS:
        raise InputRefused("The client's answer cannot be read: its action is none of accept, decline and cancel.")
    if action == "accept" and content is not None and not isinstance(content, dict):
        raise InputRefused("The client's answer cannot be read: its content is no object.")
    return action, cast(Params, content) if action == "accept" and content is not None else None


def _read_form(answer: Params, form: type[T]) -> Elicited[T]:
    action, content = _read_elicitation(answer)
    if action != "accept":
        return Elicited(action)
    try:
        return Elicited(action, form_value(form, content or {}))
    except InvalidArguments as problem:
        raise InputRefused(f"The client's answer does not fit the form: {problem}.") from None


def _read_sampled(answer: Params) -> Sampled:
    try:
        wire = msgspec.convert(answer, _SampledWire)
    except msgspec.ValidationError:
        raise InputRefused("The client's answer cannot be read: it is no message of a model.") from None
    content = wire.content if isinstance(wire.content, list) else [wire.content]
    return Sampled(wire.role, content, wire.model, wire.stopReason)


def _read_roots(answer: Params) -> list[Root]:
    try:
        return msgspec.convert(answer, _RootsWire).roots
    except msgspec.ValidationError:
        raise InputRefused("The client's answer cannot be read: it is no list of roots.") from None
