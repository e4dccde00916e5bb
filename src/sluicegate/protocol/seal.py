"""Tokens that come back only as they were given: list cursors and the state of unfinished calls (threats T12).

A token is authenticated, not encrypted, so nothing secret may be put in one. What it is bound to (who asked, for
what) is part of the check but not of the token. Any failure is the same failure: a peer learns nothing from trying.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Iterable
from typing import Final

_TAG_BYTES: Final = 16


class Sealer:
    """Makes and checks tokens under one key."""

    def __init__(self, key: bytes) -> None:
        self._key = hashlib.blake2b(key, digest_size=32, person=b"sluicegate-seal1").digest()

    def seal(self, payload: bytes, bound_to: Iterable[str]) -> str:
        """A token that `open` turns back into the payload, if it is bound to the same things then."""
        return base64.urlsafe_b64encode(self._tag(payload, bound_to) + payload).rstrip(b"=").decode()

    def open(self, token: object, bound_to: Iterable[str]) -> bytes | None:
        """The payload, or None for anything that this key did not seal for exactly these things."""
        if not isinstance(token, str) or not token.isascii():
            return None
        try:
            raw = base64.b64decode(token.encode() + b"=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except binascii.Error:
            return None
        tag, payload = raw[:_TAG_BYTES], raw[_TAG_BYTES:]
        bound_to = tuple(bound_to)
        if not hmac.compare_digest(tag, self._tag(payload, bound_to)):
            return None
        # Base64 has spare bits at its end, so several spellings decode alike; only the one we wrote is ours.
        return payload if self.seal(payload, bound_to) == token else None

    def _tag(self, payload: bytes, bound_to: Iterable[str]) -> bytes:
        digest = hashlib.blake2b(key=self._key, digest_size=_TAG_BYTES)
        for part in (payload, *(text.encode("utf-8", "surrogatepass") for text in bound_to)):
            digest.update(len(part).to_bytes(8, "big"))
            digest.update(part)
        return digest.digest()
