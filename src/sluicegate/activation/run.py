"""A tool call as an exchange: events leave as they come or become part of the result, and a failure is a result too.

The one rule: two kinds of error are kept apart. What never ran (no such tool, arguments that are no object) is a
JSON-RPC error; what ran, or was refused by its schema, is a result with `isError`, which the model can read and learn
from.
"""

from collections.abc import Mapping, Sequence
from contextlib import aclosing
from typing import cast

from sluicegate.activation.call import Call
from sluicegate.activation.content import block_of, json_of, text_block
from sluicegate.activation.define import CONTENT, EVENTS, Data, Error, Log, Progress, Structured
from sluicegate.activation.invoke import AUTHORS_FAULTS, shown, stream_of, was_cancelled
from sluicegate.activation.schema import InvalidArguments
from sluicegate.activation.tools import Tool
from sluicegate.errors import MissingCapability, ThreadsBusy
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Params


async def run_tool(tool: Tool, exchange: Exchange, arguments: Mapping[str, object]) -> Params:
    """The result of a call, after all its events have left.

    Raises:
        MissingCapability: the tool had to ask something that the client cannot answer, and did not handle it.
        ThreadsBusy: there is no thread for a plain function, so it never ran.
    """
    answer, call = Answer(), Call(exchange)
    try:
        values = tool.bind(arguments, call)
    except InvalidArguments as refusal:
        answer.fail(f"Invalid arguments for the tool '{tool.name}': {refusal}.")
        return answer.result(tool)
    try:
        value = await tool.invocable.outcome(values)
        stream = stream_of(value)
        if stream is None:
            await answer.take(value, call)
        else:
            async with aclosing(stream) as events:
                async for event in events:
                    await answer.take(event, call)
    except (MissingCapability, ThreadsBusy):
        # What only another request can cure: −32021 tells the client what to declare in it, 1004 to send it later.
        raise
    except AUTHORS_FAULTS as error:
        if was_cancelled(error):
            raise
        answer.fail(shown(error, f"The tool '{tool.name}'"))
    finally:
        call.end()
    return answer.result(tool)


class Answer:
    """The result of a call while it grows."""

    def __init__(self) -> None:
        self._content: list[Params] = []
        self._structured: Params | None = None
        self._is_error = False
        self._pieces: list[str] = []

    async def take(self, value: object, call: Call) -> None:
        """Let an event leave, or keep it for the result.

        Raises:
            TypeError: nothing can be made of it.
        """
        match value:
            case str():
                self._add_text(value)
            case None:
                pass
            case Progress():
                await call.progress(value.progress, value.total, value.message)
            case Log():
                await call.log(value.level, value.data, value.logger)
            case Data(str() as piece):
                self._pieces.append(piece)
                await call.data(piece)
            case Data(other):
                self._add_text(json_of(other)[1])
                await call.data(other)
            case Error():
                self.fail(value.message)
            case Structured():
                self._add_json(value.value, is_result=True)
            case list() | tuple() if any(isinstance(item, EVENTS) for item in cast(Sequence[object], value)):
                for item in cast(Sequence[object], value):
                    await self.take(item, call)
            case bytes() | bytearray() | memoryview():
                raise TypeError("bytes do not say what they are: use Image, Audio or EmbeddedResource, or decode them")
            case _ if isinstance(value, CONTENT):
                self._add(block_of(value))
            case _:
                self._add_json(value, is_result=False)

    def fail(self, message: str) -> None:
        """Make it a failure that says so in the content."""
        self._is_error = True
        self._add_text(message)

    def result(self, tool: Tool) -> Params:
        """The whole result; a failure if it does not keep what the tool promised."""
        self._join_pieces()
        problem = tool.broken_promise(self._structured)
        if problem is not None:
            self._structured = None
            if not self._is_error:
                # Nothing of it is shown: a client that trusts the schema must not see what breaks it.
                self._content = []
                self.fail(problem)
        result: Params = {"content": self._content}
        if self._structured is not None:
            result["structuredContent"] = self._structured
        if self._is_error:
            result["isError"] = True
        return result

    def _add(self, block: Params) -> None:
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
        if self._pieces:
            text, self._pieces = "".join(self._pieces), []
            self._content.append(text_block(text))
