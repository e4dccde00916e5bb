"""Translation of replies, notifications and params between 2026-07-28, which is used inside, and the session era.

The one rule: only what has to change is changed. What a revision does not have is dropped or replaced; all else stays,
unknown members too. A raw reply stays raw, and only the levels that matter are decoded.
"""

from collections.abc import Callable, Collection, Mapping
from operator import attrgetter
from typing import Final

import msgspec

from sluicegate.errors import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    INVALID_PARAMS,
    MISSING_CAPABILITY,
    RESOURCE_NOT_FOUND,
    UNSUPPORTED_VERSION,
    URL_ELICITATION_REQUIRED,
    ErrorObject,
    UpstreamProtocolError,
)
from sluicegate.protocol.json_limits import DEFAULT_LIMITS, MARKS, has_many_marks
from sluicegate.protocol.message import Notification, Params, Reply, Result, ToolText
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.modern_era import SERVER_INFO_KEY, SUBSCRIPTION_KEY, subscription_of
from sluicegate.protocol.translate.content import (
    block_for_session,
    contents_for_session,
    decode_members,
    each,
    members_of,
    message_for_session,
    plain,
    prompt_for_session,
    resource_for_session,
    tool_for_session,
    tool_from_session,
    tool_result_for_session,
    without,
)
from sluicegate.protocol.versions import REVISIONS, V2025_11_25, Revision

# ----------------------------------------------------------------------------------------------------- towards a client


def reply_for_session(method: str, params: Params, reply: Reply, revision: Revision) -> Reply:
    """A reply for a client of an older revision.

    Raises:
        UpstreamProtocolError: the raw reply cannot be decoded.
    """
    if revision.modern:
        return reply
    if isinstance(reply, ErrorObject):
        return _error_for_session(method, params, reply)
    if reply.revision == revision.version:
        return reply
    raw = reply.value
    if isinstance(raw, ToolText):
        if revision.structured_content or not raw.is_structured:
            return Result(raw.for_session())
        raw = raw.to_raw()
    try:
        value = raw if isinstance(raw, dict) else _members_of(raw)
        changed = _result_for_session(method, value, revision)
        return reply if changed is value else _remade(raw, changed)
    except _UNDECODABLE:
        raise _not_decoded(method) from None


def notification_for_session(notification: Notification, revision: Revision) -> Notification | None:
    """A notification for a client of an older revision, or None if the revision does not have it."""
    if notification.method in _MISSING[revision.version]:
        return None
    if revision.modern:
        return notification
    if "_meta" in notification.params:
        _, notification = subscription_of(notification)
    if not revision.progress_message and notification.method == "notifications/progress":
        return Notification(notification.method, without(notification.params, ("message",)))
    return notification


_MISSING: Final = {
    version: frozenset(name for name, row in METHODS.items() if not row.exists_in(version)) for version in REVISIONS
}

_RESULT_MARKS: Final = frozenset({SERVER_INFO_KEY, SUBSCRIPTION_KEY})
_LATER_MEMBERS: Final = frozenset({"resultType", "ttlMs", "cacheScope"})
_LATER_MEMBERS_AND_META: Final = _LATER_MEMBERS | {"_meta"}

# The list in a method's result, the translation of its items, and whether a revision needs none.
_LISTS: Final[Mapping[str, tuple[str, Callable[[Params, Revision], Params], Callable[[Revision], bool]]]] = {
    "tools/call": ("content", block_for_session, attrgetter("icons")),
    "tools/list": ("tools", tool_for_session, attrgetter("modern")),
    "prompts/get": ("messages", message_for_session, attrgetter("icons")),
    "prompts/list": ("prompts", prompt_for_session, attrgetter("icons")),
    "resources/list": ("resources", resource_for_session, attrgetter("icons")),
    "resources/templates/list": ("resourceTemplates", resource_for_session, attrgetter("icons")),
    "resources/read": ("contents", contents_for_session, attrgetter("definition_meta")),
}


_CALLS: Final = ("tools/call", "prompts/get", "resources/read")


def _result_for_session(method: str, value: Params, revision: Revision) -> Params:
    meta = members_of(value["_meta"]) if "_meta" in value else None
    if meta is None or meta.keys().isdisjoint(_RESULT_MARKS):
        value = without(value, _LATER_MEMBERS)
    elif meta.keys() <= _RESULT_MARKS:
        value = without(value, _LATER_MEMBERS_AND_META)
    else:
        value = {**without(value, _LATER_MEMBERS), "_meta": without(meta, _RESULT_MARKS)}
    if method == "tools/call":
        if "structuredContent" in value:
            value = tool_result_for_session(value, revision)
        if "isError" not in value and "content" in value:  # Not to a task, which has no content.
            value = {**value, "isError": False}
    row = _LISTS.get(method)
    if row is not None:
        field, change, is_settled = row
        if not is_settled(revision):
            entries = value.get(field)
            # Lists were read entry by entry before, in many turns of the loop; a result has one (T4).
            if method in _CALLS and isinstance(entries, msgspec.Raw) and has_many_marks(bytes(entries)):
                marks = f"{DEFAULT_LIMITS.marks} {MARKS}"
                raise UpstreamProtocolError(f"The server's answer to {method} has more than {marks}.")
            value = each(value, field, lambda item: change(item, revision))
    return value


def _error_for_session(method: str, params: Params, error: ErrorObject) -> ErrorObject:
    data = members_of(error.data) or {}
    code, message = error.code, error.message
    if code == INVALID_PARAMS and method == "resources/read" and "uri" in data and data["uri"] == params.get("uri"):
        code = RESOURCE_NOT_FOUND
    elif code == MISSING_CAPABILITY:
        names = ", ".join(_capability_names(data.get("requiredCapabilities"))) or "it does not name it"
        code, message = INTERNAL_ERROR, f"The server needs a capability that this client did not declare: {names}."
    elif code in (UNSUPPORTED_VERSION, HEADER_MISMATCH):
        code = INTERNAL_ERROR
    elif code == INTERNAL_ERROR and data.keys() == {"upstream"}:
        return _unwrapped(data["upstream"]) or error
    return error if code == error.code else ErrorObject(code, message, error.data)


def _capability_names(required: object) -> list[str]:
    names: list[str] = []
    for name, inner in (members_of(required) or {}).items():
        names.extend([f"{name}.{part}" for part in members_of(inner) or {}] or [name])
    return names


def _unwrapped(upstream: object) -> ErrorObject | None:
    """The original error of a session-era server, for a client of the same era, where its code may have a meaning."""
    try:
        error = msgspec.convert(upstream, ErrorObject)
    except msgspec.ValidationError:
        return None
    return error if _is_private(error.code) and error.code not in _OF_MODERN else None


# ----------------------------------------------------------------------------------------------------- towards a server


def params_for_session(method: str, params: Params, revision: Revision) -> Params:
    """The params of a request for a session-era server."""
    # In a call of 2025-11-25, `task` comes from the hub, for tools that must be called as tasks.
    gone = _OF_RETRIES if method == "tools/call" and revision.version == V2025_11_25 else _OF_RETRIES_AND_TASKS
    if method == "completion/complete" and not revision.completion_context:
        gone |= {"context"}
    return without(params, gone)


_OF_RETRIES: Final = frozenset({"inputResponses", "requestState"})
_OF_RETRIES_AND_TASKS: Final = _OF_RETRIES | {"task"}


def reply_from_session(method: str, params: Params, reply: Reply) -> Reply:
    """A session-era server's reply in the form of 2026-07-28.

    Raises:
        UpstreamProtocolError: the raw reply cannot be decoded.
    """
    if isinstance(reply, ErrorObject):
        return error_to_pass(method, params, reply, ())
    raw = reply.value
    if method == "tools/call" and (text := raw if isinstance(raw, ToolText) else reply.tool_text()) is not None:
        return Result(text.marked())
    raw = raw.to_raw() if isinstance(raw, ToolText) else raw
    try:
        value = raw if isinstance(raw, dict) else _members_of(raw)
        changed = _result_from_session(method, value)
        return reply if changed is value else _remade(raw, changed)
    except _UNDECODABLE:
        raise _not_decoded(method) from None


def _result_from_session(method: str, value: Params) -> Params:
    added: Params = {}
    # A session-era server cannot ask for input by a result, so its `resultType` has another meaning.
    if plain(value.get("resultType")) != "complete":
        added["resultType"] = "complete"
    row = METHODS.get(method)
    if row is not None and row.cacheable:
        lifetime = plain(value.get("ttlMs"))
        if type(lifetime) is not int or lifetime < 0:
            added["ttlMs"] = 0
        if plain(value.get("cacheScope")) not in ("public", "private"):
            added["cacheScope"] = "private"
    if method == "tools/list":
        value = each(value, "tools", tool_from_session)
    return {**added, **without(value, added)} if added else value


_OF_MODERN: Final = (HEADER_MISMATCH, MISSING_CAPABILITY, UNSUPPORTED_VERSION)


def error_to_pass(method: str, params: Params, error: ErrorObject, known: Collection[int] = _OF_MODERN) -> ErrorObject:
    """A server's error in the form of 2026-07-28: a private code becomes an internal error that contains the original.

    `known` are the codes of 2026-07-28 that have their meaning there if this server sends them.
    """
    if error.code == RESOURCE_NOT_FOUND and method == "resources/read":
        data = members_of(error.data)
        if data is None:
            data = {} if error.data is msgspec.UNSET else {"upstream": error.data}
        return ErrorObject(INVALID_PARAMS, error.message, {**data, "uri": params.get("uri")})
    if _is_private(error.code) and error.code not in known:
        return ErrorObject(INTERNAL_ERROR, error.message, {"upstream": msgspec.to_builtins(error)})
    return error


def _is_private(code: int) -> bool:
    """Whether a code has a meaning only for its sender; 2026-07-28 forbids passing it on."""
    # 0 is what some SDKs send for an exception without a code; JSON-RPC gives it no meaning.
    return code == 0 or (-32099 <= code <= -32000 and code != URL_ELICITATION_REQUIRED)


# -------------------------------------------------------------------------------------------------------------- helpers

_encode: Final = msgspec.json.Encoder().encode
_UNDECODABLE: Final = (msgspec.DecodeError, RecursionError)


def _not_decoded(method: str) -> UpstreamProtocolError:
    return UpstreamProtocolError(f"The server's answer to {method} cannot be decoded.")


def _members_of(raw: msgspec.Raw | Mapping[str, object]) -> Params:
    """The members of a result, each raw if the result is."""
    # Always decoded: searching the bytes for names would take as long, and miss escaped names.
    return decode_members(raw) if isinstance(raw, msgspec.Raw) else dict(raw)


def _remade(raw: msgspec.Raw | Mapping[str, object], changed: Params) -> Result:
    """The result after a change of its members: raw if it was raw."""
    return Result(msgspec.Raw(_encode(changed)) if isinstance(raw, msgspec.Raw) else changed)
