"""What the tools and prompts of many servers are called behind one endpoint (protocol §4.2).

The one rule: a name is made once, deterministically, and found again in a table; nobody ever splits one.
"""

import hashlib
import re
from collections.abc import Iterator
from typing import Final, Literal

Naming = Literal["prefix", "collide", "claude"]

LONGEST_NAME: Final = 64
"""Model APIs refuse longer names, though the specification allows 128."""

_illegal: Final = re.compile(r"[^A-Za-z0-9_.-]")
_SEPARATOR: Final = "__"
_DIGEST_STEP: Final = 8


def names_for(prefix: str, name: str, naming: Naming = "prefix", longest: int = LONGEST_NAME) -> Iterator[str]:
    """The names under which a server's own one may be exposed, the best first.

    `prefix` is the server's; an empty one leaves its names as they are.
    """
    for full in _full_names(prefix, name, naming):
        if 0 < len(full) <= longest and _illegal.search(full) is None:
            yield full
            continue
        # Too long, or with characters that no model API takes: a stable short form. Two that fall together after this
        # are told apart by more of the digest.
        legal = _illegal.sub("_", full)
        digest = hashlib.sha256(full.encode("utf-8", "surrogatepass")).hexdigest()
        for length in range(_DIGEST_STEP, longest, _DIGEST_STEP):
            end = "_" + digest[:length]
            yield legal[: longest - len(end)] + end


def head_of(prefix: str, naming: Naming) -> str:
    """What the exposed names of a server with a prefix begin with, unless they are bare."""
    return f"mcp{_SEPARATOR}{prefix}{_SEPARATOR}" if naming == "claude" else f"{prefix}{_SEPARATOR}"


def _full_names(prefix: str, name: str, naming: Naming) -> list[str]:
    if not prefix:
        return [name]
    prefixed = head_of(prefix, naming) + name
    return [name, prefixed] if naming == "collide" else [prefixed]
