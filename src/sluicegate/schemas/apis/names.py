"""Names that an API accepts, made from any: the same name gives the same result, and no two become one. Pure."""

import hashlib
import re
from collections.abc import Iterable
from typing import Final

_DIGEST: Final = 8


def accepted_names(names: Iterable[str], pattern: str, longest: int = 64) -> dict[str, str]:
    """An accepted name for each name. Names that are accepted already stay; others get a digest of what they were."""
    names = list(dict.fromkeys(names))
    is_accepted = re.compile(pattern).fullmatch
    taken = {name for name in names if is_accepted(name)}
    out: dict[str, str] = {}
    for name in names:
        if name in taken:
            out[name] = name
            continue
        digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
        plain = re.sub(r"[^A-Za-z0-9_-]", "_", name)
        if not re.match(r"[A-Za-z_]", plain):
            plain = f"_{plain}"
        # The digest alone would be unique; a server that guesses it gets a longer one.
        for length in range(_DIGEST, longest, 4):
            changed = f"{plain[: longest - length - 1]}_{digest[:length]}"
            if changed not in taken:
                break
        else:
            raise AssertionError("sixty-four hexadecimal digits were all taken")
        taken.add(changed)
        out[name] = changed
    return out
