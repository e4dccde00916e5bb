"""JSON-RPC messages as values, their encoding, and the table of pending requests. `parse_*` decodes what peers send."""

import logging
from collections.abc import Iterator, Mapping
from typing import Final, Generic, Literal, TypeVar, cast, final

import msgspec
from msgspec import UNSET, UnsetType

from sluicegate.errors import INTERNAL_ERROR, ErrorObject, LocalProtocolError, RemoteProtocolError
from sluicegate.protocol.json_limits import DEFAULT_LIMITS, LONG, has_many_marks, is_deep, rare_places

log: Final = logging.getLogger("sluicegate")

RequestId = str | int
Params = dict[str, object]
MAX_ID: Final = 2**53 - 1
MAX_CALL: Final = 4 << 20
"""Bytes of params in a request or notification of a server. The body of a client has the same limit."""
MAX_BATCH: Final = 1000
"""Messages in one JSON array."""


def as_object(value: object) -> Params | None:
    """The value if it is a JSON object, else None."""
    # Without `cast`, which is a call: this runs a dozen times per message.
    return value if isinstance(value, dict) else None  # pyright: ignore[reportUnknownVariableType]


def as_array(value: object) -> list[object] | None:
    """The value if it is a JSON array, else None."""
    return cast(list[object], value) if isinstance(value, list) else None


class Request(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """A message that gets a response with the same id."""

    id: RequestId
    method: str
    params: Params


class Notification(msgspec.Struct, frozen=True, tag_field="jsonrpc", tag="2.0"):
    """A message that gets no response."""

    method: str
    params: Params


class TextBlock(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A content block with text and nothing else."""

    type: Literal["text"]  # No tag: msgspec lets blocks pass that lack it.
    text: msgspec.Raw
    """The JSON string: checked while it is skipped, and never copied into a `str`."""


class _Meta(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    server_info: msgspec.Raw = msgspec.field(name="io.modelcontextprotocol/serverInfo")


class ToolText(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, gc=False):
    """A final result of `tools/call` with text content: decoded once and encoded from here.

    Nearly all tool results are like this. Duplicate or escaped member names are passed on once and plain (threats T1).
    """

    resultType: Literal["complete"] | UnsetType = UNSET  # noqa: N815 - the name on the wire
    meta: _Meta | UnsetType = msgspec.field(name="_meta", default=UNSET)
    content: list[TextBlock]
    structuredContent: msgspec.Raw | UnsetType = UNSET  # noqa: N815 - the name on the wire
    isError: bool | UnsetType = UNSET  # noqa: N815 - the name on the wire

    @property
    def is_structured(self) -> bool:
        """Whether the result has `structuredContent`, which is then an object."""
        return self.structuredContent is not UNSET

    def marked(self) -> "ToolText":
        """This result with the `resultType` that 2026-07-28 requires."""
        if self.resultType is not UNSET:
            return self
        return ToolText(
            resultType="complete",
            meta=self.meta,
            content=self.content,
            structuredContent=self.structuredContent,
            isError=self.isError,
        )

    def for_session(self) -> "ToolText":
        """This result without the members that only 2026-07-28 has.

        `isError` is always there, also where it says what its absence says: there are clients that require it.
        """
        is_error = self.isError is True
        return ToolText(content=self.content, structuredContent=self.structuredContent, isError=is_error)

    def to_raw(self) -> msgspec.Raw:
        return msgspec.Raw(_encode(self))

    @property
    def compact_size(self) -> int:
        """The bytes of this result in compact JSON; -1 if a raw member, which the decoder skips, is invalid.

        A longer text that decodes to this result has more in it.
        """
        blocks = self.content
        size = _AROUND_CONTENT + (_AROUND_BLOCK + 1) * len(blocks) - (1 if blocks else 0)
        for block in blocks:
            if memoryview(block.text)[0] != _QUOTE:
                return -1
            size += len(block.text)
        if self.resultType is not UNSET:
            size += _RESULT_TYPE
        if self.meta is not UNSET:
            info = self.meta.server_info
            # Fewer bytes than levels cannot be too deep.
            if len(info) > _RAW_DEPTH and is_deep(bytes(info), _RAW_DEPTH):
                return -1
            size += _AROUND_META + len(info)
        structured = self.structuredContent
        if structured is not UNSET:
            # Most revisions allow only an object. Raw members are two levels down.
            if memoryview(structured)[0] != _BRACE or is_deep(bytes(structured), _RAW_DEPTH):
                return -1
            size += _BEFORE_STRUCTURED + len(structured)
        if self.isError is not UNSET:
            size += _IS_ERROR if self.isError else _IS_ERROR + 1
        return size


class _Content(msgspec.Struct):
    content: msgspec.Raw = msgspec.Raw(b"")


_decode_tool_text: Final = msgspec.json.Decoder(ToolText).decode
_decode_content: Final = msgspec.json.Decoder(_Content).decode
LARGE_RESULT: Final = 1024 * 1024
_BRACE: Final = 0x7B
_QUOTE: Final = 0x22
_BACKSLASH: Final = 0x5C
_RAW_DEPTH: Final = DEFAULT_LIMITS.depth - 2
_AROUND_CONTENT: Final = len(b'{"content":[]}')
_AROUND_BLOCK: Final = len(b'{"type":"text","text":}')
_RESULT_TYPE: Final = len(b',"resultType":"complete"')
_AROUND_META: Final = len(b',"_meta":{"io.modelcontextprotocol/serverInfo":}')
_BEFORE_STRUCTURED: Final = len(b',"structuredContent":')
_IS_ERROR: Final = len(b',"isError":true')


def read_tool_text(raw: msgspec.Raw) -> ToolText | None:
    """The result if it has only text content; None for all others, also for unreadable ones."""
    try:
        if (
            len(raw) > LARGE_RESULT
            and rare_places(bytes(raw), b"{") is None
            and has_many_marks(bytes(_decode_content(raw).content))
        ):
            return None  # Hundreds of thousands of texts, which would be decoded one by one (T4).
        text = _decode_tool_text(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return text if text.compact_size >= 0 else None


class Result(msgspec.Struct, frozen=True):
    """A successful reply. `value` is raw JSON until it is decoded."""

    value: msgspec.Raw | ToolText | Mapping[str, object]
    is_final: bool = False
    """Whether this is known to be complete: neither questions nor a task. If False, the value has to be examined."""
    revision: str = ""
    """The older revision that it was translated to, if any."""
    is_other: bool = False
    """Whether the value is known to have other content than text."""

    def tool_text(self) -> ToolText | None:
        """The value if it has only text content, as a result of `tools/call` has."""
        value = self.value
        if isinstance(value, msgspec.Raw):
            return None if self.is_other else read_tool_text(value)
        return value if isinstance(value, ToolText) else None


Reply = Result | ErrorObject
"""A response without its id."""


@final
class Response(msgspec.Struct, frozen=True):
    """A reply with its id, which is None only for errors about messages whose id could not be read."""

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


def encode(message: Message) -> bytes:
    """The bytes of one message. Raw payloads may contain newlines, which framing removes.

    Raises:
        LocalProtocolError: the message contains a value that JSON cannot express.
    """
    try:
        return _encode(message if type(message) is not Response else _response_wire(message.id, message.reply))
    except (TypeError, ValueError, RecursionError) as problem:
        raise LocalProtocolError(f"The message cannot be written as JSON: {problem}") from None


def encode_reply(request_id: RequestId | None, reply: Reply) -> bytes:
    """The bytes of a response; raises as `encode` does."""
    return encode(Response(request_id, reply))


def _response_wire(request_id: RequestId | None, reply: Reply) -> _ResultWire | _ErrorWire:
    if isinstance(reply, Result):
        return _ResultWire("2.0", request_id, reply.value)
    return _ErrorWire("2.0", request_id, reply)


UNENCODABLE: Final = ErrorObject(
    INTERNAL_ERROR,
    "Internal error: the answer contains a value that JSON cannot express.",
    {"source": "sluicegate", "reason": "internal", "delivered": "yes", "retryable": False},
)


def encode_any_reply(request_id: RequestId | None, reply: Reply) -> tuple[bytes, Reply]:
    """The bytes of a response, and the reply in them: `UNENCODABLE` if JSON cannot express the given one."""
    try:
        return _encode(_response_wire(request_id, reply)), reply
    except Exception:  # The encoder runs code of the values, which may raise anything (R34).
        log.exception("An answer could not be encoded.")
        return encode_reply(request_id, UNENCODABLE), UNENCODABLE


def mentions(data: bytes, beginnings: tuple[bytes, ...]) -> bool:
    """Whether a string in this JSON has one of these beginnings, which include the quote.

    This saves decoding most payloads. It does not find escaped names: see `may_escape_names`.
    """
    places = rare_places(data, b'"') if len(data) > LONG else None
    if places is not None:
        for place in places:
            if data.startswith(beginnings, place):
                return True
        return False
    for beginning in beginnings:  # A generator for `any` would take longer than the search.
        if beginning in data:
            return True
    return False


def count_names(data: bytes, name: bytes) -> int:
    """How often a string is written in this JSON; `name` includes the quotes."""
    places = rare_places(data, b'"') if len(data) > LONG else None
    return data.count(name) if places is None else sum(data.startswith(name, place) for place in places)


def may_escape_names(data: bytes) -> bool:
    """Whether names in this JSON may be written with escapes, which `mentions` does not find."""
    # One byte is found in a hundredth of the time, and two bytes from the end in half of it.
    return _BACKSLASH in data and data.rfind(b"\\u") >= 0


def opened(result: Result) -> Params:
    """The value of a result as a dict, decoded if it is raw.

    Raises:
        RemoteProtocolError: it cannot be decoded, because of a number out of range, say.
    """
    value = result.value
    if isinstance(value, Mapping):
        return dict(value)
    try:
        return _params_decoder.decode(value if isinstance(value, msgspec.Raw) else value.to_raw())
    except (msgspec.DecodeError, RecursionError):
        raise RemoteProtocolError("The answer's result cannot be decoded.") from None


# ----------------------------------------------------------------------------------------- pending requests

T = TypeVar("T")


class Pending(Generic[T]):
    """Pending requests by our integer ids, which are never reused. The id is also the request's progress token."""

    def __init__(self) -> None:
        self._next = 1
        self._waiting: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._waiting.values()))

    def add(self, waiter: T) -> int:
        """The id for a new request."""
        request_id = self._next
        self._next += 1
        self._waiting[request_id] = waiter
        return request_id

    def find(self, request_id: object) -> T | None:
        """The waiter of the request with this id or progress token; None if there is none."""
        return self._waiting.get(request_id if type(request_id) is int else _own(request_id))

    def claim(self, request_id: RequestId | None) -> T | None:
        """Remove and return the waiter for this answer; None for late answers, which are normal after a cancel."""
        return self._waiting.pop(request_id if type(request_id) is int else _own(request_id), None)

    def drain(self) -> list[T]:
        """Remove and return all that still wait, when no answer can come any more."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting


def _own(request_id: object) -> int:
    # Some servers answer "7" for our 7. All our ids are integers, so this cannot mean another request.
    if isinstance(request_id, str) and request_id.isascii() and request_id.isdigit() and len(request_id) < 17:
        return int(request_id) if request_id[0] != "0" else -1
    return -1
