"""Which replies pass to their caller as the bytes that came: nearly all, and one look at them tells.

It looks for all that anything here would look for; whatever it finds, the rules themselves are kept elsewhere.
"""

import re
from typing import Final, TypeGuard

import msgspec

from sluicegate.hub import losses, rewriting, states
from sluicegate.protocol.message import Reply, Result, few_quotes, may_escape_names, mentions
from sluicegate.protocol.result_shapes import is_in_shape
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
    words = reply.words
    if words is not None and method == "tools/call":
        if words.is_structured and not _may_be_structured(reply.value, version):
            return False
        return words.is_marked and not words.failed
    raw = bytes(reply.value)
    begins = _is_complete.match(raw)
    if begins is None:
        return False
    pattern = _remarkable.get(version) or _remarkable[losses.revision_of(version).version]
    end = begins.end()
    quotes = few_quotes(raw)
    if quotes is None:
        if pattern.search(raw, end) is not None:
            return False
    elif any(at >= end and pattern.match(raw, at) for at in quotes):
        return False
    return not may_escape_names(raw, quotes) and is_in_shape(method, raw)


def _may_be_structured(raw: msgspec.Raw, version: str) -> bool:
    """Whether a structured value may pass: the revision has such, and nothing in it is like the name of a resource."""
    return losses.revision_of(version).structured_content and not mentions(bytes(raw), rewriting.HINTS)


class _Outcome(msgspec.Struct):
    isError: object = False  # noqa: N815 - the name on the wire


_decoder: Final = msgspec.json.Decoder(_Outcome)


def says_error(reply: Result) -> bool:
    """Whether a tool says that it failed."""
    if reply.words is not None:
        return reply.words.failed
    value = reply.value
    if not isinstance(value, msgspec.Raw):
        return value.get("isError") is True
    try:
        return _decoder.decode(value).isError is True
    except (msgspec.DecodeError, RecursionError):
        return False  # Whoever has to read it will say that it cannot be read.
