"""Runs a gateway whose servers have been started, and prints its address, its state and its log."""

import getpass
import logging
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import TYPE_CHECKING, TextIO

from sluicegate.cli.command import CLIENT_NAMES, NotStarted
from sluicegate.cli.configuration import has_nothing_to_run
from sluicegate.cli.output import about, as_sentence, clean, counted, one_line, say, tell
from sluicegate.cli.serve import Overrides, ServeOptions, cannot_listen
from sluicegate.config.load import Loaded
from sluicegate.config.paths import Places
from sluicegate.control.folder_operations import FolderOperations
from sluicegate.control.operations import statuses
from sluicegate.errors import ConfigError
from sluicegate.exchange import Upstream
from sluicegate.gateway.status import LAST_OUTPUT_MARK, ServerStatus
from sluicegate.hub.hub import Hub
from sluicegate.runtime.standard_streams import drawn
from sluicegate.serve.early_start import Launches
from sluicegate.serve.listeners import Running
from sluicegate.serve.process import GatewayProcess
from sluicegate.serve.run_server import LABEL, client_lines, run_in_loop

if TYPE_CHECKING:
    from sluicegate.gateway.loading import FoundActivation


def run_gateway(
    loaded: Loaded,
    places: Places,
    options: ServeOptions,
    overrides: Overrides,
    *,
    launches: Launches,
    has_commands: bool,
    command: str,
    opened: Callable[[], None],
    below: Callable[[], None],
) -> None:
    """Serve until stopped; `opened` is called when clients can connect, `below` to print more below the address.

    Raises:
        NotStarted: the profile does not exist, or the address cannot be listened on.
    """
    assert loaded.config is not None
    http = loaded.config.http
    reported = _explained_servers(loaded)
    log = StartLog(reported) if options.http else StderrHandler()
    logging.getLogger("sluicegate").addHandler(log)

    def on_opened(running: Running) -> None:
        opened()
        if options.http:
            overrides.set_address(running.address)
            say_opened(running, options.profile, command)
        below()
        if isinstance(log, StartLog):
            log.open()

    def on_settled(running: Running, is_all: bool) -> None:
        say_settled(running, is_all, command, reported)
        if isinstance(log, StartLog):
            log.settled()

    process = GatewayProcess(
        loaded,
        places,
        http=http if options.http else None,
        stdio=options.stdio,
        native=options.native,
        profile=options.profile,
        say=say,
        opened=on_opened,
        settled=on_settled if options.http else _ignore,
        load_file=_load_file,
        adjust=overrides.apply,
        launches=launches,
        has_commands=has_commands,
        page=partial(_approvals_page, loaded.config.control.port),
    )
    work = process.run()
    try:
        run_in_loop(work)
    except ConfigError as problem:
        raise NotStarted(problem.message) from None
    except OSError as problem:
        raise cannot_listen(problem, http.host, http.port) from None
    finally:
        work.close()  # It has not begun if a signal came before the event loop.
        if isinstance(log, StartLog):
            log.open()  # What was logged before it could serve.


def _ignore(running: Running, is_all: bool) -> None:
    """A client on stdin does not need to know."""


def _approvals_page(port: int, operations: FolderOperations) -> AbstractAsyncContextManager[str]:
    # Imported late: only a gateway with rules has the page.
    from sluicegate.web.approvals_page import approvals_page

    return approvals_page(operations, port=port, by=getpass.getuser())


def _explained_servers(loaded: Loaded) -> set[str]:
    """Servers for which a problem of the files, printed before, says why they do not run."""
    servers = {} if loaded.config is None else loaded.config.servers
    named = {problem.server for problem in loaded.problems if problem.severity != "note"}
    found = [servers[name] for name in named if name in servers]
    return {server.name for server in found if server.is_wrong or (server.enabled and has_nothing_to_run(server))}


def _load_file(file: str) -> "Upstream | Hub | FoundActivation":
    # Imported here: most gateways have no Python file, and it would delay the start.
    from sluicegate.gateway.loading import load_file

    return load_file(file)


def say_opened(running: Running, profile: str, command: str) -> None:
    """Print the address, and how to configure clients; `command` is how the user calls us."""
    url = f"{running.address.rstrip('/')}/{profile}" if profile else running.address
    say(f"serving at {url} (Ctrl+C to stop)", paint={url: "bold cyan"})
    for profile in running.gateway.config.profiles:
        tell(f"  profile {profile}: {running.address.rstrip('/')}/{profile}")
    for line in client_lines(url):
        tell(line, hang=LABEL)
    tell(f"  or run:        {command} connect CLIENT ({', '.join(CLIENT_NAMES)})", hang=LABEL)
    if running.gateway.config.policy.can_ask:
        tell(f"  approvals:     {command} approvals --watch", hang=LABEL)


def say_settled(running: Running, is_all: bool, command: str, reported: set[str]) -> None:
    """Print which servers are ready, why others are not, and what to try; without `is_all`, some are still starting.

    The reason is not repeated for servers in `reported`, to which the others are added.
    """
    status = statuses(running.gateway)
    ready = [server for server in status if server.state == "ready"]
    wanted = [server for server in status if server.state != "disabled"]
    starting = [server for server in wanted if server.state in ("starting", "installing")] if not is_all else []
    tools = counted(sum(server.tools for server in ready), "tool")
    names = f": {', '.join(server.name for server in ready)}" if ready else ""
    off = f" ({len(status) - len(wanted)} disabled)" if len(wanted) < len(status) else ""
    share = f"{len(ready)} of {counted(len(wanted), 'server')}"
    if not is_all:
        are = "is" if len(wanted) == 1 else "are"
        say(f"{share} {are} ready so far{off}, {tools}{names}")
        tell(f"  still starting: {', '.join(server.name for server in starting)}")
    else:
        style = "green" if ready and len(ready) == len(wanted) else "yellow"
        say(f"{share} ready{off}, {tools}{names}", paint={f"{share} ready": style})
    for server in wanted:
        if server.state != "ready" and server not in starting and server.name not in reported:
            reported.add(server.name)
            say_failure("  ", server.name, _first_failure(running, server), server.details)
    if all(server.state == "disabled" for server in status):
        tell("  there are no servers: put some into .mcp.json, import some with `sluicegate import`, or try --demo")
    elif ready:
        demo = next((name for name in running.gateway.hub.catalog.tools if name.endswith("demo__echo")), "")
        tell(f"  try:           {command} {f'call {demo} text=hello' if demo else 'tools'}", hang=LABEL)


def _first_failure(running: Running, server: ServerStatus) -> str:
    """Why a server is not ready. While it is tried again, the reason is still that of the last attempt."""
    mount = running.gateway.hub.find(server.name)
    if mount is None or mount.problem is None:
        return server.sentence
    return mount.settings.explain(mount.problem)


class _Lines(logging.Formatter):
    """Formats a record as one clean line, also if it contains text of a server; a terminal gets it wrapped."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return drawn(one_line(super().formatMessage(record)), sys.stderr)


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes warnings and errors of the log to stderr; clients may ask for more."""

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)
        self.setFormatter(_Lines("sluicegate: %(message)s"))


class StartLog(StderrHandler):
    """The same for a gateway with an address, which is printed first: until `open`, records are held back.

    Of a server that failed, the reason, the remedy and its last output are printed at once, and its name is added to
    `reported`.
    """

    def __init__(self, reported: set[str]) -> None:
        super().__init__()
        self._reported = reported
        self._held: list[logging.LogRecord] | None = []
        self._is_settled = False

    def emit(self, record: logging.LogRecord) -> None:
        """Write a record, or hold it back."""
        if record.levelno < self.level:
            return
        if self._held is not None:
            self._held.append(record)
        elif name := str(getattr(record, "server", "")):
            # Problems of its entry were printed before it was started.
            if name not in self._reported or self._is_settled:
                why = str(getattr(record, "why", record.getMessage()))
                say_failure("sluicegate: ", name, why, str(getattr(record, "details", "")))
            self._reported.add(name)
        else:
            super().emit(record)

    def open(self) -> None:
        """Write what was held back, and from now on everything at once."""
        held, self._held = self._held or [], None
        for record in held:
            self.emit(record)

    def settled(self) -> None:
        """From now on, write also failures of servers that have been reported."""
        self._is_settled = True


def say_failure(head: str, name: str, why: str, details: str) -> None:
    """Print why a server is not ready, and what it wrote last; `head` begins the line."""
    tell(f"{head}{clean(about(name, why))}", paint={name: "bold red"})
    if LAST_OUTPUT_MARK in details:
        tell(f"    {clean(as_sentence(details))}", hang=6, paint={"": "dim"})
