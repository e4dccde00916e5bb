"""`sluicegate call`: one tool, called from the command line."""

import json
import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import click

from sluicegate.cli.failure import Failure
from sluicegate.cli.places import places_of, with_places

if TYPE_CHECKING:
    from sluicegate.cli.questions import Terminal
    from sluicegate.cli.reaching import OwnTools, Reached
    from sluicegate.config import GatewayConfig, Places
    from sluicegate.errors import SluicegateError
    from sluicegate.gateway import ServerStatus
    from sluicegate.protocol.message import Params
    from sluicegate.protocol.types import LogEvent, ProgressEvent, Tool, ToolResult


@click.command(context_settings={"ignore_unknown_options": True})
@click.argument("tool", metavar="SERVER__TOOL")
@click.argument("words", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--json", "text", metavar="OBJECT", help="All arguments as one JSON object; - reads it from stdin.")
@click.option("--raw", is_flag=True, help="Print the whole result as JSON.")
@with_places
def call(
    tool: str, words: tuple[str, ...], text: str | None, raw: bool, config: str | None, folder: str | None
) -> None:
    """Call a tool and print the text of its result.

    Values are taken as the tool's schema has them: numbers, true and false, JSON for objects and lists; a list may
    also be given item by item, its key each time. @FILE is the text of a file, @- that of stdin, and @@ a plain @.
    Progress is shown on a terminal. What the server asks is asked there too, and declined where there is none.

    Asks the gateway that runs for this folder; where none does, or with --config, the tool's server is started for
    this and ended.

    \b
    Examples:
      sluicegate call demo__echo text=hello times=2
      sluicegate call demo__count to=20
      sluicegate call files__write_file path=a.txt content=@draft.txt
      sluicegate call demo__echo --json '{"text": "hello"}' --raw

    \b
    Exit status:
      0  the tool did its work
      1  it failed, or the call was refused, or there is no such tool
      2  the arguments are wrong
      3  the configuration has errors
    """
    from sluicegate.cli.running import run

    if "://" in tool:
        raise click.UsageError(
            f"{tool!r} is no name of a tool; a server at a URL of http or https belongs into .mcp.json, and its tools"
            " are then called by their names: see `sluicegate tools`."
        )
    for place, word in enumerate(words):
        if word.startswith("-") and (key := word.lstrip("-").partition("=")[0]):
            value = word.partition("=")[2] or next(iter(words[place + 1 : place + 2]), "VALUE")
            raise click.UsageError(
                f"there is no option {word}. If the tool has an argument {key}, it is written {key}={value}"
            )
    if text is not None and words:
        raise click.UsageError("--json holds all arguments; leave the others out.")
    # Read before the loop runs, in which Ctrl+C would not be heard while we wait for the end of it.
    wants_stdin = text == "-" or any(word.partition("=")[2] == "@-" for word in words)
    piped = _text_of_stdin() if wants_stdin else ""
    run(_work(places_of(config, folder), tool, words, piped if text == "-" else text, raw, piped))


async def _work(places: "Places", name: str, words: Sequence[str], text: str | None, raw: bool, piped: str) -> int:
    from sluicegate.cli.questions import Terminal
    from sluicegate.cli.reaching import reached

    bar = Bar()
    terminal = Terminal(bar.pause)
    gateway_of_all = reached(places, choose=needed(name), elicit=terminal, on_log=bar.log)
    async with gateway_of_all as gateway:
        found = await _found(gateway, name)
        arguments = _arguments(found, words, text, piped)
        with bar:
            result = await _called(gateway, name, arguments, bar, terminal)
    try:
        _show(result, raw=raw)
    except OSError as problem:
        problem.add_note("the call has run")
        raise
    return 1 if result.is_error else 0


def needed(name: str):
    """Which servers have to be started for one tool, where a name tells."""

    def choose(config: "GatewayConfig") -> list[str]:
        if config.naming == "collide":
            return []
        plain = name.removeprefix("mcp__") if config.naming == "claude" else name
        servers = config.servers.values()
        own = [each.name for each in servers if each.prefix and plain.startswith(f"{each.prefix}__")]
        return own and [*own, *(each.name for each in servers if not each.prefix)]

    return choose


async def _found(gateway: "Reached", name: str) -> "Tool":
    """The tool of that name.

    Raises:
        Failure: there is none; with the nearest names, or why its server is not there.
    """
    tools = {tool.name: tool for tool in await gateway.hub.tools()}
    if name not in tools and await _sought(gateway, name):
        tools = {tool.name: tool for tool in await gateway.hub.tools()}
    if name in tools:
        return tools[name]
    raise Failure(await not_found(gateway, name, list(tools)))


async def _sought(gateway: "Reached", name: str) -> bool:
    """Whether servers that are away and may have the tool were tried once more; none is, if it was just started."""
    if not gateway.is_running:
        return False
    away = [
        server.name
        for server in (await gateway.report()).servers
        if server.state != "ready" and _own(server, name) is not None
    ]
    for each in away:
        await gateway.seek(each)
    return bool(away)


async def not_found(gateway: "Reached", name: str, known: Sequence[str]) -> str:
    """Why there is no tool of that name: its server is not there, it is hidden or renamed, or another may be meant."""
    from sluicegate.cli.reaching import unknown

    own_tools, offers = await gateway.own_tools(), await gateway.offers("tools")
    for server in (await gateway.report()).servers:
        own = _own(server, name)
        if own is None:
            continue
        if server.state != "ready":
            why = server.sentence.removeprefix(f"{server.name}: ")
            if why.startswith(f"{server.name} "):
                why = f"it{why.removeprefix(server.name)}"
            return f"{server.name} is not ready: {why}"
        now = [offer.definition["name"] for offer in offers if (offer.server, offer.own) == (server.name, own)]
        if now:
            return f"there is no tool {name!r}; {own} of {server.name} is called {now[0]}."
        if server.name in own_tools and (rule := _hidden_by(own_tools[server.name], own)):
            return f"there is no tool {name!r}; {server.name} has it, and {rule} in its settings hides it."
    return unknown("tool", name, known)


def _own(server: "ServerStatus", name: str) -> str | None:
    """What a server would call a tool of that name itself; None if the name is none of its own."""
    heads = [f"{head}__" for head in (server.prefix, server.key, server.name) if head]
    return next((plain[len(head) :] for plain in _plain(name) for head in heads if plain.startswith(head)), None)


def _plain(name: str) -> list[str]:
    """A name as it is, and without what Claude Code's names begin with."""
    return [name, name.removeprefix("mcp__")]


def _hidden_by(server: "OwnTools", own: str) -> str:
    """The rule that hides a tool of a server's own; empty if it has none such, or none hides it."""
    from fnmatch import fnmatchcase

    if own not in server.tools:
        return ""
    hiding = [glob for glob in server.hide if fnmatchcase(own, glob)]
    if hiding:
        return f"hide = {json.dumps(hiding[:1])}"
    is_let = any(fnmatchcase(own, glob) for glob in server.only)
    return "" if is_let else f"tools = {json.dumps(server.only)}"


def _arguments(tool: "Tool", words: Sequence[str], text: str | None, piped: str) -> "Params":
    from sluicegate.cli.arguments import Wrong, json_arguments, typed_arguments

    def read(file: str) -> str:
        return piped if file == "-" else _text_of(file)

    try:
        return json_arguments(text) if text is not None else typed_arguments(words, tool.input_schema, read)
    except Wrong as problem:
        raise click.UsageError(str(problem)) from None


def _text_of_stdin() -> str:
    try:
        return sys.stdin.read()
    except UnicodeDecodeError:
        raise click.UsageError("stdin is no text in UTF-8.") from None


def _text_of(file: str) -> str:
    """The text of a file. Raises ValueError with a sentence if it is none."""
    try:
        with open(file, encoding="utf-8", newline="") as opened:
            return opened.read()
    except UnicodeDecodeError:
        raise ValueError(f"{file} is no text in UTF-8.") from None
    except OSError as problem:
        raise ValueError(f"{file} cannot be read: {problem.strerror}.") from None


async def _called(gateway: "Reached", name: str, arguments: "Params", bar: "Bar", terminal: "Terminal") -> "ToolResult":
    from sluicegate.concurrency import TaskScope
    from sluicegate.errors import SluicegateError, UpstreamClosed

    async def end_with_gateway() -> None:
        # While a person is asked no request is under way that would fail: the call is the gateway's to keep.
        await gateway.hub.wait_closed()
        terminal.end()

    try:
        async with TaskScope() as tasks:
            tasks.start(end_with_gateway())
            try:
                return await gateway.hub.call(name, arguments, on_progress=bar.progress)
            finally:
                tasks.cancel_all()
    except SluicegateError as problem:
        if gateway.is_running and isinstance(problem, UpstreamClosed):
            raise Failure("the gateway stopped before the call was answered; it may have run.") from None
        raise Failure(why_it_failed(problem)) from None


def why_it_failed(problem: "SluicegateError") -> str:
    """Why a call came to nothing; where nobody knows whether it ran, with that."""
    if problem.delivered != "unknown" or "may have run" in problem.message:
        return problem.message
    return f"{problem.message.rstrip('.')}; the call may have run."


MOST_HELD: Final = 1000
"""Lines of the log, the last ones, that wait until a person has answered a question."""


class Bar:
    """A call's progress on the terminal that stderr is, and its log lines above; only these where it is none."""

    def __init__(self) -> None:
        self._bar = None
        self._is_shown = self._is_paused = False
        self._held: deque[str] = deque(maxlen=MOST_HELD)
        if sys.stderr.isatty():
            from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

            from sluicegate.cli.render import on_terminal

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

    def progress(self, event: "ProgressEvent") -> None:
        """Show how far it is."""
        from sluicegate.cli.render import clean

        if self._bar is not None:
            words = clean(event.message) if event.message else "working"
            self._bar.update(self._task, completed=event.progress, total=event.total, description=words, refresh=True)

    def log(self, event: "LogEvent") -> None:
        """Show a line of the server's log."""
        from sluicegate.cli.render import clean

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
        """Leave the terminal to somebody, or take it again, with what the log has had to say meanwhile."""
        self._is_paused = is_paused
        while not is_paused and self._held:
            self._print(self._held.popleft())
        if self._bar is not None and self._is_shown:
            self._bar.stop() if is_paused else self._bar.start()


def _show(result: "ToolResult", *, raw: bool) -> None:
    from msgspec import UNSET

    from sluicegate.cli.render import say, show_json, show_text
    from sluicegate.protocol.types import TextContent

    if raw:
        show_json(result.raw)
        return
    if result.text:
        show_text(result.text)
    elif result.structured_content is not UNSET:
        show_json(result.structured_content)
    others = [type(block).__name__ for block in result.content if not isinstance(block, TextContent)]
    if others:
        say(f"the result also holds {', '.join(others)}; --raw prints all of it.")
    if result.is_error:
        say("the tool failed.")
