"""`sluicegate serve`: the gateway of a folder, or the server in a Python file, over HTTP or stdio.

The servers of a gateway are started first. `run_gateway`, which imports the event loop, the hub and HTTP, is imported
while they start.
"""

import errno
import gc
import os
import signal
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager, suppress
from typing import Final
from urllib.parse import urlsplit

import click
import msgspec
from click.core import ParameterSource
from msgspec.structs import replace

from sluicegate.cli.attach import relayed, relayed_or_started
from sluicegate.cli.command import Failure, NotStarted, command_as_called, places_of, with_places
from sluicegate.cli.configuration import concerns, has_nothing_to_run, show_problems, unpinned, what_runs, with_demo
from sluicegate.cli.output import LinesBelow, say
from sluicegate.config.load import Loaded, load
from sluicegate.config.model import OURSELVES, GatewayConfig
from sluicegate.config.paths import Places, control_sockets
from sluicegate.config.self_reference import exposure, is_loopback, is_ourselves
from sluicegate.errors import ConfigError
from sluicegate.runtime.lock import AlreadyServed, check_free
from sluicegate.runtime.standard_streams import open_standard_streams, say_if_terminal
from sluicegate.serve.attach import Stopping
from sluicegate.serve.early_start import Launches, check_address, claimed_for_commands

_HOST: Final = "127.0.0.1"
_PORT: Final = 4747
MAX_SHOWN: Final = 200
"""Characters of a command that are printed when it is started; `sluicegate check` prints all."""


@click.command()
@click.argument("target", metavar="[FILE.py[:NAME]]", required=False)
@click.option("--host", default=_HOST, help="Address of this machine to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=_PORT,
    help="Port to listen on; 0 chooses a free one and prints it.  [default: 4747]",
)
@click.option("--stdio", is_flag=True, help="Serve one client on stdin and stdout instead.")
@click.option("--http", is_flag=True, help="With --stdio: serve HTTP as well.")
@click.option("--own", is_flag=True, help="With --stdio: share no gateway; start all servers for this client.")
@click.option(
    "--mcp/--native",
    default=True,
    help="With --stdio: the client speaks MCP (the default), or calls native methods, without a handshake.",
)
@click.option("--profile", default="", metavar="NAME", help="Only this profile of sluicegate.toml.")
@click.option("--reload", is_flag=True, help="With FILE.py: load it again whenever it changes.")
@click.option("--demo", is_flag=True, help="Offer the demo server too.")
@with_places
@click.pass_context
def serve(
    context: click.Context,
    target: str | None,
    host: str,
    port: int,
    stdio: bool,
    http: bool,
    own: bool,
    mcp: bool,
    profile: str,
    reload: bool,
    demo: bool,
    config: str | None,
    folder: str | None,
) -> None:
    """Serve all servers of this folder as one, or the one in FILE.py.

    Without FILE.py, it serves the gateway: the servers of ~/.mcp.json and of the folder's .mcp.json, with the settings
    in sluicegate.toml, at one address. It applies changes of these files while it runs. If none of them exists, it
    offers a demo server. Profiles are at /mcp/NAME.

    With FILE.py, it serves the server or hub in that file. The file is imported, so code under
    `if __name__ == "__main__"` does not run. If it has several servers, NAME is the variable to use. With --reload, it
    is imported again whenever it changes; clients stay connected.

    With --stdio, the client shares the gateway of the folder with all others. If none runs, one is started in the
    background; it ends when its last client has left. With --own, --native, --http, --demo or --config, the client has
    a gateway for itself.

    It supports every revision of the protocol. Over HTTP it listens only on addresses of this machine, because it does
    not authenticate clients. Ctrl+C or SIGTERM stops it; requests in progress then have ten seconds to finish. The
    address and all messages are printed to stderr.

    \b
    Examples:
      sluicegate serve
      sluicegate serve --port 8000 --demo
      sluicegate serve --stdio --profile reading
      sluicegate serve --config other.json
      sluicegate serve examples/demo.py
      sluicegate serve examples/demo.py:server --stdio
      sluicegate serve examples/demo.py --reload

    \b
    Exit status:
      0  stopped by a signal, or by the client of --stdio
      1  the file cannot be loaded, or the gateway ended before its stdio client
      2  the command line is wrong
      3  the configuration has errors, or the address cannot be listened on
    """
    open_standard_streams()  # First: a file that is opened before it could become stdin, stdout or stderr.
    given = {name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    if stdio and not http and (wrong := given & {"host", "port"}):
        raise click.UsageError(f"--{min(wrong)} is for HTTP; leave it or --stdio out.")
    if http and not stdio:
        raise click.UsageError("--http is for use with --stdio; without --stdio, HTTP is served anyway.")
    if own and not stdio:
        raise click.UsageError("--own is for use with --stdio; without --stdio, a gateway is always its own.")
    if not mcp and not stdio:
        raise click.UsageError("--native is for use with --stdio; over HTTP, native methods are always there.")
    if target is not None:
        if wrong := given & {"http", "own", "profile", "demo", "config", "folder"}:
            raise click.UsageError(f"--{min(wrong)} is for the gateway; leave it or FILE.py out.")
        _serve_file(target, host, port, stdio=stdio, native=not mcp, reload=reload)
        return
    if reload:
        raise click.UsageError("--reload is for use with FILE.py; a gateway always applies changes of its files.")
    front = {name: context.params[name] for name in ("host", "port") if name in given}
    options = ServeOptions(
        front=front,
        http=http or not stdio,
        stdio=stdio,
        own=own or not mcp,
        native=not mcp,
        profile=profile,
        demo=demo,
    )
    places = places_of(config, folder)
    with _without_gc() as opened:
        if stdio and not options.own and not given & {"http", "demo", "config"}:
            _serve_shared(places, options, opened)
        else:
            _serve_folder(places, options, opened)


def cannot_listen(problem: OSError, host: str, port: int) -> NotStarted:
    """Why an address cannot be listened on, and what to do."""
    if problem.errno == errno.EADDRINUSE:
        return NotStarted(f"port {port} is in use, perhaps by the gateway of another folder; use --port N.")
    if problem.errno == errno.EACCES:
        return NotStarted(f"this user may not listen on port {port}; choose one above 1023 with --port.")
    if problem.errno == errno.EADDRNOTAVAIL or isinstance(problem, socket.gaierror):
        return NotStarted(f"this machine has no address {host}; use --host 127.0.0.1.")
    return NotStarted(f"cannot listen on port {port} of {host}: {problem.strerror or problem}.")


# ------------------------------------------------------------------------------------------------------------ one file


def _serve_file(target: str, host: str, port: int, *, stdio: bool, native: bool, reload: bool) -> None:
    # Imported here: a gateway must not load them before its servers are started.
    from sluicegate.gateway.loading import load_server
    from sluicegate.serve import run_server

    if not stdio and not is_loopback(host):
        raise NotStarted(
            f"other machines can reach {host}, and this server has no authentication; use --host 127.0.0.1."
        )
    try:
        if reload:
            from sluicegate.serve.reload_file import ReloadedFile

            server = ReloadedFile(target, say)
        else:
            server = load_server(target)
    except ConfigError as problem:
        raise Failure(problem.message) from None
    if stdio:
        run_server.run(server, native=native)
        return
    try:
        run_server.run(server, http=True, host=host, port=port)
    except OSError as problem:
        raise cannot_listen(problem, host, port) from None


# --------------------------------------------------------------------------------------------------------- the gateway


class ServeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of the command line."""

    front: dict[str, object]
    """Host and port, if given."""
    http: bool
    stdio: bool
    own: bool
    native: bool = False
    profile: str
    demo: bool


class Overrides:
    """What the command line changes in the configuration, whenever the files are read."""

    def __init__(self, places: Places, options: ServeOptions) -> None:
        self.is_bare = not any(os.path.exists(file) for file in places.files)
        """Whether there was no file at the start; then the demo server is offered until there is one."""
        self._places = places
        self._options = options
        self._port: int | None = None

    def apply(self, loaded: Loaded) -> Loaded:
        """The configuration with the options of the command line, which take precedence."""
        # If the files were removed later, the demo server would not help a user who had other servers.
        if self.is_bare or self._options.demo:
            loaded = with_demo(loaded, self._places, always=self._options.demo)
        if loaded.config is None or not self._options.front:
            return loaded
        http = replace(loaded.config.http, **self._options.front)
        # An entry may point to us by a port that only the command line, or with --port 0 only the system, knows.
        actual = http if self._port is None else replace(http, port=self._port)
        servers = {
            name: replace(server, disabled=server.disabled or OURSELVES)
            if is_ourselves(server.source, actual)
            else server
            for name, server in loaded.config.servers.items()
        }
        return replace(loaded, config=replace(loaded.config, http=http, servers=servers))

    def set_address(self, address: str) -> None:
        """Note the URL that the gateway listens at."""
        self._port = urlsplit(address).port or 0


def _serve_shared(places: Places, options: ServeOptions, opened: Callable[[], None]) -> None:
    """Relay the client on stdin to the gateway of the folder; if none runs, start it in the background.

    Raises as `_serve_folder` does.
    """
    instead = f"{command_as_called()} serve"

    def usual() -> tuple[str, ...]:
        return control_sockets(places.root, places.environ)

    # The default paths first: they need no file, and a gateway may have been started before a file named another path.
    with suppress(Stopping):
        if relayed(usual(), options.profile, instead):
            return
    overrides, loaded = _loaded(places, options)
    config = loaded.config
    assert config is not None
    in_background = replace(options, stdio=False, profile="")

    def start() -> None:
        with suppress(AlreadyServed), claimed_for_commands(config, places.environ):
            _serve_loaded(loaded, places, in_background, overrides, opened, has_commands=True)

    try:
        config.check_profile(options.profile)
        named = config.control.socket
        if relayed_or_started((lambda: (named,)) if named else usual, options.profile, instead, start):
            return
    except ConfigError as problem:
        raise NotStarted(problem.message) from None
    _serve_loaded(loaded, places, options, overrides, opened)


def _serve_folder(places: Places, options: ServeOptions, opened: Callable[[], None]) -> None:
    """Serve all servers of a folder until stopped; `opened` is called when clients can connect.

    Raises:
        NotStarted: the configuration has errors, or the address cannot be listened on.
    """
    overrides, loaded = _loaded(places, options)
    _serve_loaded(loaded, places, options, overrides, opened)


def _loaded(places: Places, options: ServeOptions) -> tuple[Overrides, Loaded]:
    """The configuration, whose problems have been printed."""
    overrides = Overrides(places, options)
    loaded = overrides.apply(load(places))
    if loaded.config is None:
        show_problems(loaded.problems, notes=not options.stdio)
        raise NotStarted("the configuration has errors; nothing was started.")
    return overrides, loaded


def _serve_loaded(
    loaded: Loaded,
    places: Places,
    options: ServeOptions,
    overrides: Overrides,
    opened: Callable[[], None],
    *,
    has_commands: bool | None = None,
) -> None:
    """Serve until stopped; `has_commands` is given if the control socket has been claimed."""
    assert loaded.config is not None
    command = command_as_called()
    if options.stdio:
        say_if_terminal(f"{command} serve")
    with ExitStack() as stack:
        below = LinesBelow()
        # At the latest when it ends, perhaps because it could not start.
        stack.callback(below.print)
        below.add(lambda: _show_concerns(loaded, notes=not options.stdio))
        if not options.http:
            below.print()  # There is no address to come first.
        # Kept until the servers have ended, so that another gateway of this folder does not start them a second time.
        if options.own:
            has_commands = False  # The place of the folder's gateway stays free for the clients that share it.
        elif has_commands is None and options.stdio:
            has_commands = stack.enter_context(claimed_for_commands(loaded.config, places.environ, say))
        elif has_commands is None:
            has_commands = _claim(stack, loaded.config, places)
        if options.http and (why := exposure(loaded.config.http)) is not None:
            raise NotStarted(why)
        stack.enter_context(_ended_by_sigterm())
        launches = stack.enter_context(Launches())
        if options.http:
            try:
                check_address(loaded.config.http)
            except OSError as problem:
                raise cannot_listen(problem, loaded.config.http.host, loaded.config.http.port) from None
        if not options.profile or options.profile in loaded.config.profiles:
            for server in loaded.config.servers.values():
                if server.enabled and server.kind == "stdio" and not has_nothing_to_run(server):
                    line = f"starting {server.name}: {_shortened(what_runs(server))}"
                    below.add(lambda line=line: say(line, paint={"": "dim"}))
            launches.start(loaded.config)
        if options.http and overrides.is_bare:
            nothing = "there is no .mcp.json here, above or at home, so the demo is served"
            below.add(lambda: say(f"{nothing}; `{command} import` finds your servers."))
        # Imported here: the servers start while it loads.
        from sluicegate.cli.run_gateway import run_gateway

        run_gateway(
            loaded,
            places,
            options,
            overrides,
            launches=launches,
            has_commands=has_commands,
            command=command,
            opened=opened,
            below=below.print,
        )
    if sys.stderr is not None and sys.stderr.isatty():  # pyright: ignore[reportUnnecessaryComparison] - may be closed
        click.echo(err=True)  # End the line in which the terminal has written ^C.


def _show_concerns(loaded: Loaded, *, notes: bool) -> None:
    """Print the problems of the files, with one line for all notes about versions."""
    problems = concerns(loaded)
    show_problems([problem for problem in problems if not unpinned(problem)], notes=notes)
    names = {problem.server for problem in problems if unpinned(problem)}
    if names and notes:
        run, them = (
            ("server runs an unpinned version", "it") if len(names) == 1 else ("servers run unpinned versions", "them")
        )
        say(f"{len(names)} {run}; `sluicegate doctor --pin` pins {them}.", paint={"unpinned": "yellow"})


def _shortened(command: str) -> str:
    command = " ".join(command.split())
    return command if len(command) <= MAX_SHOWN else f"{command[:MAX_SHOWN]}…"


@contextmanager
def _ended_by_sigterm() -> Generator[None]:
    """Make SIGTERM end the program in order, as Ctrl+C does, until the event loop handles it."""

    def leave(number: int, frame: object) -> None:
        raise SystemExit(0)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _claim(stack: ExitStack, config: GatewayConfig, places: Places) -> bool:
    """Claim the path of the control socket until the stack is closed; returns True.

    Raises:
        NotStarted: another gateway runs for the folder; the sentence says where. Or there can be no socket.
    """
    try:
        with ExitStack() as attempt:
            is_ours = attempt.enter_context(claimed_for_commands(config, places.environ))
            if config.control.socket and places.config is None:
                # Another gateway may have been started before the file named this path.
                for path in control_sockets(places.root, places.environ):
                    check_free(path)
            stack.push(attempt.pop_all())
            return is_ours
    except ConfigError as problem:
        _refuse_beside(places)
        raise NotStarted(problem.message) from None  # The other gateway does not answer, or not yet.


def _refuse_beside(places: Places) -> None:
    """Return if no gateway answers for the folder: it is starting, hangs, or has just stopped.

    Raises:
        NotStarted: one answers; the sentence says where.
    """
    # Imported here: only needed for this error.
    import asyncio

    from sluicegate.cli.gateway_client import running_report

    report = asyncio.run(running_report(places))
    if report is None:
        return
    if report.stopping:
        why = report.stopping_sentence().rstrip(".")
        raise NotStarted(f"the gateway of this folder {why}; try again when it has stopped.")
    where = f"at {report.address}" if report.address else "for clients that use it with --stdio"
    raise NotStarted(f"sluicegate already serves this folder {where}; `sluicegate status` shows it.")


@contextmanager
def _without_gc() -> Generator[Callable[[], None]]:
    """Switch the garbage collector off until the yielded function is called.

    While modules are imported there is no garbage, and looking for it takes a tenth of the start-up time. What has been
    imported is then never looked at again. A call leaves no garbage, so higher thresholds save a twentieth of all work.
    """

    def opened() -> None:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()

    gc.disable()
    try:
        yield opened
    finally:
        gc.enable()
