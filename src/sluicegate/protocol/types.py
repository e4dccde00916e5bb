"""Tools, resources, prompts, results and events as Python values. `read_types` makes them from JSON."""

from typing import Annotated, Final

import msgspec
from msgspec import UNSET

from sluicegate.protocol.message import Params

Name = Annotated[str, msgspec.Meta(min_length=1)]
Number = int | float
_META: Final = "_meta"


class _Described(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The common fields of what a server lists. `raw` is the whole entry as the server sent it."""

    title: str | None = None
    description: str | None = None
    icons: "list[Icon] | None" = None
    meta: Params | None = msgspec.field(default=None, name=_META)
    raw: Params = {}

    def __repr__(self) -> str:
        return _repr(self)


class _Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The common fields of results. `raw` is the whole result as the server sent it."""

    meta: Params | None = msgspec.field(default=None, name=_META)
    raw: Params = {}

    def __repr__(self) -> str:
        return _repr(self)


def _repr(value: msgspec.Struct) -> str:
    # A Struct prints every field; `raw` would repeat all of them.
    shown = [f"{name}={getattr(value, name)!r}" for name in value.__struct_fields__ if name != "raw"]
    return f"{type(value).__name__}({', '.join(shown)})"


# ---------------------------------------------------------------------------------------------------------- definitions


class Icon(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """An image for a user interface. `src` comes from the server: check where it points before you load it."""

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: str | None = None


class Annotations(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """Audience, priority (0 to 1) and last modification of a resource or content block."""

    audience: list[str] | None = None
    priority: Number | None = None
    last_modified: str | None = None


class ToolAnnotations(msgspec.Struct, frozen=True, rename="camel"):
    """A server's hints about a tool, which prove nothing. The defaults come from the specification."""

    title: str | None = None
    read_only_hint: bool = False
    destructive_hint: bool = True
    idempotent_hint: bool = False
    open_world_hint: bool = True


class Tool(_Described, frozen=True, kw_only=True):
    """A tool of a server, with the JSON Schema of its arguments."""

    name: Name
    # A call needs only the name, so a tool without a schema is kept.
    input_schema: Params = msgspec.field(default_factory=lambda: {"type": "object"})
    output_schema: Params | None = None
    annotations: ToolAnnotations | None = None

    @property
    def display_name(self) -> str:
        """The name to show to people: the title, in its new or old place, or the name."""
        return self.title or (self.annotations and self.annotations.title) or self.name


class Resource(_Described, frozen=True, kw_only=True):
    """A resource that a server can read, by its URI. `size` is in bytes."""

    uri: Name
    name: str
    mime_type: str | None = None
    size: int | None = None
    annotations: Annotations | None = None


class ResourceTemplate(_Described, frozen=True, kw_only=True):
    """Resources whose URI is a template (RFC 6570)."""

    uri_template: Name
    name: str
    mime_type: str | None = None
    annotations: Annotations | None = None


class PromptArgument(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One argument of a prompt."""

    name: Name
    title: str | None = None
    description: str | None = None
    required: bool = False


class Prompt(_Described, frozen=True, kw_only=True):
    """A prompt of a server, and its arguments."""

    name: Name
    arguments: list[PromptArgument] = []


class Root(msgspec.Struct, frozen=True, omit_defaults=True):
    """A folder that a server may work in; today always a `file://` URI."""

    uri: str
    name: str | None = None


class PromptRef(msgspec.Struct, frozen=True, tag_field="type", tag="ref/prompt"):
    """A prompt whose argument is to be completed."""

    name: str


class ResourceRef(msgspec.Struct, frozen=True, tag_field="type", tag="ref/resource"):
    """A resource template whose variable is to be completed."""

    uri: str


# -------------------------------------------------------------------------------------------------------------- content


class _Block(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="type"):
    annotations: Annotations | None = None
    meta: Params | None = msgspec.field(default=None, name=_META)


class TextContent(_Block, frozen=True, tag="text"):
    """Text."""

    text: str


class ImageContent(_Block, frozen=True, tag="image"):
    """An image, decoded to its bytes."""

    data: bytes
    mime_type: str


class AudioContent(_Block, frozen=True, tag="audio"):
    """Audio, decoded to its bytes."""

    data: bytes
    mime_type: str


class ResourceLink(_Block, frozen=True, kw_only=True, tag="resource_link"):
    """A link to a resource, which need not be among the listed ones."""

    uri: Name
    name: str = ""
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None


class ResourceContents(_Answer, frozen=True, kw_only=True):
    """The contents of a resource: `text`, or a `blob` of bytes."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: bytes | None = None

    def __post_init__(self) -> None:
        if self.text is None and self.blob is None:
            raise ValueError("Expected `text` or `blob`")  # msgspec turns this into a ValidationError.

    @property
    def data(self) -> bytes:
        """The bytes of either."""
        return self.blob if self.blob is not None else (self.text or "").encode()


class EmbeddedResource(_Block, frozen=True, tag="resource"):
    """A resource inside a result."""

    resource: ResourceContents


class UnknownContent(msgspec.Struct, frozen=True):
    """A block of an unknown type, or an invalid one: `raw` is what the server sent."""

    raw: object


Content = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource | UnknownContent


class PromptMessage(msgspec.Struct, frozen=True):
    """A message of a prompt or a sampling request; `content` is a list even of one block."""

    role: str
    content: list[Content]

    @property
    def text(self) -> str:
        """The text blocks, joined by newlines."""
        return joined_text(self.content)


def joined_text(blocks: list[Content]) -> str:
    """The text blocks, joined by newlines."""
    return "\n".join(block.text for block in blocks if isinstance(block, TextContent))


# -------------------------------------------------------------------------------------------------------------- results


class ToolResult(_Answer, frozen=True, kw_only=True):
    """The result of a call. With `is_error`, the tool ran and failed, and `text` says why."""

    content: list[Content]
    structured_content: object = UNSET
    """Any JSON value, also None; UNSET if there is none."""
    is_error: bool = False

    @property
    def text(self) -> str:
        """The text blocks, joined by newlines."""
        return joined_text(self.content)

    def __str__(self) -> str:
        return self.text


class ReadResult(_Answer, frozen=True, kw_only=True):
    """The contents of a resource: mostly one part, or one for each file of a folder."""

    contents: list[ResourceContents]

    @property
    def text(self) -> str:
        """The parts that are text, joined by newlines."""
        return "\n".join(part.text for part in self.contents if part.text is not None)

    def __str__(self) -> str:
        return self.text


class PromptResult(_Answer, frozen=True, kw_only=True):
    """A prompt with its arguments filled in."""

    messages: list[PromptMessage]
    description: str | None = None

    @property
    def text(self) -> str:
        """The text of all messages, joined by newlines."""
        return "\n".join(message.text for message in self.messages)

    def __str__(self) -> str:
        return self.text


class Completion(_Answer, frozen=True, kw_only=True):
    """Completions of an argument; `total` also counts completions that were not sent."""

    values: list[str]
    total: int | None = None
    has_more: bool = False


# --------------------------------------------------------------------------------------------------------------- events


class ProgressEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Progress of a call; `total` is the value of `progress` at the end, if known."""

    progress: Number
    total: Number | None = None
    message: str | None = None


DATA_KEY: Final = "dev.sluicegate/data"
"""In the `_meta` of a progress notification: a part of the result that was sent early."""


EVENT_KEY: Final = "dev.sluicegate/event"
"""In the `_meta` of a progress notification: an event as native clients get it."""
STREAMED_KEY: Final = "dev.sluicegate/streamed"
"""In the `_meta` of a tool result: the indexes of the content blocks that were sent early."""
STREAMING_KEY: Final = "dev.sluicegate/streaming"
"""In the `_meta` of a tool: it answers with a stream of events."""
EVENTS_KEY: Final = "dev.sluicegate/events"
"""In the `_meta` of a tool: the schema of its own events."""
METHOD_KEY: Final = "dev.sluicegate/method"
"""In the `_meta` of a tool of a hub: its native name, if that cannot be told from its listed one."""
NAMESPACES_KEY: Final = "dev.sluicegate/namespaces"
"""In the `_meta` of `server/discover`: asks for, and has, the version and description of each server of a hub."""
INNER_KEY: Final = "dev.sluicegate/inner"
"""In the `_meta` of `server/discover`: descriptions of the namespaces inside the server's namespace, by name."""
HEALTH: Final = "health.check"
"""The tool that every gateway answers, though it may be in no list."""
ONLY_KEY: Final = "dev.sluicegate/only"
"""In the `_meta` of `tools/list`: asks for the tool of this name alone, if it is in no list otherwise."""


class DataEvent(ProgressEvent, frozen=True, omit_defaults=True):
    """A part of the result that a sluicegate server sent early, as progress. It is also in the result."""

    value: object = None


class OwnEvent(DataEvent, frozen=True, omit_defaults=True):
    """An event of a tool's own kind: `value` is a JSON object with a `type`."""


class LogEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """A log message of a server; `data` is any JSON value, mostly a string."""

    level: str
    data: object = None
    logger: str | None = None


class ToolsChanged(msgspec.Struct, frozen=True):
    """The list of tools has changed."""


class PromptsChanged(msgspec.Struct, frozen=True):
    """The list of prompts has changed."""


class ResourcesChanged(msgspec.Struct, frozen=True):
    """The list of resources has changed."""


class ResourceUpdated(msgspec.Struct, frozen=True):
    """A resource has changed. It may be a sub-resource of the subscribed resource."""

    uri: str


Change = ToolsChanged | PromptsChanged | ResourcesChanged | ResourceUpdated
