"""Anthropic's Messages API: `input_schema`, `tool_use`, `tool_result`. Pure."""

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
    read_call,
    text_field,
)
from sluicegate.schemas.apis.rules import SchemaRules, Translation


def _define(name: str, description: str, translation: Translation) -> Params:
    text, schema = described(description, translation)
    return {"name": name, **({"description": text} if text else {}), "input_schema": schema}


def _calls(reply: object) -> list[ModelCall]:
    content = entries(field(reply, "content")) or entries(reply)
    return [
        read_call(text_field(block, "id"), text_field(block, "name"), field(block, "input"))
        for block in content
        if field(block, "type") == "tool_use"
    ]


def _answers(answered: Sequence[tuple[ModelCall, Sequence[Shown], bool]]) -> list[Params]:
    """One message of the user: the API wants the results of all calls together."""
    content: list[Params] = []
    for call, parts, is_error in answered:
        block: Params = {"type": "tool_result", "tool_use_id": call.id, "content": [_block(part) for part in parts]}
        content.append({**block, "is_error": True} if is_error else block)
    return [{"role": "user", "content": content}] if content else []


def _block(part: Shown) -> Params:
    if isinstance(part, ImageBlock):
        return {"type": "image", "source": {"type": "base64", "media_type": part.mime_type, "data": part.data}}
    return {"type": "text", "text": part}


def _news(removed: Sequence[str], added: Sequence[Params]) -> list[Params]:
    """One system message; the requests that have it need the beta `inline-tools-2026-09-15`."""
    content: list[Params] = [
        {"type": "tool_removal", "tool": {"type": "tool_reference", "name": name}} for name in removed
    ]
    for definition in added:
        content.append({"type": "tool_addition", "tool": {"type": "tool_definition", "definition": definition}})
    return [{"role": "system", "content": content}] if content else []


ANTHROPIC: Final = Api(
    title="Anthropic",
    rules=SchemaRules(
        name=r"[A-Za-z0-9_-]{1,64}",
        not_at_root=frozenset({"anyOf", "oneOf", "allOf"}),
        property_name=r"[A-Za-z0-9_.-]{1,64}",
    ),
    images=frozenset({"image/jpeg", "image/png", "image/gif", "image/webp"}),
    define=_define,
    calls=_calls,
    answers=_answers,
    search={"type": "tool_search_tool_bm25_20251119", "name": "tool_search_tool_bm25"},
    news=_news,
)
