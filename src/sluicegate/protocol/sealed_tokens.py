"""Encrypted and authenticated tokens (AES-SIV, RFC 5297): list cursors and the state of calls (threats T12).

The values that a token is bound to (the caller, the request) are authenticated but not part of the token. All failures
look the same. SIV needs no nonce, so the same payload bound to the same values gives the same token.
"""

import base64
import binascii
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

_TAG_BYTES: Final = 16
# Before the payload and all bound values: some releases of OpenSSL refuse an empty payload and ignore empty values.
_MARK: Final = b"\x01"


class Sealer:
    """Makes and opens tokens for one purpose. Tokens of other purposes under the same key are invalid."""

    def __init__(self, key: bytes, purpose: str = "") -> None:
        self._key = key
        self._purpose = purpose

    def seal(self, payload: bytes, bound_to: Iterable[str]) -> str:
        """A token that `open` turns back into the payload, if given the same bound values."""
        return _spelled(self._cipher.encrypt(_MARK + payload, _associated(bound_to)))

    def open(self, token: object, bound_to: Iterable[str]) -> bytes | None:
        """The payload, or None for anything that this key did not seal with exactly these bound values."""
        if not isinstance(token, str) or not token.isascii():
            return None
        try:
            raw = base64.b64decode(token.encode() + b"=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except binascii.Error:
            return None
        # Base64 has spare bits at its end, so several texts decode alike. Only the one that we wrote is valid.
        if len(raw) <= _TAG_BYTES or _spelled(raw) != token:
            return None
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(raw, _associated(bound_to))[len(_MARK) :]
        except InvalidTag:
            return None

    @cached_property
    def _cipher(self) -> "AESSIV":
        # Imported here because it takes longer than all of this package, and most lists fit on one page.
        import hashlib

        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        derived = hashlib.blake2b(self._purpose.encode(), key=self._key, digest_size=64, person=b"sluicegate-seal3")
        return AESSIV(derived.digest())


def _associated(bound_to: Iterable[str]) -> list[bytes]:
    return [_MARK + text.encode("utf-8", "surrogatepass") for text in bound_to]


def _spelled(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
