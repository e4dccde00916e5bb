"""What servers mostly say, read at a glance: the answer to a request of ours, and progress.

The one rule: only what is written as nearly all servers write it is read here, and then it means what `message` would
say it means; for all else these return None, and `message` says what it is. Compact JSON has room for the members of
an envelope exactly once, so that none can stand there twice or look like another.
"""

import re
from typing import Annotated, Final, Literal

import msgspec

from sluicegate.protocol.bounds import DEFAULT_LIMITS
from sluicegate.protocol.message import LARGEST_ID, LONG, Params, Result


class _Answer(msgspec.Struct, forbid_unknown_fields=True):
    """A successful answer, its result still bytes."""

    jsonrpc: Literal["2.0"]
    id: Annotated[int, msgspec.Meta(ge=-LARGEST_ID, le=LARGEST_ID)]
    result: msgspec.Raw


_decode_answer: Final = msgspec.json.Decoder(_Answer).decode
_decode_params: Final = msgspec.json.Decoder(Params).decode
_AROUND_ANSWER: Final = len(b'{"jsonrpc":"2.0","id":,"result":}')

# The official TypeScript SDK writes `jsonrpc` last, nearly all others write it first.
_BEFORE: Final = b'{"jsonrpc":"2.0","method":"notifications/progress","params":'
_BEFORE_IN_TYPESCRIPT: Final = b'{"method":"notifications/progress","params":'
_AFTER_IN_TYPESCRIPT: Final = b',"jsonrpc":"2.0"}'

# The words of a tool as the official SDKs and we write them. What may follow on anything begins with a byte that it
# cannot hold, so that one pass is enough. (Not by possessive groups: before 3.11.5 Python takes one that fails half-way
# for a match.) A string is one that JSON allows, without half a character (`\ud800`).
_PLAIN: Final = rb'[^"\\\x00-\x1f]*'
_ESCAPE: Final = rb'\\(?:["\\/bfnrt]|u[0-9a-cefA-CEF][0-9a-fA-F]{3})'
_STRING: Final = rb'"%b(?:%b%b)*"' % (_PLAIN, _ESCAPE, _PLAIN)
_BLOCK: Final = rb'\{(?:"type":"text","text":%b|"text":%b,"type":"text")\}' % (_STRING, _STRING)
_WORDS: Final = rb'"content":\[(?:%b(?:,%b)*)?\](?:,"isError":false)?' % (_BLOCK, _BLOCK)
_INFO: Final = rb'\{"\w+":%b(?:,"\w+":%b)*\}' % (_STRING, _STRING)
_META: Final = rb'"_meta":\{"io\.modelcontextprotocol/serverInfo":%b\}' % _INFO
# The mark of 2026-07-28 stands in front of them, or behind them, or is not there.
_MARK: Final = rb'"resultType":"complete"'
_FRONT: Final = rb"(?P<front>%b,(?:%b,)?)?" % (_MARK, _META)
_BACK: Final = rb"(?(front)|(?:,%b(?:,%b)?)?)" % (_MARK, _META)
_RESULT: Final = rb"(?P<result>\{%b(?P<words>%b)%b\})" % (_FRONT, _WORDS, _BACK)
_ID: Final = rb"(?P<id>0|[1-9][0-9]{0,14})"
_words: Final = re.compile(rb'\{"jsonrpc":"2\.0","id":%b,"result":%b\}' % (_ID, _RESULT)).fullmatch
_words_in_typescript: Final = re.compile(rb'\{"result":%b,"jsonrpc":"2\.0","id":%b\}' % (_RESULT, _ID)).fullmatch


def read_answer(line: bytes) -> tuple[int, Result] | None:
    """The id and the result of the answer that a line is, if it is a successful one under an integer id and in
    compact JSON.
    """
    if len(line) < LONG and (answer := _read_words(line)) is not None:
        return answer
    try:
        answer = _decode_answer(line)
        if not line.isascii():
            str(line, "utf-8")  # The result is passed over, not decoded, so nobody else would notice.
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    if len(line) != _AROUND_ANSWER + len(str(answer.id)) + len(answer.result):
        return None
    # A result is an object in every revision. Of the three members only it can end in a brace.
    is_object = line.endswith(b"}}") or line.startswith(b'{"result":{')
    return (answer.id, Result(answer.result)) if is_object else None


def _read_words(line: bytes) -> tuple[int, Result] | None:
    """As `read_answer`, if the result is the words of a tool: then one look tells all that anybody wants to know."""
    found = _words(line) if line.startswith(b'{"j') else _words_in_typescript(line)
    if found is None:
        return None
    if not line.isascii():
        try:
            str(line, "utf-8")
        except UnicodeDecodeError:
            return None
    begin, end = found.span("result")
    first, last = found.span("words")
    return int(found["id"]), Result(msgspec.Raw(line[begin:end]), True, (first - begin, last - begin))


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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
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
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
