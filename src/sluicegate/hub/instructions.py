"""The instructions that clients of a hub get: how names are made, and what each server says about itself."""

import itertools
import re
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from sluicegate.exchange import Governor, Target
from sluicegate.hub.catalog import Catalog
from sluicegate.hub.mount import Mount
from sluicegate.hub.naming import Naming, head_of
from sluicegate.protocol.definition_digest import digest_of
from sluicegate.protocol.message import Params, as_object
from sluicegate.protocol.modern_era import Discovery
from sluicegate.protocol.types import NAMESPACES_KEY
from sluicegate.text.visible_text import visible

_RULES: Final[Mapping[Naming, str]] = {
    "prefix": "The name of each tool and prompt begins with that of its server: SERVER__NAME.",
    "claude": "The name of each tool and prompt begins with that of its server: mcp__SERVER__NAME.",
    "collide": "Tools and prompts of several servers; where two have the same name, one is SERVER__NAME.",
}
"""Precedes the instructions of the servers."""
_MAX_INNER: Final = 256
"""Namespaces inside that of a server whose descriptions are passed on."""
_namespace: Final = re.compile(r"(?:[A-Za-z0-9_-]{1,31}\.){0,8}[A-Za-z0-9_-]{1,31}")
_MAX_LENGTH: Final[Mapping[str, int]] = {"version": 100, "description": 2000}


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


def instructions_to_review(mounts: Iterable[Mount]) -> dict[Target, Params]:
    """The instructions of the mounts as definitions, which a governor reviews."""
    found: dict[Target, Params] = {}
    for mount in mounts:
        text = mount.discovery.instructions if mount.discovery is not None else None
        if text and mount.settings.instructions:
            found |= _definition(mount, text)
    return found


def _definition(mount: Mount, text: str) -> dict[Target, Params]:
    definition: Params = {"description": text}
    return {Target(mount.settings.key or mount.name, "instructions", "", digest_of(definition)): definition}


def _is_quarantined(mount: Mount, text: str, governor: Governor | None) -> bool:
    """Whether instructions may not be used, or have not been reviewed yet."""
    return governor is not None and governor.reviewed(_definition(mount, text)) != {}


def about_servers(params: Params, catalog: Catalog, find: Callable[[str], Mount | None]) -> Params:
    """The version and description of each server whose tools are in the catalog, if a request asks for them."""
    if NAMESPACES_KEY not in (as_object(params.get("_meta")) or {}):
        return {}
    mounts = {entry.mount: find(entry.mount) for entry in catalog.tools.values()}
    about: Params = {}
    for name, mount in mounts.items():
        prefix = catalog.prefixes.get(name)
        if prefix and mount is not None and mount.discovery is not None:
            about.update(_about(prefix, mount.discovery, is_described=mount.settings.instructions))
    return {NAMESPACES_KEY: about}


def _about(prefix: str, discovery: Discovery, *, is_described: bool) -> Params:
    # What a server without instructions says about itself is not passed on either.
    if not is_described:
        return {prefix: _given({"version": discovery.server_info.get("version")})}
    # Prefixes have no dots, so none of these is the entry of a server.
    inner = {
        name if name.startswith(f"{prefix}.") else f"{prefix}.{name}": _given({"description": text})
        for name, text in itertools.islice(discovery.inner.items(), _MAX_INNER)
        if _namespace.fullmatch(name)
    }
    return {**inner, prefix: _given({name: discovery.server_info.get(name) for name in _MAX_LENGTH})}


def _given(texts: Params) -> Params:
    # Cut before as well: a server may send megabytes.
    return {
        name: visible(text[: _MAX_LENGTH[name]])[: _MAX_LENGTH[name]]
        for name, text in texts.items()
        if isinstance(text, str)
    }
