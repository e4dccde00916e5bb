"""`sluicegate serve`: the gateway of a folder, or the server in a file, over HTTP or stdio."""

import errno
import gc
import logging
import os
import re
import socket
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

import click
from click.core import ParameterSource

from sluicegate import serving
from sluicegate.cli.failure import Failure, NotStarted
from sluicegate.cli.places import CLIENT_NAMES, places_of, show_problems, with_demo, with_places
from sluicegate.errors import ConfigError

if TYPE_CHECKING:
    from sluicegate.config import Loaded, Places
    from sluicegate.exchange import Upstream
    from sluicegate.fronts import Running

_HOST: Final = "127.0.0.1"
_PORT: Final = 4747
_DELICATE: Final = re.compile(
    r"env|secret|token|key|password|credential|delete|remove|write|drop|kill|stop|reset|send", re.IGNORECASE
)
"""Words in the names of tools that nobody should call to try things: they show what is secret, or change something."""


@click.command()
@click.argument("target", metavar="[FILE.py[:NAME]]", required=False)
@click.option("--host", default=_HOST, help="Address of this machine to listen on.  [default: 127.0.0.1]")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=_PORT,
    help="Port to listen on; 0 takes a free one and says which.  [default: 4747]",
)
@click.option("--stdio", is_flag=True, help="Serve one client on stdin and stdout instead.")
@click.option("--http", is_flag=True, help="With --stdio: serve HTTP as well.")
@click.option("--profile", default="", metavar="NAME", help="Only this part of it, as sluicegate.toml has it.")
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
    profile: str,
    demo: bool,
    config: str | None,
    folder: str | None,
) -> None:
    """Serve all servers of this folder as one, or the one in FILE.py.

    Without FILE.py it is the gateway: the servers of ~/.mcp.json and of the folder's .mcp.json, as sluicegate.toml
    says, at one address. Changes of these files are taken over while it runs. Where there is none of them, a demo
    server is offered. Profiles are at /mcp/NAME.

    With FILE.py it is the one server in that file. The file is loaded, but not what it does under
    `if __name__ == "__main__"`. If it has several servers, NAME says which of its variables is meant.

    Every revision of the protocol is spoken. Over HTTP it listens on addresses of this machine only, since nobody is
    asked who they are, until Ctrl+C or SIGTERM; what is under way then has ten seconds to finish. The address, and
    what else there is to say, is printed to stderr.

    \b
    Examples:
      sluicegate serve
      sluicegate serve --port 8000 --demo
      sluicegate serve --stdio --profile reading
      sluicegate serve --config other.json
      sluicegate serve examples/demo.py
      sluicegate serve examples/demo.py:server --stdio

    \b
    Exit status:
      0  stopped by a signal, or by the client of --stdio
      1  the file cannot be loaded, or has no server
      2  the command line is wrong
      3  the configuration has errors, or the address cannot be listened on
    """
    serving.open_standard_streams()  # Before anything is loaded, which may open others.
    given = {name for name in context.params if context.get_parameter_source(name) is not ParameterSource.DEFAULT}
    if stdio and not http and (wrong := given & {"host", "port"}):
        raise click.UsageError(f"--{min(wrong)} is for HTTP and --stdio is not; leave one of them out.")
    if http and not stdio:
        raise click.UsageError("--http goes with --stdio; without it, HTTP is served anyway.")
    if target is not None:
        if wrong := given & {"http", "profile", "demo", "config", "folder"}:
            raise click.UsageError(f"--{min(wrong)} is for the gateway, and FILE.py is not; leave one of them out.")
        _serve_file(target, host, port, stdio=stdio)
        return
    front = {name: context.params[name] for name in ("host", "port") if name in given}
    with _start_quickly() as begun:
        _serve_folder(
            front, begun, stdio=stdio, http=http or not stdio, profile=profile, demo=demo, config=config, folder=folder
        )


# ------------------------------------------------------------------------------------------------------------ one file


def _serve_file(target: str, host: str, port: int, *, stdio: bool) -> None:
    from sluicegate.loading import load_server

    if not stdio and not serving.is_loopback(host):
        raise NotStarted(f"others can reach {host}, and this server asks nobody who they are; use --host 127.0.0.1.")
    try:
        server = load_server(target)
    except ConfigError as problem:
        raise Failure(problem.message) from None
    if stdio:
        serving.run(server)
        return
    try:
        serving.run(server, http=True, host=host, port=port)
    except OSError as problem:
        raise NotStarted(_why_not(problem, host, port)) from None


# --------------------------------------------------------------------------------------------------------- the gateway


@contextmanager
def _start_quickly() -> Generator[Callable[[], None]]:
    """Look for no garbage until the function that this gives is called: there is none in what is being loaded.

    To look for it takes a tenth of the time in which the servers could be starting. What has been loaded by then is
    never looked at again. A call leaves none behind, so that it is looked for more rarely than Python would: that saves
    a twentieth of all work.
    """

    def begun() -> None:
        gc.freeze()
        gc.set_threshold(10_000, 20, 20)
        gc.enable()

    gc.disable()
    try:
        yield begun
    finally:
        gc.enable()


def _serve_folder(
    front: dict[str, object],
    begun: Callable[[], None],
    *,
    stdio: bool,
    http: bool,
    profile: str,
    demo: bool,
    config: str | None,
    folder: str | None,
) -> None:
    from urllib.parse import urlsplit

    from msgspec.structs import replace

    from sluicegate.cli.render import say
    from sluicegate.config import control_socket, exposure, load
    from sluicegate.config.load import OURSELVES, is_ourselves
    from sluicegate.fronts import serve_gateway

    places = places_of(config, folder)
    ourselves = as_called()
    listening: list[int] = []

    def adjust(loaded: "Loaded") -> "Loaded":
        """What the command line says counts more than the files, whenever these are read."""
        loaded = with_demo(loaded, places, always=demo)
        if loaded.config is None or not front:
            return loaded
        at = replace(loaded.config.http, **front)
        # The files may name us by the port that only the command line knows, or only the system, where it chose one.
        found = replace(at, port=listening[0]) if listening else at
        servers = {
            name: replace(server, disabled=server.disabled or OURSELVES)
            if is_ourselves(server.source, found)
            else server
            for name, server in loaded.config.servers.items()
        }
        return replace(loaded, config=replace(loaded.config, http=at, servers=servers))

    def opened(running: "Running") -> None:
        begun()
        if http:
            listening.append(urlsplit(running.address).port or 0)
            _opened(running, profile, ourselves)

    loaded = adjust(load(places))
    show_problems(loaded, notes=not stdio)
    if loaded.config is None:
        raise NotStarted("the configuration has errors; nothing was started.")
    if not stdio:
        _check_alone(places, control_socket(loaded.config, places.environ))
    else:
        serving.say_if_terminal(f"{ourselves} serve")
    address = loaded.config.http
    if http and (why := exposure(address)) is not None:
        raise NotStarted(why)
    if http and not any(os.path.exists(file) for file in places.files):
        say(f"there is no .mcp.json here or at home, so the demo is served; `{ourselves} import` finds your servers.")
    _log_to_stderr()
    serve = serve_gateway(
        loaded,
        places,
        http=address if http else None,
        stdio=stdio,
        profile=profile,
        say=say,
        opened=opened,
        settled=None if not http else lambda running, is_all: _settled(running, is_all, ourselves),
        load_file=_load_file,
        adjust=adjust,
    )
    try:
        serving.run_in_loop(serve)
    except ConfigError as problem:
        raise NotStarted(problem.message) from None
    except OSError as problem:
        raise NotStarted(_why_not(problem, address.host, address.port)) from None
    _end_line()


def _load_file(file: str) -> "Upstream":
    from sluicegate.loading import load_server  # Where there is no such file, it would only delay the start.

    return load_server(file)


def _end_line() -> None:
    """Let the shell's next line begin where lines do: the terminal has written ^C."""
    if sys.stderr is not None and sys.stderr.isatty():  # pyright: ignore[reportUnnecessaryComparison] - may be closed
        click.echo(err=True)


def _check_alone(places: "Places", socket_path: str) -> None:
    """Raise NotStarted if a gateway runs for the folder already; the sentence says where."""
    from sluicegate.sockets import check_free

    try:
        check_free(socket_path)
        return
    except ConfigError:
        pass  # Somebody is there, who knows more.
    import asyncio

    from sluicegate.cli.reaching import running_address

    url = asyncio.run(running_address(places))
    if url is not None:
        where = f"at {url}" if url else "for a client that started it with --stdio"
        raise NotStarted(f"sluicegate already serves this folder {where}; `sluicegate status` shows it.")


def _log_to_stderr() -> None:
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("sluicegate: %(message)s"))
    logging.getLogger("sluicegate").addHandler(handler)


def _opened(running: "Running", profile: str, ourselves: str) -> None:
    """Say where clients come in, and how they are told."""
    from sluicegate.cli.render import say, tell

    url = f"{running.address.rstrip('/')}/{profile}" if profile else running.address
    say(f"serving at {url} (Ctrl+C to stop)")
    for profile in running.gateway.config.profiles:
        tell(f"  profile {profile}: {running.address.rstrip('/')}/{profile}")
    for line in serving.client_lines(url):
        tell(line)
    tell(f"  or let it be written: {ourselves} connect CLIENT ({', '.join(CLIENT_NAMES)})")


def as_called() -> str:
    """How our command is written in the shell that we were started from."""
    import shutil

    called = sys.argv[0]
    if os.path.basename(called) != "sluicegate":
        return "python -m sluicegate"
    if shutil.which("sluicegate"):
        return "sluicegate"
    near = os.path.relpath(called)
    return called if near.startswith(os.pardir) else near


def _settled(running: "Running", is_all: bool, ourselves: str) -> None:
    """Say which servers are there, why others are not, and what to try; once before, if some take long."""
    from sluicegate.cli.render import about, clean, counted, say, tell
    from sluicegate.control import statuses

    status = statuses(running.gateway)
    ready = [server for server in status if server.state == "ready"]
    wanted = [server for server in status if server.state != "disabled"]
    starting = [server for server in wanted if server.state in ("starting", "installing")] if not is_all else []
    tools = counted(sum(server.tools for server in ready), "tool")
    names = f": {', '.join(server.name for server in ready)}" if ready else ""
    off = f" ({len(status) - len(wanted)} disabled)" if len(wanted) < len(status) else ""
    if not is_all:
        say(f"{len(ready)} of {counted(len(wanted), 'server')} are ready so far{off}, {tools}{names}")
        tell(f"  still starting: {', '.join(server.name for server in starting)}")
    else:
        say(f"{len(ready)} of {counted(len(wanted), 'server')} ready{off}, {tools}{names}")
    for server in wanted:
        if server.state != "ready" and server not in starting:
            tell(f"  {clean(about(server.name, server.sentence))}")
    if all(server.state == "disabled" for server in status):
        tell("  nothing is there to run: put servers into .mcp.json, or see `sluicegate import`, or try --demo")
    elif ready:
        tell(f"  try:           {ourselves} {_to_try(running)}")


def _to_try(running: "Running") -> str:
    """The words that call a tool which does no harm and needs nothing, if there is one."""
    from sluicegate.protocol.message import as_array, as_object

    tools = running.gateway.hub.catalog.tools
    demo = next((name for name in tools if name.endswith("demo__echo")), None)
    if demo is not None:
        return f"call {demo} text=hello"
    for name, entry in tools.items():
        schema = as_object(entry.definition.get("inputSchema")) or {}
        hints = as_object(entry.definition.get("annotations")) or {}
        is_harmless = hints.get("readOnlyHint") is True and not _DELICATE.search(entry.own)
        if not as_array(schema.get("required")) and is_harmless:
            return f"call {name}"
    return "tools"


def _why_not(problem: OSError, host: str, port: int) -> str:
    """Why an address cannot be listened on, and what to do about it."""
    if problem.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken by another program; choose one with --port, or any with --port 0."
    if problem.errno == errno.EACCES:
        return f"port {port} of {host} is not for this user; choose one above 1023 with --port."
    if problem.errno == errno.EADDRNOTAVAIL or isinstance(problem, socket.gaierror):
        return f"this machine has no address {host}; use --host 127.0.0.1."
    return f"port {port} of {host} cannot be listened on: {problem.strerror or problem}."
