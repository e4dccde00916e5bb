"""How the results of tools begin: mostly with what an older revision does not know, and the same each time.

The one rule: an opening is known only from a result that `translate` has opened, and a result is cut behind it only if
nothing follows that `translate` would change or drop; for all else that one is asked.
"""

from typing import Final

import msgspec

from sluicegate.protocol.message import Params, Reply, Result
from sluicegate.protocol.translate import reply_for_session
from sluicegate.protocol.versions import Revision

MOST_OPENINGS: Final = 64
LONGEST_OPENING: Final = 1024
_SHORT: Final = 2048  # To look through a long one takes longer than to open it.
_CONTENT: Final = b'"content":'
_STRUCTURED: Final = b'"structuredContent"'
_STRUCTURED_OBJECT: Final = _STRUCTURED + b":{"


class Openings:
    """What stands in front of the content in results of tools, and is left out for clients of older revisions."""

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: set[bytes] = set()

    def reply_for_session(self, params: Params, reply: Reply, revision: Revision) -> Reply:
        """As `translate.reply_for_session`, for the reply to a call of a tool."""
        raw = reply.value if isinstance(reply, Result) and reply.words is None else None
        # Before 2025-11-25 the content itself may have to be changed.
        if not isinstance(raw, msgspec.Raw) or len(raw) > _SHORT or not revision.icons or revision.modern:
            return reply_for_session("tools/call", params, reply, revision)
        data = bytes(raw)
        at = data.find(_CONTENT)
        is_known = at > 0 and data[:at] in self._known
        if is_known and not _holds_more(data, at):
            return Result(msgspec.Raw(b"{" + data[at:]))
        translated = reply_for_session("tools/call", params, reply, revision)
        if not is_known:
            self._learn(data, at, translated)
        return translated

    def _learn(self, data: bytes, at: int, translated: Reply) -> None:
        changed = translated.value if isinstance(translated, Result) else None
        if not 0 < at <= LONGEST_OPENING or not isinstance(changed, msgspec.Raw):
            return
        # Then what was left out is all that stands in front of the content, and nothing else. But whether
        # `structuredContent` is left out depends on the content.
        if bytes(changed) == b"{" + data[at:] and _STRUCTURED not in data[:at] and b"\\u" not in data[:at]:
            if len(self._known) >= MOST_OPENINGS:
                self._known.clear()  # The few in use are back at once; no order has to be kept for it.
            self._known.add(data[:at])


def _holds_more(data: bytes, at: int) -> bool:
    """Whether behind this place may stand a member, however it is spelled, that `translate` would change or drop."""
    # What may stay must be there once: of two the last one counts, and the other would be dropped.
    structured = data.find(_STRUCTURED, at)
    if structured > 0 and not data.startswith(_STRUCTURED_OBJECT, structured):
        return True
    if (structured > 0 and data.find(_STRUCTURED, structured + 1) > 0) or data.find(b'"content"', at + 1) > 0:
        return True
    failed = data.find(b'"isError"', at)
    return (
        (failed > 0 and data.find(b'"isError"', failed + 1) > 0)
        or data.find(b'"_meta"', at) > 0
        or data.find(b'"resultType"', at) > 0
        or data.find(b'"ttlMs"', at) > 0
        or data.find(b'"cacheScope"', at) > 0
        or data.find(b"\\u", at) > 0
    )
