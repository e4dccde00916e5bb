"""Canonical JSON: one spelling for each value, for digests and hashes."""

from typing import Final

import msgspec

canonical_json: Final = msgspec.json.Encoder(order="deterministic").encode
"""The bytes of a value: UTF-8, sorted names, no blanks, shortest escapes. Integers keep every digit; `1`, `1.0`, `true`
and `"1"` stay distinct, which RFC 8785 would not do."""
