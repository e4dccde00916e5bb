"""What a server says that it is and has, and of which era it is by how it answers `server/discover`."""

from collections.abc import Sequence

import msgspec

from sluicegate.errors import (
    HEADER_MISMATCH,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    RemoteProtocolError,
)
from sluicegate.protocol.message import (
    Params,
    Reply,
    Result,
    as_array,
    as_object,
    opened,
)
from sluicegate.protocol.modern import SERVER_INFO_KEY
from sluicegate.protocol.versions import LATEST_VERSION, MODERN_VERSIONS, SESSION_VERSIONS


class Discovery(msgspec.Struct, frozen=True):
    """What a server offers, as its discover result or its `initialize` answer says."""

    version: str
    capabilities: Params = {}
    server_info: Params = {}
    instructions: str | None = None


class Legacy(msgspec.Struct, frozen=True):
    """The probed server wants the handshake."""


class Retry(msgspec.Struct, frozen=True):
    """The probed server is of this era, but at another revision: ask again with it."""

    version: str


class Incompatible(msgspec.Struct, frozen=True):
    """The probed server and we have no revision in common."""

    supported: Sequence[str]


Verdict = Discovery | Legacy | Retry | Incompatible


def judge_probe(reply: Reply) -> Verdict:
    """Which era a server is of, by its answer to `server/discover` (protocol §2.1).

    The verdict never hangs on one error code: session-era servers refuse an unknown first request in many ways.
    """
    if isinstance(reply, Result):
        try:
            value = opened(reply)
        except RemoteProtocolError:
            return Legacy()
        supported = value.get("supportedVersions")
        mutual = _newest_modern(supported)
        if mutual is None:
            return Legacy()
        return _read_discovery(value, mutual)
    if reply.code == UNSUPPORTED_VERSION:
        supported = (as_object(reply.data) or {}).get("supported")
        mutual = _newest_modern(supported)
        if mutual is not None:
            return Retry(mutual)
        names = as_array(supported) or []
        if not names or any(name in SESSION_VERSIONS for name in names):
            return Legacy()
        return Incompatible([str(name) for name in names])
    if reply.code in (HEADER_MISMATCH, MISSING_CAPABILITY):
        return Retry(LATEST_VERSION)
    return Legacy()


def _newest_modern(supported: object) -> str | None:
    names = as_array(supported) or []
    return next((version for version in reversed(MODERN_VERSIONS) if version in names), None)


def _read_discovery(value: Params, version: str) -> Discovery:
    meta = as_object(value.get("_meta")) or {}
    instructions = value.get("instructions")
    return Discovery(
        version,
        as_object(value.get("capabilities")) or {},
        as_object(meta.get(SERVER_INFO_KEY)) or {},
        instructions if isinstance(instructions, str) else None,
    )
