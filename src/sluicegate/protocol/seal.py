"""Tokens that come back only as they were given: list cursors and the state of unfinished calls (threats T12).

A token is encrypted and authenticated (AES-SIV, RFC 5297), so its holder can neither read nor change it. What it is
bound to (who asked, for what) is part of the check but not of the token. Any failure is the same failure: a peer
learns nothing from trying. SIV needs no nonce, so nothing here draws lots; the price is that the same payload bound
to the same things is the same token, which tells whoever holds both no more than that.
"""

import base64
import binascii
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import AESSIV

_TAG_BYTES: Final = 16
# In front of the payload and of all that it is bound to: releases of OpenSSL have refused an empty payload, and have
# left out of the check what was empty.
_MARK: Final = b"\x01"


class Sealer:
    """Makes and opens tokens under one key."""

    def __init__(self, key: bytes) -> None:
        self._key = key

    def seal(self, payload: bytes, bound_to: Iterable[str]) -> str:
        """A token that `open` turns back into the payload, if it is bound to the same things then."""
        return _spelled(self._cipher.encrypt(_MARK + payload, _associated(bound_to)))

    def open(self, token: object, bound_to: Iterable[str]) -> bytes | None:
        """The payload, or None for anything that this key did not seal for exactly these things."""
        if not isinstance(token, str) or not token.isascii():
            return None
        try:
            raw = base64.b64decode(token.encode() + b"=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except binascii.Error:
            return None
        # Base64 has spare bits at its end, so several spellings decode alike; only the one we wrote is ours.
        if len(raw) <= _TAG_BYTES or _spelled(raw) != token:
            return None
        from cryptography.exceptions import InvalidTag

        try:
            return self._cipher.decrypt(raw, _associated(bound_to))[len(_MARK) :]
        except InvalidTag:
            return None

    @cached_property
    def _cipher(self) -> "AESSIV":
        # Here and not above: these cost more to import than all of this package, and most lists fit on one page.
        import hashlib

        from cryptography.hazmat.primitives.ciphers.aead import AESSIV

        return AESSIV(hashlib.blake2b(self._key, digest_size=64, person=b"sluicegate-seal2").digest())


def _associated(bound_to: Iterable[str]) -> list[bytes]:
    return [_MARK + text.encode("utf-8", "surrogatepass") for text in bound_to]


def _spelled(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
