"""Validation of what servers list and return, so that no client refuses it (threats R5).

Only what every revision requires is checked; unknown members and content types pass. In list entries, malformed
optional members are dropped; an entry with a malformed required member is dropped as a whole.
"""

import re
from collections.abc import Mapping
from functools import cache
from ipaddress import IPv6Address
from typing import Annotated, Final, Literal
from unicodedata import normalize
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, Meta, UnsetType

from sluicegate.errors import RemoteProtocolError
from sluicegate.protocol.json_limits import DEFAULT_LIMITS, is_deep
from sluicegate.protocol.message import Params, Result, ToolText, as_array, as_object, opened

_Name = Annotated[str, Meta(min_length=1)]
# As TypeScript clients read it; the schemas mention ISO 8601 only in descriptions.
_Moment = Annotated[str, Meta(pattern=r"^\d{4}-\d\d-\d\dT\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)$")]
# To JSON Schema `42.0` is an integer, too.
_Integer = int | Annotated[float, Meta(multiple_of=1, ge=-(2**53), le=2**53)]


class _Schema(msgspec.Struct, kw_only=True):
    dialect: str | UnsetType = msgspec.field(default=UNSET, name="$schema")
    properties: dict[str, dict[str, object]] | UnsetType = UNSET
    required: list[str] | UnsetType = UNSET


class _ObjectSchema(_Schema, kw_only=True):
    # No Literal, whose error would quote the server.
    type: Annotated[str, Meta(pattern=r"^object\Z")]


class _Icon(msgspec.Struct, rename="camel"):
    src: str
    mime_type: str | UnsetType = UNSET
    sizes: list[str] | UnsetType = UNSET
    theme: Literal["dark", "light"] | UnsetType = UNSET


class _Hints(msgspec.Struct, rename="camel"):
    title: str | UnsetType = UNSET
    read_only_hint: bool | UnsetType = UNSET
    destructive_hint: bool | UnsetType = UNSET
    idempotent_hint: bool | UnsetType = UNSET
    open_world_hint: bool | UnsetType = UNSET


class _Execution(msgspec.Struct, rename="camel"):
    task_support: Literal["forbidden", "optional", "required"] | UnsetType = UNSET


class _Annotations(msgspec.Struct, rename="camel"):
    audience: list[Literal["user", "assistant"]] | UnsetType = UNSET
    priority: Annotated[float, Meta(ge=0, le=1)] | UnsetType = UNSET
    last_modified: _Moment | UnsetType = UNSET


class _Argument(msgspec.Struct):
    name: str
    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    required: bool | UnsetType = UNSET


class Shape(msgspec.Struct, kw_only=True, rename="camel"):
    """The common members of all entries. Members without a default are required."""

    title: str | UnsetType = UNSET
    description: str | UnsetType = UNSET
    icons: list[_Icon] | UnsetType = UNSET
    meta: dict[str, object] | UnsetType = msgspec.field(default=UNSET, name="_meta")


class ToolShape(Shape, kw_only=True, rename="camel"):
    """An entry of `tools/list`."""

    name: _Name
    input_schema: _ObjectSchema
    output_schema: _Schema | UnsetType = UNSET
    annotations: _Hints | UnsetType = UNSET
    execution: _Execution | UnsetType = UNSET


class PromptShape(Shape, kw_only=True, rename="camel"):
    """An entry of `prompts/list`."""

    name: _Name
    arguments: list[_Argument] | UnsetType = UNSET


class _ResourceShape(Shape, kw_only=True, rename="camel"):
    name: str
    mime_type: str | UnsetType = UNSET
    annotations: _Annotations | UnsetType = UNSET


class ResourceShape(_ResourceShape, kw_only=True):
    """An entry of `resources/list`."""

    uri: _Name
    size: _Integer | UnsetType = UNSET

    def __post_init__(self) -> None:
        if not _is_uri(self.uri):
            raise ValueError("Expected a URI - at `$.uri`")  # msgspec turns this into a ValidationError.


class TemplateShape(_ResourceShape, kw_only=True, rename="camel"):
    """An entry of `resources/templates/list`."""

    uri_template: _Name


class Shaped(msgspec.Struct, frozen=True):
    """An entry that every client can read, and the names of the members that were dropped."""

    entry: Params
    lost: tuple[str, ...] = ()


def shaped(entry: object, shape: type[Shape]) -> Shaped:
    """The entry in a valid form, nearly always unchanged.

    Raises:
        msgspec.ValidationError: a required member is malformed.
    """
    members = as_object(entry)
    if members is None:
        raise msgspec.ValidationError("Expected `object`")
    if _fits(members, shape):
        return Shaped(members)
    kept, lost = dict(members), list[str]()
    for name, kind, is_required in _table(shape):
        if name not in kept:
            continue
        kept[name] = _respelled(name, kept[name])
        if kept[name] is None:
            del kept[name]  # Many servers write null for absent members.
        elif not is_required and not _fits(kept[name], kind):
            del kept[name]
            lost.append(name)
    msgspec.convert(kept, shape)
    return Shaped(kept, tuple(lost))


@cache
def _table(shape: type[Shape]) -> list[tuple[str, object, bool]]:
    return [(field.encode_name, field.type, field.required) for field in msgspec.structs.fields(shape)]


def _fits(value: object, kind: object) -> bool:
    try:
        msgspec.convert(value, kind)
    except msgspec.ValidationError:
        return False
    return True


_SCHEMAS: Final = frozenset({"inputSchema", "outputSchema"})
_WITH_MEMBERS: Final = frozenset({"annotations", "arguments", "execution", "icons"})


def _respelled(name: str, value: object) -> object:
    """A member with the same meaning in a form that every revision has."""
    if name in _WITH_MEMBERS:
        return _without_nulls(value)
    schema = as_object(value) if name in _SCHEMAS else None
    if schema is None:
        return value
    # Only of these: null may be a default value or a constant.
    schema = {key: value for key, value in schema.items() if value is not None or key not in _OF_SCHEMA}
    if name == "inputSchema" and schema.get("type") is None:
        schema["type"] = "object"  # Arguments are always an object.
    if schema.get("properties") == []:
        schema["properties"] = {}  # PHP writes an empty object like this.
    properties = as_object(schema.get("properties"))
    if properties is None:
        return schema
    # Before 2026-07-28 `true` and `false` are not valid schemas, but servers in Go write them.
    return {**schema, "properties": {key: _as_members(value) for key, value in properties.items()}}


_OF_SCHEMA: Final = frozenset({"$schema", "properties", "required"})


def _as_members(schema: object) -> object:
    if isinstance(schema, bool):
        return {} if schema else {"not": {}}
    return schema


def _without_nulls(value: object) -> object:
    if (entries := as_array(value)) is not None:
        return [_without_nulls(entry) for entry in entries]
    if (members := as_object(value)) is not None:
        return {name: member for name, member in members.items() if member is not None}
    return value


# ----------------------------------------------------------------------------------------------------------------- URIs

_uri: Final = re.compile(
    r"([A-Za-z][A-Za-z0-9+.-]*):"
    r"(?:(?!//)|//([^@/?#\\]*@)?(\[[0-9A-Fa-f:.]+\]|[^\x00-\x20<>\[\]^|\\:@/?#]*)(:[0-9]*)?(?=[/?#]|$))"
    r"[^\x00-\x1f\x7f]*"
)
# Many servers write a drive in place of the host, and clients accept that.
_drive: Final = re.compile(r"file://[a-z]:(?:[/\\?#][^\x00-\x1f\x7f]*)?", re.IGNORECASE | re.ASCII)
# WHATWG's forbidden domain code points, and the replacement character for invalid UTF-8.
_forbidden: Final = re.compile(r"[\x00-\x20\x7f#%/:<>?@\[\\\]^|\ufffd]")
_number: Final = re.compile(r"[0-9]+|0[xX][0-9A-Fa-f]*")
_ip_part: Final = re.compile(r"0[xX]([0-9A-Fa-f]*)|0([0-7]*)|([1-9][0-9]{0,9})")
_WEB: Final = frozenset({"http", "https", "ws", "wss", "ftp"})


def _is_uri(text: str) -> bool:
    """Whether clients that parse URIs accept this one. They check only scheme and host."""
    if _drive.fullmatch(text):
        return True
    found = _uri.fullmatch(text)
    if found is None:
        return False
    scheme, user, host, port = found.groups()
    is_web, is_file = scheme.lower() in _WEB, scheme.lower() == "file"
    if not host:
        return not (is_web or user or port)
    if is_file and (user or port):
        return False
    if host.startswith("["):
        is_host = _is_ipv6(host[1:-1])
    else:
        is_host = not (is_web or is_file) or _is_domain(host)  # In other schemes it can be any text.
    return is_host and (not port or len(port) <= 6 and int(port[1:] or 0) <= 65535)


def _is_domain(host: str) -> bool:
    """Whether a host is a domain or an IPv4 address, as browsers read it."""
    host = normalize("NFKC", unquote(host)).replace("\u3002", ".")  # The ideographic full stop counts as a dot.
    if not host or _forbidden.search(host):
        return False
    parts = host.removesuffix(".").split(".")
    return not _number.fullmatch(parts[-1]) or _is_ipv4(parts)


def _is_ipv4(parts: list[str]) -> bool:
    """Whether these are the numbers of an IPv4 address: one to four, and the last one fills the remaining bytes."""
    numbers: list[int] = []
    for part in parts:
        found = _ip_part.fullmatch(part)
        if found is None:
            return False
        sixteen, eight, ten = found.groups()
        numbers.append(int(ten) if ten else int(sixteen or "0", 16) if eight is None else int(eight or "0", 8))
    *first, last = numbers
    return len(first) < 4 and all(number < 256 for number in first) and last < 256 ** (4 - len(first))


def _is_ipv6(text: str) -> bool:
    try:
        IPv6Address(text)
    except ValueError:
        return False
    return True


# ------------------------------------------------------------------------------------------------------------- results

_DEMANDED: Final[Mapping[str, tuple[str, ...]]] = {
    "text": ("text",),
    "image": ("data", "mimeType"),
    "audio": ("data", "mimeType"),
    "resource_link": ("uri", "name"),
}


class _Contents(msgspec.Struct):
    uri: str
    text: object = None
    blob: object = None

    def __post_init__(self) -> None:
        if not isinstance(self.text, str) and not isinstance(self.blob, str):
            raise ValueError("A resource lacks both `text` and `blob`")  # msgspec turns this into a ValidationError.


class _Block(msgspec.Struct):
    # No tagged union, which would refuse unknown types.
    type: str
    text: object = None
    data: object = None
    mimeType: object = None  # noqa: N815 - the name on the wire
    uri: object = None
    name: object = None
    resource: object = None

    def __post_init__(self) -> None:
        for name in _DEMANDED.get(self.type, ()):
            if not isinstance(getattr(self, name), str):
                raise ValueError(f"Content of type `{self.type}` lacks the string `{name}`")
        if self.type == "resource":
            try:
                msgspec.convert(self.resource, _Contents)
            except msgspec.ValidationError as problem:
                raise ValueError(str(problem)) from None  # A ValidationError would lack the path to this block.


class _ToolResult(msgspec.Struct):
    content: list[_Block]
    isError: bool | None = None  # noqa: N815 - the name on the wire


class _PromptMessage(msgspec.Struct):
    role: str
    content: _Block | list[_Block]


class _PromptResult(msgspec.Struct):
    messages: list[_PromptMessage]


class _ReadResult(msgspec.Struct):
    contents: list[_Contents]


_RESULTS: Final[Mapping[str, type[_ToolResult] | type[_PromptResult] | type[_ReadResult]]] = {
    "tools/call": _ToolResult,
    "prompts/get": _PromptResult,
    "resources/read": _ReadResult,
}


def valid_result(method: str, result: Result) -> Result:
    """A result that clients can read: the same, or with the empty `content` that some servers leave out.

    Raises:
        RemoteProtocolError: it is not a valid result of this method.
    """
    shape = _RESULTS.get(method)
    if shape is None or isinstance(result.value, ToolText):
        return result
    raw = result.value if isinstance(result.value, msgspec.Raw) else None
    if raw is not None and is_deep(bytes(raw)):
        raise RemoteProtocolError(f"The answer's result is nested more than {DEFAULT_LIMITS.depth} levels deep.")
    try:
        if raw is not None:
            msgspec.json.decode(raw, type=shape)
        else:
            msgspec.convert(result.value, shape)
    except (msgspec.DecodeError, RecursionError) as problem:
        value = opened(result)
        if method == "tools/call" and _lacks_content(value):
            return valid_result(method, Result({**value, "content": list[object]()}))
        raise RemoteProtocolError(f"The answer's result is malformed: {problem}.") from None
    return result


def _lacks_content(value: Params) -> bool:
    """Whether a final result only lacks `content`: an error would make the client call again."""
    is_other = value.get("resultType", "complete") != "complete" or "task" in value or "toolResult" in value
    return value.get("content") is None and not is_other


MAX_COMPLETIONS: Final = 100


def shortened_completion(result: Result) -> Result:
    """The result of `completion/complete` with at most a hundred values, as the specification demands."""
    value = opened(result)
    completion = as_object(value.get("completion")) or {}
    values = as_array(completion.get("values")) or []
    if len(values) <= MAX_COMPLETIONS:
        return result
    return Result({**value, "completion": {**completion, "values": values[:MAX_COMPLETIONS], "hasMore": True}})
