"""Results of 2026-07-28 that are no answer yet: what a server asks its caller, and the request that answers it."""

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
from sluicegate.protocol.message import (
    Params,
    Reply,
    Result,
    as_object,
    may_escape_names,
    opened,
)
from sluicegate.protocol.methods import METHODS, QUESTIONS


class Question(msgspec.Struct, frozen=True):
    """One thing a server wants to know from the client: the value of an `inputRequests` entry."""

    method: str
    params: Params = {}  # `roots/list` may leave them out
    elicitation: str | None = None
    """By what the server will say that a page was visited, which 2025-11-25 has; 2026-07-28 does not tell."""
    abandoned: Callable[[], None] | None = None
    """Hears that the client was asked and did not come back in time, which only one of 2026-07-28 may do.
    Not an error of the asking: whoever asked may have given up long before."""


Questions = Mapping[str, Question]
Answers = Mapping[str, Params]
"""Bare results under the keys of the questions: the value of `inputResponses`."""


class InputRequired(msgspec.Struct, frozen=True):
    """A result that is no answer yet: answer the questions and send the request again with the state."""

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


_COMPLETE: Final = b'{"resultType":"complete"'


def read_input_required(method: str, reply: Reply) -> InputRequired | None:
    """The questions in a reply, or None if it is final.

    Raises:
        UpstreamProtocolError: an unknown result type, input asked for where none may be, or questions nobody can read.
    """
    if not isinstance(reply, Result) or reply.is_final:
        return None
    raw = reply.value
    # Most replies are final and stay bytes: only one that has the word in it, or may spell it otherwise, is opened.
    if isinstance(raw, msgspec.Raw):
        data = bytes(raw)
        # The first word counts if there is no second one, which another reader might take instead (T1).
        said = data.startswith(_COMPLETE)
        if data.count(b'"resultType"') <= said and not may_escape_names(data):
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
    """Whether a result may say twice of what type it is: another reader might take the other (T1)."""
    data = bytes(raw)
    if data.count(b'"resultType"') < 2:
        return False
    try:
        jiter.from_json(data, catch_duplicate_keys=True)  # Something inside may rightly have a type of its own.
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
        raise UpstreamProtocolError("The server asked for input but for nothing in particular.")
    return InputRequired(questions, state)


def with_answers(params: Params, answers: Answers, state: str | None) -> Params:
    """The params for the next round: the same request, the answers, and the state exactly as it was given or not."""
    again = {key: value for key, value in params.items() if key not in ("inputResponses", "requestState")}
    if answers:
        again["inputResponses"] = dict(answers)
    if state is not None:
        again["requestState"] = state
    return again


def lacking_capability(question: Question, capabilities: Mapping[str, object]) -> Params | None:
    """What the client would have to declare before it may be asked this, or None if it did.

    An empty `elicitation` object means forms only, as in the revision that had nothing else.
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
    """The refusal of a request whose client cannot be asked what must be asked."""
    message = "Missing required client capability: " + ", ".join(sorted(required))
    return ErrorObject(MISSING_CAPABILITY, message, {"requiredCapabilities": required})
