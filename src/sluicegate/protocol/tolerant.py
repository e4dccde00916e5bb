"""What a server sends: read tolerantly. Only its envelope is opened, the payload of an answer stays bytes, and a line
that cannot be read is a value that says why, never an exception (R3, R5).
"""

from functools import cache
from typing import Final, cast

import msgspec

from sluicegate.errors import ErrorObject
from sluicegate.protocol.bounds import DEFAULT_LIMITS, has_many_marks
from sluicegate.protocol.lookalikes import ENVELOPE_MEMBERS, folded_member
from sluicegate.protocol.message import (
    LARGEST_CALL,
    LONGEST_BATCH,
    Message,
    Notification,
    Params,
    Request,
    RequestId,
    Response,
    Result,
)
from sluicegate.protocol.recovery import read_id, recover_id


class Unreadable(msgspec.Struct, frozen=True):
    """A server's line that is no message. `id` is the request it seems to answer, so that its caller need not wait."""

    problem: str
    id: RequestId | None = None


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
    request_id = read_id(bytes(envelope.id))
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
        params = _params_decoder.decode(envelope.params) if bytes(envelope.params) not in (b"", b"null") else {}
    except msgspec.DecodeError:
        return Unreadable("has a method that is no string, or params that are no object")
    if not envelope.id:
        return Notification(method, params)
    return Unreadable("is a request with a bad id") if request_id is None else Request(request_id, method, params)


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
    folded = folded_member(_members_decoder.decode(data), ENVELOPE_MEMBERS)
    if b"\\u" not in data and all(data.count(b'"%s"' % name.encode()) <= 1 for name in _Envelope.__struct_fields__):
        return set(), folded
    names = _top_level_names(data)
    return {name for name in ENVELOPE_MEMBERS if names.count(name) > 1}, folded


def _top_level_names(data: bytes) -> list[str]:
    import json  # the slow and certain way, taken only by messages of unusual layout

    def names(pairs: list[tuple[str, object]]) -> list[str]:
        return [name for name, _ in pairs]

    # Numbers stay text: Python refuses to convert very long ones.
    return cast(list[str], json.loads(data, object_pairs_hook=names, parse_int=str, parse_float=str))
