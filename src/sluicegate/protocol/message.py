"""The JSON-RPC envelope: requests, notifications and responses, decoded and encoded.

Two readers for two kinds of peer. What a *client* sends is parsed in full, once, strictly, because policy must read
the very value that is forwarded (threats T1, T4). What a *server* sends is read tolerantly: only its envelope is
opened, the payload of an answer stays bytes, and a line that cannot be read is a value that says why, never an
exception.
"""

import math
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Final, cast

import jiter
import msgspec

from sluicegate.errors import INVALID_PARAMS, INVALID_REQUEST, PARSE_ERROR, ErrorObject, RemoteProtocolError

RequestId = str | int
Params = dict[str, object]

LARGEST_ID: Final = 2**53 - 1
LARGEST_CALL: Final = 4 << 20
"""Bytes of params that a server's own request or notification may have; a client's body has the same limit."""
LONGEST_BATCH: Final = 1000
"""Messages that one JSON array may hold: a line of ones is a gigabyte of them, or of refusals."""


def as_object(value: object) -> Params | None:
    """The value if it is a JSON object, else None: for peers' data, of which nothing is certain."""
    # Without `cast`, which is a call: this is asked a dozen times of every message.
    return value if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType]


def as_array(value: object) -> list[object] | None:
    """The value if it is a JSON array, else None."""
    return cast(list[object], value) if isinstance(value, list) else None


# The tag is what makes these two messages of JSON-RPC when they are encoded.


class Request(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """Something that is owed an answer under the same id."""

    id: RequestId
    method: str
    params: Params


class Notification(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """Something that is never answered."""

    method: str
    params: Params


class Result(msgspec.Struct, frozen=True):
    """A successful reply. `value` is a plain dict where we made or opened it, and bytes where nobody looked inside."""

    value: msgspec.Raw | Mapping[str, object]


Reply = Result | ErrorObject
"""What answers a request, before it has an id."""


class Response(msgspec.Struct, frozen=True):
    """A reply on the wire. The id is None only for errors about messages whose id could not be read."""

    id: RequestId | None
    reply: Reply


Message = Request | Notification | Response


class Limits(msgspec.Struct, frozen=True):
    """How much of a client's message is read before it is refused (threats §3)."""

    depth: int = 100
    members: int = 10_000
    marks: int = 100_000
    """Commas, colons and opening brackets outside of strings: what there is to be built. Three bytes of JSON (`[],`)
    are eighty of Python, so this is counted before anything is parsed; so many are 8 MiB at most.
    """
    number_length: int = 256
    id_bytes: int = 256


class Unreadable(msgspec.Struct, frozen=True):
    """A server's line that is no message. `id` is the request it seems to answer, so that its caller need not wait."""

    problem: str
    id: RequestId | None = None


DEFAULT_LIMITS: Final = Limits()

# ---------------------------------------------------------------------------------------------- what clients send:
# strict


def parse_strict(data: bytes, limits: Limits = DEFAULT_LIMITS) -> object:
    """The one JSON value in `data`, every level of it checked.

    Raises:
        RemoteProtocolError: −32700 for what is not JSON, −32600 for duplicate members and for what is over a limit.
    """
    if has_many_marks(data, limits.marks):
        problem = f"Invalid request: it holds more than {limits.marks} commas, colons and brackets."
        raise RemoteProtocolError(problem, request_id=recover_request_id(data))
    try:
        value: object = jiter.from_json(data, allow_inf_nan=False, catch_duplicate_keys=True)
    except ValueError as error:
        raise _refusal(data, str(error)) from None
    # The parser knows no limits of ours. Counting bytes is cheap and clears nearly every message; only a message that
    # has enough brackets, colons or digits to break a limit is walked through.
    shapes = data.translate(_SHAPES)
    if (
        shapes.count(b"[") > limits.depth
        or (len(data) > limits.members and data.count(b":") > limits.members)
        or (b"0e" in shapes and _may_overflow(shapes))
        or _may_have_long_number(data, min(_SAFE_NUMBER, limits.number_length))
    ):
        problem = _limit_problem(data, value, limits)
        if problem is not None:
            request_id = _request_id(as_object(value) or {}, limits)
            raise RemoteProtocolError(f"Invalid request: {problem}.", request_id=request_id)
    return value


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
    folded = _folded_param(params)
    if folded is not None:
        message = f"Invalid request: the member {folded!r} could be taken for another of nearly the same name."
        raise RemoteProtocolError(message, request_id=cast(RequestId | None, request_id))
    if "id" in envelope:
        return Request(cast(RequestId, request_id), method, params)
    return Notification(method, params)


def _usual_request(envelope: Params) -> Request | None:
    """The request, if every member of it is one that we know: as nearly all are, and then no rule can be broken.

    What has a member of another name may only look like this one; what has a long id must be measured.
    """
    if envelope.keys() != _REQUEST_MEMBERS or envelope["jsonrpc"] != "2.0":
        return None
    request_id, method, params = envelope["id"], envelope["method"], as_object(envelope["params"])
    if type(request_id) is int:
        if not -LARGEST_ID <= request_id <= LARGEST_ID:
            return None
    elif type(request_id) is not str or len(request_id) > _SHORT_ID:
        return None
    if type(method) is not str or params is None or not params.keys() <= _PLAIN_PARAMS:
        return None
    meta = as_object(params.get("_meta", _NO_META))
    if meta is None or not meta.keys() <= _META_MEMBERS:
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


_ENVELOPE_MEMBERS: Final = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
_PARAM_MEMBERS: Final = frozenset(
    "_meta arguments argument capabilities clientInfo context cursor data inputResponses level logger message name"
    " notifications progress progressToken protocolVersion reason ref requestId requestState task taskId total"
    " uri".split()
)
_META_MEMBERS: Final = frozenset(
    {"progressToken"}
    | {f"io.modelcontextprotocol/{n}" for n in ("protocolVersion", "clientCapabilities", "clientInfo", "logLevel")}
)
# The objects inside params whose members say what a request is about, so that policy and routing read them too.
_INNER_MEMBERS: Final = {
    "_meta": _META_MEMBERS,
    "ref": frozenset({"type", "name", "uri"}),
    "notifications": frozenset(
        {"toolsListChanged", "promptsListChanged", "resourcesListChanged", "resourceSubscriptions"}
    ),
}
_REQUEST_MEMBERS: Final = frozenset({"jsonrpc", "id", "method", "params"})
_PLAIN_PARAMS: Final = _PARAM_MEMBERS - (_INNER_MEMBERS.keys() - {"_meta"})
_NO_META: Final[Params] = {}
_SHORT_ID: Final = 64  # Characters: four bytes each at most.
# A number that overflows a double would silently become infinity. That takes three exponent digits, or more characters
# than these.
_SAFE_NUMBER: Final = 200
_SHAPE: Final = {**dict.fromkeys(b"0123456789", b"0"), **dict.fromkeys(b"eE", b"e"), **dict.fromkeys(b"[{", b"[")}
_SHAPES: Final = b"".join(_SHAPE.get(byte, b"+" if byte == ord("+") else b" ") for byte in range(256))
# A string without an end reaches to the end of the data, so that nothing is ever looked through twice.
_STRING: Final = rb'"(?:[^"\\]++|\\.)*+"?'
_up_to_string: Final = re.compile(rb'([^"]*+)(?:%b)?' % _STRING, re.DOTALL)
_IN_NUMBER: Final = rb"[0-9.eE+-]"
_number_patterns: Final[dict[int, re.Pattern[bytes]]] = {}


def has_many_marks(data: bytes, most: int) -> bool:
    """Whether more than `most` commas, colons and opening brackets stand in the data, outside of strings."""
    # Nearly always there are too few of them even with those in strings.
    if len(data) <= most or _marks(data) <= most:
        return False
    found = 0
    for piece in _outside_strings(data):
        found += _marks(piece)
        if found > most:
            return True
    return False


def _marks(data: bytes) -> int:
    return data.count(b",") + data.count(b":") + data.count(b"[") + data.count(b"{")


def _outside_strings(data: bytes) -> Iterator[bytes]:
    """What stands between strings, piece by piece: to keep them all could take more room than the data itself."""
    return (found[1] for found in _up_to_string.finditer(data))


def _may_overflow(shapes: bytes) -> bool:
    """Whether somewhere stands what could be a number with three exponent digits. (Faster than a pattern.)"""
    return b"0e000" in shapes or b"0e+000" in shapes


def _may_have_long_number(data: bytes, limit: int) -> bool:
    """Whether somewhere more than `limit` bytes in a row could be those of a number; strings are not told apart."""
    if len(data) <= limit:
        return False
    # Of so many in a row, several of every n-th byte are next to each other: far fewer bytes to look at.
    step = (limit + 9) // 10
    pattern = _number_patterns.get(limit)
    if pattern is None:
        pattern = _number_patterns[limit] = re.compile(_IN_NUMBER + rb"{%d}" % ((limit + 1) // step))
    return pattern.search(data[::step]) is not None


def _has_long_number(data: bytes, limit: int) -> bool:
    # Looked for from where a number begins only: from every digit on, it would be looked through again and again.
    number = rb"(%b(?<!%b%b)%b{%d})" % (_IN_NUMBER, _IN_NUMBER, _IN_NUMBER, _IN_NUMBER, limit)
    return any(token[1] for token in re.finditer(_STRING + b"|" + number, data, re.DOTALL))


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


def _limit_problem(data: bytes, value: object, limits: Limits) -> str | None:
    """What of a value is over a limit: all of it is walked through, without recursion."""
    # How a number was written is seen in the data only.
    limit = limits.number_length
    if _may_have_long_number(data, limit) and _has_long_number(data, limit):
        return f"a number is longer than {limit} characters"
    level: list[object] = [value]
    depth = 0
    while level:
        inner: list[object] = []
        for item in level:
            if isinstance(item, dict):
                members = cast(Params, item)
                if len(members) > limits.members:
                    return f"an object has more than {limits.members} members"
                inner.extend(members.values())
            elif isinstance(item, list):
                inner.extend(cast(list[object], item))
            elif isinstance(item, float) and math.isinf(item):
                return "a number is too large"
        # An empty container on the next level counts as a level: depth is what is written, not what is held.
        depth += any(isinstance(item, dict | list) for item in level)
        if depth > limits.depth:
            return f"it is nested more than {limits.depth} levels deep"
        level = inner
    return None


def _request_id(envelope: Params, limits: Limits) -> RequestId | None:
    """The id under which a broken message is to be answered, or None if it names no request of the peer.

    The id in a response is one of ours: sent back, it would be taken for the answer to another request.
    """
    request_id = envelope.get("id")
    return None if _is_response(envelope) or _id_problem(request_id, limits) else cast(RequestId, request_id)


def _is_response(envelope: Params) -> bool:
    return "method" not in envelope and ("result" in envelope or "error" in envelope)


def _envelope_problem(envelope: Params, limits: Limits) -> str | None:
    if not envelope.keys() <= _ENVELOPE_MEMBERS:
        folded = _folded_member(envelope, _ENVELOPE_MEMBERS)
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


def _folded_param(params: Params) -> str | None:
    folded = _folded_member(params, _PARAM_MEMBERS)
    for name, known in _INNER_MEMBERS.items():
        if folded is None and name in params:
            folded = _folded_member(as_object(params[name]) or {}, known)
    return folded


def _folded_member(members: Iterable[str], known: frozenset[str]) -> str | None:
    """The first name that is none of `known` but looks like one after folding case, width and all that is not seen."""
    for name in members:
        if name not in known and _folded(name) in _all_folded(known):
            return name
    return None


def _folded(name: str) -> str:
    visible = _UNSEEN.sub("", name)
    # Folding never makes a name shorter, and normalizing a long run of combining marks takes quadratic time (T4).
    if len(visible) > _LONGEST_MEMBER:
        return ""
    return visible.lower() if visible.isascii() else unicodedata.normalize("NFKC", visible).casefold()


# Blanks, control characters, and what Unicode lists as ignorable by default.
_UNSEEN: Final = re.compile(
    "[\\s\x00-\x20\x7f-\x9f\xad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u2028-\u202e\u2060-\u206f"
    "\u3164\ufe00-\ufe0f\ufeff\uffa0\ufff0-\ufff8\U0001bca0-\U0001bca3\U0001d173-\U0001d17a\U000e0000-\U000e0fff]+"
)
_LONGEST_MEMBER: Final = max(map(len, _ENVELOPE_MEMBERS.union(_PARAM_MEMBERS, *_INNER_MEMBERS.values())))
_folded_names: Final[dict[frozenset[str], frozenset[str]]] = {}


def _all_folded(known: frozenset[str]) -> frozenset[str]:
    names = _folded_names.get(known)
    if names is None:
        names = _folded_names[known] = frozenset(name.casefold() for name in known)
    return names


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


# ------------------------------------------------------------------------------------------- what servers send:
# tolerant


class _Envelope(msgspec.Struct):
    jsonrpc: msgspec.Raw = msgspec.Raw(b"")
    id: msgspec.Raw = msgspec.Raw(b"")
    method: msgspec.Raw = msgspec.Raw(b"")
    params: msgspec.Raw = msgspec.Raw(b"")
    result: msgspec.Raw = msgspec.Raw(b"")
    error: msgspec.Raw = msgspec.Raw(b"")


_envelope_decoder: Final = msgspec.json.Decoder(_Envelope)
_error_decoder: Final = msgspec.json.Decoder(ErrorObject)
_params_decoder: Final = msgspec.json.Decoder(Params)
_members_decoder: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_integer: Final = re.compile(rb"-?(?:0|[1-9][0-9]{0,15})")


def decode_tolerant(data: bytes) -> Message | Unreadable:
    """The one message in `data`, as a server sends it; the value of a result is left as bytes."""
    try:
        if not data.isascii():
            # A raw payload is skipped over, not decoded, so nobody else would notice bad UTF-8 before a client does.
            str(data, "utf-8")
        return _read_envelope(data, _envelope_decoder.decode(data))
    except msgspec.ValidationError:
        return Unreadable("is not a JSON object")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Unreadable("is not one JSON value in UTF-8", recover_id(data))
    except RecursionError:
        return Unreadable("is nested too deeply", recover_id(data))


def decode_batch_tolerant(data: bytes) -> list[Message | Unreadable]:
    """The messages of a JSON array, which a server of 2025-03-26 may send; the array's own fault is one Unreadable."""
    try:
        members = cast(tuple[msgspec.Raw, ...], msgspec.structs.astuple(_batch_decoder().decode(data)))
    except (msgspec.DecodeError, RecursionError) as error:
        if isinstance(error, msgspec.ValidationError) and data.lstrip()[:1] == b"[":
            return [Unreadable(f"is a batch of more than {LONGEST_BATCH} messages")]
        return [Unreadable("is not a readable JSON array")]
    return [decode_tolerant(bytes(member)) for member in members if member]


@cache
def _batch_decoder() -> msgspec.json.Decoder[msgspec.Struct]:
    # An array read as a Struct is given up at the first member too many; read as a list it would be read to its end.
    members = [(f"member{n}", msgspec.Raw, msgspec.Raw()) for n in range(LONGEST_BATCH)]
    return msgspec.json.Decoder(msgspec.defstruct("Batch", members, array_like=True, forbid_unknown_fields=True))


def _read_envelope(data: bytes, envelope: _Envelope) -> Message | Unreadable:
    request_id = _read_id(bytes(envelope.id))
    # The id of a server's own request is from another count than ours: it answers nobody.
    answered = None if envelope.method else request_id
    repeated, folded = _odd_members(data, envelope)
    if repeated:
        return Unreadable("has a member twice in its envelope", None if "id" in repeated else answered)
    if folded is not None:
        return Unreadable("has a member in its envelope that could be taken for another", answered)
    if bytes(envelope.jsonrpc) != b'"2.0"':
        return Unreadable('lacks "jsonrpc":"2.0"', answered)
    if envelope.method:
        return _read_call(envelope, request_id)
    if request_id is None and bytes(envelope.id) not in (b"", b"null"):
        return Unreadable("has an id that is neither string nor integer")
    if envelope.error and not envelope.result:
        try:
            return Response(request_id, _error_decoder.decode(envelope.error))
        except msgspec.DecodeError:
            return Unreadable("has an error without code and message, or one that cannot be decoded", request_id)
    # A result is an object in every revision; anything else cannot be handed on as one.
    if envelope.result and not envelope.error and request_id is not None and bytes(envelope.result)[:1] == b"{":
        return Response(request_id, Result(envelope.result))
    return Unreadable("is neither request, notification nor response", request_id)


def _read_call(envelope: _Envelope, request_id: RequestId | None) -> Message | Unreadable:
    # Answers stay bytes, but this is decoded, and a byte of JSON can be thirty of Python.
    if len(envelope.params) > LARGEST_CALL or has_many_marks(bytes(envelope.params), DEFAULT_LIMITS.marks):
        return Unreadable("is too long for a request or a notification")
    try:
        method = msgspec.json.decode(envelope.method, type=str)
        params = _params_decoder.decode(envelope.params) if envelope.params else {}
    except msgspec.DecodeError:
        return Unreadable("has a method that is no string, or params that are no object")
    if not envelope.id:
        return Notification(method, params)
    return Unreadable("is a request with a bad id") if request_id is None else Request(request_id, method, params)


def _read_id(raw: bytes) -> RequestId | None:
    if raw[:1] == b'"':
        return msgspec.json.decode(raw, type=str)
    if not _integer.fullmatch(raw):
        return None
    value = int(raw)
    return value if -LARGEST_ID <= value <= LARGEST_ID else None


def _odd_members(data: bytes, envelope: _Envelope) -> tuple[set[str], str | None]:
    """The envelope members that stand twice, for the decoder keeps the last one and another parser may keep the first;
    and a member that is none but looks like one.
    """
    size = 1
    for name in _Envelope.__struct_fields__:
        value = cast(msgspec.Raw, getattr(envelope, name))
        if value:
            size += len(name) + len(value) + 4  # two quotes, a colon, and a comma or brace
    # Compact output has room for exactly the members that were found. This holds for nearly every server.
    if len(data) == size:
        return set(), None
    folded = _folded_member(_members_decoder.decode(data), _ENVELOPE_MEMBERS)
    if b"\\u" not in data and all(data.count(b'"%s"' % name.encode()) <= 1 for name in _Envelope.__struct_fields__):
        return set(), folded
    names = _top_level_names(data)
    return {name for name in _ENVELOPE_MEMBERS if names.count(name) > 1}, folded


def _top_level_names(data: bytes) -> list[str]:
    import json  # the slow and certain way, taken only by messages of unusual layout

    def names(pairs: list[tuple[str, object]]) -> list[str]:
        return [name for name, _ in pairs]

    # Numbers stay text: Python refuses to convert very long ones.
    return cast(list[str], json.loads(data, object_pairs_hook=names, parse_int=str, parse_float=str))


_VERSION: Final = rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
_ID: Final = rb'"id"\s*:\s*(-?[0-9]{1,16}|"[^"\\]{0,256}")\s*'
_request_in_front: Final = re.compile(_VERSION + rb'(?:"method"\s*:\s*"[^"\\]*"\s*,\s*)?' + _ID + rb"[,}]")
_answer_in_front: Final = re.compile(_VERSION + _ID + rb',\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"(?:result|error)"')
_answer_begins: Final = re.compile(_VERSION + rb'"(?:result|error)"')
_id_at_end: Final = re.compile(rb",\s*" + _ID + rb"\}\s*$")
_MOST_STRINGS: Final = 20_000


def recover_id(data: bytes) -> RequestId | None:
    """The request that a server's unreadable answer is for, if its id stands where peers write it: in front, or last.

    Deeper inside, an `"id"` may belong to anything, and in a request of the server it is from another count than ours:
    a wrong guess would end somebody else's call.
    """
    front = _answer_in_front.match(data)
    return _recover(data, front) if front or _answer_begins.match(data) else None


def recover_request_id(data: bytes) -> RequestId | None:
    """The id of a client's unreadable request, if it stands where peers write it: in front, or as the last member."""
    if _answer_in_front.match(data) or _answer_begins.match(data):
        return None
    return _recover(data, _request_in_front.match(data))


def _recover(data: bytes, front: re.Match[bytes] | None) -> RequestId | None:
    end = _id_at_end.search(data[-400:])
    if end is not None and not _is_balanced(data):
        end = None  # the data breaks off, and this is the end of something inside
    found = front or end
    if found is None or (front is not None and end is not None and front[1] != end[1]):
        return None
    try:
        return _read_id(found[1])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _is_balanced(data: bytes) -> bool:
    """Whether all brackets are closed; not if there are so many strings that to see it would hold up everybody else."""
    braces = brackets = 0
    for count, piece in enumerate(_outside_strings(data)):
        if count > _MOST_STRINGS:
            return False
        braces += piece.count(b"{") - piece.count(b"}")
        brackets += piece.count(b"[") - piece.count(b"]")
    return braces == brackets == 0


# ------------------------------------------------------------------------------------------------------------- what
# we send


class _ResultWire(msgspec.Struct):
    jsonrpc: str
    id: RequestId | None
    result: object


class _ErrorWire(msgspec.Struct):
    jsonrpc: str
    id: RequestId | None
    error: ErrorObject


_encode: Final = msgspec.json.Encoder().encode


def encode(message: Message) -> bytes:
    """The bytes of one message, on one line unless a raw payload brought newlines along (framing takes those out)."""
    if isinstance(message, Response):
        return encode_reply(message.id, message.reply)
    return _encode(message)


def encode_reply(request_id: RequestId | None, reply: Reply) -> bytes:
    """The bytes of the response that a reply is under an id."""
    if isinstance(reply, Result):
        return _encode(_ResultWire("2.0", request_id, reply.value))
    return _encode(_ErrorWire("2.0", request_id, reply))


def encode_batch(responses: Iterable[Response]) -> bytes:
    """The bytes of a JSON array of responses, for the one revision that has batches."""
    return b"[" + b",".join(encode(response) for response in responses) + b"]"


def mentions(data: bytes, beginnings: tuple[bytes, ...]) -> bool:
    """Whether a string of this JSON begins with one of these, which include the quote: cheap, so that nearly all
    payloads need not be opened.
    """
    # A long text has few quotes, and to look for these alone takes a tenth of the time.
    if len(data) < 4096 or data.count(b'"') * 64 > len(data):
        for beginning in beginnings:  # A generator for `any` would take longer than the search.
            if beginning in data:
                return True
        return False
    at = data.find(b'"')
    while at >= 0 and not data.startswith(beginnings, at):
        at = data.find(b'"', at + 1)
    return at >= 0


def opened(result: Result) -> Params:
    """The value of a result as a dict, decoded if it is still bytes.

    Raises:
        RemoteProtocolError: the bytes hold something that cannot be decoded, such as a number out of range.
    """
    if not isinstance(result.value, msgspec.Raw):
        return dict(result.value)
    try:
        return _params_decoder.decode(result.value)
    except (msgspec.DecodeError, RecursionError):
        raise RemoteProtocolError("The answer's result cannot be decoded.") from None
