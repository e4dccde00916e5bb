"""`sluicegate serve`: the gateway of a folder, or the server in a file, over HTTP or stdio."""

import gc
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

import click
from click.core import ParameterSource

from sluicegate.cli.failure import Failure, NotStarted
from sluicegate.cli.not_listening import why_not
from sluicegate.cli.places import places_of, with_places
from sluicegate.errors import ConfigError
from sluicegate.standard_streams import open_standard_streams

_HOST: Final = "127.0.0.1"
_PORT: Final = 4747


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

    With FILE.py it is the one server or hub in that file. The file is loaded, but not what it does under
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
    open_standard_streams()  # Before anything is loaded, which may open others.
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
        from sluicegate.cli.serve_folder import Wanted, serve_folder

        wanted = Wanted(front=front, http=http or not stdio, stdio=stdio, profile=profile, demo=demo)
        serve_folder(places_of(config, folder), wanted, begun)


# ------------------------------------------------------------------------------------------------------------ one file


def _serve_file(target: str, host: str, port: int, *, stdio: bool) -> None:
    from sluicegate import serving
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
        raise NotStarted(why_not(problem, host, port)) from None


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
