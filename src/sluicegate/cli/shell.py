"""`sluicegate shell`: an interactive terminal on the tools of all servers, with permissions; also in a pipe."""

import asyncio
import logging
import shlex
import signal
import sys
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, Final

import click
import msgspec

from sluicegate.cli.command import INTERRUPTED, places_of, with_folder
from sluicegate.cli.key_values import json_arguments, text_of, typed_arguments
from sluicegate.cli.output import clean, counted, first_line, is_terminal, one_line, say, show_rows, show_text, tell
from sluicegate.errors import SluicegateError
from sluicegate.hub.catalog import Entry
from sluicegate.protocol.message import Params, as_object
from sluicegate.protocol.types import LogEvent, ProgressEvent, ToolResult
from sluicegate.runtime.task_scope import TaskScope, in_thread
from sluicegate.schemas.fields import Wrong, whole
from sluicegate.text.globs import BadGlob, name_glob
from sluicegate.text.similar import close_matches
from sluicegate.toolbox.permission import Allow, Deny, PermissionRequest, ask_on_terminal
from sluicegate.toolbox.toolbox import Toolbox

ReadLine = Callable[[], Awaitable[str | None]]
"""The next line; None at the end. Raises KeyboardInterrupt if the user gives the line up."""

HELP: Final = {
    "/mcp": "the servers: state, era, tools, and what is wrong",
    "/tools [WORD]": "the tools, or those whose name has the word",
    "/resources": "the resources",
    "/read URI": "read a resource",
    "/watch URI": "report changes of a resource",
    "/poll TOOL [KEY=VALUE]...": "call a tool every five seconds, and report changes",
    "/allow [GLOB]": "do not ask about tools that a rule asks about, until the end; without a glob, show which",
    "/log [SERVER]": "the last lines that a server wrote, or all servers",
    "/help": "this list",
    "TOOL [KEY=VALUE]...": "call a tool; a JSON object works as well",
}
_KEY: Final = "call"


@click.command()
@with_folder
def shell(folder: str | None) -> None:
    """Use the tools of all servers in an interactive terminal.

    Starts the servers of this folder for itself. A tool's name calls it: `mcp__demo__echo text=hello`, or `echo
    text=hello` if only one server has it. It runs without a question, unless a rule in sluicegate.toml asks. Tab
    completes names and arguments, Ctrl+C cancels a call, Ctrl+D leaves; /help lists the commands. In a pipe, each line
    is a command.

    \b
    Examples:
      sluicegate shell
      echo '/mcp' | sluicegate shell

    Exit status: 0 left, 1 a line of a pipe failed, 130 Ctrl+C
    """
    places = places_of(None, folder)
    with suppress(KeyboardInterrupt, asyncio.CancelledError):
        raise SystemExit(asyncio.run(_main(places.root)))
    raise SystemExit(INTERRUPTED)


async def _main(root: str) -> int:
    logging.getLogger("sluicegate").addHandler(_Sentences())
    is_interactive = sys.stdin.isatty() and sys.stdout.isatty()
    async with Toolbox.load(root, search=False) as box:
        here = Shell(box)
        if not is_interactive:
            await here.run(_piped)
            return 1 if here.has_failed else 0
        say(f"{counted(sum(each.tools for each in box.servers), 'tool')}; /help lists the commands, Ctrl+D leaves.")
        await here.run(_editor(here))
    return 0


class _Sentences(logging.Handler):
    """Prints log records as the shell's own sentences."""

    def emit(self, record: logging.LogRecord) -> None:
        """Print a record; the line editor has replaced stderr perhaps."""
        say(record.getMessage())


class Shell:
    """The commands of the shell on a toolbox."""

    def __init__(self, box: Toolbox) -> None:
        self.box = box
        self.has_failed = False
        self._allowed: list[str] = []
        self._typed: tuple[str, Params] | None = None
        """The call that the user has typed and that runs now."""
        self._tasks = TaskScope()
        self._commands: dict[str, Callable[[list[str]], Awaitable[None]]] = {
            "/mcp": self._mcp,
            "/tools": self._tools,
            "/resources": self._resources,
            "/read": self._read,
            "/watch": self._watch,
            "/poll": self._poll,
            "/allow": self._allow,
            "/log": self._log,
            "/help": self._help,
        }
        box.on_permission = self._permit

    async def run(self, read: ReadLine) -> None:
        """Run the lines until they end. Ctrl+C cancels what runs."""
        loop, parent = asyncio.get_running_loop(), asyncio.current_task()

        def interrupt() -> None:
            if not self._tasks.cancel(_KEY) and parent is not None:
                parent.cancel()

        async with TaskScope() as background:
            background.start(self._show_updates())
            loop.add_signal_handler(signal.SIGINT, interrupt)
            try:
                while (line := await read()) is not None:
                    loop.add_signal_handler(signal.SIGINT, interrupt)  # The line editor has its own, and removes it.
                    if line.strip():
                        await self._run_line(line.strip())
            finally:
                loop.remove_signal_handler(signal.SIGINT)
                background.cancel_all()

    async def _run_line(self, line: str) -> None:
        is_done = False

        async def work() -> None:
            nonlocal is_done
            try:
                await self._do(line)
            except (Wrong, SluicegateError) as problem:
                self._fail(problem.message if isinstance(problem, SluicegateError) else str(problem))
            is_done = True

        async with TaskScope() as self._tasks:
            self._tasks.start(work(), key=_KEY)
        self._typed = None
        if not is_done:
            if is_terminal(err=True):
                tell("")  # The terminal shows ^C where the cursor is.
            say("cancelled.")

    async def _do(self, line: str) -> None:
        try:
            name, *words = shlex.split(line) if "{" not in line else line.split(None, 1)
        except ValueError:
            raise Wrong("a quote is not closed.") from None
        if not name.startswith("/"):
            await self._call(name, words)
        elif name in self._commands:
            await self._commands[name](words)
        else:
            raise Wrong(f"there is no command {name}; /help lists them.")

    def _fail(self, sentence: str) -> None:
        self.has_failed = True
        say(sentence)

    # --------------------------------------------------------------------------------------------------------- calls

    def entries(self) -> dict[str, Entry]:
        """The tools by the names that the model sees, and by their own where only one server has them."""
        tools = self.tools()
        own: dict[str, list[Entry]] = {}
        for entry in tools.values():
            own.setdefault(entry.own, []).append(entry)
        return {name: entries[0] for name, entries in own.items() if len(entries) == 1} | dict(tools)

    def tools(self) -> Mapping[str, Entry]:
        """The tools by the names that the model sees."""
        return self.box.gateway.hub.router("").view(self.box.caller).catalog.tools

    def _found(self, name: str) -> Entry:
        entries = self.entries()
        # The other commands show names without "mcp__".
        entry = entries.get(name) or entries.get(f"mcp__{name}")
        if entry is None:
            meant = close_matches(name, entries)
            raise Wrong(f"there is no tool {name!r}; /tools lists them.{f' Did you mean {meant[0]}?' if meant else ''}")
        return entry

    async def _call(self, name: str, words: list[str]) -> None:
        entry = self._found(name)
        arguments = self._arguments(entry, words)
        exposed = str(entry.definition["name"])
        self._typed = exposed, arguments
        async with aclosing(self.box.stream(exposed, arguments)) as events:
            async for event in events:
                match event:
                    case ToolResult():
                        self._show(event)
                    case ProgressEvent():
                        of = f"/{event.total:g}" if event.total is not None else ""
                        tell(f"  {event.progress:g}{of} {one_line(event.message or '')}".rstrip())
                    case LogEvent():
                        tell(f"  {event.level}: {one_line(str(event.data))}")

    def _show(self, result: ToolResult) -> None:
        if result.is_error:
            self._fail(clean(result.text))
        else:
            show_text(result.text or msgspec.json.encode(msgspec.to_builtins(result.content)).decode())

    def _arguments(self, entry: Entry, words: Sequence[str]) -> Params:
        if len(words) == 1 and words[0].lstrip().startswith("{"):
            return json_arguments(words[0])
        return typed_arguments(words, as_object(entry.definition.get("inputSchema")) or {}, text_of)

    async def _permit(self, ask: PermissionRequest) -> Allow | Deny:
        # Only the typed call itself: a tool that it runs may call others, which nobody has typed.
        if not ask.rule and self._typed == (ask.tool, ask.arguments):
            return Allow()
        if any(name_glob(glob).matches(name) for glob in self._allowed for name in (ask.tool, ask.own)):
            return Allow()
        return await ask_on_terminal(ask)

    async def _manage(self, tool: str, arguments: Params) -> None:
        """Use one of the management tools."""
        self._show(await self.box.execute(tool, arguments))

    async def _show_updates(self) -> None:
        async with aclosing(self.box.updates()) as updates:
            async for update in updates:
                show_text(update.text)

    # ------------------------------------------------------------------------------------------------------ commands

    async def _mcp(self, words: list[str]) -> None:
        rows = [
            (each.name, each.state, each.era or "-", str(each.tools), _for_shell(each.sentence))
            for each in self.box.servers
        ]
        show_rows(("server", "state", "era", "tools", ""), rows, numbers=("tools",))
        for problem in self.box.file_problems:
            say(problem)

    async def _tools(self, words: list[str]) -> None:
        found = [(name, entry) for name, entry in self.tools().items() if all(word in name for word in words)]
        rows = [(name, first_line(str(entry.definition.get("description", "")))) for name, entry in found]
        show_rows(("tool", ""), rows)

    async def _resources(self, words: list[str]) -> None:
        listed = await self.box.client.resources()
        show_rows(("uri", "name"), [(each.uri, each.title or each.name) for each in listed])

    async def _read(self, words: list[str]) -> None:
        show_text((await self.box.client.read(_only(words, "/read URI"))).text)

    async def _watch(self, words: list[str]) -> None:
        uri = _only(words, "/watch URI")
        found = self.box.gateway.hub.catalog.owner_of_uri(uri)
        if found is None:
            raise Wrong(f"there is no resource {uri}; /resources lists them.")
        await self._manage("SubscribeMcpResource", {"server": found[0], "uri": found[1]})

    async def _poll(self, words: list[str]) -> None:
        if not words:
            raise Wrong("write /poll TOOL [KEY=VALUE]...")
        entry = self._found(words[0])
        arguments = self._arguments(entry, words[1:])
        self._typed = str(entry.definition["name"]), arguments
        what: Params = {"type": "tool", "server": entry.mount, "toolName": entry.own, "arguments": arguments}
        await self._manage("SubscribePolling", what)

    async def _allow(self, words: list[str]) -> None:
        for glob in words:
            try:
                name_glob(glob)
            except BadGlob as problem:
                raise Wrong(f"{glob!r} {problem}.") from None
            self._allowed.append(glob)
        say(f"called without a question: {', '.join(self._allowed) or 'nothing'}.")

    async def _log(self, words: list[str]) -> None:
        name = words[0] if words else ""
        try:
            lines = self.box.gateway.logs(name)
        except KeyError:
            raise Wrong(f"there is no server {name!r}; /mcp lists them.") from None
        for line in lines[-20:]:
            show_text(line.text if name else f"{line.server}: {line.text}")

    async def _help(self, words: list[str]) -> None:
        show_rows(("line", "what it does"), HELP.items())

    # ---------------------------------------------------------------------------------------------------- completion

    def completions(self, text: str) -> Iterator[str]:
        """How the last word of a line may go on: whole words."""
        before, _, last = text.rpartition(" ")
        words = before.split()
        if not words or words == ["/poll"]:
            commands = () if words else tuple(self._commands)
            yield from (name for name in (*commands, *self.entries()) if name.startswith(last))
        elif words[0] in ("/read", "/watch"):
            uris = self.box.gateway.hub.catalog.resources
            yield from (uri for uri in uris if uri.startswith(last))
        else:
            entry = self.entries().get(words[1] if words[0] == "/poll" else words[0])
            if entry is not None:
                yield from _next_arguments(as_object(entry.definition.get("inputSchema")) or {}, words, last)


def _next_arguments(schema: Params, words: Iterable[str], last: str) -> Iterator[str]:
    """The keys of a tool that are not given yet, and the values that a key may have."""
    fields = whole(schema).members
    key, equals, _ = last.partition("=")
    if not equals:
        given = {word.partition("=")[0] for word in words}
        yield from (f"{name}=" for name in fields if name.startswith(key) and name not in given)
        return
    if (field := fields.get(key)) is not None:
        is_switch = field.types == frozenset({"boolean"})
        values = ["true", "false"] if is_switch else [choice.value for choice in field.choices]
        yield from (word for value in values if (word := f"{key}={value}").startswith(last))


def _for_shell(sentence: str) -> str:
    """A sentence about a server that names the command of the shell: `sluicegate logs` asks a running gateway."""
    return sentence.replace("`sluicegate logs ", "`/log ")


def _only(words: list[str], usage: str) -> str:
    if len(words) != 1:
        raise Wrong(f"write {usage}.")
    return words[0]


# --------------------------------------------------------------------------------------------------------------- input


async def _piped() -> str | None:
    return await in_thread(sys.stdin.readline) or None


def _editor(shell: Shell) -> ReadLine:
    """A line editor with completion and history."""
    # Imported late: a pipe needs none of it.
    from prompt_toolkit import PromptSession
    from prompt_toolkit.completion import Completer, Completion
    from prompt_toolkit.document import Document
    from prompt_toolkit.patch_stdout import patch_stdout

    class Words(Completer):
        def get_completions(self, document: Document, complete_event: object) -> Iterator[Completion]:
            text = document.text_before_cursor
            last = text.rpartition(" ")[2]
            for word in shell.completions(text):
                yield Completion(word, start_position=-len(last))

    # While typing, a menu would swallow the next Tab: after KEY= it has to offer the values.
    session: PromptSession[Any] = PromptSession("sluicegate> ", completer=Words(), complete_while_typing=False)

    async def read() -> str | None:
        while True:
            try:
                with patch_stdout():
                    return await session.prompt_async()
            except KeyboardInterrupt:
                continue  # The line is given up, as in other shells.
            except EOFError:
                return None

    return read
