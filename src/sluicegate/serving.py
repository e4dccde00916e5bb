"""`run(server)`: a server as a whole program, on its own stdin and stdout or as an HTTP endpoint."""

import asyncio
import errno
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Coroutine, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Final

from sluicegate.errors import ConfigError
from sluicegate.exchange import Handler
from sluicegate.opening import kept_open
from sluicegate.standard_streams import open_standard_streams, say_if_terminal, write_line

DRAIN: Final = 10.0
"""Seconds that requests under way have when the program is told to stop (R29)."""

_loading: Final[list[bool]] = []


def run(server: Handler, *, http: bool = False, host: str = "127.0.0.1", port: int = 4747) -> None:
    """Serve a `Server`, or a `Hub`, until the end, then return, so that the program ends with status 0.

    Over stdio that is one client, until it hangs up. With `http=True` it is everybody on this machine, at
    `http://127.0.0.1:4747/mcp`, until SIGTERM or SIGINT.

    Raises:
        ConfigError: the address is not of this machine alone; nobody would be asked who they are there. Or the
            file that calls it is only being loaded, by a program that serves its server itself.
        OSError: the address cannot be had.
    """
    if _loading:
        raise ConfigError('put what calls sluicegate.run() under `if __name__ == "__main__":`.')
    if not callable(server):
        raise TypeError(f"run() serves a Server, not {type(server).__name__}")
    open_standard_streams()
    if not http:
        # Here and not above: whoever serves otherwise never needs it.
        from sluicegate.downstream.stdio import serve_stdio

        # With our own command it is `__main__.py` or `sluicegate`, which is no file to serve.
        name = sys.argv[0] if sys.argv else ""
        is_script = name.endswith(".py") and os.path.basename(name) != "__main__.py"
        say_if_terminal(f"sluicegate serve {name if is_script else 'FILE.py'}")

        async def serve() -> None:
            async with kept_open(server):
                await serve_stdio(server, on_stuck=_leave)

        run_in_loop(serve())
    else:
        if not is_loopback(host):
            raise ConfigError(
                f"{host} can be reached by others, and this server asks nobody who they are: use 127.0.0.1."
            )
        run_in_loop(serve_http(server, host, port))


@contextmanager
def only_loaded() -> Generator[None]:
    """Let no file serve what it has while it is loaded: `run` would wait for a client in the middle of an import."""
    _loading.append(True)
    try:
        yield
    finally:
        _loading.pop()


async def serve_http(server: Handler, host: str, port: int) -> None:
    """Serve over HTTP until SIGTERM or SIGINT, then let what is under way finish. A second signal ends it at once."""
    # Here and not above: a server on a pipe never needs them.
    from sluicegate import http1
    from sluicegate.downstream.http import HttpEndpoint

    loop = asyncio.get_running_loop()
    told = asyncio.Event()
    async with (
        _saying_what_to_do(port),
        kept_open(server),
        HttpEndpoint(server) as endpoint,
        http1.serve(endpoint, host=host, port=port) as listener,
    ):

        def stop() -> None:
            # Whoever says so twice means at once.
            listener.abort() if told.is_set() else told.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        address, port = listener.addresses[0][:2]
        shown = f"[{address}]" if ":" in address else address
        url = f"http://{shown}:{port}/mcp"
        write_line(f"sluicegate: serving at {url} (Ctrl+C to stop)")
        for line in client_lines(url, str(getattr(server, "name", ""))):
            write_line(line)
        write_line("  This is one server without a gateway, so `sluicegate call` and `status` do not ask it.")
        await told.wait()
        endpoint.stop_taking()
        listener.close()
        if not await listener.drain(DRAIN):
            # What is left is answered that we stop, which takes a moment to be read.
            endpoint.give_up()
            await listener.drain(1.0)


@asynccontextmanager
async def _saying_what_to_do(port: int) -> AsyncGenerator[None]:
    """An address that is taken is told with the way out."""
    try:
        yield
    except OSError as problem:
        if problem.errno != errno.EADDRINUSE:
            raise
        sentence = f"port {port} is taken by another program; choose one with run(…, port=…), or any with port=0"
        raise OSError(errno.EADDRINUSE, sentence) from None


def client_lines(url: str, name: str = "") -> list[str]:
    """What to tell clients so that they come to a URL, a line for each way; under a name, if it can be one."""
    import json  # here and not above: a server on a pipe never needs it

    if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
        name = "sluicegate"
    entry = {"mcpServers": {name: {"type": "http", "url": url}}}
    return [
        f"  Claude Code:   claude mcp add --transport http {name} {url}",
        f"  other clients: {json.dumps(entry)}",
    ]


def is_loopback(host: str) -> bool:
    """Whether only programs on this machine can reach the address."""
    import ipaddress  # here and not above: a server on a pipe never needs it

    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"


def _leave() -> None:
    # The client has gone, and a tool does not let itself be cancelled. Nobody will ever see what it still does.
    logging.getLogger("sluicegate").warning("A tool did not stop when it was cancelled; the server leaves without it.")
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison] - started without one
        sys.stderr.flush()
    os._exit(0)


def run_in_loop(work: Coroutine[object, object, None]) -> None:
    """Run the work to its end in an event loop of its own: uvloop's where it is installed, a third less CPU."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)
