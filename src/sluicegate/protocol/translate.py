"""Between the shape spoken inside, 2026-07-28, and the session era: replies, notifications, params. The older era pays.

The one rule: nothing is changed that need not be. What a revision has no word for is dropped, or said in words it has;
all else stays, unknown members too. A reply that came as bytes leaves as bytes, and none of it is decoded that nobody
looks at. What is inside results stands in `translate_content`, questions in `translate_questions`.
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
from sluicegate.protocol.message import MARK, Notification, Params, Reply, Result, Words
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.modern import SERVER_INFO_KEY, SUBSCRIPTION_KEY, subscription_of
from sluicegate.protocol.translate_content import (
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
    """A reply of the inner shape as a client of an older revision understands it.

    Raises:
        UpstreamProtocolError: the reply is bytes that cannot be decoded where they must be.
    """
    if revision.modern:
        return reply
    if isinstance(reply, ErrorObject):
        return _error_for_session(method, params, reply)
    raw = reply.value
    words = reply.words
    if words is not None and method == "tools/call" and (revision.structured_content or not words.is_structured):
        return _without_mark(reply, words)
    try:
        value = raw if isinstance(raw, dict) else _members_of(raw)
        changed = _result_for_session(method, value, revision)
        return reply if changed is value else _remade(raw, changed)
    except _UNDECODABLE:
        raise _not_decoded(method) from None


def notification_for_session(notification: Notification, revision: Revision) -> Notification | None:
    """A notification as a client of an older revision understands it, or None if that revision has no such thing."""
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

# The list in a method's result, how its items change, and what a revision must have for them to stay as they are.
_LISTS: Final[Mapping[str, tuple[str, Callable[[Params, Revision], Params], Callable[[Revision], bool]]]] = {
    "tools/call": ("content", block_for_session, attrgetter("icons")),
    "tools/list": ("tools", tool_for_session, attrgetter("modern")),
    "prompts/get": ("messages", message_for_session, attrgetter("icons")),
    "prompts/list": ("prompts", prompt_for_session, attrgetter("icons")),
    "resources/list": ("resources", resource_for_session, attrgetter("icons")),
    "resources/templates/list": ("resourceTemplates", resource_for_session, attrgetter("icons")),
    "resources/read": ("contents", contents_for_session, attrgetter("definition_meta")),
}


def _result_for_session(method: str, value: Params, revision: Revision) -> Params:
    meta = members_of(value["_meta"]) if "_meta" in value else None
    if meta is None or meta.keys().isdisjoint(_RESULT_MARKS):
        value = without(value, _LATER_MEMBERS)
    elif meta.keys() <= _RESULT_MARKS:
        value = without(value, _LATER_MEMBERS_AND_META)
    else:
        value = {**without(value, _LATER_MEMBERS), "_meta": without(meta, _RESULT_MARKS)}
    if method == "tools/call" and "structuredContent" in value:
        value = tool_result_for_session(value, revision)
    row = _LISTS.get(method)
    if row is not None:
        field, change, is_settled = row
        if not is_settled(revision):
            value = each(value, field, lambda item: change(item, revision))
    return value


def _error_for_session(method: str, params: Params, error: ErrorObject) -> ErrorObject:
    data = members_of(error.data) or {}
    code, message = error.code, error.message
    if code == INVALID_PARAMS and method == "resources/read" and "uri" in data and data["uri"] == params.get("uri"):
        code = RESOURCE_NOT_FOUND
    elif code == MISSING_CAPABILITY:
        names = ", ".join(_capability_names(data.get("requiredCapabilities"))) or "it does not say which"
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
    """The error that a session-era server sent, for a client of the same era: there its code may mean something."""
    try:
        error = msgspec.convert(upstream, ErrorObject)
    except msgspec.ValidationError:
        return None
    return error if _is_private(error.code) and error.code not in _OF_MODERN else None


# ----------------------------------------------------------------------------------------------------- towards a server


def params_for_session(method: str, params: Params, revision: Revision) -> Params:
    """The params of a request as a session-era server gets them."""
    # In a call of 2025-11-25 `task` is the hub's word, for tools that must be called as tasks, and never a client's.
    gone = _OF_RETRIES if method == "tools/call" and revision.version == V2025_11_25 else _OF_RETRIES_AND_TASKS
    if method == "completion/complete" and not revision.completion_context:
        gone |= {"context"}
    return without(params, gone)


_OF_RETRIES: Final = frozenset({"inputResponses", "requestState"})
_OF_RETRIES_AND_TASKS: Final = _OF_RETRIES | {"task"}


_SHORT: Final = 4096  # To look through a long one takes longer than to open it.


def reply_from_session(method: str, params: Params, reply: Reply) -> Reply:
    """A session-era server's reply in the inner shape.

    Raises:
        UpstreamProtocolError: the reply is bytes that cannot be decoded where they must be.
    """
    if isinstance(reply, ErrorObject):
        return error_to_pass(method, params, reply, ())
    if reply.words is not None and method == "tools/call":
        return with_mark(reply, reply.words)
    raw = reply.value
    if method == "tools/call" and isinstance(raw, dict) and "resultType" not in raw:
        return Result({"resultType": "complete", **raw})  # As below, for one that came opened.
    if method == "tools/call" and isinstance(raw, msgspec.Raw) and len(raw) < _SHORT:
        data = bytes(raw)
        if data.startswith(b'{"') and b'"resultType"' not in data and b"\\u" not in data:
            # Nearly all answers of tools: it lacks the mark, however that might be spelled, and nothing else.
            return Result(msgspec.Raw(_MARK + data[1:]))
    try:
        value = raw if isinstance(raw, dict) else _members_of(raw)
        changed = _result_from_session(method, value)
        return reply if changed is value else _remade(raw, changed)
    except _UNDECODABLE:
        raise _not_decoded(method) from None


def with_mark(result: Result, words: Words) -> Result:
    """The words of a tool, marked as final: the same if they are."""
    if words.is_marked:
        return result
    raw = result.value
    assert isinstance(raw, msgspec.Raw)  # As wherever there are words.
    data = _MARK + memoryview(raw)[1:]  # Once copied: it may be long.
    begin, end = words.begin + _ADDED, words.end + _ADDED
    return Result(msgspec.Raw(data), True, Words(begin, end, True, 0, words.is_structured, words.failed))


def _without_mark(result: Result, words: Words) -> Result:
    raw = result.value
    assert isinstance(raw, msgspec.Raw)  # As wherever there are words.
    data, end = memoryview(raw), words.end
    front = data[words.begin : words.mark or end]
    back = data[words.mark + _ADDED : end] if words.mark else b""
    older = b"".join((b"{", front, back, b"}"))
    return Result(msgspec.Raw(older), True, Words(1, len(older) - 1, False, 0, words.is_structured, words.failed))


_ADDED: Final = len(MARK)
_MARK: Final = b"{" + MARK


def _result_from_session(method: str, value: Params) -> Params:
    added: Params = {}
    # A session-era server cannot ask for input by a result: whatever it means by `resultType`, it is not what we mean.
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
    """A server's error in the inner shape: what its code means to nobody else is said in words of our own.

    Of the codes that 2026-07-28 keeps for itself, those that are `known` mean from this server what they mean there.
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
    """Whether the meaning of a code is its sender's own: 2026-07-28 lets nobody send such a code on."""
    return -32099 <= code <= -32000 and code != URL_ELICITATION_REQUIRED


# ----------------------------------------------------------------------------------------------------------- either way

_encode: Final = msgspec.json.Encoder().encode


_UNDECODABLE: Final = (msgspec.DecodeError, RecursionError)


def _not_decoded(method: str) -> UpstreamProtocolError:
    return UpstreamProtocolError(f"The server's answer to {method} cannot be decoded.")


def _members_of(raw: msgspec.Raw | Mapping[str, object]) -> Params:
    """The members of a result, each still bytes if the result is."""
    # One level is opened, always. To search the bytes for a name first would cost as much, and could be misled by a
    # name that is written with escapes or stands twice.
    return decode_members(raw) if isinstance(raw, msgspec.Raw) else dict(raw)


def _remade(raw: msgspec.Raw | Mapping[str, object], changed: Params) -> Result:
    """The result after a change of its members: bytes if it was bytes."""
    return Result(msgspec.Raw(_encode(changed)) if isinstance(raw, msgspec.Raw) else changed)
