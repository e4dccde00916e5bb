"""Requests, results and notifications of 2026-07-28, for both roles. An `Exchange` holds a request of this era."""

from collections.abc import Mapping, Sequence
from typing import Final, cast

import msgspec

from sluicegate.errors import (
    HEADER_MISMATCH,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    MISSING_CAPABILITY,
    UNSUPPORTED_VERSION,
    RemoteProtocolError,
)
from sluicegate.protocol.headers import NAMED_BY, Claims, check_headers
from sluicegate.protocol.message import (
    Notification,
    Params,
    Reply,
    Request,
    RequestId,
    Result,
    as_array,
    as_object,
    opened,
)
from sluicegate.protocol.methods import LOG_LEVELS, METHODS, may_be_of_extension, requestable
from sluicegate.protocol.types import INNER_KEY
from sluicegate.protocol.versions import LATEST_VERSION, MODERN_VERSIONS, SESSION_VERSIONS, SUPPORTED_VERSIONS

VERSION_KEY: Final = "io.modelcontextprotocol/protocolVersion"
CAPABILITIES_KEY: Final = "io.modelcontextprotocol/clientCapabilities"
CLIENT_INFO_KEY: Final = "io.modelcontextprotocol/clientInfo"
LOG_LEVEL_KEY: Final = "io.modelcontextprotocol/logLevel"
SERVER_INFO_KEY: Final = "io.modelcontextprotocol/serverInfo"
SUBSCRIPTION_KEY: Final = "io.modelcontextprotocol/subscriptionId"

_PROFILE_KEYS: Final = frozenset({VERSION_KEY, CAPABILITIES_KEY, CLIENT_INFO_KEY, LOG_LEVEL_KEY, "progressToken"})

_NO_META: Final[Params] = {}
_BAD_TOKEN: Final = "a progress token is a string or an integer."

ACKNOWLEDGED: Final = "notifications/subscriptions/acknowledged"


class ClientProfile(msgspec.Struct, frozen=True):
    """The data of a client that come with each request, in the session era mostly with `initialize`."""

    version: str = LATEST_VERSION
    capabilities: Mapping[str, object] = {}
    client_info: Mapping[str, object] | None = None
    log_level: str | None = None
    progress_token: RequestId | None = None


def is_modern(params: Params) -> bool:
    """Whether a request names its revision, which requests do from 2026-07-28 on."""
    meta = as_object(params.get("_meta"))
    return meta is not None and VERSION_KEY in meta


def read_request(request: Request, claims: Claims | None = None) -> tuple[ClientProfile, Params]:
    """The request's profile, and its params without the members of the profile. `claims` are its HTTP headers.

    Raises:
        RemoteProtocolError: −32602 for an incomplete `_meta`, −32020 for headers that differ from the body, −32022 for
            an unsupported revision, −32601 for a method that 2026-07-28 does not have.
    """
    method, params = request.method, request.params
    meta = cast(Params, params.get("_meta", _NO_META))  # Checked where the message was read.
    version, capabilities, token = meta.get(VERSION_KEY), meta.get(CAPABILITIES_KEY), meta.get("progressToken")
    if not isinstance(version, str):
        raise _wrong_meta(request, f"_meta lacks {VERSION_KEY}.")
    if not isinstance(capabilities, dict):
        raise _wrong_meta(request, f"_meta lacks {CAPABILITIES_KEY}, an object (it may be empty).")
    if claims is not None:
        named_by = NAMED_BY.get(method)
        is_same = named_by is None or params.get(named_by) == claims.name
        if version != claims.version or method != claims.method or not is_same:
            check_headers(claims.values, request.id, version, method, params)
    if (version, method) not in _REQUESTABLE:
        if version not in MODERN_VERSIONS or not may_be_of_extension(method):
            raise _not_spoken(request, version)
    client_info, log_level = meta.get(CLIENT_INFO_KEY), meta.get(LOG_LEVEL_KEY)
    if client_info is not None and not isinstance(client_info, dict):
        raise _wrong_meta(request, f"{CLIENT_INFO_KEY} is an object.")
    if log_level is not None and log_level not in LOG_LEVELS:
        raise _wrong_meta(request, f"{LOG_LEVEL_KEY} is one of {', '.join(LOG_LEVELS)}.")
    if token is not None and not isinstance(token, str) and type(token) is not int:
        raise _wrong_meta(request, _BAD_TOKEN)
    profile = ClientProfile(version, cast(Params, capabilities), cast(Params | None, client_info), log_level, token)
    return profile, _without(params, meta)


_REQUESTABLE: Final = frozenset(
    (version, method) for version in MODERN_VERSIONS for method in METHODS if requestable(method, version)
)


def _not_spoken(request: Request, version: str) -> RemoteProtocolError:
    if version in MODERN_VERSIONS:
        problem, code, data = f"Method not found: {request.method[:100]}", METHOD_NOT_FOUND, None
    else:
        problem, code = "Unsupported protocol version", UNSUPPORTED_VERSION
        data = {"supported": list(SUPPORTED_VERSIONS), "requested": version}
    return RemoteProtocolError(problem, code=code, request_id=request.id, data=data)


def _wrong_meta(request: Request, problem: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"Invalid params: {problem}", code=INVALID_PARAMS, request_id=request.id)


def read_progress_token(request: Request) -> RequestId | None:
    """The progress token of a request of either era, or None.

    Raises:
        RemoteProtocolError: −32602 for a token that is neither string nor integer.
    """
    token = (as_object(request.params.get("_meta")) or _NO_META).get("progressToken")
    if token is None or isinstance(token, str) or type(token) is int:
        return token
    raise _wrong_meta(request, _BAD_TOKEN)


def without_profile(params: Params) -> Params:
    """The params without the `_meta` members of a profile, and without an empty `_meta`."""
    meta = as_object(params.get("_meta"))
    return params if meta is None or meta.keys().isdisjoint(_PROFILE_KEYS) else _without(params, meta)


def _without(params: Params, meta: Params) -> Params:
    params = dict(params)
    del params["_meta"]
    if not meta.keys() <= _PROFILE_KEYS:
        params["_meta"] = {key: value for key, value in meta.items() if key not in _PROFILE_KEYS}
    return params


def with_profile(params: Params, profile: ClientProfile, progress_token: RequestId | None) -> Params:
    """The params with the profile and our own progress token in `_meta`."""
    return stamped(params, profile, profile.version, profile.client_info, progress_token)


def stamped(
    params: Params,
    said: ClientProfile,
    version: str,
    client_info: Mapping[str, object] | None,
    progress_token: RequestId | None,
) -> Params:
    """The params of a caller's request as we send them to a server: the caller's profile with our own client info."""
    meta: Params = {VERSION_KEY: version, CAPABILITIES_KEY: said.capabilities}
    if "_meta" in params:
        meta = {**(as_object(params["_meta"]) or _NO_META), **meta}
    if client_info is not None:
        meta[CLIENT_INFO_KEY] = client_info
    if said.log_level is not None:
        meta[LOG_LEVEL_KEY] = said.log_level
    if progress_token is not None:
        meta["progressToken"] = progress_token
    return {**params, "_meta": meta}


def tagged(notification: Notification, subscription_id: RequestId) -> Notification:
    """The notification for a `subscriptions/listen` stream, with the id of the listen request in its `_meta`."""
    return Notification(notification.method, marked(notification.params, subscription_id))


def marked(value: Params, subscription_id: RequestId) -> Params:
    """Params or a result with the id of a listen request in `_meta`."""
    meta = as_object(value.get("_meta")) or {}
    return {**value, "_meta": {**meta, SUBSCRIPTION_KEY: subscription_id}}


def subscription_of(notification: Notification) -> tuple[RequestId | None, Notification]:
    """The listen request that a notification names, if any, and the notification without it."""
    meta = as_object(notification.params.get("_meta"))
    if meta is None or SUBSCRIPTION_KEY not in meta:
        return None, notification
    marker = meta[SUBSCRIPTION_KEY]
    rest = {key: value for key, value in meta.items() if key != SUBSCRIPTION_KEY}
    params = {key: value for key, value in notification.params.items() if key != "_meta"}
    if rest:
        params["_meta"] = rest
    subscription = marker if isinstance(marker, str) or type(marker) is int else None
    return subscription, Notification(notification.method, params)


def complete(value: Params, *, ttl_ms: int | None = None, scope: str = "private") -> Params:
    """A final result of this era, with cache hints if a lifetime is given."""
    result: Params = {"resultType": "complete", **value}
    if ttl_ms is not None:
        result["ttlMs"] = ttl_ms
        result["cacheScope"] = scope
    return result


# ------------------------------------------------------------------------------------------------------------ discovery


class Discovery(msgspec.Struct, frozen=True):
    """The version, capabilities, names and instructions in a server's answer to `server/discover` or `initialize`."""

    version: str
    capabilities: Params = {}
    server_info: Params = {}
    instructions: str | None = None
    inner: Mapping[str, object] = {}
    """Descriptions of the namespaces inside the server's namespace, by name."""


class Legacy(msgspec.Struct, frozen=True):
    """The probed server is of the session era."""


class ProbeAgain(msgspec.Struct, frozen=True):
    """The probed server is of this era, but of another revision: probe again with that."""

    version: str


class Incompatible(msgspec.Struct, frozen=True):
    """The probed server supports no revision that we do."""

    supported: Sequence[str]


Verdict = Discovery | Legacy | ProbeAgain | Incompatible


def judge_probe(reply: Reply) -> Verdict:
    """The era of a server by its answer to `server/discover`.

    It does not depend on one error code: session-era servers refuse an unknown first request in many ways.
    """
    if isinstance(reply, Result):
        try:
            value = opened(reply)
        except RemoteProtocolError:
            return Legacy()
        mutual = _newest_modern(value.get("supportedVersions"))
        return Legacy() if mutual is None else _read_discovery(value, mutual)
    if reply.code == UNSUPPORTED_VERSION:
        supported = (as_object(reply.data) or {}).get("supported")
        mutual = _newest_modern(supported)
        if mutual is not None:
            return ProbeAgain(mutual)
        names = as_array(supported) or []
        if not names or any(name in SESSION_VERSIONS for name in names):
            return Legacy()
        return Incompatible([str(name) for name in names])
    if reply.code in (HEADER_MISMATCH, MISSING_CAPABILITY):
        return ProbeAgain(LATEST_VERSION)
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
        as_object(meta.get(INNER_KEY)) or {},
    )
