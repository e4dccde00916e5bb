"""Whom an unreadable message concerns: its id, if that stands where peers write it. A wrong guess would end somebody
else's call, so there is none.
"""

import re
from typing import Final

import msgspec

from sluicegate.protocol.bounds import outside_strings
from sluicegate.protocol.message import LARGEST_ID, RequestId

_VERSION: Final = rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?'
_ID: Final = rb'"id"\s*:\s*(-?[0-9]{1,16}|"[^"\\]{0,256}")\s*'
_request_in_front: Final = re.compile(_VERSION + rb'(?:"method"\s*:\s*"[^"\\]*"\s*,\s*)?' + _ID + rb"[,}]")
_answer_in_front: Final = re.compile(_VERSION + _ID + rb',\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"(?:result|error)"')
_answer_begins: Final = re.compile(_VERSION + rb'"(?:result|error)"')
_id_at_end: Final = re.compile(rb",\s*" + _ID + rb"\}\s*$")
_MOST_STRINGS: Final = 20_000
_integer: Final = re.compile(rb"-?(?:0|[1-9][0-9]{0,15})")


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
        return read_id(found[1])
    except (msgspec.DecodeError, UnicodeDecodeError):
        return None


def _is_balanced(data: bytes) -> bool:
    """Whether all brackets are closed; not if there are so many strings that to see it would hold up everybody else."""
    braces = brackets = 0
    for count, piece in enumerate(outside_strings(data)):
        if count > _MOST_STRINGS:
            return False
        braces += piece.count(b"{") - piece.count(b"}")
        brackets += piece.count(b"[") - piece.count(b"]")
    return braces == brackets == 0


def read_id(raw: bytes) -> RequestId | None:
    """The id that these bytes are, or None if they are none."""
    if raw[:1] == b'"':
        return msgspec.json.decode(raw, type=str)
    if not _integer.fullmatch(raw):
        return None
    value = int(raw)
    return value if -LARGEST_ID <= value <= LARGEST_ID else None
