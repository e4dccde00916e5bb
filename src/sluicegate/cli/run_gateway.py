"""Runs a gateway whose servers have been started, and prints its address, its state and its log."""

import getpass
import logging
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from functools import partial

from sluicegate.cli.command import CLIENT_NAMES, NotStarted
from sluicegate.cli.configuration import has_nothing_to_run
from sluicegate.cli.output import about, clean, counted, one_line, say, tell
from sluicegate.cli.serve import Overrides, ServeOptions, cannot_listen
from sluicegate.config.load import Loaded
from sluicegate.config.paths import Places
from sluicegate.errors import ConfigError
from sluicegate.exchange import Upstream
from sluicegate.hub.hub import Hub
from sluicegate.run_server import client_lines, run_in_loop
from sluicegate.serve.control_api import statuses
from sluicegate.serve.early_start import Launches
from sluicegate.serve.process import Running, serve_gateway
from sluicegate.store.base import State


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
) -> None:
    """Serve until stopped; `opened` is called when clients can connect.

    Raises:
        NotStarted: the profile does not exist, or the address cannot be listened on.
    """
    assert loaded.config is not None
    http = loaded.config.http
    reported = _reported(loaded)
    pending = set(reported)
    log_to_stderr(pending)

    def on_opened(running: Running) -> None:
        opened()
        if options.http:
            overrides.set_address(running.address)
            say_opened(running, options.profile, command)

    def on_settled(running: Running, is_all: bool) -> None:
        pending.clear()  # Later records are about something else.
        say_settled(running, is_all, command, reported)

    work = serve_gateway(
        loaded,
        places,
        http=http if options.http else None,
        stdio=options.stdio,
        profile=options.profile,
        say=say,
        opened=on_opened,
        settled=on_settled if options.http else None,
        load_file=_load_file,
        adjust=overrides.apply,
        launches=launches,
        has_commands=has_commands,
        page=partial(_approvals_page, loaded.config.control.port),
    )
    try:
        run_in_loop(work)
    except ConfigError as problem:
        raise NotStarted(problem.message) from None
    except OSError as problem:
        raise cannot_listen(problem, http.host, http.port) from None
    finally:
        work.close()  # It has not begun if a signal came before the event loop.


def _approvals_page(port: int, state: State) -> AbstractAsyncContextManager[str]:
    # Imported late: only a gateway with rules has the page.
    from sluicegate.web.approvals_page import approvals_page

    return approvals_page(state, port=port, by=getpass.getuser())


def _reported(loaded: Loaded) -> frozenset[str]:
    """Servers for which a problem of the files, printed before, says why they do not run."""
    servers = {} if loaded.config is None else loaded.config.servers
    named = {problem.server for problem in loaded.problems if problem.severity != "note"}
    found = [servers[name] for name in named if name in servers]
    return frozenset(server.name for server in found if server.enabled and has_nothing_to_run(server))


def _load_file(file: str) -> Upstream | Hub:
    # Imported here: most gateways have no Python file, and it would delay the start.
    from sluicegate.load_file import load_server

    return load_server(file)


def say_opened(running: Running, profile: str, command: str) -> None:
    """Print the address, and how to configure clients; `command` is how the user calls us."""
    url = f"{running.address.rstrip('/')}/{profile}" if profile else running.address
    say(f"serving at {url} (Ctrl+C to stop)")
    for profile in running.gateway.config.profiles:
        tell(f"  profile {profile}: {running.address.rstrip('/')}/{profile}")
    for line in client_lines(url):
        tell(line)
    tell(f"  or run:        {command} connect CLIENT ({', '.join(CLIENT_NAMES)})")


def say_settled(running: Running, is_all: bool, command: str, reported: Collection[str] = ()) -> None:
    """Print which servers are ready, why others are not, and what to try; without `is_all`, some are still starting.

    The reason is not repeated for servers in `reported`.
    """
    status = statuses(running.gateway)
    ready = [server for server in status if server.state == "ready"]
    wanted = [server for server in status if server.state != "disabled"]
    starting = [server for server in wanted if server.state in ("starting", "installing")] if not is_all else []
    tools = counted(sum(server.tools for server in ready), "tool")
    names = f": {', '.join(server.name for server in ready)}" if ready else ""
    off = f" ({len(status) - len(wanted)} disabled)" if len(wanted) < len(status) else ""
    if not is_all:
        are = "is" if len(wanted) == 1 else "are"
        say(f"{len(ready)} of {counted(len(wanted), 'server')} {are} ready so far{off}, {tools}{names}")
        tell(f"  still starting: {', '.join(server.name for server in starting)}")
    else:
        say(f"{len(ready)} of {counted(len(wanted), 'server')} ready{off}, {tools}{names}")
    for server in wanted:
        if server.state != "ready" and server not in starting:
            tell(f"  {clean(about(server.name, 'see above.' if server.name in reported else server.sentence))}")
    if all(server.state == "disabled" for server in status):
        tell("  there are no servers: put some into .mcp.json, import some with `sluicegate import`, or try --demo")
    elif ready:
        demo = next((name for name in running.gateway.hub.catalog.tools if name.endswith("demo__echo")), "")
        tell(f"  try:           {command} {f'call {demo} text=hello' if demo else 'tools'}")


class _Lines(logging.Formatter):
    """Formats a record as one clean line, also if it contains text of a server."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))


def log_to_stderr(reported: set[str]) -> None:
    """Write log records to stderr.

    The first record about each server in `reported` is dropped: its missing command or file was printed before. Such a
    record has the name of the server as its `server`.
    """

    def is_new(record: logging.LogRecord) -> bool:
        name = str(getattr(record, "server", ""))
        was_reported = name in reported
        reported.discard(name)
        return not was_reported

    handler = logging.StreamHandler()
    handler.addFilter(is_new)
    handler.setFormatter(_Lines("sluicegate: %(message)s"))
    logging.getLogger("sluicegate").addHandler(handler)
