"""The client of the official SDK before 2.0: `official1_http_client URL`, in its own environment."""
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import asyncio
import sys

from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client

from bench.peers.turns import EVENTS, in_flight, take_turns
from bench.samples import TEXT


def echo(session):
    async def call():
        result = await session.call_tool("echo", {"text": TEXT})
        if result.isError:
            raise RuntimeError(result)

    return call


def count(session):
    async def work(calls):
        heard = []

        async def hear(progress, total, message):
            heard.append(progress)

        for _ in range(calls):
            await session.call_tool("count", {"to": EVENTS}, progress_callback=hear)
        if len(heard) != calls * EVENTS:
            raise RuntimeError(f"{len(heard)} progress events arrived instead of {calls * EVENTS}")

    return work


async def main():
    async with streamable_http_client(sys.argv[1]) as (read, write, _), ClientSession(read, write) as session:
        await session.initialize()
        cases = {f"session {lanes}": (in_flight(echo(session), lanes), None) for lanes in (1, 32)}
        cases["session progress"] = count(session), None
        await take_turns(cases)


if __name__ == "__main__":
    asyncio.run(main())
