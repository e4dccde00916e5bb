"""OpenAI's APIs: Responses (`function_call`, `function_call_output`) and Chat (`tool_calls`, `role: tool`). Pure."""

from collections.abc import Sequence
from typing import Final

from sluicegate.protocol.message import Params
from sluicegate.schemas.apis.messages import (
    Api,
    ImageBlock,
    ModelCall,
    Shown,
    described,
    entries,
    field,
    joined,
    marked,
    news_text,
    read_call,
    text_field,
)
from sluicegate.schemas.apis.rules import SchemaRules, Translation


def _function(name: str, description: str, translation: Translation) -> Params:
    text, schema = described(description, translation)
    about: Params = {"description": text} if text else {}
    return {"name": name, **about, "parameters": schema, "strict": translation.is_strict}


def _define(name: str, description: str, translation: Translation) -> Params:
    return {"type": "function", **_function(name, description, translation)}


def _define_for_chat(name: str, description: str, translation: Translation) -> Params:
    return {"type": "function", "function": _function(name, description, translation)}


def _calls(reply: object) -> list[ModelCall]:
    items = entries(field(reply, "output")) or entries(reply)
    return [
        read_call(text_field(item, "call_id"), text_field(item, "name"), field(item, "arguments"))
        for item in items
        if field(item, "type") == "function_call"
    ]


def _calls_in_chat(reply: object) -> list[ModelCall]:
    choices = entries(field(reply, "choices"))
    message = field(choices[0], "message") if choices else reply
    found: list[ModelCall] = []
    for call in entries(field(message, "tool_calls")):
        function = field(call, "function")
        if function is not None:
            found.append(read_call(text_field(call, "id"), text_field(function, "name"), field(function, "arguments")))
    return found


def _answers(answered: Sequence[tuple[ModelCall, Sequence[Shown], bool]]) -> list[Params]:
    out: list[Params] = []
    for call, parts, is_error in answered:
        parts = marked(parts, is_error)
        has_image = any(isinstance(part, ImageBlock) for part in parts)
        output: object = [_item(part) for part in parts] if has_image else joined(parts)
        out.append({"type": "function_call_output", "call_id": call.id, "output": output})
    return out


def _item(part: Shown) -> Params:
    if isinstance(part, ImageBlock):
        return {"type": "input_image", "image_url": f"data:{part.mime_type};base64,{part.data}"}
    return {"type": "input_text", "text": part}


def _answers_in_chat(answered: Sequence[tuple[ModelCall, Sequence[Shown], bool]]) -> list[Params]:
    return [
        {"role": "tool", "tool_call_id": call.id, "content": joined(marked(parts, is_error))}
        for call, parts, is_error in answered
    ]


def _news(removed: Sequence[str], added: Sequence[Params]) -> list[Params]:
    """A message in words: both APIs change their tools only by a new list."""
    text = news_text(removed, [field(new, "function") or new for new in added])
    return [{"role": "user", "content": text}] if text else []


_NAME: Final = r"[A-Za-z0-9_-]{1,64}"
_NOT_AT_ROOT: Final = frozenset({"anyOf", "oneOf", "allOf", "enum", "not"})
_RULES: Final = SchemaRules(name=_NAME, not_at_root=_NOT_AT_ROOT, has_items=True)
_STRICT: Final = SchemaRules(
    name=_NAME,
    not_at_root=_NOT_AT_ROOT,
    keywords=frozenset(
        {"$ref", "title", "description", "type", "enum", "anyOf", "properties", "required", "additionalProperties"}
        | {"items", "minItems", "maxItems", "pattern", "format"}
        | {"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}
    ),
    formats=frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"}),
    choices=frozenset({"string", "integer", "number", "boolean", "null"}),
    has_items=True,
    has_known_required=True,
    has_plain_patterns=True,
)

RESPONSES: Final = Api(
    title="OpenAI Responses",
    rules=_RULES,
    strict=_STRICT,
    images=frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"}),
    define=_define,
    calls=_calls,
    answers=_answers,
    search={"type": "tool_search"},
    news=_news,
)
CHAT: Final = Api(
    title="OpenAI Chat",
    rules=_RULES,
    strict=_STRICT,
    define=_define_for_chat,
    calls=_calls_in_chat,
    answers=_answers_in_chat,
    news=_news,
)
