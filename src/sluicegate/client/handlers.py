"""Handlers for a server's requests during a call: elicitation, sampling, roots.

Each request goes to a callback of the program. Capabilities without a callback are not declared, and such requests are
refused. What a callback raises is logged and never sent to the server.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from os import PathLike
from typing import Final, Literal, TypeVar, cast

import msgspec

from sluicegate.errors import INTERNAL_ERROR, INVALID_PARAMS, METHOD_NOT_FOUND, ErrorObject, InputRefused
from sluicegate.protocol.input_required import Answers, Question, Questions
from sluicegate.protocol.message import Params, as_object
from sluicegate.protocol.read_types import read_message
from sluicegate.protocol.types import PromptMessage, Root
from sluicegate.runtime.input_rounds import check_capabilities

log = logging.getLogger("sluicegate")

T = TypeVar("T")

REJECTED: Final = -1
"""The error code that the specification uses for a user who rejects a sampling request."""


class ElicitRequest(msgspec.Struct, frozen=True):
    """A server's question to the user: a form with a schema, or a page to visit (`mode` "url")."""

    message: str
    mode: str = "form"
    schema: Params = {}
    url: str | None = None
    raw: Params = {}

    @property
    def defaults(self) -> Params:
        """The default values of the form's fields."""
        # Not applied automatically: the user may leave a field empty.
        fields = as_object(self.schema.get("properties")) or {}
        return {
            name: field["default"]
            for name, value in fields.items()
            if (field := as_object(value)) is not None and "default" in field
        }


class ElicitAnswer(msgspec.Struct, frozen=True):
    """The user's answer: accepted (with the form's content), declined, or closed without a choice."""

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, object] | None = None


class SampleRequest(msgspec.Struct, frozen=True):
    """A server's request for a model response. `raw` has all parameters."""

    messages: list[PromptMessage]
    max_tokens: int
    system_prompt: str | None = None
    temperature: float | None = None
    stop_sequences: list[str] = []
    raw: Params = {}


Place = str | PathLike[str] | Root
"""A root: a URI, a path, or a `Root` with a name."""

ElicitReply = ElicitAnswer | Mapping[str, object] | None
SampleReply = str | Mapping[str, object] | None
Elicit = Callable[[ElicitRequest], ElicitReply | Awaitable[ElicitReply]]
Sample = Callable[[SampleRequest], SampleReply | Awaitable[SampleReply]]
Roots = Sequence[Place] | Callable[[], Sequence[Place] | Awaitable[Sequence[Place]]]


class Answerer:
    """The callbacks of a program, and the capabilities that follow from them."""

    def __init__(self, elicit: Elicit | None = None, sample: Sample | None = None, roots: Roots | None = None) -> None:
        self._elicit = elicit
        self._sample = sample
        self._roots = roots

    @property
    def capabilities(self) -> Params:
        declared: Params = {}
        if self._elicit is not None:
            declared["elicitation"] = {"form": {}, "url": {}}
        if self._sample is not None:
            declared["sampling"] = {}
        if self._roots is not None:
            declared["roots"] = {}
        return declared

    async def answer(self, questions: Questions) -> Answers:
        """The answers by the keys of the questions. One at a time: a user can answer only one dialog.

        Raises:
            InputRefused: a callback is missing, refused to answer, or failed.
        """
        check_capabilities(questions, self.capabilities)
        return {key: await self._answer_one(question) for key, question in questions.items()}

    async def _answer_one(self, question: Question) -> Params:
        try:
            match question.method:
                case "elicitation/create" if self._elicit is not None:
                    request = _parsed(question, _read_elicit)
                    return _elicit_result(request, await _outcome(self._elicit(request)))
                case "sampling/createMessage" if self._sample is not None:
                    return _sample_result(await _outcome(self._sample(_parsed(question, _read_sample))))
                case "roots/list" if self._roots is not None:
                    places = await _outcome(self._roots()) if callable(self._roots) else self._roots
                    return {"roots": [msgspec.to_builtins(root) for root in _read_roots(places)]}
                case _:
                    message = f"This client does not answer {question.method}."
                    raise InputRefused(message, error=ErrorObject(METHOD_NOT_FOUND, message))
        except InputRefused:
            raise
        except Exception:  # An edge: the code of the user may raise anything, and must not end the connection.
            log.exception("The callback for %s failed.", question.method)
            code = REJECTED if question.method == "sampling/createMessage" else INTERNAL_ERROR
            message = f"The client could not answer {question.method}."
            raise InputRefused(message, error=ErrorObject(code, message)) from None


async def _outcome(value: T | Awaitable[T]) -> T:
    return await cast(Awaitable[T], value) if isinstance(value, Awaitable) else value


def _parsed(question: Question, read: Callable[[Params], T]) -> T:
    try:
        return read(question.params)
    except msgspec.ValidationError as problem:
        message = f"The parameters of {question.method} are not valid: {problem}."
        raise InputRefused(message, error=ErrorObject(INVALID_PARAMS, message)) from None


def _read_elicit(params: Params) -> ElicitRequest:
    members = {**params, "schema": params.get("requestedSchema", {}), "raw": params}
    return msgspec.convert(members, ElicitRequest)


def _elicit_result(request: ElicitRequest, answer: ElicitReply) -> Params:
    if answer is None:
        return {"action": "decline"}
    if not isinstance(answer, ElicitAnswer):
        answer = ElicitAnswer("accept", answer)
    # Only a submitted form has content; a page has none.
    if answer.action != "accept" or answer.content is None or request.mode == "url":
        return {"action": answer.action}
    return {"action": "accept", "content": dict(answer.content)}


class _Sampling(msgspec.Struct, rename="camel"):
    messages: list[object]
    max_tokens: int
    system_prompt: str | None = None
    temperature: float | None = None
    stop_sequences: list[str] | None = None


def _read_sample(params: Params) -> SampleRequest:
    wire = msgspec.convert(params, _Sampling)
    messages = [read_message(entry) for entry in wire.messages]
    stops = wire.stop_sequences or []
    return SampleRequest(messages, wire.max_tokens, wire.system_prompt, wire.temperature, stops, params)


def _sample_result(answer: SampleReply) -> Params:
    if answer is None:
        message = "The user rejected the sampling request."
        raise InputRefused(message, error=ErrorObject(REJECTED, message))
    if isinstance(answer, str):
        answer = {"content": {"type": "text", "text": answer}, "stopReason": "endTurn"}
    # Role and model are required, and only the program knows the model.
    return {"role": "assistant", "model": "unknown", **answer}


def _read_roots(places: Sequence[Place]) -> list[Root]:
    # A string is also a sequence, of characters.
    if isinstance(places, str | PathLike):
        places = [cast(Place, places)]
    return [_read_root(place) for place in places]


def _read_root(place: Place) -> Root:
    if isinstance(place, Root):
        return place
    if isinstance(place, str) and "://" in place:
        return Root(place)
    from pathlib import Path  # Imported late: it takes four milliseconds, and few programs have roots.

    path = Path(place).absolute()
    return Root(path.as_uri(), path.name or None)
