"""Runs a tool call: sends its events at once or adds them to the result.

There are two kinds of error. A call that cannot be run (unknown tool, arguments that are not an object) is a JSON-RPC
error. A call that failed, or whose arguments do not match the schema, is a result with `isError`, which the model can
read.
"""

import logging
from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from typing import Final, cast

import msgspec

from sluicegate.activations.call import Call
from sluicegate.activations.content import block_of, json_of, text_block, with_defaults
from sluicegate.activations.definitions import ToolDefinition
from sluicegate.activations.invoke import FUNCTION_ERRORS, SteppedGenerator, shown, stream_of, was_cancelled
from sluicegate.activations.schema import RESULT
from sluicegate.activations.values import CONTENT, EVENTS, Data, Error, Log, Progress, Structured, ToolUse
from sluicegate.errors import MissingCapability, ThreadsBusy
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Params
from sluicegate.protocol.types import STREAMED_KEY
from sluicegate.schemas.validate import Checker, InvalidArguments
from sluicegate.store.base import Keeper, KeptText, KeptWriter

log = logging.getLogger("sluicegate")

MAX_STREAM: Final = 1024 * 1024
"""Bytes of what a stream sent early that are in its result; the rest is kept as a resource."""
KEPT_SCHEME: Final = "kept:"


async def run_tool(
    tool: ToolDefinition, exchange: Exchange, arguments: Mapping[str, object], keeper: Keeper | None = None
) -> Params:
    """The result of a call, after all its events have been sent. `keeper` stores the part of a stream that is too long.

    Raises:
        MissingCapability: the tool asked a question that the client does not support, and did not handle the error.
        ThreadsBusy: no thread is free for a plain function; it did not run.
    """
    call = None
    answer: ResultBuilder | None = None
    is_answered = False
    try:
        values = tool.read(arguments)
    except InvalidArguments as refusal:
        return _failure(f"Invalid arguments for the tool '{tool.name}': {refusal}.")
    if tool.is_stream:
        exchange.offer_progress()
    if tool.injected:
        call = Call(exchange)
        for name in tool.injected:
            # Set last: an open schema may let a caller send an argument of the same name.
            values[name] = call
    try:
        value = await tool.outcome(**values)
        if type(value) is str and tool.promise is None:
            # Most tools return a string.
            return {"content": [text_block(value)]}
        if tool.returns_dataclasses:
            value = with_defaults(value)
        call, answer = call or Call(exchange), ResultBuilder(keeper, exchange.caller.id)
        stream = stream_of(value)
        if stream is not None:
            await answer.take_all(stream, call)
        elif tool.wraps and not isinstance(value, EVENTS):
            answer.take_wrapped(value)
        elif (leaving := answer.take(value, call)) is not None:
            await leaving
        is_answered = True
    except (MissingCapability, ThreadsBusy):
        # Another request can succeed: −32021 says which capability to declare, 1004 to send it later.
        raise
    except FUNCTION_ERRORS as error:
        if was_cancelled(error):
            raise
        answer = answer or ResultBuilder()
        answer.fail(shown(error, f"The tool '{tool.name}'"))
        is_answered = True
    finally:
        is_streamed = call is not None and call.is_streamed
        if call is not None:
            call.end()
        if not is_answered and answer is not None:
            answer.discard()
    assert answer is not None  # A type checker does not see it.
    return answer.result(tool, is_streamed=is_streamed)


class ResultBuilder:
    """The result of a call while it is built."""

    def __init__(self, keeper: Keeper | None = None, caller: str = "") -> None:
        """`keeper` stores for `caller` the part that is too long; without a keeper, everything is in the result."""
        self._keeper = keeper
        self._caller = caller
        self._room = MAX_STREAM
        self._kept: KeptWriter | None = None
        self._content: list[Params] = []
        self._structured: Params | None = None
        self._structured_text = ""
        self._is_error = False
        self._pieces: list[str] = []
        """Texts that were sent early; together they are the first block."""
        self._is_line_open = self._was_line = False
        """Whether the last text did not end its line, and whether it must."""
        self._streamed: list[int] = []
        """The indexes in `_content` of the other blocks that were sent early."""

    async def take_all(self, events: "AsyncGenerator[object, None] | SteppedGenerator", call: Call) -> None:
        """Take all values of a stream and close it in any case; raises what it raises, and as `take`."""
        try:
            async for event in events:
                if (leaving := self.take(event, call)) is not None:
                    await leaving
        finally:
            await events.aclose()

    def take(self, value: object, call: Call) -> Awaitable[None] | None:
        """Add a value to the result, or return an awaitable that sends it to the client.

        The awaitable must be awaited before the next value is taken.

        Raises:
            TypeError: it cannot be part of a result.
        """
        match value:
            case Progress():
                return call.progress(value.progress, value.total, value.message)
            case str():
                self._add_text(value)
            case None:
                pass
            case dict() | int() | float():
                self._add_json(cast(object, value))
            case Data():
                return self._take_piece(value.value, call)
            case Log():
                return call.log(value.level, value.data, value.logger)
            case Error():
                self.fail(value.message)
            case Structured():
                self._take_structured(value.value)
            case ToolUse():
                return self._take_tool_use(value, call)
            case list() | tuple() if _has_events(cast(Sequence[object], value)):
                return self._take_items(cast(Sequence[object], value), call)
            case bytes() | bytearray() | memoryview():
                raise TypeError("the type of bytes is unknown: use Image, Audio or EmbeddedResource, or decode them")
            case _ if isinstance(value, CONTENT):
                self._content.append(block_of(value))
            case _ if is_own_event(value):
                return self._take_event(cast(msgspec.Struct, value), call)
            case _:
                self._add_json(value)
        return None

    def take_wrapped(self, value: object) -> None:
        """Take the value of a tool whose declared result is not an object; raises TypeError as `take` does."""
        plain, text = json_of(value)
        self._structured = {RESULT: plain}
        self._add_text(plain if isinstance(plain, str) else text)

    async def _take_items(self, items: Sequence[object], call: Call) -> None:
        for item in items:
            if (leaving := self.take(item, call)) is not None:
                await leaving

    def _take_piece(self, value: object, call: Call) -> Awaitable[None]:
        if isinstance(value, str):
            self._add_piece(value)
        else:
            self._add_early_block(json_of(value)[1])
        return call.data(value)

    def _add_piece(self, text: str, *, is_line: bool = False) -> None:
        """Add a text that is sent early, or one that begins and ends a line."""
        if not text:
            return
        if self._is_line_open and (is_line or self._was_line):
            text = f"\n{text}"
        self._is_line_open, self._was_line = not text.endswith("\n"), is_line
        size = len(text) if text.isascii() else len(text.encode("utf-8", "replace"))
        if self._kept is None and (size <= self._room or not self._begin_keeping()):
            self._room -= size
            self._pieces.append(text)
        elif self._kept is not None:
            head = text.encode("utf-8", "replace")[: self._room].decode("utf-8", "ignore")
            self._room = 0
            if head:
                self._pieces.append(head)
            self._kept.write(text[len(head) :])

    def _add_early_block(self, text: str) -> None:
        """Add a block that is sent early."""
        if self._kept is None and (len(text) <= self._room or not self._begin_keeping()):
            self._room -= len(text)
            self._streamed.append(len(self._content))
            self._add_text(text)
        elif self._kept is not None:
            self._room = 0
            self._kept.write(f"{text}\n")

    def _begin_keeping(self) -> bool:
        """Begin to store the part that does not fit; False if that is not possible and all must be in the result."""
        if self._keeper is None:
            return False
        try:
            self._kept = self._keeper.begin(self._caller)
        except OSError as problem:
            log.warning("A long result cannot be kept in a file: %s", problem.strerror)
            self._keeper = None
        return self._kept is not None

    def discard(self) -> None:
        """Delete the stored part: there will be no result."""
        if self._kept is not None:
            self._kept.discard()

    def _take_event(self, event: msgspec.Struct, call: Call) -> Awaitable[None]:
        plain, text = json_of(event)
        members = cast(Params, plain)
        tag = event.__struct_config__.tag_field or "type"
        own: Params = {name: value for name, value in members.items() if name != tag}
        # Fields are counted in the class: what the text of an event is must not depend on what its fields contain.
        only = next(iter(own.values()), None) if len(event.__struct_fields__) == 1 else None
        has_own_text = type(event).__str__ is not object.__str__
        text = str(event) if has_own_text else only if isinstance(only, str) else text
        self._add_piece(text, is_line=text is not only)
        return call.event({"type": members[tag], **own}, text)

    def _take_tool_use(self, use: ToolUse, call: Call) -> Awaitable[None]:
        plain, text = json_of(use.input)
        self._add_early_block(f"[Tool: {use.name}] {text}")
        return call.event({"type": "tool_use", "tool_name": use.name, "input": plain}, f"Using tool: {use.name}")

    def _take_structured(self, value: object) -> None:
        plain, self._structured_text = json_of(value)
        if not isinstance(plain, dict):
            raise TypeError(f"a structured result must be an object, not {type(value).__name__}")
        self._structured = cast(Params, plain)

    def fail(self, message: str) -> None:
        self._is_error = True
        self._add_text(message)

    def result(self, tool: ToolDefinition, *, is_streamed: bool = False) -> Params:
        """The whole result; an error if it does not match the tool's output schema.

        The text that was sent early comes first, then all other blocks in order. If the client got parts of it early,
        `_meta` says which.
        """
        streamed: list[int] = []
        if self._pieces:
            self._content.insert(0, text_block("".join(self._pieces)))
            streamed.append(0)
        if not self._content and self._structured_text:
            self._add_text(self._structured_text)
        streamed += [index + len(self._pieces[:1]) for index in self._streamed]
        if self._kept is not None:
            self._content.append(_link_to(self._kept.end()))
        if tool.promise is not None:
            self._check_promise(tool.promise, tool.name)
        result: Params = {"content": self._content}
        if self._structured is not None:
            result["structuredContent"] = self._structured
        if self._is_error:
            result["isError"] = True
        if is_streamed and streamed:
            result["_meta"] = {STREAMED_KEY: streamed}
        return result

    def _check_promise(self, promise: Checker, tool: str) -> None:
        if self._structured is None:
            problem = "it has an output schema but returned no structured result"
        elif problems := promise.problems(self._structured):
            problem = f"its result does not match its output schema: {problems}"
        else:
            return
        self._structured = None
        if not self._is_error:
            # No part of the result is shown: clients rely on the schema.
            self._content = []
            self.fail(f"The tool '{tool}' failed: {problem}.")

    def _add_text(self, text: str) -> None:
        self._content.append(text_block(text))

    def _add_json(self, value: object) -> None:
        plain, text = json_of(value)
        if isinstance(plain, dict):
            self._structured = cast(Params, plain)
        self._add_text(text)


def is_own_event(value: object) -> bool:
    """Whether a value is an event of the author's own: a Struct with a tag, and an object in JSON."""
    if not isinstance(value, msgspec.Struct):
        return False
    return value.__struct_config__.tag is not None and not value.__struct_config__.array_like


def _link_to(kept: KeptText) -> Params:
    others = f"; the number at the end of the URI is the page, up to {kept.pages}" if kept.pages > 1 else ""
    cut = " Its end was too long to be kept." if kept.is_cut else ""
    return {
        "type": "resource_link",
        "uri": f"{KEPT_SCHEME}//{kept.id}/1",
        "name": "rest",
        "title": "The rest of the output",
        "description": f"What does not fit into the result, for a day. It has {kept.size} bytes{others}.{cut}",
        "mimeType": "text/plain",
        "size": kept.size,
    }


def _has_events(values: Sequence[object]) -> bool:
    # By type, since a long list has few types: checking each value takes longer than encoding it.
    return any(issubclass(kind, EVENTS) for kind in set(map(type, values)))


def _failure(message: str) -> Params:
    return {"content": [text_block(message)], "isError": True}
