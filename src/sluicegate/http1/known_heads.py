"""Heads that came before: a peer sends few different ones, and to look one up is a tenth of reading it.

Most of them differ in nothing but the length of the body, so that a head is known again whatever length it tells.
"""

import sys
from typing import Final, Generic, TypeVar

from .heads import AnswerHead, RequestHead

H = TypeVar("H", RequestHead, AnswerHead)

LONGEST: Final = 2048
MOST: Final = 512

_LENGTHS: Final = (b"\r\nContent-Length: ", b"\r\ncontent-length: ")
"""As nearly all programs write it; a head that has it otherwise is known by all of its bytes only."""


class KnownHeads(Generic[H]):
    """What heads meant, by their bytes. One that tells a body of more than `largest` bytes is never known."""

    __slots__ = ("_largest", "_models", "exact")

    def __init__(self, largest: int = sys.maxsize) -> None:
        self.exact: dict[bytes, H] = {}
        """Those that came just so. Open to those who come here with every request, and save a call mostly."""
        self._models: dict[bytes, H] = {}
        self._largest = largest

    def find(self, raw: bytes) -> H | None:
        """What a head means, if one came before that differs from it in the length of the body at most."""
        head = self.exact.get(raw)
        if head is not None:
            return head
        model, length = _apart(raw)
        head = self._models.get(model) if model else None
        if head is None or length > self._largest:
            return None
        return self._keep(self.exact, raw, head.with_length(length))

    def learn(self, raw: bytes, head: H) -> None:
        """Know a head again, and those like it."""
        if len(raw) <= LONGEST:
            self._keep(self.exact, raw, head)
            model, _ = _apart(raw)
            if model:
                self._keep(self._models, model, head)

    def _keep(self, heads: dict[bytes, H], raw: bytes, head: H) -> H:
        # Each for itself: however many lengths come, the models stay, of which there are few.
        if len(heads) >= MOST:
            heads.clear()  # The few in use are back at once; no order has to be kept for it.
        heads[raw] = head
        return head


def _apart(raw: bytes) -> tuple[bytes, int]:
    """A head without the digits of its `Content-Length`, and their number; nothing if it has none as it mostly is.

    Of a head with two of them this is the first; but such a one is refused when it is read, and never known.
    """
    for name in _LENGTHS:
        at = raw.find(name)
        if at >= 0:
            at += len(name)
            end = raw.find(b"\r\n", at)
            digits = raw[at:end]
            if digits.isdigit() and len(digits) <= 15:
                return raw[:at] + raw[end:], int(digits)
    return b"", 0
