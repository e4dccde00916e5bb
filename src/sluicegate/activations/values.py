"""Values that tools yield or return, and the contents of resources and prompts.

Plain values need none of these: a string is text, an object is JSON. All are small frozen values without a reference
to their call, so a test of a tool can compare what it yields.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from sluicegate.errors import ToolError as ToolError

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
Extras = Mapping[str, object]
"""An open JSON object: `_meta`, or annotations such as `{"audience": ["user"], "priority": 0.5}`."""


# ----------------------------------------------------------------------------------------------- sent before the result


class Progress(msgspec.Struct, frozen=True):
    """Progress of a call. Sent only to clients that asked for it, and only while the number grows."""

    progress: float
    total: float | None = None
    message: str | None = None


class Log(msgspec.Struct, frozen=True):
    """A log message for the client, sent if it wants messages of this level. `data` is any JSON value."""

    level: LogLevel
    data: object
    logger: str | None = None


class Data(msgspec.Struct, frozen=True):
    """A part of the result that is sent early, as progress, and is also in the final result.

    Consecutive strings are joined to one text; every other value is a part of its own.
    """

    value: object


class ToolUse(msgspec.Struct, frozen=True):
    """The tool uses another one, which the client may want to show."""

    name: str
    input: object = None


# ----------------------------------------------------------------------------------------------------------- the result


class Text(msgspec.Struct, frozen=True):
    """A block of text; a plain string is the same without extras."""

    text: str
    annotations: Extras | None = None
    meta: Extras | None = None


class Image(msgspec.Struct, frozen=True):
    """An image, as the bytes of its file."""

    data: bytes
    mime_type: str
    annotations: Extras | None = None
    meta: Extras | None = None


class Audio(msgspec.Struct, frozen=True):
    """Audio, as the bytes of its file."""

    data: bytes
    mime_type: str
    annotations: Extras | None = None
    meta: Extras | None = None


class ResourceLink(msgspec.Struct, frozen=True):
    """A resource that the client may read if it wants to."""

    uri: str
    name: str
    title: str | None = None
    description: str | None = None
    mime_type: str | None = None
    size: int | None = None
    annotations: Extras | None = None
    meta: Extras | None = None


class EmbeddedResource(msgspec.Struct, frozen=True):
    """A resource with its contents: either text or bytes."""

    uri: str
    text: str | None = None
    blob: bytes | None = None
    mime_type: str | None = None
    annotations: Extras | None = None
    meta: Extras | None = None


class Structured(msgspec.Struct, frozen=True):
    """The structured result, an object. If there is no other content, its JSON is the text. The last one is used."""

    value: object


class Error(msgspec.Struct, frozen=True):
    """The tool failed, with a sentence that helps the model. Values yielded before stay in the result."""

    message: str


Content = Text | Image | Audio | ResourceLink | EmbeddedResource
Event = Progress | Log | Data | ToolUse | Content | Structured | Error

CONTENT: Final = (Text, Image, Audio, ResourceLink, EmbeddedResource)
EVENTS: Final = (Progress, Log, Data, ToolUse, *CONTENT, Structured, Error)

# ------------------------------------------------------------------------------------------------ resources and prompts


class Contents(msgspec.Struct, frozen=True):
    """The contents of a resource with more detail than a string or bytes. `uri`: if it differs from the request."""

    text: str | None = None
    blob: bytes | None = None
    mime_type: str | None = None
    uri: str | None = None
    meta: Extras | None = None


class UserMessage(msgspec.Struct, frozen=True):
    """A message in the role of the user."""

    content: str | Content


class AssistantMessage(msgspec.Struct, frozen=True):
    """A message in the role of the assistant."""

    content: str | Content
