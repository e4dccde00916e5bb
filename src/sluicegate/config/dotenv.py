"""Variables as `.env` files write them down."""

import re
from collections.abc import Iterator
from typing import Final

_line: Final = re.compile(
    r"\s*(?:export\s+)?([A-Za-z_][\w.-]*)\s*=\s*(?:'([^']*)'|\"((?:[^\"\\]|\\.)*)\"|([^#]*))\s*(?:#.*)?"
)


def dotenv(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of an `.env` file."""
    for line in text.split("\n"):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if found := _line.fullmatch(line.rstrip("\r")):
            name, single, double, bare = found[1], found[2], found[3], found[4]
            if double is not None:
                double = re.sub(
                    r"\\(.)", lambda escape: {"n": "\n", "t": "\t", "r": "\r"}.get(escape[1], escape[1]), double
                )
            yield name, single if single is not None else double if double is not None else bare.rstrip()
