"""`sluicegate.lock`: the approved definitions of tools, as hashes, for the repository.

Apart from `pins`: the configuration reads it before servers are started, and must not load more than it needs.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from sluicegate.errors import ConfigError

LOCK_NAME: Final = "sluicegate.lock"
_LOCK_VERSION: Final = 1

Locked = Mapping[tuple[str, str, str], str]
"""Hashes by server, kind and name."""


class _Locked(msgspec.Struct, forbid_unknown_fields=True):
    version: int
    definitions: dict[str, str]


def write_lock(pins: Locked) -> str:
    """The text of a lock file: JSON, one line for each definition, in order."""
    lines = [
        f"    {msgspec.json.encode(' '.join(place)).decode()}: {msgspec.json.encode(digest).decode()}"
        for place, digest in sorted(pins.items())
    ]
    body = ",\n".join(lines)
    return f'{{\n  "version": {_LOCK_VERSION},\n  "definitions": {{\n{body}\n  }}\n}}\n'


def read_lock(text: str, file: str) -> dict[tuple[str, str, str], str]:
    """The hashes in a lock file, by server, kind and name.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        found = msgspec.json.decode(text, type=_Locked)
    except (msgspec.DecodeError, msgspec.ValidationError) as problem:
        raise ConfigError(
            f"{file} is not a lock file: {problem}. Write it again with 'sluicegate pins lock'."
        ) from None
    if found.version != _LOCK_VERSION:
        raise ConfigError(f"{file} was written by another version of sluicegate; write it again.")
    places: dict[tuple[str, str, str], str] = {}
    for place, digest in found.definitions.items():
        server, _, rest = place.partition(" ")
        kind, _, name = rest.partition(" ")
        places[server, kind, name] = digest
    return places
