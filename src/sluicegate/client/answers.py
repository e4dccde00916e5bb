"""What a program answers when a server asks it something in the middle of a call: a form, a model's words, its roots.

Each question goes to one callback of the program. What has no callback is not offered to servers in the first place,
and refused if one asks all the same. The one rule: what a callback raises is logged here and never told to the server.
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

log = logging.getLogger("sluicegate")

T = TypeVar("T")

REJECTED: Final = -1
"""What the specification's pages show for a person who does not want a model to be asked."""


class ElicitRequest(msgspec.Struct, frozen=True):
    """What a server wants to know from the user: a form to fill in by its schema, or a page to visit (`mode` "url")."""

    message: str
    mode: str = "form"
    schema: Params = {}
    url: str | None = None
    raw: Params = {}

    @property
    def defaults(self) -> Params:
        """What stands in the form before the user changes it: the default of every field that has one."""
        # Not filled in behind the callback's back: a user may empty a field, and then it stays empty.
        fields = as_object(self.schema.get("properties")) or {}
        return {
            name: field["default"]
            for name, value in fields.items()
            if (field := as_object(value)) is not None and "default" in field
        }


class ElicitAnswer(msgspec.Struct, frozen=True):
    """What the user did: accepted (with the form's content), declined, or closed the form without a choice."""

    action: Literal["accept", "decline", "cancel"]
    content: Mapping[str, object] | None = None


class SampleRequest(msgspec.Struct, frozen=True):
    """What a server wants a model of ours to go on with. `raw` has also what is rarely asked for."""

    messages: list[PromptMessage]
    max_tokens: int
    system_prompt: str | None = None
    temperature: float | None = None
    stop_sequences: list[str] = []
    raw: Params = {}


Place = str | PathLike[str] | Root
"""A root: a URI, a path, or a `Root` with a name of its own."""

ElicitReply = ElicitAnswer | Mapping[str, object] | None
SampleReply = str | Mapping[str, object] | None
Elicit = Callable[[ElicitRequest], ElicitReply | Awaitable[ElicitReply]]
Sample = Callable[[SampleRequest], SampleReply | Awaitable[SampleReply]]
Roots = Sequence[Place] | Callable[[], Sequence[Place] | Awaitable[Sequence[Place]]]


class Answerer:
    """The callbacks of one program, and what they let us tell servers that we can be asked."""

    def __init__(self, elicit: Elicit | None = None, sample: Sample | None = None, roots: Roots | None = None) -> None:
        self._elicit = elicit
        self._sample = sample
        self._roots = roots

    @property
    def capabilities(self) -> Params:
        """The client capabilities to declare: only what has a callback."""
        declared: Params = {}
        if self._elicit is not None:
            declared["elicitation"] = {"form": {}, "url": {}}
        if self._sample is not None:
            declared["sampling"] = {}
        if self._roots is not None:
            declared["roots"] = {}
        return declared

    async def answer(self, questions: Questions) -> Answers:
        """The answers under the questions' keys, asked one after the other: a person has one dialog at a time.

        Raises:
            InputRefused: there is no callback for one of them, it does not want to answer, or it failed.
        """
        return {key: await self._answer_one(question) for key, question in questions.items()}

    async def _answer_one(self, question: Question) -> Params:
        try:
            match question.method:
                case "elicitation/create" if self._elicit is not None:
                    request = _understood(question, _read_elicit)
                    return _elicit_result(request, await _outcome(self._elicit(request)))
                case "sampling/createMessage" if self._sample is not None:
                    return _sample_result(await _outcome(self._sample(_understood(question, _read_sample))))
                case "roots/list" if self._roots is not None:
                    places = await _outcome(self._roots()) if callable(self._roots) else self._roots
                    return {"roots": [msgspec.to_builtins(root) for root in _read_roots(places)]}
                case _:
                    message = f"This client does not answer {question.method}."
                    raise InputRefused(message, error=ErrorObject(METHOD_NOT_FOUND, message))
        except InputRefused:
            raise
        except Exception:
            # The callback is somebody else's code and its failure must not end the connection that asked.
            log.exception("The callback for %s failed.", question.method)
            code = REJECTED if question.method == "sampling/createMessage" else INTERNAL_ERROR
            message = f"The client could not answer {question.method}."
            raise InputRefused(message, error=ErrorObject(code, message)) from None


async def _outcome(value: T | Awaitable[T]) -> T:
    """What a callback returns, whether it is a coroutine function or a plain one."""
    return await cast(Awaitable[T], value) if isinstance(value, Awaitable) else value


def _understood(question: Question, read: Callable[[Params], T]) -> T:
    try:
        return read(question.params)
    except msgspec.ValidationError as problem:
        message = f"The server's {question.method} cannot be read: {problem}."
        raise InputRefused(message, error=ErrorObject(INVALID_PARAMS, message)) from None


def _read_elicit(params: Params) -> ElicitRequest:
    members = {**params, "schema": params.get("requestedSchema", {}), "raw": params}
    return msgspec.convert(members, ElicitRequest)


def _elicit_result(request: ElicitRequest, answer: ElicitReply) -> Params:
    if answer is None:
        return {"action": "decline"}
    if not isinstance(answer, ElicitAnswer):
        answer = ElicitAnswer("accept", answer)
    # The content of a form that was not submitted is nobody's business, and a page has none to submit here.
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
    # Role and model are required on the wire, and only the program knows which model it asked.
    return {"role": "assistant", "model": "unknown", **answer}


def _read_roots(places: Sequence[Place]) -> list[Root]:
    # A string is a sequence too, of one-letter folders that nobody means.
    if isinstance(places, str | PathLike):
        places = [cast(Place, places)]
    return [_read_root(place) for place in places]


def _read_root(place: Place) -> Root:
    if isinstance(place, Root):
        return place
    if isinstance(place, str) and "://" in place:
        return Root(place)
    from pathlib import Path  # here and not above: it takes four milliseconds, and few programs have roots

    path = Path(place).absolute()
    return Root(path.as_uri(), path.name or None)
