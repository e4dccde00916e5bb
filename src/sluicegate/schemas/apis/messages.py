"""What the APIs share: reading calls out of replies, and results as text and images. Pure.

Replies come as the wire has them (mappings) or as objects of an SDK (attributes); both are read the same way.
"""

import base64
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, cast

import msgspec
from msgspec import UNSET

from sluicegate.protocol.message import Params
from sluicegate.protocol.types import (
    AudioContent,
    Content,
    EmbeddedResource,
    ImageContent,
    ResourceLink,
    TextContent,
    ToolResult,
)
from sluicegate.schemas.apis.rules import SchemaRules, Translation

MAX_IMAGE: Final = 5 * 1024 * 1024
"""Bytes in base64; Anthropic refuses more, the others accept more."""
MAX_NEWS: Final = 20_000
"""Characters of new tools that are described; of more, only the names are told."""
EMPTY: Final = "The tool returned nothing."


class ModelCall(msgspec.Struct, frozen=True):
    """One call of a tool in a model's reply."""

    id: str
    name: str
    arguments: Params = {}
    problem: str = ""
    """Why the call cannot be run: a sentence for the model."""


class ImageBlock(msgspec.Struct, frozen=True):
    """An image that the API accepts, in base64."""

    mime_type: str
    data: str


Shown = str | ImageBlock
Keep = Callable[[bytes, str], str]
"""Keeps bytes of a type that cannot be shown, and returns the text that takes their place."""


class Api(msgspec.Struct, frozen=True, kw_only=True):
    """One model API: its rules, and how tools, calls and answers look in it."""

    title: str
    rules: SchemaRules
    strict: SchemaRules | None = None
    """The rules for strict calls, if it has them."""
    images: frozenset[str] = frozenset()
    """The types of images that an answer may have."""
    define: Callable[[str, str, Translation], Params]
    """A definition from name, description and schema."""
    calls: Callable[[object], list[ModelCall]]
    """The calls in a reply, in order."""
    answers: Callable[[Sequence[tuple[ModelCall, Sequence[Shown], bool]]], list[Params]]
    """The messages that answer calls, from what each shows and whether it is an error."""
    search: Params | None = None
    """The API's own tool that finds deferred ones, if it has one."""
    news: Callable[[Sequence[str], Sequence[Params]], list[Params]]
    """The messages that tell the model which tools are gone, by name, and which are new, by definition."""


def field(value: object, *names: str) -> object:
    """A member of a mapping, or an attribute of an object: the first of the names that it has, or None."""
    for name in names:
        if isinstance(value, Mapping):
            found = cast(Mapping[str, object], value).get(name)
        else:
            found = getattr(value, name, None)
        if found is not None:
            return found
    return None


def entries(value: object) -> Sequence[object]:
    """The entries of a list, and nothing of anything else."""
    return cast(Sequence[object], value) if isinstance(value, list | tuple) else ()


def text_field(value: object, *names: str) -> str:
    """A member or attribute that is text, or an empty one."""
    found = field(value, *names)
    return found if isinstance(found, str) else ""


def read_call(call_id: str, name: str, arguments: object) -> ModelCall:
    """A call with its arguments: an object, or text with JSON."""
    if isinstance(arguments, str | bytes):
        if not arguments.strip():
            return ModelCall(call_id, name)  # Models leave the arguments of a tool without parameters empty.
        try:
            arguments = msgspec.json.decode(arguments)
        except (msgspec.DecodeError, UnicodeError, RecursionError) as error:
            return ModelCall(call_id, name, problem=f"The arguments are not JSON: {error}. Send one JSON object.")
    if arguments is None:
        return ModelCall(call_id, name)
    if isinstance(arguments, Mapping):
        return ModelCall(call_id, name, dict(cast(Mapping[str, object], arguments)))
    return ModelCall(call_id, name, problem="The arguments are not a JSON object. Send one JSON object.")


def cannot_show(data: bytes, mime_type: str) -> str:
    """The text for bytes that are kept nowhere."""
    return f"[{mime_type or 'data'}, {len(data)} bytes, which cannot be shown here]"


def shown(result: ToolResult, api: Api, keep: Keep = cannot_show) -> list[Shown]:
    """A result as the API takes it: texts, and images of the types that it accepts. Never empty."""
    # APIs have no images in errors.
    images = frozenset[str]() if result.is_error else api.images
    parts: list[Shown] = [part for block in result.content if (part := _part(block, images, keep)) != ""]
    if not parts and result.structured_content is not UNSET:
        parts = [msgspec.json.encode(result.structured_content).decode()]
    return parts or [EMPTY]


def _part(block: Content, images: frozenset[str], keep: Keep) -> Shown:
    match block:
        case ImageContent() | AudioContent():
            return _bytes(block.data, block.mime_type, images, keep)
        case EmbeddedResource(resource=inner) if inner.text is None:
            return _bytes(inner.data, inner.mime_type or "", images, keep)
        case _:
            return text_of(block) or ""


def text_of(block: Content) -> str | None:
    """What a block says; None for bytes."""
    match block:
        case TextContent():
            return block.text
        case ResourceLink():
            about = f" ({block.description})" if block.description else ""
            return f"{block.title or block.name or 'Resource'}: {block.uri}{about}"
        case EmbeddedResource(resource=inner):
            return inner.text
        case ImageContent() | AudioContent():
            return None
        case _:
            return msgspec.json.encode(block.raw).decode()


def _bytes(data: bytes, mime_type: str, images: frozenset[str], keep: Keep) -> Shown:
    kind = mime_type.lower().partition(";")[0].strip()
    if kind in images and len(data) * 4 // 3 + 4 <= MAX_IMAGE:
        return ImageBlock(kind, base64.b64encode(data).decode())
    return keep(data, mime_type)


def joined(parts: Iterable[Shown]) -> str:
    """The texts, joined by newlines."""
    return "\n".join(part for part in parts if isinstance(part, str))


def marked(parts: Sequence[Shown], is_error: bool) -> list[Shown]:
    """The parts, with a word in front of errors, for APIs that have no mark for them."""
    first = parts[0] if parts else ""
    if not is_error or (isinstance(first, str) and first.lower().startswith("error")):
        return list(parts)
    return [f"Error: {first}", *parts[1:]] if isinstance(first, str) else ["Error:", *parts]


def news_text(removed: Sequence[str], added: Sequence[object]) -> str:
    """Which tools are gone, and which are new or changed, in words with what is needed to call them."""
    told = {text_field(new, "name"): new for new in added}
    lines: list[str] = []
    gone = [name for name in removed if name not in told]
    if gone:
        lines.append(f"These tools are no longer available: {', '.join(gone)}.")
    for title, is_changed in (("These tools are new", False), ("These tools have changed", True)):
        found = [_told(new) for name, new in told.items() if (name in removed) is is_changed]
        if sum(map(len, found)) > MAX_NEWS:
            names = ", ".join(name for name in told if (name in removed) is is_changed)
            lines.append(f"{title}; they are too many to describe: {names}.")
        elif found:
            lines += [f"{title}:", *found]
    return "\n".join(lines)


def _told(definition: object) -> str:
    schema = field(definition, "parameters", "parametersJsonSchema")
    arguments = f"Arguments (JSON Schema): {msgspec.json.encode(schema).decode()}"
    parts = [f"- {text_field(definition, 'name')}", text_field(definition, "description"), arguments]
    return "\n  ".join(part for part in parts if part)


def described(description: str, translation: Translation) -> tuple[str, Params]:
    """The description of a tool with that of its schema, which not all APIs show to the model, and the schema."""
    schema = dict(translation.schema)
    further = schema.pop("description", None)
    texts = [description.strip()]
    if isinstance(further, str) and further.strip() not in description:
        texts.append(further.strip())
    return "\n\n".join(text for text in texts if text), schema
