"""What servers mostly say, read at a glance: the answer to a request of ours, and progress.

The one rule: only what is written as nearly all servers write it is read here, and then it means what `message` would
say it means; for all else these return None, and `message` says what it is. Compact JSON has room for the members of
an envelope exactly once, so that none can stand there twice or look like another.
"""

from functools import lru_cache
from typing import Annotated, Final, Generic, Literal, TypeVar

from msgspec import UNSET, DecodeError, Meta, Raw, Struct, UnsetType, field, json

from sluicegate.protocol.bounds import DEFAULT_LIMITS
from sluicegate.protocol.message import LARGEST_ID, LONG, MARK, Params, Result, Words
from sluicegate.protocol.result_shapes import is_deep

T = TypeVar("T")


class _Answer(Struct, Generic[T], forbid_unknown_fields=True, gc=False):
    """A successful answer."""

    jsonrpc: Literal["2.0"]
    id: Annotated[int, Meta(ge=-LARGEST_ID, le=LARGEST_ID)]
    result: T


_decode_answer: Final = json.Decoder(_Answer[Raw]).decode
_decode_params: Final = json.Decoder(Params).decode
_AROUND_ANSWER: Final = len(b'{"jsonrpc":"2.0","id":,"result":}')

# The official TypeScript SDK writes `jsonrpc` last, nearly all others write it first.
_BEFORE: Final = b'{"jsonrpc":"2.0","method":"notifications/progress","params":'
_BEFORE_IN_TYPESCRIPT: Final = b'{"method":"notifications/progress","params":'
_AFTER_IN_TYPESCRIPT: Final = b',"jsonrpc":"2.0"}'

_UNREADABLE: Final = (DecodeError, UnicodeDecodeError, RecursionError)


def read_answer(line: bytes) -> tuple[int, Result] | None:
    """The id and the result of the answer that a line is, if it is a successful one under an integer id and in
    compact JSON.
    """
    at = begin = line.find(_RESULT, 0, _EARLY) + _TO_RESULT  # What may be in front of it cannot look like it.
    if not line.startswith(_CONTENTS, begin):
        at = line.find(_CONTENT, begin, _EARLY)
        if at > 0 and not (line.startswith(_CONTENTS, at) and _is_front(line[begin:at])):
            at = -1
    if at > 0 and (words := _read_words(line, begin, at)) is not None:
        return words
    try:
        answer = _decode_answer(line)
        if not line.isascii():
            str(line, "utf-8")  # The result is passed over, not decoded, so nobody else would notice.
    except _UNREADABLE:
        return None
    if len(line) != _AROUND_ANSWER + len(str(answer.id)) + len(answer.result):
        return None
    # A result is an object in every revision. Of the three members only it can end in a brace.
    is_object = line.endswith(b"}}") or line.startswith(b'{"result":{')
    return (answer.id, Result(answer.result)) if is_object else None


# ------------------------------------------------------------------------------------------------- the words of a tool


class _Text(Struct, tag="text", forbid_unknown_fields=True, gc=False):
    text: Raw


class _Said(Struct, forbid_unknown_fields=True, gc=False):
    """A result that `Words` are about."""

    content: list[_Text]
    structuredContent: Raw | UnsetType = UNSET  # noqa: N815 - the name on the wire
    isError: bool | UnsetType = UNSET  # noqa: N815 - the name on the wire
    resultType: Literal["complete"] | UnsetType = UNSET  # noqa: N815 - the name on the wire
    meta: Raw | UnsetType = field(name="_meta", default=UNSET)


class _Sayer(Struct, forbid_unknown_fields=True):
    info: dict[str, str] = field(name="io.modelcontextprotocol/serverInfo")


_decode_said: Final = json.Decoder(_Answer[_Said]).decode
_decode_sayer: Final = json.Decoder(_Sayer).decode
_EARLY: Final = 1024
"""Within so many bytes the content begins, nearly always."""
_RESULT: Final = b'"result":{'
_CONTENT: Final = b'"content":['
_BLOCKS: Final = (b'{"type":"text","text":"', b'{"text":"', b"]")
_CONTENTS: Final = tuple(_CONTENT + block for block in _BLOCKS)
_DONE: Final = b',"isError":false'
_FAILED: Final = b',"isError":true'
_STRUCTURED: Final = b',"structuredContent":'
_TYPE: Final = b'"resultType"'
_COMPLETE: Final = b',"resultType":"complete"'
_META: Final = b',"_meta":'
# Counted once: this is done for every answer.
_TO_RESULT: Final = len(_RESULT)
_TO_BLOCKS: Final = len(_CONTENT)
_AROUND_TEXT: Final = len(b'{"type":"text","text":},')
_TO_META: Final = len(_META)
_TO_DONE: Final = len(_DONE)
_TO_FAILED: Final = len(_FAILED)
_TO_STRUCTURED: Final = len(_STRUCTURED)
_MARK: Final = len(MARK)
_AROUND: Final = _AROUND_ANSWER + len(b"{}")


# These two are the same in all results of a server.


@lru_cache(64)
def _is_front(front: bytes) -> bool:
    """Whether this is all that may stand in front of the content: the mark, or that and who says it."""
    return front == MARK or (
        front.startswith(MARK + _META[1:]) and front.endswith(b",") and _is_sayer(front[_MARK + _TO_META - 1 : -1])
    )


@lru_cache(64)
def _is_sayer(meta: bytes) -> bool:
    """Whether this says by whom a result is, in words, and nothing else."""
    try:
        _decode_sayer(meta)
    except _UNREADABLE:
        return False
    return True


def _read_words(line: bytes, begin: int, at: int) -> tuple[int, Result] | None:
    """As `read_answer`, if the result is of the words of a tool: then one look tells all that anybody wants to know.

    It is read with its strings passed over, and then measured: each member that was found is walked over once. If the
    line is as long as that in compact JSON, there is no room for anything else: no space, nothing twice, nothing in
    another spelling; and then everything stands where it was walked over.

    Args:
        begin: where the members of the result begin.
        at: where the content begins, with a text or with none: there, or behind a front.
    """
    try:
        answer = _decode_said(line)
        if not line.isascii():
            str(line, "utf-8")
    except _UNREADABLE:
        return None
    said = answer.result
    failed, value, meta, mark = said.isError, said.structuredContent, 0, 0
    if said.meta is not UNSET and at - begin <= _MARK:
        meta = _TO_META + len(said.meta)
        if meta > _EARLY or not _is_sayer(bytes(said.meta)):
            return None
    here = at + _TO_BLOCKS
    if len(said.content) == 1:
        here += _AROUND_TEXT + len(said.content[0].text)
    else:
        here += not said.content
        for block in said.content:
            if not line.startswith(_BLOCKS, here):
                return None  # Its text is no string.
            here += _AROUND_TEXT + len(block.text)
    # Behind it is all else in any order, but who says it comes last.
    while True:
        if failed is False and line.startswith(_DONE, here):
            here, failed = here + _TO_DONE, UNSET
        if line.startswith(b"}", here):
            break
        if value is not UNSET and line.startswith(_STRUCTURED, here):
            here, value = here + _TO_STRUCTURED + len(value), UNSET
        elif not mark and at == begin and said.resultType is not UNSET and line.startswith(_COMPLETE, here):
            here, mark = here + _MARK, here - begin + 1
        elif failed is True and line.startswith(_FAILED, here):
            here, failed = here + _TO_FAILED, UNSET
        elif meta and line.startswith(_META, here):
            break
        else:
            return None
    end = here + meta
    if len(line) != _AROUND + len(str(answer.id)) + end - begin:
        return None
    begin -= 1
    data = line[begin : end + 1] if end < LONG else memoryview(line)[begin : end + 1]
    value, has_type = said.structuredContent, said.resultType is not UNSET
    if value is not UNSET:
        # It is an object in nearly all revisions, and nothing in it may have to be looked at.
        data = bytes(data)
        if memoryview(value)[0] != 0x7B or data.count(_TYPE) != has_type or is_deep(data):
            return answer.id, Result(Raw(data))
    words = Words(at - begin, here - begin, has_type, mark, value is not UNSET, said.isError is True)
    return answer.id, Result(Raw(data), True, words)


def read_value(body: bytes, request_id: int) -> Params | None:
    """The result in a successful answer to a request, if it is in compact JSON; as `read_answer`, but it is opened.

    To pass over the result first and to decode it then would be to read it twice.
    """
    before, after = b'{"jsonrpc":"2.0","id":%d,"result":' % request_id, b"}"
    if not body.startswith(before):
        # The official TypeScript SDK writes it the other way round.
        before, after = b'{"result":', b',"jsonrpc":"2.0","id":%d}' % request_id
        if not body.startswith(before):
            return None
    if not body.endswith(after):
        return None
    try:
        # One object and nothing behind it: so this is all that the envelope holds.
        return _decode_params(body[len(before) : -len(after)])
    except _UNREADABLE:
        return None


def read_progress(line: bytes) -> Params | None:
    """The params of the progress notification that a line is, if it is one in compact JSON and not very long."""
    if line.startswith(_BEFORE) and line.endswith(b"}}"):
        params = line[len(_BEFORE) : -1]
    elif line.startswith(_BEFORE_IN_TYPESCRIPT) and line.endswith(_AFTER_IN_TYPESCRIPT):
        params = line[len(_BEFORE_IN_TYPESCRIPT) : -len(_AFTER_IN_TYPESCRIPT)]
    else:
        return None
    if len(line) > DEFAULT_LIMITS.marks:
        return None  # What is shorter cannot hold more marks than are allowed.
    try:
        # One object and nothing behind it: so this is all that the envelope holds.
        return _decode_params(params)
    except _UNREADABLE:
        return None
