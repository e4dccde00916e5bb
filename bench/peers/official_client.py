"""The official SDK's client, with its server in this process (`memory`) or in one of its own (`stdio`)."""
# pyright: basic, reportMissingImports=false

import asyncio
import sys
from contextlib import AsyncExitStack

from mcp.client import Client
from mcp.client.stdio import StdioServerParameters

from bench.peers.official_server import server
from bench.peers.turns import EVENTS, in_flight, take_turns
from bench.samples import TEXT

MODES = {"modern": "2026-07-28", "session": "legacy"}


def echo(client):
    async def call():
        result = await client.call_tool("echo", {"text": TEXT})
        if result.is_error:
            raise RuntimeError(result)

    return call


def count(client):
    async def work(calls):
        heard, all_heard = [], asyncio.Event()

        async def hear(progress, total, message):
            heard.append(progress)
            if len(heard) == calls * EVENTS:
                all_heard.set()

        for _ in range(calls):
            await client.call_tool("count", {"to": EVENTS}, progress_callback=hear)
        await all_heard.wait()  # its callbacks are tasks of their own, which may end after the call has

    return work


def cpu(client):
    async def ask():
        return int((await client.call_tool("cpu", {})).content[0].text)

    return ask


async def memory(stack):
    clients = {era: await stack.enter_async_context(Client(server, mode=mode)) for era, mode in MODES.items()}
    cases = {era: (in_flight(echo(client), 1), None) for era, client in clients.items()}
    cases["modern 32"] = in_flight(echo(clients["modern"]), 32), None
    return cases


async def stdio(stack):
    cases = {}
    for era, mode in MODES.items():
        command = StdioServerParameters(command=sys.executable, args=["-m", "bench.peers.official_server"])
        client = await stack.enter_async_context(Client(command, mode=mode))
        for lanes in (1, 32):
            cases[f"{era} {lanes}"] = in_flight(echo(client), lanes), cpu(client)
        cases[f"{era} progress"] = count(client), cpu(client)
    return cases


async def main():
    async with AsyncExitStack() as stack:
        await take_turns(await {"memory": memory, "stdio": stdio}[sys.argv[1]](stack))


if __name__ == "__main__":
    asyncio.run(main())
