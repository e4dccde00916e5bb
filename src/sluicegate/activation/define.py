"""The words of an author: what a tool may yield or return, what a resource holds, what a prompt says.

Plain values need none of these: a string is text, an object is JSON. The one rule: all are small frozen values, without
a way back to the call they belong to, so that a tool can be tested by looking at what it yields.
"""

from collections.abc import Mapping
from typing import Final, Literal

import msgspec

from sluicegate.errors import SluicegateError

LogLevel = Literal["debug", "info", "notice", "warning", "error", "critical", "alert", "emergency"]
Extras = Mapping[str, object]
"""An open JSON object: `_meta`, or annotations such as `{"audience": ["user"], "priority": 0.5}`."""


class ToolError(SluicegateError):
    """Raised by an author: it ran and failed, and the message is shown to the caller as it is."""

    delivered = "yes"


# -------------------------------------------------------------------------------------- what leaves before the result


class Progress(msgspec.Struct, frozen=True):
    """How far a call has come. Sent only to those who asked for it, and only while the number grows."""

    progress: float
    total: float | None = None
    message: str | None = None


class Log(msgspec.Struct, frozen=True):
    """A line for the client's log, sent if it wants lines of this level. `data` is any JSON value."""

    level: LogLevel
    data: object
    logger: str | None = None


class Data(msgspec.Struct, frozen=True):
    """A part of the result that leaves at once, as progress, and is in the final result too.

    Strings that follow each other are pieces of one text; any other value stands for itself.
    """

    value: object


# ------------------------------------------------------------------------------------------------- what is the result


class Text(msgspec.Struct, frozen=True):
    """A block of text; a plain string is the same without extras."""

    text: str
    annotations: Extras | None = None
    meta: Extras | None = None


class Image(msgspec.Struct, frozen=True):
    """A picture, in the bytes of its file."""

    data: bytes
    mime_type: str
    annotations: Extras | None = None
    meta: Extras | None = None


class Audio(msgspec.Struct, frozen=True):
    """A sound, in the bytes of its file."""

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
    """The result for programs, an object; as JSON it is part of the text, too. The last one of a call counts."""

    value: object


class Error(msgspec.Struct, frozen=True):
    """It ran and failed: a sentence that helps the model to do better. What was yielded before stays in the result."""

    message: str


Content = Text | Image | Audio | ResourceLink | EmbeddedResource
Event = Progress | Log | Data | Content | Structured | Error

CONTENT: Final = (Text, Image, Audio, ResourceLink, EmbeddedResource)
EVENTS: Final = (Progress, Log, Data, *CONTENT, Structured, Error)

# ---------------------------------------------------------------------------------------------- resources and prompts


class Contents(msgspec.Struct, frozen=True):
    """What a resource holds, where a plain string or bytes do not say enough. `uri`: if another than asked for."""

    text: str | None = None
    blob: bytes | None = None
    mime_type: str | None = None
    uri: str | None = None
    meta: Extras | None = None


class UserMessage(msgspec.Struct, frozen=True):
    """A message that the user is meant to say."""

    content: str | Content


class AssistantMessage(msgspec.Struct, frozen=True):
    """A message that the assistant is meant to have said."""

    content: str | Content
