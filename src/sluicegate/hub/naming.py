"""What the tools and prompts of many servers are called behind one endpoint (protocol §4.2).

The one rule: a name is made once, deterministically, and found again in a table; nobody ever splits one.
"""

import hashlib
import re
from typing import Final, Literal

Naming = Literal["prefix", "collide", "claude"]

LONGEST_NAME: Final = 64
"""Model APIs refuse longer names, though the specification allows 128."""

_illegal: Final = re.compile(r"[^A-Za-z0-9_.-]")
_SEPARATOR: Final = "__"
_DIGEST_STEP: Final = 8


class Names:
    """The names of one kind, given out in the order in which they are asked for: who comes first keeps its name."""

    def __init__(self, naming: Naming = "prefix", longest: int = LONGEST_NAME) -> None:
        self._naming: Naming = naming
        self._longest = longest
        self._taken: set[str] = set()

    def give(self, prefix: str, name: str) -> str | None:
        """The exposed name of a server's own one, or None if another has it already (threats T22).

        `prefix` is the server's; an empty one leaves its names as they are.
        """
        for full in self._candidates(prefix, name):
            exposed = self._fitting(full)
            if exposed is not None and exposed not in self._taken:
                self._taken.add(exposed)
                return exposed
        return None

    def _candidates(self, prefix: str, name: str) -> list[str]:
        if not prefix:
            return [name]
        prefixed = f"{prefix}{_SEPARATOR}{name}"
        match self._naming:
            case "prefix":
                return [prefixed]
            case "claude":
                return [f"mcp{_SEPARATOR}{prefixed}"]
            case "collide":
                return [name, prefixed]

    def _fitting(self, full: str) -> str | None:
        """The name itself, or if it is too long or has characters that no model API takes, a stable short form."""
        legal = _illegal.sub("_", full)
        if legal == full and 0 < len(full) <= self._longest:
            return full
        digest = hashlib.sha256(full.encode("utf-8", "surrogatepass")).hexdigest()
        # Two that fall together after this are told apart by more of the digest.
        for length in range(_DIGEST_STEP, self._longest, _DIGEST_STEP):
            end = "_" + digest[:length]
            short = legal[: self._longest - len(end)] + end
            if short not in self._taken:
                return short
        return None
