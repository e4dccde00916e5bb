"""Digests of definitions: of a tool, prompt, resource or template as a server lists it. Pure.

Two definitions with the same digest are the same to clients and models: the digest covers every member, also those that
no revision of the protocol knows. Digests have a number in front, so that a later rule is told from this one.
"""

import hashlib
import re
from typing import Final

import msgspec

from sluicegate.protocol.message import Params, as_object

HOPS: Final = "dev.sluicegate/hops"
"""In `_meta` of list entries and requests: the number of gateways that they passed."""

_VERSION: Final = "2-"
_TIME: Final = re.compile(r"[0-9TZ:.+-]{1,40}")
_INTERFACE: Final = (
    *("name", "uri", "uriTemplate", "title", "description", "mimeType"),
    *("inputSchema", "outputSchema", "annotations", "arguments"),
)


def digest_of(definition: Params) -> str:
    """The digest of all members, whatever their order."""
    seen = {member: _plain(value) for member, value in definition.items()}
    meta = as_object(seen.get("_meta"))
    if meta is not None and HOPS in meta:  # It depends on the way to the server.
        seen["_meta"] = {name: value for name, value in meta.items() if name != HOPS}
    if "uri" in seen:
        # A resource stays the same when it grows.
        if isinstance(seen.get("size"), int):
            del seen["size"]
        annotations = as_object(seen.get("annotations")) or {}
        modified = annotations.get("lastModified")
        if isinstance(modified, str) and _TIME.fullmatch(modified):
            seen["annotations"] = {name: value for name, value in annotations.items() if name != "lastModified"}
    return _VERSION + _sha256(seen)


def interface_digest(definition: Params) -> str:
    """The digest of the members that matter to code that calls a tool: names, texts, schemas.

    Definitions were pinned by it before `digest_of` covered the others.
    """
    return _sha256({member: _plain(definition[member]) for member in _INTERFACE if member in definition})


def is_same(digest: str, definition: Params) -> bool:
    """Whether a definition has this digest, which may be of the earlier rule."""
    return digest == (digest_of(definition) if digest.startswith(_VERSION) else interface_digest(definition))


def is_of_earlier_rule(digest: str) -> bool:
    """Whether a digest covers less than everything that clients and models see."""
    return not digest.startswith(_VERSION)


def _plain(value: object) -> object:
    return msgspec.json.decode(value) if isinstance(value, msgspec.Raw) else value


def _sha256(seen: Params) -> str:
    return hashlib.sha256(msgspec.json.encode(seen, order="deterministic")).hexdigest()
