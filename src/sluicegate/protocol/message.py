"""The messages of JSON-RPC as values, and the bytes that we send. Those of peers: see `strict` and `tolerant`."""

import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final, cast, final

import msgspec

from sluicegate.errors import ErrorObject, RemoteProtocolError

RequestId = str | int
Params = dict[str, object]
LARGEST_ID: Final = 2**53 - 1
LARGEST_CALL: Final = 4 << 20
"""Bytes of params that a server's own request or notification may have; a client's body has the same limit."""
LONGEST_BATCH: Final = 1000
"""Messages that one JSON array may hold: a line of ones is a gigabyte of them, or of refusals."""
LONG: Final = 4096
"""Bytes from which on it pays to look for the quotes of a JSON first."""


def as_object(value: object) -> Params | None:
    """The value if it is a JSON object, else None: for peers' data, of which nothing is certain."""
    # Without `cast`, which is a call: this is asked a dozen times of every message.
    return value if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType]


def as_array(value: object) -> list[object] | None:
    """The value if it is a JSON array, else None."""
    return cast(list[object], value) if isinstance(value, list) else None


class Request(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """Something that is owed an answer under the same id."""

    id: RequestId
    method: str
    params: Params


class Notification(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """Something that is never answered."""

    method: str
    params: Params


MARK: Final = b'"resultType":"complete",'
"""What 2026-07-28 has in every final result, as nearly everybody writes it."""


class Words(msgspec.Struct, frozen=True, gc=False):
    """That a result, of which the bytes are left as they came, is of the words of a tool.

    It is final, compact, and has texts for content, perhaps an object of the same meaning, perhaps whether the tool
    failed, once each. Else there is nothing in it but what 2026-07-28 adds: the mark, and who says it.
    """

    begin: int
    """Where the members begin that older revisions have, too."""
    end: int
    is_marked: bool
    """Whether it says that it is final, in front of these, behind, or among them."""
    mark: int
    """Where it does, behind a comma, if that is behind the beginning; else 0."""
    is_structured: bool
    failed: bool


class Result(msgspec.Struct, frozen=True):
    """A successful reply. `value` is a plain dict where we made or opened it, and bytes where nobody looked inside."""

    value: msgspec.Raw | Mapping[str, object]
    is_final: bool = False
    """Whether somebody has seen that it asks for nothing, so that nobody has to look again."""
    words: Words | None = None
    """Of one that came as bytes and was seen to be nothing but words of a tool, if it answers a call."""


Reply = Result | ErrorObject
"""What answers a request, before it has an id."""


@final
class Response(msgspec.Struct, frozen=True):
    """A reply on the wire. The id is None only for errors about messages whose id could not be read."""

    id: RequestId | None
    reply: Reply


Message = Request | Notification | Response
_params_decoder: Final = msgspec.json.Decoder(Params)


class _ResultWire(msgspec.Struct):
    jsonrpc: str
    id: RequestId | None
    result: object


class _ErrorWire(msgspec.Struct):
    jsonrpc: str
    id: RequestId | None
    error: ErrorObject


_encode: Final = msgspec.json.Encoder().encode
encode_plain: Final[Callable[[Request | Notification | Mapping[str, object]], bytes]] = _encode
"""As `encode`, for whoever knows that it is no response."""


def encode(message: Message | Mapping[str, object]) -> bytes:
    """The bytes of one message, or of a part of one.

    They are on one line unless a raw payload brought newlines along (framing takes those out).
    """
    if type(message) is Response:
        return encode_reply(message.id, message.reply)
    return encode_plain(message)


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
    quotes = few_quotes(data)
    if quotes is not None:
        for at in quotes:
            if data.startswith(beginnings, at):
                return True
        return False
    for beginning in beginnings:  # A generator for `any` would take longer than the search.
        if beginning in data:
            return True
    return False


def few_quotes(data: bytes) -> list[int] | None:
    """Where the quotes of a long JSON stand if they are few, as in a long text: then to look at these alone takes a
    hundredth of the time. None if it is short, or has many.
    """
    if len(data) < LONG:
        return None
    places: list[int] = []
    at = data.find(b'"')  # One byte is looked for many times faster than counted.
    for _ in range(len(data) // 512):
        if at < 0:
            return places
        places.append(at)
        at = data.find(b'"', at + 1)
    return None


def may_escape_names(data: bytes, quotes: list[int] | None = None) -> bool:
    """Whether letters of a name in this JSON may be written as escapes, so that `mentions` would not find it."""
    if b"\\" not in data:
        return False
    quotes = quotes or few_quotes(data)
    if quotes is None:
        return b"\\u" in data
    return any(_escaped_early.match(data, at) for at in quotes)


_LONGEST_NAME: Final = 40
_escaped_early: Final = re.compile(rb'"[^"\\]{0,%d}+\\u' % _LONGEST_NAME)


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
