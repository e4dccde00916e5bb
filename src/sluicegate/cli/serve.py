"""`sluicegate serve FILE.py`: the server in a file, over HTTP or stdio, without a line of its own for that."""

import errno
import socket
from typing import Final

import click
from click.core import ParameterSource

from sluicegate import serving
from sluicegate.cli.failure import NotStarted
from sluicegate.cli.loading import load_server

_PORT: Final = 4747


@click.command()
@click.argument("target", metavar="FILE.py[:NAME]")
@click.option("--host", default="127.0.0.1", show_default=True, help="Address of this machine to listen on.")
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=_PORT,
    show_default=True,
    help="Port to listen on; 0 takes a free one and says which.",
)
@click.option("--stdio", is_flag=True, help="Serve one client on stdin and stdout instead.")
@click.pass_context
def serve(context: click.Context, target: str, host: str, port: int, stdio: bool) -> None:
    """Serve the MCP server in FILE.py, over HTTP or stdio.

    The file is loaded, but not what it does under `if __name__ == "__main__"`. If it has several servers, NAME says
    which of its variables is meant. Every revision of the protocol is spoken.

    Over HTTP it listens on addresses of this machine only, since nobody is asked who they are, until Ctrl+C or
    SIGTERM; what is under way then has ten seconds to finish. The address is printed to stderr.

    \b
    Examples:
      sluicegate serve examples/demo.py
      sluicegate serve examples/demo.py --port 8000
      sluicegate serve examples/demo.py:server --stdio

    \b
    Exit status:
      0  stopped by a signal, or by the client of --stdio
      1  the file cannot be loaded, or has no server
      2  the command line is wrong
      3  the address cannot be listened on
    """
    serving.open_standard_streams()  # Before the file is loaded, which may open others.
    if stdio:
        for option in ("host", "port"):
            if context.get_parameter_source(option) is not ParameterSource.DEFAULT:
                raise click.UsageError(f"--{option} is for HTTP and --stdio is not; leave one of them out.")
        serving.run(load_server(target))
        return
    if not serving.is_loopback(host):
        raise NotStarted(f"others can reach {host}, and this server asks nobody who they are; use --host 127.0.0.1.")
    server = load_server(target)
    try:
        serving.run(server, http=True, host=host, port=port)
    except OSError as problem:
        raise NotStarted(_why_not(problem, host, port)) from None


def _why_not(problem: OSError, host: str, port: int) -> str:
    """Why an address cannot be listened on, and what to do about it."""
    if problem.errno == errno.EADDRINUSE:
        return f"port {port} of {host} is taken by another program; choose one with --port, or any with --port 0."
    if problem.errno == errno.EACCES:
        return f"port {port} of {host} is not for this user; choose one above 1023 with --port."
    if problem.errno == errno.EADDRNOTAVAIL or isinstance(problem, socket.gaierror):
        return f"this machine has no address {host}; use --host 127.0.0.1."
    return f"port {port} of {host} cannot be listened on: {problem.strerror or problem}."
