"""`run(server)`: serves a server or hub as a whole program, over stdio or HTTP."""

import asyncio
import errno
import json
import logging
import os
import signal
import sys
from collections.abc import AsyncGenerator, Coroutine
from contextlib import asynccontextmanager
from typing import Final

from sluicegate.downstream.stdio import serve_stdio
from sluicegate.errors import ConfigError
from sluicegate.exchange import Handler, chain
from sluicegate.gate.admission import Admission
from sluicegate.runtime.lifespan import opened
from sluicegate.runtime.standard_streams import is_loading, open_standard_streams, say_if_terminal, write_line

DRAIN: Final = 10.0
"""Seconds that requests in progress have to finish when the program is stopped (R29)."""


def run(
    server: Handler, *, http: bool = False, host: str = "127.0.0.1", port: int = 4747, native: bool = False
) -> None:
    """Serve a `Server` or a `Hub`, and return when it ends.

    Over stdio it serves one client, until that hangs up; with `native` this client can call native methods, too. With
    `http=True` it serves all clients of this machine, at
    `http://127.0.0.1:4747/mcp`, until SIGTERM or SIGINT.

    Raises:
        ConfigError: the host is not a loopback address (clients are not authenticated), or the file that calls this
            is being loaded by a program that serves it.
        OSError: the address cannot be bound.
    """
    if is_loading():
        raise ConfigError('put the call of sluicegate.run() under `if __name__ == "__main__":`.')
    if not callable(server):
        raise TypeError(f"run() serves a Server, not {type(server).__name__}")
    open_standard_streams()
    if not http:
        # With the sluicegate command it is `__main__.py` or `sluicegate`, which cannot be served.
        name = sys.argv[0] if sys.argv else ""
        is_script = name.endswith(".py") and os.path.basename(name) != "__main__.py"
        say_if_terminal(f"sluicegate serve {name if is_script else 'FILE.py'}")

        async def serve() -> None:
            async with opened(server):
                await serve_stdio(server, on_stuck=_leave, native=native)

        run_in_loop(serve())
    else:
        from sluicegate.config.self_reference import is_loopback  # Imported late: a server over stdio needs none of it.

        if not is_loopback(host):
            raise ConfigError(
                f"{host} can be reached by others, and this server does not authenticate clients; use 127.0.0.1."
            )
        run_in_loop(serve_http(server, host, port))


async def serve_http(server: Handler, host: str, port: int) -> None:
    """Serve over HTTP until SIGTERM or SIGINT, then let requests in progress finish. A second signal ends them."""
    # Imported late: a server over stdio needs no HTTP.
    from sluicegate import http1
    from sluicegate.downstream.http import HttpEndpoint

    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    async with (
        _explained_port(port),
        opened(server),
        HttpEndpoint(chain((Admission(),), server)) as endpoint,
        http1.serve(endpoint, host=host, port=port) as listener,
    ):

        def stop() -> None:
            listener.abort() if stopped.is_set() else stopped.set()

        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, stop)
        address, port = listener.addresses[0][:2]
        shown = f"[{address}]" if ":" in address else address
        url = f"http://{shown}:{port}/mcp"
        write_line(f"sluicegate: serving at {url} (Ctrl+C to stop)", paint={url: "bold cyan"})
        for line in client_lines(url, str(getattr(server, "name", ""))):
            write_line(line, hang=LABEL)
        write_line("  This is a single server without a gateway: `sluicegate call` and `status` do not reach it.")
        await stopped.wait()
        endpoint.stop_taking()
        if not await listener.drain(DRAIN):
            # The remaining requests get an error reply, which clients need a moment to read.
            endpoint.give_up()
            await listener.drain(1.0)


@asynccontextmanager
async def _explained_port(port: int) -> AsyncGenerator[None]:
    """Add what to do to the error for a port in use."""
    try:
        yield
    except OSError as problem:
        if problem.errno != errno.EADDRINUSE:
            raise
        sentence = f"port {port} is in use; choose another with run(…, port=…), or any free one with port=0"
        raise OSError(errno.EADDRINUSE, sentence) from None


LABEL: Final = 17
"""Characters before the text of each of `client_lines`."""


def client_lines(url: str, name: str = "") -> list[str]:
    """How to configure clients for a URL, one line each; under the given name if that is valid."""
    if not (name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
        name = "sluicegate"
    entry = {"mcpServers": {name: {"type": "http", "url": url}}}
    return [
        f"  Claude Code:   claude mcp add -t http {name} {url}",
        f"  other clients: {json.dumps(entry)}",
    ]


def _leave() -> None:
    # The client is gone and a tool does not react to its cancellation; its result has no recipient.
    log = logging.getLogger("sluicegate")
    log.warning("A tool did not stop when it was cancelled; the server exits without waiting for it.")
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison] - may be closed
        sys.stderr.flush()
    os._exit(0)


def run_in_loop(work: Coroutine[object, object, None]) -> None:
    """Run the work in a new event loop; uvloop, where installed, needs a third less CPU."""
    try:
        import uvloop
    except ImportError:
        asyncio.run(work)
        return
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(work)
