"""Which replies pass to their caller as the bytes that came: nearly all, and one look at them tells.

It looks for all that anything here would look for; whatever it finds, the rules themselves are kept elsewhere.
"""

import re
from typing import Final, TypeGuard

import msgspec

from sluicegate.hub import losses, rewriting, states
from sluicegate.protocol.message import LONG, Reply, Result, few_quotes, may_escape_names
from sluicegate.protocol.result_shapes import is_in_shape, is_words
from sluicegate.protocol.versions import REVISIONS

_FAILED: Final = (b'"isError":true', b'"isError": true')


def _pattern(*hints: bytes) -> re.Pattern[bytes]:
    """Finds these, each of which begins with a quote: with the one in front of all, only quotes are looked at."""
    return re.compile(b'"(?:%b)' % b"|".join(re.escape(hint.removeprefix(b'"')) for hint in hints))


# As nearly all results begin, and then it is certainly the result's own type and not that of something in it; unless
# another one follows, for another reader might take that (T1).
_is_complete: Final = re.compile(rb'\s*\{\s*"resultType"\s*:\s*"complete"')
_ANOTHER: Final = b'"resultType"'

_remarkable: Final = {
    version: _pattern(_ANOTHER, *_FAILED, *states.HINTS, *rewriting.HINTS, *losses.hints_of(revision))
    for version, revision in REVISIONS.items()
}


def is_plain(reply: Reply, method: str, version: str) -> TypeGuard[Result]:
    """Whether a reply is final, as it should be, names no resource, says of no failure and has nothing that this
    revision lacks.
    """
    if type(reply) is not Result or type(reply.value) is not msgspec.Raw:
        return False
    if reply.words is not None and method == "tools/call":
        begin, end = reply.words
        return begin > 1 or end < len(reply.value) - 1  # Whether it is marked as final, in front or behind.
    raw = bytes(reply.value)
    begins = _is_complete.match(raw)
    if begins is None:
        return False
    pattern = _remarkable.get(version) or _remarkable[losses.revision_of(version).version]
    end = begins.end()
    # Nearly all are short, and then nothing else has to be asked.
    if len(raw) < LONG and b"\\" not in raw:
        return pattern.search(raw, end) is None and is_in_shape(method, raw)
    quotes = few_quotes(raw)
    if quotes is None:
        if is_words(method, raw):
            return True
        return pattern.search(raw, end) is None and not may_escape_names(raw) and is_in_shape(method, raw)
    if any(at >= end and pattern.match(raw, at) for at in quotes) or may_escape_names(raw, quotes):
        return False
    return _is_one_text(method, raw, end, quotes) or is_in_shape(method, raw)


_INFO: Final = rb'"_meta":\{"io\.modelcontextprotocol/serverInfo":\{[^{}\[\]\\]*\}\}'
_one_text: Final = re.compile(rb'(?:,%b)?,"content":\[\{"type":"text","text":"' % _INFO)
_AFTER_TEXT: Final = (b'"}]}', b'"}],"isError":false}')


def _is_one_text(method: str, raw: bytes, begins: int, quotes: list[int]) -> bool:
    """Whether a long result of a tool is one text and nothing else: to read it all again would take long."""
    opening = _one_text.match(raw, begins)
    after = next((after for after in _AFTER_TEXT if raw.endswith(after)), None)
    if method != "tools/call" or opening is None or after is None:
        return False
    end = len(raw) - len(after)
    inside = (at for at in quotes if opening.end() <= at < end)
    return all(_is_escaped(raw, at) for at in inside) and not _is_escaped(raw, end)


def _is_escaped(raw: bytes, at: int) -> bool:
    size = 64
    while True:  # Once, nearly always: nobody writes so many of them in a row.
        before = raw[max(at - size, 0) : at]
        rest = before.rstrip(b"\\")
        if rest or size >= at:
            return (len(before) - len(rest)) % 2 == 1
        size *= 8


class _Outcome(msgspec.Struct):
    isError: object = False  # noqa: N815 - the name on the wire


_decoder: Final = msgspec.json.Decoder(_Outcome)


def says_error(reply: Result) -> bool:
    """Whether a tool says that it failed."""
    value = reply.value
    if not isinstance(value, msgspec.Raw):
        return value.get("isError") is True
    try:
        return _decoder.decode(value).isError is True
    except (msgspec.DecodeError, RecursionError):
        return False  # Whoever has to read it will say that it cannot be read.
