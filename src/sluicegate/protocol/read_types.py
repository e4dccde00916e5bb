"""Tolerant reading of the JSON that servers send into the values of `types`.

A descriptive member of a wrong type is dropped, an unreadable content block is kept as `UnknownContent`, and unknown
members stay in `raw`. Members that callers act on (a name, an error flag, bytes) must be valid. Every `read_*` raises
`msgspec.ValidationError` for what it cannot read.
"""

from functools import cache
from typing import Final, TypeVar, cast

import msgspec
from msgspec import UNSET

from sluicegate.protocol.message import Notification, Params, as_array, as_object
from sluicegate.protocol.types import (
    DATA_KEY,
    EVENT_KEY,
    AudioContent,
    Change,
    Completion,
    Content,
    DataEvent,
    EmbeddedResource,
    ImageContent,
    LogEvent,
    OwnEvent,
    ProgressEvent,
    Prompt,
    PromptMessage,
    PromptResult,
    PromptsChanged,
    ReadResult,
    Resource,
    ResourceContents,
    ResourceLink,
    ResourcesChanged,
    ResourceTemplate,
    ResourceUpdated,
    TextContent,
    Tool,
    ToolResult,
    ToolsChanged,
    UnknownContent,
)

T = TypeVar("T", bound=msgspec.Struct)

_CHANGES: Final[dict[str, type[Change]]] = {
    "notifications/tools/list_changed": ToolsChanged,
    "notifications/prompts/list_changed": PromptsChanged,
    "notifications/resources/list_changed": ResourcesChanged,
    "notifications/resources/updated": ResourceUpdated,
}

_DESCRIPTIVE: Final = frozenset(
    "_meta annotations description icons logger message mimeType outputSchema size title total".split()
)
_NESTED: Final = frozenset({"annotations", "arguments", "icons"})
_PLAIN_TEXT: Final = {"type", "text"}
_BLOCKS: Final[dict[object, type[Content]]] = {
    "text": TextContent,
    "image": ImageContent,
    "audio": AudioContent,
    "resource_link": ResourceLink,
    "resource": EmbeddedResource,
}


def read_tool(entry: object) -> Tool:
    """The tool that an entry of `tools/list` describes."""
    return _read(Tool, entry)


def read_resource(entry: object) -> Resource:
    """The resource that an entry of `resources/list` describes."""
    return _read(Resource, entry)


def read_resource_template(entry: object) -> ResourceTemplate:
    """The template that an entry of `resources/templates/list` describes."""
    return _read(ResourceTemplate, entry)


def read_prompt(entry: object) -> Prompt:
    """The prompt that an entry of `prompts/list` describes."""
    return _read(Prompt, entry)


def read_content(block: object) -> Content:
    """The content block. Never fails, so that one invalid block does not cost the others."""
    try:
        members = _members(block)
        if members.keys() == _PLAIN_TEXT and members["type"] == "text" and isinstance(text := members["text"], str):
            return TextContent(text=text)  # The most common case; `_read` would return the same.
        if inner := as_object(members.get("resource")):
            members = {**members, "resource": {**inner, "raw": inner}}
        kind = members.get("type")
        return _read(_BLOCKS[kind], members) if isinstance(kind, str) and kind in _BLOCKS else UnknownContent(block)
    except msgspec.ValidationError:
        return UnknownContent(block)


def read_message(entry: object) -> PromptMessage:
    """The message of a prompt or of a sampling request."""
    members = _members(entry)
    role = members.get("role")
    if not isinstance(role, str):
        raise msgspec.ValidationError("Expected `str` - at `$.role`")
    blocks = as_array(members.get("content"))
    return PromptMessage(role, [read_content(b) for b in ([members.get("content")] if blocks is None else blocks)])


def read_tool_result(value: object) -> ToolResult:
    """The result of `tools/call`."""
    members = _members(value)
    # A flag of a wrong type must not count as success.
    is_error = members.get("isError")
    if is_error is not None and not isinstance(is_error, bool):
        raise msgspec.ValidationError("Expected `bool | null` - at `$.isError`")
    return ToolResult(
        # Some servers answer with structured content only.
        content=[read_content(block) for block in _entries(members, "content", required=False)],
        structured_content=members.get("structuredContent", UNSET),
        is_error=bool(is_error),
        meta=_meta(members),
        raw=members,
    )


def read_read_result(value: object) -> ReadResult:
    """The result of `resources/read`."""
    members = _members(value)
    contents = [_read(ResourceContents, entry) for entry in _entries(members, "contents")]
    return ReadResult(contents=contents, meta=_meta(members), raw=members)


def read_prompt_result(value: object) -> PromptResult:
    """The result of `prompts/get`."""
    members = _members(value)
    description = members.get("description")
    return PromptResult(
        messages=[read_message(entry) for entry in _entries(members, "messages")],
        description=description if isinstance(description, str) else None,
        meta=_meta(members),
        raw=members,
    )


def read_completion(value: object) -> Completion:
    """The result of `completion/complete`."""
    members = _members(value)
    inner = _read(Completion, members.get("completion"))
    return msgspec.structs.replace(inner, meta=_meta(members), raw=members)


def read_progress(params: Params) -> ProgressEvent:
    """The params of `notifications/progress`; a `DataEvent` if they contain a part of the result or an event."""
    meta = as_object(params.get("_meta"))
    if meta is None:
        return _read(ProgressEvent, params)
    if (own := as_object(meta.get(EVENT_KEY))) is not None and isinstance(own.get("type"), str | int):
        return _read(OwnEvent, {**params, "value": own})
    if DATA_KEY not in meta:
        return _read(ProgressEvent, params)
    return _read(DataEvent, {**params, "value": meta[DATA_KEY]})


def read_log(params: Params) -> LogEvent:
    """The params of `notifications/message`."""
    return _read(LogEvent, params)


def read_change(notification: Notification) -> Change | None:
    """The change that a notification reports, or None if it reports something else."""
    kind = _CHANGES.get(notification.method)
    return None if kind is None else _read(kind, notification.params)


def _read(kind: type[T], entry: object) -> T:
    members = _members(entry)
    members = {**members, "raw": members}  # last, because the server may send a member of that name
    try:
        return msgspec.convert(members, kind)
    except msgspec.ValidationError:
        # Many servers write null for absent members; it has no other meaning in any of these.
        members = {k: _without_nulls(v) if k in _NESTED else v for k, v in members.items() if v is not None}
        for name, member_kind in _descriptive(kind):
            if not _fits(members.get(name), member_kind):
                del members[name]
        return msgspec.convert(members, kind)


@cache
def _descriptive(kind: type[object]) -> list[tuple[str, object]]:
    """The descriptive members of a type, which are dropped if invalid, and the type of each."""
    fields = msgspec.structs.fields(cast(type[msgspec.Struct], kind))
    return [(field.encode_name, field.type) for field in fields if field.encode_name in _DESCRIPTIVE]


def _without_nulls(value: object) -> object:
    if (entries := as_array(value)) is not None:
        return [_without_nulls(entry) for entry in entries]
    if (members := as_object(value)) is not None:
        return {name: member for name, member in members.items() if member is not None}
    return value


def _fits(value: object, kind: object) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


def _members(value: object) -> Params:
    members = as_object(value)
    if members is None:
        raise msgspec.ValidationError("Expected `object`")
    return members


def _entries(members: Params, name: str, *, required: bool = True) -> list[object]:
    entries = as_array(members.get(name, None if required else []))
    if entries is None:
        raise msgspec.ValidationError(f"Expected `array` - at `$.{name}`")
    return entries


def _meta(members: Params) -> Params | None:
    return as_object(members.get("_meta"))
