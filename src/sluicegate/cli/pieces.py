"""What a call sends before its result, printed as it comes."""

import asyncio

import click

from sluicegate.cli.output import clean, show_json_line
from sluicegate.protocol.message import Params, Result, as_array, as_object
from sluicegate.protocol.types import STREAMED_KEY, DataEvent, LogEvent, OwnEvent, ProgressEvent, ToolResult


class Pieces:
    """Prints parts of a result as text, or each event of the call as one line of JSON."""

    def __init__(self) -> None:
        self.as_events = False
        """Whether all events are printed, as JSON."""
        self.was_used = False
        """Whether a part of the result was printed."""
        self._is_line_open = False
        self._failure: OSError | None = None
        self._failed = asyncio.Event()

    def take(self, event: ProgressEvent | LogEvent) -> None:
        """Print what belongs on stdout of it."""
        if self._failure is not None:
            return
        try:
            if self.as_events:
                show_json_line(_event(event))
            elif isinstance(event, DataEvent):
                self._print(event)
        except OSError as problem:
            self._failure = problem
            self._failed.set()

    def _print(self, event: DataEvent) -> None:
        self.was_used = True
        text = clean(event.message or "")
        # An event of the tool's own kind is a piece of text if it has one, such as a line of output; else JSON.
        own = as_object(event.value) or {} if isinstance(event, OwnEvent) else {}
        is_text = isinstance(event.value, str) or any(
            value == event.message for key, value in own.items() if key != "type"
        )
        if is_text:
            click.echo(text, nl=False)
            self._is_line_open = not text.endswith("\n") if text else self._is_line_open
        else:
            self.end_line()
            click.echo(text)

    def end_line(self) -> None:
        """End the line that the last piece has begun."""
        if self._is_line_open:
            self._is_line_open = False
            click.echo()

    def finish(self, result: ToolResult) -> ToolResult | None:
        """The result without what is printed already; None if that is all."""
        if self.as_events:
            from sluicegate.protocol.native import events_of  # Imported late: few calls need it.

            for event in events_of(Result(result.raw)):
                show_json_line(event)
            return None
        if not self.was_used:
            return result
        self.end_line()
        printed = as_array((result.meta or {}).get(STREAMED_KEY)) or []
        left = [block for place, block in enumerate(result.content) if place not in printed]
        if not left and not result.is_error:
            return None
        return ToolResult(content=left, is_error=result.is_error)

    async def wait_failed(self) -> None:
        """Wait until stdout cannot be written to. Raises OSError then: the call need not go on."""
        await self._failed.wait()
        if self._failure is not None:
            raise self._failure


def _event(event: ProgressEvent | LogEvent) -> Params:
    """As native clients get it."""
    if isinstance(event, LogEvent):
        return {"type": "log", "level": event.level, "data": event.data}
    if isinstance(event, DataEvent):
        if isinstance(event, OwnEvent):
            from sluicegate.protocol.native import own_event  # Imported late: few calls need it.

            return own_event(as_object(event.value) or {})
        is_text = isinstance(event.value, str)
        return {"type": "content", "text": event.value} if is_text else {"type": "data", "data": event.value}
    members = {"progress": event.progress, "total": event.total, "message": event.message}
    return {"type": "progress", **{name: value for name, value in members.items() if value is not None}}
