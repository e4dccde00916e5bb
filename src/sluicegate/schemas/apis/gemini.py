"""Google's Gemini API: `parametersJsonSchema`, `functionCall`, `functionResponse`. Pure."""

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
    news_text,
    read_call,
    text_field,
)
from sluicegate.schemas.apis.rules import SchemaRules, Translation


def _define(name: str, description: str, translation: Translation) -> Params:
    text, schema = described(description, translation)
    # The description is required.
    return {"name": name, "description": text or name, "parametersJsonSchema": schema}


def _calls(reply: object) -> list[ModelCall]:
    candidates = entries(field(reply, "candidates"))
    content = field(candidates[0], "content") if candidates else reply
    found: list[ModelCall] = []
    for part in entries(field(content, "parts")) or entries(content):
        call = field(part, "functionCall", "function_call")
        if call is not None:
            found.append(read_call(text_field(call, "id"), text_field(call, "name"), field(call, "args")))
    return found


def _answers(answered: Sequence[tuple[ModelCall, Sequence[Shown], bool]]) -> list[Params]:
    """One message: the API wants as many responses in a turn as there were calls."""
    parts = [{"functionResponse": _response(*entry)} for entry in answered]
    return [{"role": "user", "parts": parts}] if parts else []


def _response(call: ModelCall, parts: Sequence[Shown], is_error: bool) -> Params:
    out: Params = {"id": call.id} if call.id else {}
    out |= {"name": call.name, "response": {"error" if is_error else "output": joined(parts)}}
    images = [part for part in parts if isinstance(part, ImageBlock)]
    if images:
        out["parts"] = [{"inlineData": {"mimeType": image.mime_type, "data": image.data}} for image in images]
    return out


def _news(removed: Sequence[str], added: Sequence[Params]) -> list[Params]:
    text = news_text(removed, added)
    return [{"role": "user", "parts": [{"text": text}]}] if text else []


GEMINI: Final = Api(
    title="Gemini",
    rules=SchemaRules(
        name=r"[A-Za-z_][A-Za-z0-9_-]{0,63}",
        not_at_root=frozenset({"anyOf", "oneOf", "allOf"}),
        keywords=frozenset(
            {"$ref", "title", "description", "type", "format", "enum", "anyOf", "properties", "required"}
            | {"additionalProperties", "items", "prefixItems", "minItems", "maxItems", "minimum", "maximum"}
        ),
        formats=frozenset({"date-time", "date", "time"}),
        choices=frozenset({"string", "integer", "number"}),
        has_items=True,
        has_known_required=True,
        has_one_type=True,
        has_optional_recursion=True,
    ),
    images=frozenset({"image/jpeg", "image/png", "image/webp"}),
    define=_define,
    calls=_calls,
    answers=_answers,
    news=_news,
)
