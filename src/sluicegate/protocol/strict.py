"""What a client sends: parsed in full, once, strictly, because policy must read the very value that is forwarded
(threats T1, T4).
"""

from typing import Final, cast

import jiter
import msgspec

from sluicegate.errors import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, ErrorObject, RemoteProtocolError
from sluicegate.protocol.bounds import DEFAULT_LIMITS, Limits, has_many_marks, limit_problem, may_break_limit
from sluicegate.protocol.lookalikes import (
    ENVELOPE_MEMBERS,
    META_MEMBERS,
    PLAIN_PARAMS,
    REQUEST_MEMBERS,
    folded_member,
    folded_param,
)
from sluicegate.protocol.message import (
    LARGEST_ID,
    Message,
    Notification,
    Params,
    Reply,
    Request,
    RequestId,
    Response,
    Result,
    as_object,
)
from sluicegate.protocol.recovery import recover_request_id


def parse_strict(data: bytes, limits: Limits = DEFAULT_LIMITS) -> object:
    """The one JSON value in `data`, every level of it checked.

    Raises:
        RemoteProtocolError: −32700 for what is not JSON, −32600 for duplicate members and for what is over a limit.
    """
    value = parse_json(data, limits)
    check_limits(data, value, limits)
    return value


def parse_json(data: bytes, limits: Limits = DEFAULT_LIMITS) -> object:
    """The one JSON value in `data`, which `check_limits` has yet to let pass; raises as `parse_strict` does."""
    if len(data) > limits.marks and has_many_marks(data, limits.marks):
        problem = f"Invalid request: it holds more than {limits.marks} commas, colons and brackets."
        raise RemoteProtocolError(problem, request_id=recover_request_id(data))
    try:
        return jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        raise _refusal(data, str(error)) from None


def check_limits(data: bytes, value: object, limits: Limits = DEFAULT_LIMITS) -> None:
    """Let pass what keeps to our limits, of which the parser knows nothing; raises as `parse_strict` does."""
    if may_break_limit(data, limits):
        problem = limit_problem(data, value, limits)
        if problem is not None:
            request_id = _request_id(as_object(value) or {}, limits)
            raise RemoteProtocolError(f"Invalid request: {problem}.", request_id=request_id)


def read_message(value: object, limits: Limits = DEFAULT_LIMITS) -> Message:
    """The message that a strictly parsed value is.

    Raises:
        RemoteProtocolError: −32600 for a broken envelope, −32602 for params that are no object; with the id if
        readable.
    """
    envelope = as_object(value)
    if envelope is None:
        raise RemoteProtocolError("Invalid request: a message is a JSON object.")
    request = _usual_request(envelope)
    if request is not None:
        return request
    request_id = envelope.get("id")
    problem = _envelope_problem(envelope, limits)
    if problem is not None:
        raise RemoteProtocolError(f"Invalid request: {problem}.", request_id=_request_id(envelope, limits))
    if "method" not in envelope:
        return Response(cast(RequestId | None, request_id), _read_reply(envelope))
    method = cast(str, envelope["method"])
    params = as_object(envelope["params"]) if "params" in envelope else {}
    if params is None:
        message = "Invalid params: params is a JSON object, or left out."
        raise RemoteProtocolError(message, code=INVALID_PARAMS, request_id=cast(RequestId | None, request_id))
    if "_meta" in params and as_object(params["_meta"]) is None:
        message = "Invalid params: _meta is a JSON object, or left out."
        raise RemoteProtocolError(message, code=INVALID_PARAMS, request_id=cast(RequestId | None, request_id))
    folded = folded_param(params)
    if folded is not None:
        message = f"Invalid request: the member {folded!r} could be taken for another of nearly the same name."
        raise RemoteProtocolError(message, request_id=cast(RequestId | None, request_id))
    if "id" in envelope:
        return Request(cast(RequestId, request_id), method, params)
    return Notification(method, params)


_NO_META: Final[Params] = {}
SHORT_ID: Final = 64
"""Characters, of four bytes each at most: an id that need not be measured."""


def _usual_request(envelope: Params) -> Request | None:
    """The request, if every member of it is one that we know: as nearly all are, and then no rule can be broken.

    What has a member of another name may only look like this one; what has a long id must be measured.
    """
    if envelope.keys() != REQUEST_MEMBERS or envelope["jsonrpc"] != "2.0":
        return None
    request_id, method, params = envelope["id"], envelope["method"], as_object(envelope["params"])
    if type(request_id) is int:
        if not -LARGEST_ID <= request_id <= LARGEST_ID:
            return None
    elif type(request_id) is not str or len(request_id) > SHORT_ID:
        return None
    if type(method) is not str or params is None or not params.keys() <= PLAIN_PARAMS:
        return None
    meta = as_object(params.get("_meta", _NO_META))
    if meta is None or not meta.keys() <= META_MEMBERS:
        return None
    return Request(request_id, method, params)


def is_notification(value: object, limits: Limits = DEFAULT_LIMITS) -> bool:
    """Whether a strictly parsed value is a notification: even one with bad params is never answered."""
    envelope = as_object(value)
    if envelope is None or "id" in envelope or "method" not in envelope:
        return False
    return _envelope_problem(envelope, limits) is None


def answered_id(value: object) -> RequestId | None:
    """The request that a strictly parsed value is the response to, however broken; None if it is no response."""
    envelope = as_object(value) or {}
    request_id = envelope.get("id")
    is_id = isinstance(request_id, str) or type(request_id) is int
    return cast(RequestId, request_id) if is_id and _is_response(envelope) else None


def decode_strict(data: bytes, limits: Limits = DEFAULT_LIMITS) -> Message:
    """The one message in `data`, as a client sends it. Raises as `parse_strict` and `read_message` do."""
    return read_message(parse_strict(data, limits), limits)


def _refusal(data: bytes, problem: str) -> RemoteProtocolError:
    code = PARSE_ERROR
    if problem.startswith(("Detected duplicate key", "recursion limit", "number out of range")):
        code = INVALID_REQUEST
    # Only the place of the fault is told: the parser's text may quote the input, which may hold a secret.
    at = problem.rpartition(" at ")[2]
    kind = {
        "Detected": "a member stands twice in one object",
        "recursion": "it is nested too deeply",
        "number": "a number is too long",
    }.get(problem.split(" ", 1)[0] if code == INVALID_REQUEST else "", "this is not one JSON value in UTF-8")
    title = "Invalid request" if code == INVALID_REQUEST else "Parse error"
    # An id that stands twice is no id: whoever answers to the first may end a request that was meant to go on.
    request_id = None if problem.startswith('Detected duplicate key "id"') else recover_request_id(data)
    return RemoteProtocolError(f"{title}: {kind} ({at}).", code=code, request_id=request_id)


def _request_id(envelope: Params, limits: Limits) -> RequestId | None:
    """The id under which a broken message is to be answered, or None if it names no request of the peer.

    The id in a response is one of ours: sent back, it would be taken for the answer to another request.
    """
    request_id = envelope.get("id")
    return None if _is_response(envelope) or _id_problem(request_id, limits) else cast(RequestId, request_id)


def _is_response(envelope: Params) -> bool:
    return "method" not in envelope and ("result" in envelope or "error" in envelope)


def _envelope_problem(envelope: Params, limits: Limits) -> str | None:
    if not envelope.keys() <= ENVELOPE_MEMBERS:
        folded = folded_member(envelope, ENVELOPE_MEMBERS)
        if folded is not None:
            return f"the member {folded!r} could be taken for another of nearly the same name"
    if envelope.get("jsonrpc") != "2.0":
        return 'jsonrpc is "2.0"'
    if "id" in envelope:
        problem = _id_problem(envelope["id"], limits)
        # A peer that could not read our id answers with null: the one place where null is right.
        if problem is not None and not (envelope["id"] is None and "error" in envelope and "method" not in envelope):
            return problem
    if "method" in envelope:
        if not isinstance(envelope["method"], str):
            return "method is a string"
        if "result" in envelope or "error" in envelope:
            return "a message is either a request or a response"
        return None
    if ("result" in envelope) == ("error" in envelope):
        return "a message has a method, or a result, or an error"
    if "id" not in envelope and "result" in envelope:
        return "a response has an id"
    return None


def _id_problem(request_id: object, limits: Limits) -> str | None:
    if isinstance(request_id, str):
        if len(request_id) > limits.id_bytes or len(request_id.encode()) > limits.id_bytes:
            return f"an id is no longer than {limits.id_bytes} bytes"
    elif type(request_id) is not int:
        return "an id is a string or an integer"
    elif not -LARGEST_ID <= request_id <= LARGEST_ID:
        return "an integer id is within ±(2^53−1)"
    return None


def _read_reply(envelope: Params) -> Reply:
    if "error" not in envelope:
        value = as_object(envelope["result"])
        if value is None:
            raise RemoteProtocolError("Invalid request: a result is a JSON object.")
        return Result(value)
    try:
        return msgspec.convert(envelope["error"], ErrorObject)
    except msgspec.ValidationError:
        raise RemoteProtocolError("Invalid request: an error has an integer code and a message.") from None
