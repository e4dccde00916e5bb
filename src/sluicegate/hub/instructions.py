"""The instructions that clients of a hub get: how names are made, and what each server says about itself."""

from collections.abc import Iterable, Mapping
from typing import Final

from sluicegate.exchange import Governor, Target
from sluicegate.hub.catalog import digest_of
from sluicegate.hub.mount import Mount
from sluicegate.hub.naming import Naming, head_of
from sluicegate.protocol.message import Params

_RULES: Final[Mapping[Naming, str]] = {
    "prefix": "The name of each tool and prompt begins with that of its server: SERVER__NAME.",
    "claude": "The name of each tool and prompt begins with that of its server: mcp__SERVER__NAME.",
    "collide": "Tools and prompts of several servers; where two have the same name, one is SERVER__NAME.",
}
"""Precedes the instructions of the servers."""


def instructions_of(
    mounts: Iterable[Mount], prefixes: Mapping[str, str], naming: Naming, longest: int, governor: Governor | None
) -> str | None:
    """The naming rule, and the instructions of each mount; None if there is nothing to say."""
    parts: list[str] = []
    for mount in mounts:
        text = mount.discovery.instructions if mount.discovery is not None else None
        if text and mount.settings.instructions and not _is_quarantined(mount, text, governor):
            prefix = prefixes[mount.name]
            head = "" if prefix in ("", mount.name) else f" ({head_of(prefix, naming)}…)"
            parts.append(f"## {mount.name}{head}\n\n{text[:longest]}")
    if not any(prefixes.values()):
        # A single server without a prefix looks as if the client were connected to it directly.
        return parts[0].partition("\n\n")[2] if parts else None
    bare = "".join(f" Those of {name} have no prefix." for name, prefix in prefixes.items() if not prefix)
    return "\n\n".join([_RULES[naming] + bare, *parts])


def _is_quarantined(mount: Mount, text: str, governor: Governor | None) -> bool:
    if governor is None:
        return False
    definition: Params = {"description": text}
    target = Target(mount.settings.key or mount.name, "instructions", "", digest_of(definition))
    return bool(governor.review({target: definition}))
