"""`input_required` results of 2026-07-28: the questions of a server, and the retry of the request with the answers."""

from collections.abc import Callable, Mapping
from typing import Final

import jiter
import msgspec

from sluicegate.errors import (
    MISSING_CAPABILITY,
    ErrorObject,
    RemoteProtocolError,
    UpstreamProtocolError,
)
from sluicegate.protocol.json_limits import LONG
from sluicegate.protocol.message import (
    Params,
    Reply,
    Result,
    ToolText,
    as_object,
    count_names,
    may_escape_names,
    opened,
)
from sluicegate.protocol.methods import METHODS, QUESTIONS


class Question(msgspec.Struct, frozen=True):
    """One question of a server to the client: the value of an `inputRequests` entry."""

    method: str
    params: Params = {}
    elicitation: str | None = None
    """The id with which a server of 2025-11-25 reports that a page was visited."""
    abandoned: Callable[[], None] | None = None
    """Called if a client of 2026-07-28 was asked and did not retry in time."""


Questions = Mapping[str, Question]
Answers = Mapping[str, Params]
"""Bare results under the keys of the questions: the value of `inputResponses`."""


class InputRequired(msgspec.Struct, frozen=True):
    """A result that asks for input: answer the questions and send the request again with the state."""

    questions: Questions
    state: str | None = None


def input_required(questions: Questions, state: str | None) -> Result:
    """The result that asks the client for input."""
    value: Params = {"resultType": "input_required"}
    if questions:
        value["inputRequests"] = {key: {"method": q.method, "params": q.params} for key, q in questions.items()}
    if state is not None:
        value["requestState"] = state
    return Result(value)


_TYPE: Final = b'"resultType"'
_COMPLETE: Final = b'{"resultType":"complete"'


def read_input_required(method: str, reply: Reply) -> InputRequired | None:
    """The questions in a reply, or None if it is final.

    Raises:
        UpstreamProtocolError: an unknown result type, a method that may not ask for input, or invalid questions.
    """
    if not isinstance(reply, Result) or reply.is_final:
        return None
    raw = reply.value
    if isinstance(raw, ToolText):
        return None
    # Most replies are final and stay raw: only one with the name in it, perhaps escaped, is decoded.
    if isinstance(raw, msgspec.Raw):
        data = bytes(raw)
        # The first member counts only if it is the only one: another parser might use a second one instead (T1).
        said = data.startswith(_COMPLETE)
        if (data.count(_TYPE) if len(data) <= LONG else count_names(data, _TYPE)) <= said and not may_escape_names(
            data
        ):
            return None
        kind = _decode_type(raw)
    else:
        kind = raw.get("resultType", "complete")
    if kind == "complete":
        return None
    if kind != "input_required":
        raise UpstreamProtocolError(f"The server answered {method} with the unknown result type {kind!r}.")
    row = METHODS.get(method)
    if row is None or not row.may_ask:
        raise UpstreamProtocolError(f"The server asked for input on {method}, where no revision allows it.")
    try:
        return _read_questions(opened(reply))
    except RemoteProtocolError:
        raise UpstreamProtocolError(f"The server's answer to {method} cannot be decoded.") from None


def may_have_two_types(raw: msgspec.Raw) -> bool:
    """Whether a result may have two result types, so that another parser might use the other one (T1)."""
    data = bytes(raw)
    if (data.count(_TYPE) if len(data) <= LONG else count_names(data, _TYPE)) < 2 and not may_escape_names(data):
        return False
    try:
        jiter.from_json(data, catch_duplicate_keys=True)  # A value inside may have a member of that name, too.
    except ValueError:
        return True
    return False


class _ResultType(msgspec.Struct):
    resultType: object = "complete"  # noqa: N815 - the name on the wire


_type_decoder: Final = msgspec.json.Decoder(_ResultType)


def _decode_type(raw: msgspec.Raw) -> object:
    try:
        return _type_decoder.decode(raw).resultType
    except (msgspec.DecodeError, RecursionError):
        raise UpstreamProtocolError("The server's result cannot be decoded.") from None


class _Asked(msgspec.Struct):
    method: str
    params: Params = {}


def _read_questions(value: Params) -> InputRequired:
    entries = as_object(value.get("inputRequests", {}))
    state = value.get("requestState")
    if entries is None or not (state is None or isinstance(state, str)):
        raise UpstreamProtocolError("The server asked for input in a form that cannot be read.")
    questions: dict[str, Question] = {}
    for key, entry in entries.items():
        try:
            question = msgspec.convert(entry, _Asked)
        except msgspec.ValidationError:
            raise UpstreamProtocolError("The server asked for input in a form that cannot be read.") from None
        if question.method not in QUESTIONS:
            raise UpstreamProtocolError(f"The server asked for input by {question.method}, which no revision has.")
        questions[key] = Question(question.method, question.params)
    if not questions and state is None:
        raise UpstreamProtocolError("The server asked for input, but its result has no questions and no state.")
    return InputRequired(questions, state)


def with_answers(params: Params, answers: Answers, state: str | None) -> Params:
    """The params of the retry: the same request with the answers, and the state if one was given."""
    again = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
    if answers:
        again["inputResponses"] = dict(answers)
    if state is not None:
        again["requestState"] = state
    return again


def lacking_capability(question: Question, capabilities: Mapping[str, object]) -> Params | None:
    """The capability that the client must declare to be asked this; None if it did.

    An empty `elicitation` object means forms only, as in 2025-06-18.
    """
    match question.method:
        case "elicitation/create":
            declared = as_object(capabilities.get("elicitation"))
            mode = str(question.params.get("mode", "form"))
            if declared is not None and (mode in declared or (mode == "form" and "url" not in declared)):
                return None
            return {"elicitation": {mode: {}}}
        case "sampling/createMessage":
            declared = as_object(capabilities.get("sampling"))
            if declared is None:
                return {"sampling": {}}
            if ("tools" in question.params or "toolChoice" in question.params) and "tools" not in declared:
                return {"sampling": {"tools": {}}}
            return None
        case _:
            return None if isinstance(capabilities.get("roots"), dict) else {"roots": {}}


def missing_capability(required: Params) -> ErrorObject:
    """The error for a request whose client lacks a capability."""
    message = "Missing required client capability: " + ", ".join(sorted(required))
    return ErrorObject(MISSING_CAPABILITY, message, {"requiredCapabilities": required})
