"""`sluicegate call`: one tool, called from the command line."""

import asyncio
import re
import shlex
import sys
import time
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Final

import click
from msgspec import UNSET

from sluicegate.cli.command import Failure, places_of, with_places
from sluicegate.cli.gateway_client import (
    GatewayClient,
    any_gateway,
    explain_missing,
    exposed_name,
    own_names,
    run,
    servers_for,
)
from sluicegate.cli.key_values import Read, input_text, json_arguments, reader, typed_arguments
from sluicegate.cli.output import (
    clean,
    counted,
    first_line,
    on_terminal,
    one_line,
    say,
    show_json,
    show_json_line,
    show_text,
)
from sluicegate.cli.prompt import Terminal
from sluicegate.client.handlers import ElicitRequest
from sluicegate.config.model import LimitsConfig, ServerSettings
from sluicegate.config.paths import Places
from sluicegate.errors import SluicegateError, UpstreamClosed
from sluicegate.protocol.message import Params, Result, as_array, as_object
from sluicegate.protocol.types import (
    HEALTH,
    STREAMED_KEY,
    STREAMING_KEY,
    AudioContent,
    DataEvent,
    EmbeddedResource,
    ImageContent,
    LogEvent,
    OwnEvent,
    ProgressEvent,
    ResourceContents,
    ResourceLink,
    TextContent,
    Tool,
    ToolResult,
)
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.schemas.fields import Wrong

_KINDS: Final[Mapping[type, str]] = {
    ImageContent: "image",
    AudioContent: "sound",
    EmbeddedResource: "binary resource",
}
"""The kinds of content that a terminal cannot show."""
_TOO_LONG: Final = re.compile(r"^The answer of .+ is (too long|larger than \d+ bytes)\b")
MAX_HELD: Final = 1000
"""Log lines, the last ones, that are held back while a person answers a question."""


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("tool", metavar="SERVER__TOOL")
@click.argument("words", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--input", "text", metavar="JSON", help="All arguments as one JSON object; @FILE reads a file, - stdin.")
@click.option("--json", "as_json", is_flag=True, help="Print the whole result as JSON; of a stream, an event a line.")
@with_places
def call(
    tool: str, words: tuple[str, ...], text: str | None, as_json: bool, config: str | None, folder: str | None
) -> None:
    """Call a tool and print the text of its result.

    What it streams is printed as it comes. Values are converted to the types of the tool's schema: numbers, true and
    false, JSON for objects and lists; a list can also be given item by item, with its key each time, and a member of an
    object as a.b=1. @FILE is the text of a file, @- that of stdin, and @@ a plain @. A terminal shows progress and the
    questions of the server; without one, they are not answered.

    Uses the gateway that runs for this folder; if none runs, or with --config, the tool's server is started for this
    command and then ended.

    \b
    Examples:
      sluicegate call demo__echo text=hello times=2
      sluicegate call demo__count to=20
      sluicegate call files__write_file path=a.txt content=@draft.txt
      sluicegate call demo__echo --input '{"text": "hello"}' --json
      sluicegate call demo__echo --input @arguments.json

    \b
    Exit status:
      0  the tool succeeded
      1  the tool failed, the call was refused, or there is no such tool
      2  the arguments are wrong
      3  the configuration has errors
    """
    if "://" in tool:
        raise click.UsageError(
            f"{tool!r} is a URL, not the name of a tool. Put the server into .mcp.json, then call its tools by their"
            " names; `sluicegate tools` lists them."
        )
    for place, word in enumerate(words):
        if word.startswith("-") and (key := word.lstrip("-").partition("=")[0]):
            value = word.partition("=")[2] or next(iter(words[place + 1 : place + 2]), "VALUE")
            raise click.UsageError(
                f"there is no option {word}. If {key} is an argument of the tool, write {key}={value}"
            )
        if word.startswith("{"):
            raise click.UsageError(f"arguments as JSON are given with --input: --input {shlex.quote(word)}")
    if text is not None and words:
        raise click.UsageError("--input holds all arguments; leave the others out.")
    # Read before the event loop starts: there, Ctrl+C would not interrupt it.
    try:
        text, read = None if text is None else input_text(text), reader(words)
    except Wrong as problem:
        raise click.UsageError(str(problem)) from None
    run(_work(places_of(config, folder), tool, words, text, as_json, read))


async def _work(places: Places, name: str, words: Sequence[str], text: str | None, as_json: bool, read: Read) -> int:
    bar = Bar()
    terminal = Terminal(bar.pause, partial(_answered_elsewhere, places), partial(_way_to_answer, places))
    async with any_gateway(places, choose=servers_for(name), elicit=terminal, on_log=bar.log) as gateway:
        tool = await _find(gateway, name, words, text)
        arguments = _arguments(tool, words, text, read)
        bar.pieces.as_events = as_json and (tool.meta or {}).get(STREAMING_KEY) is True
        with bar:
            result = await _call(gateway, tool.name, arguments, bar, terminal)
    try:
        left = result if as_json and not bar.pieces.as_events else bar.pieces.finish(result)
        if left is not None:
            _show(left, as_json=as_json)
    except OSError as problem:
        problem.add_note("the call has run")
        raise
    return 1 if result.is_error else 0


async def _answered_elsewhere(places: Places, request: ElicitRequest) -> None:
    """Return when another way was used to answer the question whether a call may run; never, for other questions.

    A client of 2026-07-28 is not notified: its call is open again only when it sends an answer itself.
    """
    from sluicegate.cli.operations import wait_decided  # Imported late: few calls ask.

    if not (question := _approval_id(request)):
        await asyncio.Event().wait()  # Never set.
    await wait_decided(places, question)


async def _way_to_answer(places: Places, request: ElicitRequest) -> str:
    """How the question whether a call may run is answered without its terminal, and in which time; else empty."""
    from sluicegate.cli.operations import operations_of  # Imported late: few calls ask.

    if not (question := _approval_id(request)):
        return ""
    left = ""
    with suppress(Failure):  # The command works all the same.
        async with operations_of(places) as operations:
            for each in await operations.approvals():
                if each.id == question:
                    left = f" up to {max(0, each.deadline - time.time_ns()) / 10**9:.0f} s"
    return f"The call waits{left} for `sluicegate approve {question}` or `sluicegate deny {question}`."


def _approval_id(request: ElicitRequest) -> str:
    """The id of the gateway's own question whether a call may run; empty for questions of servers."""
    from sluicegate.gate.approval_text import ASKS  # Imported late: few calls ask.

    return request.message.removeprefix(ASKS).partition(")")[0] if request.message.startswith(ASKS) else ""


async def _find(gateway: GatewayClient, name: str, words: Sequence[str], text: str | None) -> Tool:
    """The tool of that name.

    Raises:
        Failure: there is none; with similar names, or why its server is not ready.
    """
    tools = {tool.name: tool for tool in await gateway.hub.tools()}
    if name not in tools and await _retry_servers(gateway, name):
        tools = {tool.name: tool for tool in await gateway.hub.tools()}
    if (exposed := await exposed_name(gateway, name, tools)) in tools:
        return tools[exposed]
    if name == HEALTH and gateway.is_running:
        return Tool(name=name)  # Every gateway answers it, and few list it.
    if name == HEALTH:
        raise Failure(f"{HEALTH} is about a running gateway; start one with `sluicegate serve`.")
    await _record_refusal(gateway, name, words, text)
    raise Failure(await explain_missing(gateway, name, list(tools)))


async def _record_refusal(gateway: GatewayClient, name: str, words: Sequence[str], text: str | None) -> None:
    """Make a call that a rule denies, or whose definition waits for approval: the gateway refuses and records it.

    Other names are not sent: a server without a prefix would get a call of a tool that it does not list.
    """
    denied = [str(offer.definition["name"]) for offer in await gateway.offers("tools") if offer.is_denied]
    held = [each.name for each in (await gateway.report()).held if each.kind == "tools"]
    if (exposed := await exposed_name(gateway, name, [*denied, *held])) not in (*denied, *held):
        return
    arguments: Params = {key: value for key, _, value in (word.partition("=") for word in words)}
    if text is not None:
        with suppress(Wrong):
            arguments = json_arguments(text)
    with suppress(SluicegateError):
        await gateway.hub.call(exposed, arguments)


async def _retry_servers(gateway: GatewayClient, name: str) -> bool:
    """Retry servers of a running gateway that are not ready and may have the tool; whether there were any."""
    if not gateway.is_running:
        return False  # They were started a moment ago.
    away = [
        server.name
        for server in (await gateway.report()).servers
        if server.state != "ready" and own_names(server, name)
    ]
    for each in away:
        await gateway.seek(each)
    return bool(away)


def _arguments(tool: Tool, words: Sequence[str], text: str | None, read: Read) -> Params:
    try:
        return json_arguments(text) if text is not None else typed_arguments(words, tool.input_schema, read)
    except Wrong as problem:
        raise click.UsageError(str(problem)) from None


async def _call(gateway: GatewayClient, name: str, arguments: Params, bar: "Bar", terminal: Terminal) -> ToolResult:
    async def end_with_gateway() -> None:
        # While the user answers a question, no request is open that would fail when the gateway stops.
        await gateway.hub.wait_closed()
        terminal.end()

    try:
        async with TaskScope() as tasks:
            tasks.start(end_with_gateway())
            tasks.start(bar.pieces.wait_failed())
            try:
                return await gateway.hub.call(name, arguments, on_progress=bar.progress)
            finally:
                tasks.cancel_all()
    except ExceptionGroup as problems:
        raise problems.exceptions[0] from None  # Of writing to stdout.
    except SluicegateError as problem:
        if gateway.is_running and isinstance(problem, UpstreamClosed):
            from sluicegate.gate.approval_text import ASKS  # Imported late: gateways seldom stop meanwhile.

            # A question of ours is asked before the call is sent.
            what = "nothing was run" if terminal.unanswered.startswith(ASKS) else "it may have run"
            raise Failure(f"the gateway stopped before the call was answered; {what}.") from None
        raise Failure(why_it_failed(problem) + await _how_to_raise(gateway, name, problem.message)) from None


async def _how_to_raise(gateway: GatewayClient, name: str, message: str) -> str:
    """Where to set the limit that an error names; empty if it names none."""
    keys = re.findall(r"`(\w+)`", message)
    if key := next((key for key in keys if key in ServerSettings.__struct_fields__), ""):
        servers = (await gateway.report()).servers
        owners = (each.name for each in servers if own_names(each, name))
        table = f"servers.{next(owners, 'NAME')}"
    elif key := next((key for key in keys if key in LimitsConfig.__struct_fields__), ""):
        table = "limits"
    elif _TOO_LONG.search(message):
        table, key = "limits", "message"
    else:
        return ""
    return f" To allow more, set {key} under [{table}] in sluicegate.toml."


def why_it_failed(problem: SluicegateError) -> str:
    """Why a call failed, and that it may have run, if that is not known."""
    if problem.delivered != "unknown" or "may have run" in problem.message:
        return problem.message
    return f"{problem.message.rstrip('.')}; the call may have run."


class Bar:
    """The progress of a call, with log lines above it, if stderr is a terminal; else only the log lines."""

    def __init__(self) -> None:
        self.pieces = Pieces()
        self._bar = None
        self._is_shown = self._is_paused = False
        self._held: deque[str] = deque(maxlen=MAX_HELD)
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn())
            self._bar = Progress(*columns, TimeElapsedColumn(), console=on_terminal(err=True), transient=True)
            self._task = self._bar.add_task("waiting", total=None)

    def __enter__(self) -> "Bar":
        if self._bar is not None:
            self._bar.start()
            self._is_shown = True
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._is_shown = False

    async def progress(self, event: ProgressEvent) -> None:
        if isinstance(event, DataEvent) or self.pieces.as_events:
            self.__exit__()  # From now on, the pieces show the progress.
            self.pieces.take(event)
            await asyncio.sleep(0)  # A tool of this process that never waits must not keep all else from running.
        elif self._bar is not None and self._is_shown:
            words = clean(event.message) if event.message else "working"
            self._bar.update(self._task, completed=event.progress, total=event.total, description=words, refresh=True)

    def log(self, event: LogEvent) -> None:
        if self.pieces.as_events:
            self.pieces.take(event)
            return
        text = event.data if isinstance(event.data, str) else str(event.data)
        line = clean(f"{event.level}: {text}")
        if self._is_paused:
            self._held.append(line)
        else:
            self._print(line)

    def _print(self, line: str) -> None:
        if self._bar is not None:
            self._bar.console.print(line, soft_wrap=True)
        else:
            click.echo(line, err=True)

    def pause(self, is_paused: bool) -> None:
        """Stop drawing while a person uses the terminal, or go on and print the log lines that were held back."""
        self._is_paused = is_paused
        while not is_paused and self._held:
            self._print(self._held.popleft())
        if self._bar is not None and self._is_shown:
            self._bar.stop() if is_paused else self._bar.start()


def _show(result: ToolResult, *, as_json: bool) -> None:
    if as_json:
        show_json(result.raw)
        return
    others: Counter[str] = Counter()
    if not result.text and result.structured_content is not UNSET:
        show_json(result.structured_content)
    for block in result.content:
        match block:
            case TextContent(text=text):
                if result.text:  # Otherwise there are only empty ones.
                    show_text(text)
            case ResourceLink(uri=uri):
                title = first_line(block.title or block.description or block.name)
                show_text(one_line(f"{uri}  {title}".rstrip()))
            case EmbeddedResource(resource=ResourceContents(text=str(text))):
                show_text(text)
            case _:
                others[_KINDS.get(type(block), "part of an unknown kind")] += 1
    if others:
        held = ", ".join(counted(count, what) for what, count in others.items())
        say(f"the result also holds {held}; --json prints all of it.")
    if result.is_error:
        is_refused = "dev.sluicegate/reason" in (result.meta or {})
        say("the call was refused." if is_refused else "the tool failed.")


# ------------------------------------------------------------------------------- what a call sends before its result


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
            click.echo(text, nl=not text.endswith("\n"))

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
