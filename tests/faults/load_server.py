"""A server in a process of its own, to be overrun, cut off and stopped: `python -m tests.faults.load_server {…}`.

Its one argument is JSON: `http` are limits of the HTTP module, `calls` how many may be in progress.
Who calls is what the header
`Authorization` says; without it, the local user. The first line on stdout has two ports: that of the endpoint, and that
of a second one for the test's own questions, which are answered however full the first one is.
"""

import asyncio
import itertools
import json
import resource
import signal
import sys
from collections.abc import AsyncGenerator

import msgspec

import sluicegate
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.exchange import Caller, chain
from sluicegate.gate.admission import Admission
from sluicegate.http1 import Limits, serve
from sluicegate.runtime.identity import IncomingRequest
from sluicegate.serve.run_server import run_in_loop

WORDS = "word " * 4000
LONG_URI = "note://" + "long" * 4000


class Options(msgspec.Struct, frozen=True):
    """What a test may set."""

    http: Limits = Limits()
    calls: int = 1000


class Census(msgspec.Struct):
    """What is alive in the server."""

    begun: int = 0
    cancelled: int = 0
    finished: int = 0
    tasks: int = 0

    @property
    def running(self) -> int:
        """Calls of `hold` and `tell` that are under way."""
        return self.begun - self.cancelled - self.finished


def make_server() -> sluicegate.Server:
    """The server and its tools."""
    server = sluicegate.Server("load", version="1")
    census = Census()
    gates: dict[str, asyncio.Event] = {}

    def gate(name: str) -> asyncio.Event:
        return gates.setdefault(name, asyncio.Event())

    async def behind_gate(name: str) -> None:
        census.begun += 1
        try:
            await gate(name).wait()
        except asyncio.CancelledError:
            census.cancelled += 1
            raise
        census.finished += 1

    @server.tool
    async def echo(text: str) -> str:
        """Say it again."""
        return text

    @server.tool
    async def hold(text: str, until: str = "go") -> str:
        """Say it again when the gate is opened."""
        await behind_gate(until)
        return text

    @server.tool
    async def tell(times: int, until: str) -> AsyncGenerator[sluicegate.Progress | str]:
        """Tell how far it is, then wait for the gate, then tell as often again."""
        for n in range(times):
            yield sluicegate.Progress(n + 1, total=2 * times)
        await behind_gate(until)
        for n in range(times):
            yield sluicegate.Progress(times + n + 1, total=2 * times)
        yield f"told {2 * times}"

    @server.tool
    async def pour(call: sluicegate.Call) -> str:
        """Tell for ever."""
        census.begun += 1
        try:
            for n in itertools.count(1):
                await call.progress(n, message=WORDS)
        finally:
            census.cancelled += 1
        return "never"

    @server.tool
    async def nap(text: str, seconds: float) -> str:
        """Say it again, later."""
        census.begun += 1
        await asyncio.sleep(seconds)  # The caller chooses how long the call takes.
        census.finished += 1
        return text

    @server.tool
    async def big(size: int) -> str:
        """Say much at once."""
        return "x" * size

    @server.resource(LONG_URI)
    def note() -> str:
        return "a note"

    @server.tool
    async def change(times: int) -> str:
        """Change the note, often."""
        for _ in range(times):
            server.resource_updated(LONG_URI)
            await asyncio.sleep(0)
        return "changed"

    @server.tool
    async def open_gate(name: str = "go") -> str:
        """Release the waiting calls."""
        gate(name).set()
        return "open"

    @server.tool
    async def count_all() -> Census:
        """What is alive here."""
        census.tasks = len(asyncio.all_tasks())
        return census

    return server


def by_header(request: IncomingRequest) -> Caller:
    """A caller for each token: enough of authentication for tests."""
    token = request.headers.get("authorization")
    return Caller() if token is None else Caller(token)


async def main(options: Options) -> None:
    """Serve until SIGTERM."""
    told = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, told.set)
    server = make_server()
    async with (
        HttpEndpoint(server) as aside,
        serve(aside) as beside,
        HttpEndpoint(chain((Admission(options.calls),), server), identify=by_header) as endpoint,
        serve(endpoint, limits=options.http, backlog=4096) as listener,
    ):
        sys.stdout.write(f"{listener.addresses[0][1]} {beside.addresses[0][1]}\n")
        sys.stdout.flush()
        await told.wait()
        endpoint.stop_taking()
        if not await listener.drain(1.0):
            endpoint.give_up()
            await listener.drain(1.0)


if __name__ == "__main__":
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    run_in_loop(main(msgspec.convert(json.loads(sys.argv[1]), Options)))
