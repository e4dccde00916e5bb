"""What generated Python code calls tools with."""

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Literal, NotRequired, TypedDict, cast

import msgspec
from msgspec import UNSET

from sluicegate.client.client import Client, StreamEvent
from sluicegate.errors import ToolError
from sluicegate.protocol.message import Params, Result, as_object
from sluicegate.protocol.native import events_of
from sluicegate.protocol.types import DataEvent, LogEvent, OwnEvent, ProgressEvent, ToolResult


class Start(TypedDict):
    type: Literal["start"]


class Content(TypedDict):
    type: Literal["content"]
    text: str


class Data(TypedDict):
    type: Literal["data"]
    data: object


class ToolUse(TypedDict):
    type: Literal["tool_use"]
    tool_name: str
    input: object


class Progress(TypedDict):
    type: Literal["progress"]
    progress: float
    total: NotRequired[float]
    message: NotRequired[str]


class Log(TypedDict):
    type: Literal["log"]
    level: str
    data: NotRequired[object]
    logger: NotRequired[str]


class Block(TypedDict):
    """A block of the result that is not text, with the members that MCP gives it."""

    type: Literal["image", "audio", "resource", "resource_link"]


class Complete(TypedDict):
    """The end of a stream; its other members are those of the structured result."""

    type: Literal["complete"]


class Failed(TypedDict):
    """The end of a stream that failed."""

    type: Literal["error"]
    message: str
    code: NotRequired[int]
    data: NotRequired[object]


Event = Start | Content | Data | ToolUse | Progress | Log | Block | Complete | Failed
"""The events that every stream may have; a tool may have others of its own."""


async def text(client: Client, tool: str, arguments: Mapping[str, object] | None) -> str:
    """The text of a tool's result.

    Raises:
        ToolError: the tool failed.
    """
    return (await client.call(tool, arguments, raise_on_error=True)).text


async def structured(client: Client, tool: str, arguments: Mapping[str, object] | None) -> Any:
    """The structured result of a tool, which generated code casts to its type.

    Raises:
        ToolError: the tool failed, or sent none.
    """
    value = (await client.call(tool, arguments, raise_on_error=True)).structured_content
    if value is UNSET:
        raise ToolError(f"The tool '{tool}' sent no structured result.")
    return value


async def events(client: Client, tool: str, arguments: Mapping[str, object] | None) -> AsyncGenerator[Event, None]:
    """The events of a call, from `start` to `complete` or `error`; those of the tool's own kinds are among them.

    Leaving the loop cancels the call.
    """
    yield {"type": "start"}
    async with aclosing(client.stream(tool, arguments)) as stream:
        async for event in stream:
            for each in _native(event):
                yield cast(Event, each)


def _native(event: StreamEvent) -> list[Params]:
    """An event as native clients get it."""
    match event:
        case ToolResult():
            return events_of(Result(event.raw))
        case OwnEvent(value=value):
            return [as_object(value) or {}]
        case DataEvent(value=str(text)):
            return [{"type": "content", "text": text}]
        case DataEvent(value=value):
            return [{"type": "data", "data": value}]
        case LogEvent():
            return [{"type": "log", **msgspec.to_builtins(event)}]
        case ProgressEvent():
            return [{"type": "progress", **msgspec.to_builtins(event)}]
