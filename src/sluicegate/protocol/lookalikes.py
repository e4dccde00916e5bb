"""Members that could be taken for others: what one reader ignores, another may read (threats T1).

Names are compared after folding case, width and all that is not seen.
"""

import re
import unicodedata
from collections.abc import Iterable
from typing import Final

from sluicegate.protocol.message import Params, as_object

ENVELOPE_MEMBERS: Final = frozenset({"jsonrpc", "id", "method", "params", "result", "error"})
_PARAM_MEMBERS: Final = frozenset(
    "_meta arguments argument capabilities clientInfo context cursor data inputResponses level logger message name"
    " notifications progress progressToken protocolVersion reason ref requestId requestState task taskId total"
    " uri".split()
)
META_MEMBERS: Final = frozenset(
    {"progressToken"}
    | {f"io.modelcontextprotocol/{n}" for n in ("protocolVersion", "clientCapabilities", "clientInfo", "logLevel")}
)
# The objects inside params whose members say what a request is about, so that policy and routing read them too.
_INNER_MEMBERS: Final = {
    "_meta": META_MEMBERS,
    "ref": frozenset({"type", "name", "uri"}),
    "notifications": frozenset(
        {"toolsListChanged", "promptsListChanged", "resourcesListChanged", "resourceSubscriptions"}
    ),
}
REQUEST_MEMBERS: Final = frozenset({"jsonrpc", "id", "method", "params"})
PLAIN_PARAMS: Final = _PARAM_MEMBERS - (_INNER_MEMBERS.keys() - {"_meta"})
"""Params that have no inner members to look at, `_meta` aside."""


def folded_param(params: Params) -> str | None:
    """The first name in the params, or in what says what they are about, that could be taken for another."""
    folded = folded_member(params, _PARAM_MEMBERS)
    for name, known in _INNER_MEMBERS.items():
        if folded is None and name in params:
            folded = folded_member(as_object(params[name]) or {}, known)
    return folded


def folded_member(members: Iterable[str], known: frozenset[str]) -> str | None:
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
_LONGEST_MEMBER: Final = max(map(len, ENVELOPE_MEMBERS.union(_PARAM_MEMBERS, *_INNER_MEMBERS.values())))
_folded_names: Final[dict[frozenset[str], frozenset[str]]] = {}


def _all_folded(known: frozenset[str]) -> frozenset[str]:
    names = _folded_names.get(known)
    if names is None:
        names = _folded_names[known] = frozenset(name.casefold() for name in known)
    return names
