"""Strict parsing of what clients send, within limits.

Policy must judge exactly the value that is forwarded. So duplicate members, names that fold to known ones, NaN and
lone surrogates are refused, and what is forwarded is encoded from the value parsed here (threats T1, T4).
"""

import re
import unicodedata
from collections.abc import Mapping
from functools import cache
from typing import Final, cast

import jiter
import msgspec

from sluicegate.errors import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, ErrorObject, RemoteProtocolError
from sluicegate.protocol.json_limits import (
    DEFAULT_LIMITS,
    MARKS,
    JsonLimits,
    Steps,
    count_marks,
    find_problem,
    finished,
    look_for_limits,
    outside_strings,
)
from sluicegate.protocol.message import (
    MAX_ID,
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


def parse_strict(data: bytes, limits: JsonLimits = DEFAULT_LIMITS) -> object:
    """The one JSON value in `data`, checked at every level.

    Raises:
        RemoteProtocolError: −32700 for invalid JSON, −32600 for duplicate members and exceeded limits.
    """
    return finished(parse_in_steps(data, limits))


def parse_in_steps(data: bytes, limits: JsonLimits = DEFAULT_LIMITS) -> Steps[object]:
    """The value of `parse_strict`, in steps; raises the same. The parser is one step: marks are counted before it."""
    if len(data) > limits.marks and (yield from count_marks(data, limits.marks)):
        problem = f"Invalid request: it has more than {limits.marks} {MARKS}."
        raise RemoteProtocolError(problem, request_id=recover_request_id(data))
    try:
        value = jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        raise _refusal(data, str(error)) from None
    if (yield from look_for_limits(data, limits)):
        limit = yield from find_problem(data, value, limits)
        if limit is not None:
            request_id = _request_id(as_object(value) or {}, limits)
            raise RemoteProtocolError(f"Invalid request: {limit}.", request_id=request_id)
    return value


def read_message(value: object, limits: JsonLimits = DEFAULT_LIMITS) -> Message:
    """The message in a strictly parsed value.

    Raises:
        RemoteProtocolError: −32600 for an invalid envelope, −32602 for params that are not an object.
    """
    if type(value) is not dict:
        raise RemoteProtocolError("Invalid request: a message is a JSON object.")
    envelope: Params = value  # pyright: ignore[reportUnknownVariableType]
    problem = _envelope_problem(envelope, limits)
    if problem is not None:
        raise RemoteProtocolError(f"Invalid request: {problem}.", request_id=_request_id(envelope, limits))
    request_id = cast(RequestId | None, envelope.get("id"))
    if "method" not in envelope:
        return Response(request_id, _read_reply(envelope))
    params: Params = envelope["params"] if "params" in envelope else {}  # pyright: ignore[reportAssignmentType]
    # Not `as_object`, here and above: every message of a client passes here.
    if type(params) is not dict or ("_meta" in params and type(params["_meta"]) is not dict):
        message = f"Invalid params: {'_meta' if type(params) is dict else 'params'} is a JSON object, or left out."
        raise RemoteProtocolError(message, code=INVALID_PARAMS, request_id=request_id)
    folded = folded_param(params)
    if folded is not None:
        message = f"Invalid request: the member {folded!r} could be taken for another of nearly the same name."
        raise RemoteProtocolError(message, request_id=request_id)
    method = cast(str, envelope["method"])
    return (
        Notification(method, params) if "id" not in envelope else Request(cast(RequestId, request_id), method, params)
    )


def is_notification(value: object, limits: JsonLimits = DEFAULT_LIMITS) -> bool:
    """Whether a strictly parsed value is a notification, which gets no answer even if its params are invalid."""
    envelope = as_object(value)
    if envelope is None or "id" in envelope or "method" not in envelope:
        return False
    return _envelope_problem(envelope, limits) is None


def answered_id(value: object) -> RequestId | None:
    """The id in a strictly parsed value that is a response, perhaps an invalid one; None if it is none."""
    envelope = as_object(value) or {}
    request_id = envelope.get("id")
    is_id = isinstance(request_id, str) or type(request_id) is int
    return cast(RequestId, request_id) if is_id and _is_response(envelope) else None


def decode_strict(data: bytes, limits: JsonLimits = DEFAULT_LIMITS) -> Message:
    """The one message in `data`. Raises as `parse_strict` and `read_message` do."""
    return read_message(parse_strict(data, limits), limits)


def _refusal(data: bytes, problem: str) -> RemoteProtocolError:
    code = PARSE_ERROR
    if problem.startswith(("Detected duplicate key", "recursion limit", "number out of range")):
        code = INVALID_REQUEST
    # Only the position is passed on: the parser's text may quote the input, which may contain a secret.
    at = problem.rpartition(" at ")[2]
    kind = {
        "Detected": "an object has the same member twice",
        "recursion": "it is nested too deeply",
        "number": "a number is too long",
    }.get(problem.split(" ", 1)[0] if code == INVALID_REQUEST else "", "this is not one JSON value in UTF-8")
    title = "Invalid request" if code == INVALID_REQUEST else "Parse error"
    # An id that occurs twice is not used: an answer to the wrong one could end another request.
    request_id = None if problem.startswith('Detected duplicate key "id"') else recover_request_id(data)
    return RemoteProtocolError(f"{title}: {kind} ({at}).", code=code, request_id=request_id)


def _request_id(envelope: Params, limits: JsonLimits) -> RequestId | None:
    """The id with which to answer an invalid message; None for responses, whose id is one of ours."""
    request_id = envelope.get("id")
    return None if _is_response(envelope) or _id_problem(request_id, limits) else cast(RequestId, request_id)


def _is_response(envelope: Params) -> bool:
    return "method" not in envelope and ("result" in envelope or "error" in envelope)


def _envelope_problem(envelope: Params, limits: JsonLimits) -> str | None:
    if not envelope.keys() <= ENVELOPE_MEMBERS:
        folded = folded_member(envelope, ENVELOPE_MEMBERS)
        if folded is not None:
            return f"the member {folded!r} could be taken for another of nearly the same name"
    if envelope.get("jsonrpc") != "2.0":
        return 'jsonrpc is "2.0"'
    if "id" in envelope:
        problem = _id_problem(envelope["id"], limits)
        # A peer that could not read our id answers with null. Only there null is valid.
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


def _id_problem(request_id: object, limits: JsonLimits) -> str | None:
    if isinstance(request_id, str):
        if len(request_id) > limits.id_bytes or len(request_id.encode()) > limits.id_bytes:
            return f"an id is no longer than {limits.id_bytes} bytes"
    elif type(request_id) is not int:
        return "an id is a string or an integer"
    elif not -MAX_ID <= request_id <= MAX_ID:
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


# ------------------------------------------------------------------------------------------------ names that look alike

ENVELOPE_MEMBERS: Final = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
_PARAM_MEMBERS: Final = frozenset(
    "_meta arguments argument capabilities clientInfo context cursor data inputResponses level logger message name"
    " notifications progress progressToken protocolVersion reason ref requestId requestState task taskId total"
    " uri".split()
)
META_MEMBERS: Final = frozenset(
    {"progressToken"}
    | {f"io.modelcontextprotocol/{n}" for n in ("protocolVersion", "clientCapabilities", "clientInfo", "logLevel")}
)
# Objects inside params whose members policy and routing read.
_INNER_MEMBERS: Final = {
    "_meta": META_MEMBERS,
    "ref": frozenset({"type", "name", "uri"}),
    "notifications": frozenset(
        {"toolsListChanged", "promptsListChanged", "resourcesListChanged", "resourceSubscriptions"}
    ),
}


def folded_param(params: Params) -> str | None:
    """The first name in the params, or in the objects in them that policy reads, that could be taken for another."""
    folded = None if params.keys() <= _PARAM_MEMBERS else folded_member(params, _PARAM_MEMBERS)
    for name, known in _INNER_MEMBERS.items():
        if folded is None and name in params:
            inner: Params = params[name]  # pyright: ignore[reportAssignmentType]
            if type(inner) is dict and not inner.keys() <= known:
                folded = folded_member(inner, known)
    return folded


def folded_member(members: Mapping[str, object], known: frozenset[str]) -> str | None:
    """The first name that is not in `known` but equals one of them after folding, or None.

    Nearly all messages have known names only: their readers look for others before they call this.
    """
    for name in members:
        if name not in known and _folded(name) in _all_folded(known):
            return name
    return None


def _folded(name: str) -> str:
    visible = _UNSEEN.sub("", name)
    # Folding never makes a name shorter, and normalizing a long run of combining marks takes quadratic time (T4).
    if len(visible) > _MAX_MEMBER:
        return ""
    return visible.lower() if visible.isascii() else unicodedata.normalize("NFKC", visible).casefold()


# Whitespace, control characters, and the default-ignorable code points of Unicode.
_UNSEEN: Final = re.compile(
    "[\\s\x00-\x20\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
_MAX_MEMBER: Final = max(map(len, ENVELOPE_MEMBERS.union(_PARAM_MEMBERS, *_INNER_MEMBERS.values())))


@cache
def _all_folded(known: frozenset[str]) -> frozenset[str]:
    return frozenset(name.casefold() for name in known)


# ------------------------------------------------------------------------------------------- ids of unreadable messages

# Possessive: megabytes of blanks must not be tried again from each place.
_VERSION: Final = rb'\s*+\{\s*+(?:"jsonrpc"\s*+:\s*+"2\.0"\s*+,\s*+)?'
_ID: Final = rb'"id"\s*+:\s*+(-?[0-9]{1,16}|"[^"\\]{0,256}")\s*+'
_request_in_front: Final = re.compile(_VERSION + rb'(?:"method"\s*+:\s*+"[^"\\]*"\s*+,\s*+)?' + _ID + rb"[,}]")
_answer_in_front: Final = re.compile(_VERSION + _ID + rb',\s*+(?:"jsonrpc"\s*+:\s*+"2\.0"\s*+,\s*+)?"(?:result|error)"')
_answer_begins: Final = re.compile(_VERSION + rb'"(?:result|error)"')
_id_at_end: Final = re.compile(rb",\s*+" + _ID + rb"\}\s*+$")
_MAX_STRINGS: Final = 20_000
_integer: Final = re.compile(rb"-?(?:0|[1-9][0-9]{0,15})")


def recover_id(data: bytes) -> RequestId | None:
    """The id of the request that an unreadable response answers, if it is among the first members or the last one.

    Anywhere else an `"id"` may belong to something inside, and a wrong guess would end another call.
    """
    front = _answer_in_front.match(data)
    return _recover(data, front) if front or _answer_begins.match(data) else None


def recover_request_id(data: bytes) -> RequestId | None:
    """The id of an unreadable request, if it is among the first members or the last one."""
    if _answer_in_front.match(data) or _answer_begins.match(data):
        return None
    return _recover(data, _request_in_front.match(data))


def _recover(data: bytes, front: re.Match[bytes] | None) -> RequestId | None:
    end = _id_at_end.search(data[-400:])
    if end is not None and not _is_balanced(data):
        end = None  # the data is truncated, and this is the end of something inside
    found = front or end
    if found is None or (front is not None and end is not None and front[1] != end[1]):
        return None
    try:
        return read_id(found[1])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _is_balanced(data: bytes) -> bool:
    """Whether all brackets are closed; False if there are too many strings to find out quickly."""
    braces = brackets = 0
    for count, piece in enumerate(outside_strings(data)):
        if count > _MAX_STRINGS:
            return False
        braces += piece.count(b"{") - piece.count(b"}")
        brackets += piece.count(b"[") - piece.count(b"]")
    return braces == brackets == 0


def read_id(raw: bytes) -> RequestId | None:
    """The id in these bytes, or None if it is invalid."""
    if raw[:1] == b'"':
        return msgspec.json.decode(raw, type=str)
    if not _integer.fullmatch(raw):
        return None
    value = int(raw)
    return value if -MAX_ID <= value <= MAX_ID else None
