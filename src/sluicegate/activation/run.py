"""A tool call as an exchange: events leave as they come or become part of the result, and a failure is a result too.

The one rule: two kinds of error are kept apart. What never ran (no such tool, arguments that are no object) is a
JSON-RPC error; what ran, or was refused by its schema, is a result with `isError`, which the model can read and learn
from.
"""

from collections.abc import AsyncGenerator, Awaitable, Mapping, Sequence
from typing import cast

from sluicegate.activation.call import Call
from sluicegate.activation.content import block_of, json_of, text_block
from sluicegate.activation.define import CONTENT, EVENTS, Data, Error, Log, Progress, Structured
from sluicegate.activation.invoke import AUTHORS_FAULTS, SteppedGenerator, shown, stream_of, was_cancelled
from sluicegate.activation.schema import InvalidArguments
from sluicegate.activation.tools import Tool
from sluicegate.activation.violations import Checker
from sluicegate.errors import MissingCapability, ThreadsBusy
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Params


async def run_tool(tool: Tool, exchange: Exchange, arguments: Mapping[str, object]) -> Params:
    """The result of a call, after all its events have left.

    Raises:
        MissingCapability: the tool had to ask something that the client cannot answer, and did not handle it.
        ThreadsBusy: there is no thread for a plain function, so it never ran.
    """
    call = answer = None
    try:
        values = tool.read(arguments)
    except InvalidArguments as refusal:
        return _failure(f"Invalid arguments for the tool '{tool.name}': {refusal}.")
    if tool.injected:
        call = Call(exchange)
        for name in tool.injected:
            # Ours last: an open schema of the author's own might let a caller send something of the same name.
            values[name] = call
    try:
        value = await tool.outcome(**values)
        if type(value) is str and tool.promise is None:
            # What most tools return, and there is no more to be made of it.
            return {"content": [text_block(value)]}
        call, answer = call or Call(exchange), Answer()
        stream = stream_of(value)
        if stream is not None:
            await answer.take_all(stream, call)
        elif (leaving := answer.take(value, call)) is not None:
            await leaving
    except (MissingCapability, ThreadsBusy):
        # What only another request can cure: −32021 tells the client what to declare in it, 1004 to send it later.
        raise
    except AUTHORS_FAULTS as error:
        if was_cancelled(error):
            raise
        answer = answer or Answer()
        answer.fail(shown(error, f"The tool '{tool.name}'"))
    finally:
        if call is not None:
            call.end()
    return answer.result(tool)


class Answer:
    """The result of a call while it grows."""

    def __init__(self) -> None:
        self._content: list[Params] = []
        self._structured: Params | None = None
        self._is_error = False
        self._pieces: list[str] = []

    async def take_all(self, events: "AsyncGenerator[object, None] | SteppedGenerator", call: Call) -> None:
        """Take what a stream brings until it ends, and close it in any case; raises what it raises, and as `take`."""
        try:
            async for event in events:
                if (leaving := self.take(event, call)) is not None:
                    await leaving
        finally:
            await events.aclose()

    def take(self, value: object, call: Call) -> Awaitable[None] | None:
        """Keep a value for the result, or return what sends it to the client, to be awaited before the next is taken.

        Raises:
            TypeError: nothing can be made of it.
        """
        match value:
            case Progress():
                return call.progress(value.progress, value.total, value.message)
            case str():
                self._add_text(value)
            case None:
                pass
            case dict() | int() | float():
                self._add_json(cast(object, value), is_result=False)
            case Data():
                return self._take_piece(value.value, call)
            case Log():
                return call.log(value.level, value.data, value.logger)
            case Error():
                self.fail(value.message)
            case Structured():
                self._add_json(value.value, is_result=True)
            case list() | tuple() if _has_events(cast(Sequence[object], value)):
                return self._take_items(cast(Sequence[object], value), call)
            case bytes() | bytearray() | memoryview():
                raise TypeError("bytes do not say what they are: use Image, Audio or EmbeddedResource, or decode them")
            case _ if isinstance(value, CONTENT):
                self._add(block_of(value))
            case _:
                self._add_json(value, is_result=False)
        return None

    async def _take_items(self, items: Sequence[object], call: Call) -> None:
        for item in items:
            if (leaving := self.take(item, call)) is not None:
                await leaving

    def _take_piece(self, value: object, call: Call) -> Awaitable[None]:
        if isinstance(value, str):
            self._pieces.append(value)
        else:
            self._add_text(json_of(value)[1])
        return call.data(value)

    def fail(self, message: str) -> None:
        """Make it a failure that says so in the content."""
        self._is_error = True
        self._add_text(message)

    def result(self, tool: Tool) -> Params:
        """The whole result; a failure if it does not keep what the tool promised."""
        if self._pieces:
            self._join_pieces()
        if tool.promise is not None:
            self._hold_to(tool.promise, tool.name)
        result: Params = {"content": self._content}
        if self._structured is not None:
            result["structuredContent"] = self._structured
        if self._is_error:
            result["isError"] = True
        return result

    def _hold_to(self, promise: Checker, tool: str) -> None:
        if self._structured is None:
            problem = "it has an output schema, but gave no structured result"
        elif problems := promise.problems(self._structured):
            problem = f"its result does not fit its own schema: {problems}"
        else:
            return
        self._structured = None
        if not self._is_error:
            # Nothing of it is shown: a client that trusts the schema must not see what breaks it.
            self._content = []
            self.fail(f"The tool '{tool}' failed: {problem}.")

    def _add(self, block: Params) -> None:
        if self._pieces:
            self._join_pieces()
        self._content.append(block)

    def _add_text(self, text: str) -> None:
        self._add(text_block(text))

    def _add_json(self, value: object, *, is_result: bool) -> None:
        plain, text = json_of(value)
        if isinstance(plain, dict):
            self._structured = cast(Params, plain)
        elif is_result:
            raise TypeError(f"a structured result is an object, not {type(value).__name__}")
        self._add_text(text)

    def _join_pieces(self) -> None:
        text, self._pieces = "".join(self._pieces), []
        self._content.append(text_block(text))


def _has_events(values: Sequence[object]) -> bool:
    # By their types, of which a long list has few: to ask each value takes longer than to encode it.
    return any(issubclass(kind, EVENTS) for kind in set(map(type, values)))


def _failure(message: str) -> Params:
    return {"content": [text_block(message)], "isError": True}
