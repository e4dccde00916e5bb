"""Converts values of tools, resources and prompts into JSON types: content blocks, messages, structured results.

All results can be encoded. A lone surrogate (half a character, as in file names or truncated texts) becomes U+FFFD and
NaN becomes null. Values that JSON cannot express raise TypeError here, not when the message is encoded.
"""

import base64
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, cast

import msgspec

from sluicegate.activations.pydantic_types import encode_hook
from sluicegate.activations.values import (
    CONTENT,
    AssistantMessage,
    Audio,
    Content,
    Contents,
    EmbeddedResource,
    Image,
    ResourceLink,
    Text,
    UserMessage,
)
from sluicegate.protocol.message import Params, as_array

_encoder: Final = msgspec.json.Encoder(enc_hook=encode_hook)
_decoder: Final = msgspec.json.Decoder()

MAX_ECHO: Final = 200


def clean_text(text: object) -> str:
    """The text, with U+FFFD for each lone surrogate."""
    text = str(text)
    if not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            # Through UTF-16, where two surrogates that belong together become one character.
            return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def echo(text: str) -> str:
    """Text from the caller, shortened for use in a message."""
    return clean_text(text if len(text) <= MAX_ECHO else f"{text[:MAX_ECHO]}…")


def json_of(value: object) -> tuple[object, str]:
    """The value in JSON types, and as JSON text.

    Raises:
        TypeError: JSON cannot express the value; or ValueError, OverflowError, RecursionError for the same reason.
    """
    if hasattr(type(value), "__dataclass_fields__"):
        value = with_defaults(value)
    try:
        encoded = _encoder.encode(value)
    except UnicodeEncodeError:
        encoded = _encoder.encode(clean(msgspec.to_builtins(value, str_keys=True, enc_hook=encode_hook)))
    # Decoding is faster than converting in Python, and the text and the value cannot differ.
    return _decoder.decode(encoded), encoded.decode()


def with_defaults(value: Any) -> Any:
    """The value, with the default values of all its dataclasses in their `__dict__`.

    msgspec leaves them to the class when it makes an instance, and leaves them out when it encodes one, since it reads
    `__dict__` only: a tool that returns one of its arguments would lose them.
    """
    inner: Iterable[object] = ()
    kind = type(cast(object, value))
    if isinstance(value, dict):
        inner = cast(dict[object, object], value).values()
    elif isinstance(value, list | tuple | set | frozenset):
        inner = cast(Iterable[object], value)
    elif isinstance(value, msgspec.Struct):
        inner = msgspec.structs.astuple(value)
    elif hasattr(kind, "__dataclass_fields__"):
        import dataclasses  # Not at the top: a program without dataclasses need not load it.

        fields = dataclasses.fields(value)
        for field in fields:
            # In a class with slots, the attribute of the class is the slot.
            if getattr(kind, field.name, dataclasses.MISSING) is field.default is not dataclasses.MISSING:
                value.__dict__.setdefault(field.name, field.default)
        inner = [getattr(value, field.name, None) for field in fields]
    for item in inner:
        with_defaults(item)
    return cast(Any, value)


def clean(value: object) -> object:
    """The value as JSON types, with everything replaced that cannot be encoded."""
    match value:
        case str():
            return clean_text(value)
        case float() if not math.isfinite(value):
            return None
        case Mapping():
            return {clean_text(key): clean(item) for key, item in cast(Mapping[object, object], value).items()}
        case list() | tuple():
            return [clean(item) for item in cast(Sequence[object], value)]
        case _:
            return value


def members(**fields: object) -> Params:
    """A JSON object of the fields that are not None, under their names in the protocol.

    Raises:
        TypeError: JSON cannot express a field.
    """
    named = ((_WIRE_NAMES.get(name, name), value) for name, value in fields.items() if value is not None)
    return {name: _member(value) for name, value in named}


def _member(value: object) -> object:
    # Most are strings, some of them large: these need not be encoded to check them.
    if isinstance(value, str):
        return clean_text(value)
    return value if isinstance(value, int) else json_of(value)[0]


_WIRE_NAMES: Final = {
    "meta": "_meta",
    "mime_type": "mimeType",
    "uri_template": "uriTemplate",
    "website_url": "websiteUrl",
    "input_schema": "inputSchema",
    "output_schema": "outputSchema",
}


def text_block(text: str) -> Params:
    """A plain text as a content block."""
    return {"type": "text", "text": text if type(text) is str and text.isascii() else clean_text(text)}


def block_of(content: Content) -> Params:
    extras = {"annotations": content.annotations, "meta": content.meta}
    match content:
        case Text():
            return members(type="text", text=str(content.text), **extras)
        case Image() | Audio():
            kind = "image" if isinstance(content, Image) else "audio"
            return members(type=kind, data=_base64(content.data), mime_type=content.mime_type, **extras)
        case ResourceLink():
            return members(type="resource_link", **msgspec.structs.asdict(content))
        case EmbeddedResource():
            inner = _contents(content.uri, content.text, content.blob, content.mime_type)
            return members(type="resource", resource=inner, **extras)


def contents_of(value: object, uri: str, mime_type: str | None) -> list[Params]:
    """The return value of a resource's function as the `contents` of its result; empty for None.

    Raises:
        TypeError: a resource cannot contain this value.
    """
    match value:
        case None:
            return []
        case str():
            return [_contents(uri, value, None, mime_type)]
        case bytes() | bytearray() | memoryview():
            return [_contents(uri, None, bytes(cast(Any, value)), mime_type)]
        case Contents():
            own = _contents(value.uri or uri, value.text, value.blob, value.mime_type or mime_type)
            return [own | members(meta=value.meta)]
        case list() | tuple() if any(isinstance(item, Contents) for item in cast(Sequence[object], value)):
            return [part for item in cast(Sequence[object], value) for part in contents_of(item, uri, mime_type)]
        case _:
            return [_contents(uri, json_of(value)[1], None, mime_type or "application/json")]


def _contents(uri: str, text: str | None, blob: bytes | None, mime_type: str | None) -> Params:
    if (text is None) == (blob is None):
        raise TypeError("the contents of a resource are either text or blob")
    if blob is not None:
        return members(uri=uri, mime_type=mime_type or "application/octet-stream", blob=_base64(blob))
    return members(uri=uri, mime_type=mime_type or "text/plain", text=str(text))


def _base64(data: bytes) -> str:
    return base64.b64encode(data).decode()


def messages_of(value: object) -> list[Params]:
    """Messages of the protocol, made of a string, a message, content, a pair of role and content, or a list of these.

    A message may also be a dict of the protocol; its content may be a string, as in most chat APIs.

    Raises:
        TypeError: it contains something else.
    """
    match value:
        case list():
            return [message for item in cast(list[object], value) for message in messages_of(item)]
        case UserMessage():
            return [_message("user", value.content)]
        case AssistantMessage():
            return [_message("assistant", value.content)]
        case tuple() if len(pair := cast(tuple[object, ...], value)) == 2:
            return [_message(*pair)]
        case dict() if (more := dict(cast(Params, value))).keys() >= {"role", "content"}:
            return [_message(more.pop("role"), more.pop("content")) | cast(Params, json_of(more)[0])]
        case _:
            return [_message("user", value)]


def prompt_messages_of(value: object) -> list[Params]:
    """Messages with one block each: only sampling allows more. Otherwise as `messages_of`, with the same exceptions."""
    messages: list[Params] = []
    for message in messages_of(value):
        blocks = as_array(message["content"])
        messages += [message] if blocks is None else [{**message, "content": block} for block in blocks]
    return messages


def _message(role: object, content: object) -> Params:
    if role not in ("user", "assistant"):
        raise TypeError("the role of a message is user or assistant")
    if isinstance(content, list):
        return {"role": role, "content": [_block(item) for item in cast(list[object], content)]}
    return {"role": role, "content": _block(content)}


def _block(content: object) -> object:
    match content:
        case str():
            return block_of(Text(content))
        case {"type": str()}:
            return json_of(cast(Params, content))[0]
        case dict():
            raise TypeError('a content block that is a dict needs a "type"')
        case _ if isinstance(content, CONTENT):
            return block_of(content)
        case _:
            raise TypeError(f"a message contains text or other content, not {type(content).__name__}")
