"""Our client, with a server in this process (`memory`) or in one of its own (`stdio`)."""

import asyncio
import sys
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

import sluicegate
from bench.peers.our_server import server
from bench.peers.turns import EVENTS, ServerCpu, Work, in_flight, take_turns
from bench.samples import TEXT
from sluicegate.client.connect import Era
from sluicegate.testing import MemoryUpstream

Cases = dict[str, tuple[Work, ServerCpu | None]]


def echo(client: sluicegate.Client) -> Callable[[], Awaitable[object]]:
    """One call. It is looked at once, as a client would do it."""

    async def call() -> None:
        result = await client.call("echo", text=TEXT)
        if result.is_error:
            raise RuntimeError(result)

    return call


def count(client: sluicegate.Client) -> Work:
    """Calls whose progress is heard; none of it may be lost."""

    async def work(calls: int) -> None:
        heard: list[object] = []
        for _ in range(calls):
            await client.call("count", to=EVENTS, on_progress=heard.append)
        if len(heard) != calls * EVENTS:
            raise RuntimeError(f"{len(heard)} progress events arrived instead of {calls * EVENTS}")

    return work


def cpu(client: sluicegate.Client) -> ServerCpu:
    """What the server says of its CPU time."""

    async def ask() -> int:
        return int((await client.call("cpu")).text)

    return ask


async def memory(stack: AsyncExitStack) -> Cases:
    """A server in this process: through real bytes of either era, and without any."""
    modern = await stack.enter_async_context(sluicegate.connect(MemoryUpstream(server, era="modern")))
    session = await stack.enter_async_context(sluicegate.connect(MemoryUpstream(server, era="session")))
    direct = await stack.enter_async_context(sluicegate.connect(server))
    clients = {"modern": modern, "session": session, "direct": direct}
    cases: Cases = {name: (in_flight(echo(client), 1), None) for name, client in clients.items()}
    cases["modern 32"] = in_flight(echo(modern), 32), None
    return cases


async def stdio(stack: AsyncExitStack) -> Cases:
    """A server in a process of its own."""
    cases: Cases = {}
    eras: tuple[Era, ...] = ("modern", "session")
    for era in eras:
        command = [sys.executable, "-m", "bench.peers.our_server"]
        client = await stack.enter_async_context(sluicegate.connect(command, era=era))
        for lanes in (1, 32):
            cases[f"{era} {lanes}"] = in_flight(echo(client), lanes), cpu(client)
        cases[f"{era} progress"] = count(client), cpu(client)
    return cases


async def main() -> None:
    """Take turns in what the first argument says."""
    async with AsyncExitStack() as stack:
        await take_turns(await {"memory": memory, "stdio": stdio}[sys.argv[1]](stack))


if __name__ == "__main__":
    asyncio.run(main())
