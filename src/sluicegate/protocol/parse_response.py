"""Parsing of what servers send: an envelope around a payload that stays raw JSON.

An unreadable line becomes an `Unreadable` that says why, never an exception (R3, R5). What an envelope lacks is filled
in where its meaning is clear, and reported.
"""

from collections.abc import Callable
from functools import cache
from typing import Annotated, Final, Literal, cast

import msgspec

from sluicegate.errors import ErrorObject
from sluicegate.protocol.json_limits import DEFAULT_LIMITS, has_many_marks, rare_places
from sluicegate.protocol.message import (
    LARGE_RESULT,
    MAX_BATCH,
    MAX_CALL,
    MAX_ID,
    Message,
    Notification,
    Params,
    Request,
    RequestId,
    Response,
    Result,
    ToolText,
)
from sluicegate.protocol.parse_request import ENVELOPE_MEMBERS, folded_member, read_id, recover_id


class Unreadable(msgspec.Struct, frozen=True):
    """A line that is not a message. `id` is the request that it seems to answer, if any; that request fails at once."""

    problem: str
    id: RequestId | None = None


Mended = Callable[[str], None]
"""Gets `NO_VERSION` or `NO_RESULT` for each message that lacked it."""

NO_VERSION: Final = "messages without jsonrpc, read as 2.0"
NO_RESULT: Final = "answers without a result, read as empty ones"
MENDED: Final = (NO_VERSION, NO_RESULT)

_ABSENT: Final = (b"", b"null")


def _ignore(_: str) -> None:
    pass


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


def decode_tolerant(data: bytes, mended: Mended = _ignore) -> Message | Unreadable:
    """The one message in `data`; the value of a result stays raw."""
    try:
        if not data.isascii():
            # A raw payload is skipped, not decoded: without this check, bad UTF-8 would reach the client.
            str(data, "utf-8")
        return _read_envelope(data, _envelope_decoder.decode(data), mended)
    except msgspec.ValidationError:
        return Unreadable("is not a JSON object")
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Unreadable("is not one JSON value in UTF-8", recover_id(data))
    except RecursionError:
        return Unreadable("is nested too deeply", recover_id(data))


def decode_batch_tolerant(data: bytes, mended: Mended = _ignore) -> list[Message | Unreadable]:
    """The messages of a JSON array, which a server of 2025-03-26 may send; one `Unreadable` for an invalid array."""
    try:
        members = cast(tuple[msgspec.Raw, ...], msgspec.structs.astuple(_batch_decoder().decode(data)))
    except (msgspec.DecodeError, RecursionError) as error:
        if isinstance(error, msgspec.ValidationError) and data.lstrip()[:1] == b"[":
            return [Unreadable(f"is a batch of more than {MAX_BATCH} messages")]
        return [Unreadable("is not a readable JSON array")]
    return [decode_tolerant(bytes(member), mended) for member in members if member]


@cache
def _batch_decoder() -> msgspec.json.Decoder[msgspec.Struct]:
    # A Struct fails at the first member too many; a list would be parsed to its end.
    members = [(f"member{n}", msgspec.Raw, msgspec.Raw()) for n in range(MAX_BATCH)]
    return msgspec.json.Decoder(msgspec.defstruct("Batch", members, array_like=True, forbid_unknown_fields=True))


def _read_envelope(data: bytes, envelope: _Envelope, mended: Mended) -> Message | Unreadable:
    request_id = read_id(bytes(envelope.id))
    # The id of a server's own request is not one of our ids: it answers nothing.
    answered = None if envelope.method else request_id
    repeated, folded = _odd_members(data, envelope)
    if repeated:
        return Unreadable("has a member twice in its envelope", None if "id" in repeated else answered)
    if folded is not None:
        return Unreadable("has a member in its envelope that could be taken for another", answered)
    if envelope.jsonrpc and bytes(envelope.jsonrpc) != b'"2.0"':
        return Unreadable('has another "jsonrpc" than "2.0"', answered)
    if not envelope.jsonrpc:
        # A line of a log is JSON, too, and may have an id or a method such as GET.
        if not (envelope.result or envelope.error or b"/" in bytes(envelope.method)):
            return Unreadable('lacks "jsonrpc":"2.0"', answered)
        mended(NO_VERSION)
    if envelope.method:
        return _read_call(envelope, request_id)
    if request_id is None and bytes(envelope.id) not in _ABSENT:
        return Unreadable("has an id that is neither string nor integer")
    has_result, has_error = bytes(envelope.result) not in _ABSENT, bytes(envelope.error) not in _ABSENT
    if not has_result and not has_error and request_id is not None:
        mended(NO_RESULT)
        return Response(request_id, Result(msgspec.Raw(b"{}")))
    if has_error and not has_result:
        try:
            return Response(request_id, _error_decoder.decode(envelope.error))
        except msgspec.DecodeError:
            return Unreadable("has an error without code and message, or one that cannot be decoded", request_id)
    # A result is an object in every revision.
    if has_result and not has_error and request_id is not None and bytes(envelope.result)[:1] == b"{":
        return Response(request_id, Result(envelope.result))
    return Unreadable("is neither request, notification nor response", request_id)


def _read_call(envelope: _Envelope, request_id: RequestId | None) -> Message | Unreadable:
    # Unlike results, params are decoded, and a byte of JSON can take thirty bytes of memory.
    if len(envelope.params) > MAX_CALL or has_many_marks(bytes(envelope.params)):
        return Unreadable("is too long for a request or a notification")
    try:
        method = msgspec.json.decode(envelope.method, type=str)
        params = _params_decoder.decode(envelope.params) if bytes(envelope.params) not in _ABSENT else {}
    except msgspec.DecodeError:
        return Unreadable("has a method that is no string, or params that are no object")
    if not envelope.id:
        return Notification(method, params)
    return Unreadable("is a request with a bad id") if request_id is None else Request(request_id, method, params)


def _odd_members(data: bytes, envelope: _Envelope) -> tuple[set[str], str | None]:
    """The envelope members that occur twice (the decoder keeps the last, other parsers the first); and a look-alike."""
    size = 1
    for name in _Envelope.__struct_fields__:
        value = cast(msgspec.Raw, getattr(envelope, name))
        if value:
            size += len(name) + len(value) + 4  # two quotes, a colon, and a comma or brace
    # Compact output has room for exactly the members that were found. This holds for nearly every server.
    if len(data) == size:
        return set(), None
    folded = folded_member(_members_decoder.decode(data), ENVELOPE_MEMBERS)
    if b"\\u" not in data and all(data.count(b'"%s"' % name.encode()) <= 1 for name in _Envelope.__struct_fields__):
        return set(), folded
    names = _top_level_names(data)
    return {name for name in ENVELOPE_MEMBERS if names.count(name) > 1}, folded


def _top_level_names(data: bytes) -> list[str]:
    import json  # slow but certain; needed only for messages of unusual layout

    def names(pairs: list[tuple[str, object]]) -> list[str]:
        return [name for name, _ in pairs]

    # Numbers stay text: Python refuses to convert very long ones.
    return cast(list[str], json.loads(data, object_pairs_hook=names, parse_int=str, parse_float=str))


# ----------------------------------------------------------------------------------------- compact answers and progress


class _Answer(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    jsonrpc: Literal["2.0"]
    id: Annotated[int, msgspec.Meta(ge=-MAX_ID, le=MAX_ID)]
    result: msgspec.Raw


class _TextAnswer(msgspec.Struct, forbid_unknown_fields=True, gc=False):
    jsonrpc: Literal["2.0"]
    id: Annotated[int, msgspec.Meta(ge=-MAX_ID, le=MAX_ID)]
    result: ToolText


_decode_answer: Final = msgspec.json.Decoder(_Answer).decode
_decode_text_answer: Final = msgspec.json.Decoder(_TextAnswer).decode
_AROUND_ANSWER: Final = len(b'{"jsonrpc":"2.0","id":,"result":}')
_COMPACT: Final = (b'{"jsonrpc":"2.0",', b'{"result":{', b'{"id":')

# The official TypeScript SDK writes `jsonrpc` last, nearly all others write it first.
_BEFORE: Final = b'{"jsonrpc":"2.0","method":"notifications/progress","params":'
_BEFORE_IN_TYPESCRIPT: Final = b'{"method":"notifications/progress","params":'
_AFTER_IN_TYPESCRIPT: Final = b',"jsonrpc":"2.0"}'

_UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def read_answer(line: bytes) -> tuple[int, Result] | None:
    """The id and result of a successful answer to one of our requests; None for all that `decode_tolerant` must read.

    Only compact JSON is read here: it has room for each member of the envelope once, so no member can occur twice or
    fold to another. This takes a fifth of the time of the general envelope. A `ToolText` is decoded in the same pass.
    """
    if not line.startswith(_COMPACT):
        return None
    is_other = False
    try:
        if not line.isascii():
            str(line, "utf-8")  # The decoders skip raw members, and would not notice bad UTF-8 in them.
        if len(line) <= LARGE_RESULT or rare_places(line, b"{") is not None:
            try:
                said = _decode_text_answer(line)
            except msgspec.ValidationError:
                is_other = True
            else:
                text = said.result
                if len(line) == _AROUND_ANSWER + len(str(said.id)) + text.compact_size:
                    return said.id, Result(text)
        answer = _decode_answer(line)
    except _UNREADABLE:
        return None
    if len(line) != _AROUND_ANSWER + len(str(answer.id)) + len(answer.result):
        return None
    # A result is an object in every revision. Of the three members only it can end in a brace.
    is_object = line.endswith(b"}}") or line.startswith(b'{"result":{')
    return (answer.id, Result(answer.result, is_other=is_other)) if is_object else None


def read_result(body: bytes | None, request_id: int) -> Result | None:
    """The result in the body of a successful answer to a request; None for all that `decode_tolerant` must read."""
    answer = None if body is None else read_answer(body)
    return answer[1] if answer is not None and answer[0] == request_id else None


def read_progress(line: bytes) -> Params | None:
    """The params of a progress notification in compact JSON; None for all that `decode_tolerant` must read."""
    if line.startswith(_BEFORE) and line.endswith(b"}}"):
        params = line[len(_BEFORE) : -1]
    elif line.startswith(_BEFORE_IN_TYPESCRIPT) and line.endswith(_AFTER_IN_TYPESCRIPT):
        params = line[len(_BEFORE_IN_TYPESCRIPT) : -len(_AFTER_IN_TYPESCRIPT)]
    else:
        return None
    if len(line) > DEFAULT_LIMITS.marks:
        return None  # A shorter line cannot contain more marks than the limit.
    try:
        # One object with nothing behind it: the envelope has no other member.
        return _params_decoder.decode(params)
    except _UNREADABLE:
        return None
