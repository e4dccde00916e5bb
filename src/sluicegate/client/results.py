"""Converts the structured result of a call into the type that the caller names."""

from collections.abc import Mapping
from typing import Any, Final, cast

import msgspec

from sluicegate.activations.content import with_defaults
from sluicegate.activations.describe import uses_pydantic
from sluicegate.activations.pydantic_types import encode_hook
from sluicegate.activations.schema import CANNOT_CONVERT, RESULT
from sluicegate.errors import UpstreamProtocolError
from sluicegate.protocol.types import ToolResult

_WRAPPED: Final = {RESULT}


def typed(result: ToolResult, returns: Any, what: str) -> Any:
    """The structured content as a value of this type; for `str`, the text if there is none.

    Raises:
        UpstreamProtocolError: it does not fit; the sentence begins with `what`.
    """
    content = result.structured_content
    if content is msgspec.UNSET and returns is str:
        return result.text
    try:
        if content is msgspec.UNSET:
            raise TypeError("it has no structured content")
        members = _members(content)
        return _unwrapped(members, returns) if set(members) == _WRAPPED else _converted(content, returns)
    except (*CANNOT_CONVERT, ValueError) as problem:  # ValueError: that of pydantic.
        shown = returns.__name__ if isinstance(returns, type) and returns.__module__ != "types" else str(returns)
        why = str(problem).removesuffix(".")
        raise UpstreamProtocolError(f"{what} does not fit {shown}: {why[:1].lower()}{why[1:]}.") from None


def _members(content: object) -> Mapping[str, object]:
    return cast(Mapping[str, object], content) if isinstance(content, Mapping) else {}


def _unwrapped(content: Mapping[str, object], returns: Any) -> Any:
    """Values that are not objects are sent as `{"result": value}`, by us and by the official SDKs."""
    try:
        whole = _converted(content, returns)
    except (*CANNOT_CONVERT, ValueError):
        return _converted(content[RESULT], returns)
    # A type without such a member may have ignored it.
    is_kept = RESULT in _members(msgspec.to_builtins(whole, enc_hook=encode_hook))
    return whole if is_kept else _converted(content[RESULT], returns)


def _converted(value: object, returns: Any) -> Any:
    if not uses_pydantic([returns]):
        return with_defaults(msgspec.convert(value, returns))
    from pydantic import TypeAdapter, ValidationError

    try:
        # As JSON, since strict models take a date as text only in JSON.
        return TypeAdapter[Any](returns).validate_json(msgspec.json.encode(value))
    except ValidationError as refusal:
        first = refusal.errors(include_url=False, include_input=False)[0]
        place = "".join(f".{part}" for part in first["loc"])
        raise ValueError(f"{first['msg']} - at `${place}`") from None
