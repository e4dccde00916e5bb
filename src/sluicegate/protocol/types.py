"""Tools, resources, prompts and results as Python values, for code that does look inside; `read_types` makes them."""

from typing import Annotated, Final

import msgspec
from msgspec import UNSET

from sluicegate.protocol.message import Params

Name = Annotated[str, msgspec.Meta(min_length=1)]
Number = int | float
_META: Final = "_meta"


class _Described(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What most things a server lists have in common. `raw` is the whole of what the server sent."""

    title: str | None = None
    description: str | None = None
    icons: "list[Icon] | None" = None
    meta: Params | None = msgspec.field(default=None, name=_META)
    raw: Params = {}

    def __repr__(self) -> str:
        return _repr(self)


class _Answer(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What all results have in common. `raw` is the whole of what the server sent."""

    meta: Params | None = msgspec.field(default=None, name=_META)
    raw: Params = {}

    def __repr__(self) -> str:
        return _repr(self)


def _repr(value: msgspec.Struct) -> str:
    # A Struct prints every field; `raw` would say all of it a second time.
    shown = [f"{name}={getattr(value, name)!r}" for name in value.__struct_fields__ if name != "raw"]
    return f"{type(value).__name__}({', '.join(shown)})"


# --------------------------------------------------------------------------------------------------------- what servers
# list


class Icon(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """A picture for a user interface. `src` comes from the server: mind where it points before it is loaded."""

    src: str
    mime_type: str | None = None
    sizes: list[str] | None = None
    theme: str | None = None


class Annotations(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """For whom something is meant, how much it matters (0 to 1), and when it last changed."""

    audience: list[str] | None = None
    priority: Number | None = None
    last_modified: str | None = None


class ToolAnnotations(msgspec.Struct, frozen=True, rename="camel"):
    """What a server says of a tool's manners: hints that prove nothing. The defaults are the specification's."""

    title: str | None = None
    read_only_hint: bool = False
    destructive_hint: bool = True
    idempotent_hint: bool = False
    open_world_hint: bool = True


class Tool(_Described, frozen=True, kw_only=True):
    """Something a server can do, and the JSON Schema of the arguments it takes."""

    name: Name
    # A name is all it takes to make a call, so a server that forgets the schema still has its tool.
    input_schema: Params = msgspec.field(default_factory=lambda: {"type": "object"})
    output_schema: Params | None = None
    annotations: ToolAnnotations | None = None

    @property
    def display_name(self) -> str:
        """What to show to people: the title, the older place of the title, or the name."""
        return self.title or (self.annotations and self.annotations.title) or self.name


class Resource(_Described, frozen=True, kw_only=True):
    """Something a server can be asked to read out, by its URI. `size` is in bytes."""

    uri: Name
    name: str
    mime_type: str | None = None
    size: int | None = None
    annotations: Annotations | None = None


class ResourceTemplate(_Described, frozen=True, kw_only=True):
    """A family of resources: the URI has places to fill in, as RFC 6570 writes them."""

    uri_template: Name
    name: str
    mime_type: str | None = None
    annotations: Annotations | None = None


class PromptArgument(msgspec.Struct, frozen=True, rename="camel", omit_defaults=True):
    """One thing that a prompt wants to be told."""

    name: Name
    title: str | None = None
    description: str | None = None
    required: bool = False


class Prompt(_Described, frozen=True, kw_only=True):
    """A text that a server has prepared, and what must be filled in."""

    name: Name
    arguments: list[PromptArgument] = []


class Root(msgspec.Struct, frozen=True, omit_defaults=True):
    """A place that a server may work in; today always a `file://` URI."""

    uri: str
    name: str | None = None


class PromptRef(msgspec.Struct, frozen=True, tag_field="type", tag="ref/prompt"):
    """A prompt whose argument is to be completed."""

    name: str


class ResourceRef(msgspec.Struct, frozen=True, tag_field="type", tag="ref/resource"):
    """A resource template whose variable is to be completed."""

    uri: str


# ----------------------------------------------------------------------------------------------------------------
# content


class _Block(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="type"):
    annotations: Annotations | None = None
    meta: Params | None = msgspec.field(default=None, name=_META)


class TextContent(_Block, frozen=True, tag="text"):
    """Words."""

    text: str


class ImageContent(_Block, frozen=True, tag="image"):
    """A picture, decoded to its bytes."""

    data: bytes
    mime_type: str


class AudioContent(_Block, frozen=True, tag="audio"):
    """A sound, decoded to its bytes."""

    data: bytes
    mime_type: str


class ResourceLink(_Block, frozen=True, kw_only=True, tag="resource_link"):
    """A pointer to a resource, which need not be among the listed ones."""

    uri: Name
    name: str = ""
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    icons: list[Icon] | None = None


class ResourceContents(_Answer, frozen=True, kw_only=True):
    """What a resource holds: `text`, or a `blob` of bytes."""

    uri: str
    mime_type: str | None = None
    text: str | None = None
    blob: bytes | None = None

    def __post_init__(self) -> None:
        if self.text is None and self.blob is None:
            raise ValueError("Expected `text` or `blob`")  # msgspec makes a ValidationError of it while reading

    @property
    def data(self) -> bytes:
        """The bytes, whichever way they came."""
        return self.blob if self.blob is not None else (self.text or "").encode()


class EmbeddedResource(_Block, frozen=True, tag="resource"):
    """A resource that came along, so that nobody needs to read it."""

    resource: ResourceContents


class UnknownContent(msgspec.Struct, frozen=True):
    """A block of a type we do not know, or one that is broken: `raw` is what the server sent."""

    raw: object


Content = TextContent | ImageContent | AudioContent | ResourceLink | EmbeddedResource | UnknownContent


class PromptMessage(msgspec.Struct, frozen=True):
    """One turn of a conversation, in a prompt or in a sampling request; `content` is a list even of one block."""

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
    """What came of a call. With `is_error` the tool ran and failed, and `text` says why."""

    content: list[Content]
    structured_content: object = UNSET
    """Any JSON value; None is a value too, and UNSET means that there was none."""
    is_error: bool = False

    @property
    def text(self) -> str:
        """The text blocks, joined by newlines."""
        return joined_text(self.content)

    def __str__(self) -> str:
        return self.text


class ReadResult(_Answer, frozen=True, kw_only=True):
    """What a resource holds: often one part, or one for each file of a folder."""

    contents: list[ResourceContents]

    @property
    def text(self) -> str:
        """The parts that are text, joined by newlines."""
        return "\n".join(part.text for part in self.contents if part.text is not None)

    def __str__(self) -> str:
        return self.text


class PromptResult(_Answer, frozen=True, kw_only=True):
    """A prompt, filled in."""

    messages: list[PromptMessage]
    description: str | None = None

    @property
    def text(self) -> str:
        """The text of all messages, joined by newlines."""
        return "\n".join(message.text for message in self.messages)

    def __str__(self) -> str:
        return self.text


class Completion(_Answer, frozen=True, kw_only=True):
    """How an argument could go on; `total` counts also what was not sent."""

    values: list[str]
    total: int | None = None
    has_more: bool = False


# --------------------------------------------------------------------------------------------------------------- events


class ProgressEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """How far a call has come; `total` is what `progress` will be at the end, if the server knows."""

    progress: Number
    total: Number | None = None
    message: str | None = None


class LogEvent(msgspec.Struct, frozen=True, omit_defaults=True):
    """Something a server wrote down; `data` is any JSON value, mostly a string."""

    level: str
    data: object = None
    logger: str | None = None


class ToolsChanged(msgspec.Struct, frozen=True):
    """The list of tools is not what it was."""


class PromptsChanged(msgspec.Struct, frozen=True):
    """The list of prompts is not what it was."""


class ResourcesChanged(msgspec.Struct, frozen=True):
    """The list of resources is not what it was."""


class ResourceUpdated(msgspec.Struct, frozen=True):
    """A resource holds something else now. The URI may be of a part of what was subscribed to."""

    uri: str


Change = ToolsChanged | PromptsChanged | ResourcesChanged | ResourceUpdated
