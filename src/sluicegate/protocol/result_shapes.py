"""What the results of tools, prompts and resources must be like for a client to read them (threats R5, protocol §3.5).

The one rule: what every revision demands is looked for, and nothing else. Members and kinds of content that nobody here
knows pass. Nearly all results are as they should be, which one typed reading of them tells; what is wrong with the
others is then found out the long way.
"""

import re
from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from sluicegate.errors import RemoteProtocolError
from sluicegate.protocol.bounds import DEFAULT_LIMITS
from sluicegate.protocol.message import Params, Result, as_array, as_object, opened


class _Text(msgspec.Struct, tag="text"):
    text: str


class _Image(msgspec.Struct, tag="image"):
    data: str
    mimeType: str  # noqa: N815 - the name on the wire


class _Audio(msgspec.Struct, tag="audio"):
    data: str
    mimeType: str  # noqa: N815 - the name on the wire


class _Link(msgspec.Struct, tag="resource_link"):
    uri: str
    name: str


class _Contents(msgspec.Struct):
    uri: str
    text: str | None = None
    blob: str | None = None

    def __post_init__(self) -> None:
        if self.text is None and self.blob is None:
            raise ValueError("a resource without text or bytes")


class _Embedded(msgspec.Struct, tag="resource"):
    resource: _Contents


_Block = _Text | _Image | _Audio | _Link | _Embedded


class _ToolResult(msgspec.Struct):
    content: list[_Block]
    isError: bool | None = None  # noqa: N815 - the name on the wire


class _Message(msgspec.Struct):
    role: str
    content: _Block


class _PromptResult(msgspec.Struct):
    messages: list[_Message]


class _ReadResult(msgspec.Struct):
    contents: list[_Contents]


_usual: Final[Mapping[str, Callable[[bytes], object]]] = {
    "tools/call": msgspec.json.Decoder(_ToolResult).decode,
    "prompts/get": msgspec.json.Decoder(_PromptResult).decode,
    "resources/read": msgspec.json.Decoder(_ReadResult).decode,
}

_DEPTH: Final = DEFAULT_LIMITS.depth
_OTHERS: Final = bytes(byte for byte in range(256) if byte not in b'[]{}"')
_runs: Final = re.compile(rb"\[++|\]++").finditer
_ONE_KIND: Final = bytes.maketrans(b"{}", b"[]")


def is_in_shape(method: str, data: bytes) -> bool:
    """Whether a result is certainly as it should be. False says nothing: `in_shape` knows."""
    return not is_deep(data) and _decodes(method, data)


def _decodes(method: str, data: bytes) -> bool:
    decode = _usual.get(method)
    if decode is None:
        return False
    try:
        decode(data)
    except (msgspec.DecodeError, RecursionError):
        return False
    return True


def in_shape(method: str, result: Result) -> Result:
    """A result as clients can read it: the same, or with the empty content that some servers leave out.

    Raises:
        RemoteProtocolError: it is something else than what was asked for.
    """
    find = _FAULTS.get(method)
    if find is None or (result.words is not None and method == "tools/call"):
        return result
    if isinstance(result.value, msgspec.Raw):
        data = bytes(result.value)
        if is_deep(data):
            raise RemoteProtocolError(f"The answer's result is nested more than {_DEPTH} levels deep.")
        if _decodes(method, data):
            return result
    value = opened(result)
    if method == "tools/call" and _says_nothing(value):
        value = {**value, "content": list[object]()}
        result = Result(value)
    fault = find(value)
    if fault is not None:
        raise RemoteProtocolError(f"The answer's result {fault}.")
    return result


def _says_nothing(value: Params) -> bool:
    """Whether a tool has run and its server leaves out the content, having none: an error would invite another call."""
    is_other = value.get("resultType", "complete") != "complete" or "task" in value or "toolResult" in value
    return value.get("content") is None and not is_other


def is_deep(data: bytes) -> bool:
    """Whether this JSON is nested more deeply than any message should be."""
    # Nearly always there are too few of them even with those in strings.
    if len(data) <= _DEPTH or data.count(b"[") + data.count(b"{") <= _DEPTH:
        return False
    if b"\\" in data:
        data = data.replace(b"\\\\", b"").replace(b'\\"', b"")  # Every quote that is left begins or ends a string.
    # The strings with brackets in them are every second piece between quotes.
    marks = b"".join(data.translate(_ONE_KIND, _OTHERS).replace(b'""', b"").split(b'"')[::2])
    # Level by level, from the innermost ones on: what is wide is gone at once.
    levels, size = _DEPTH, 2 * len(marks)
    while marks and len(marks) < size * 7 // 8:
        levels, size = levels - 1, len(marks)
        marks = marks.replace(b"[]", b"")
    # What is left has many levels with little in them each, so that its brackets stand in long runs.
    depth = 0
    for run in _runs(marks):
        depth += len(run[0]) if run[0][0] == 0x5B else -len(run[0])
        if depth > levels:
            return True
    return False


# --------------------------------------------------------------------------------------------------------- the long way

_DEMANDED: Final[Mapping[object, tuple[str, ...]]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
}


def _fault_of_tool(value: Params) -> str | None:
    blocks = as_array(value.get("content"))
    if blocks is None:
        return "has no list of content"
    if not isinstance(value.get("isError"), bool | None):
        return "does not say whether the tool failed"
    return _first(_fault_of_block, blocks)


def _fault_of_prompt(value: Params) -> str | None:
    messages = as_array(value.get("messages"))
    return "has no list of messages" if messages is None else _first(_fault_of_message, messages)


def _fault_of_resource(value: Params) -> str | None:
    contents = as_array(value.get("contents"))
    return "has no list of contents" if contents is None else _first(_fault_of_contents, contents)


def _first(find: Callable[[object], str | None], entries: list[object]) -> str | None:
    return next((fault for fault in map(find, entries) if fault is not None), None)


def _fault_of_message(message: object) -> str | None:
    members = as_object(message) or {}
    if not isinstance(members.get("role"), str):
        return "has a message without a role"
    blocks = as_array(members.get("content"))
    return _first(_fault_of_block, [members.get("content")] if blocks is None else blocks)


def _fault_of_block(block: object) -> str | None:
    members = as_object(block) or {}
    kind = members.get("type")
    if not isinstance(kind, str):
        return "has content without a type"
    for name in _DEMANDED.get(kind, ()):
        if not isinstance(members.get(name), str):
            return f"has content of the type {kind} without {name}"
    return _fault_of_contents(members.get("resource")) if kind == "resource" else None


def _fault_of_contents(contents: object) -> str | None:
    members = as_object(contents) or {}
    if not isinstance(members.get("uri"), str):
        return "has a resource without a URI"
    if not isinstance(members.get("text"), str) and not isinstance(members.get("blob"), str):
        return "has a resource without text or bytes"
    return None


_FAULTS: Final[Mapping[str, Callable[[Params], str | None]]] = {
    "tools/call": _fault_of_tool,
    "prompts/get": _fault_of_prompt,
    "resources/read": _fault_of_resource,
}
