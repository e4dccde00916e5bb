"""The official SDK's client of an HTTP server: `official_http_client URL`, in either era."""
# pyright: basic, reportMissingImports=false

import asyncio
import sys
from contextlib import AsyncExitStack

from mcp.client import Client

from bench.peers.official_client import MODES, count, echo
from bench.peers.turns import in_flight, take_turns


async def main():
    cases = {}
    async with AsyncExitStack() as stack:
        for era, mode in MODES.items():
            client = await stack.enter_async_context(Client(sys.argv[1], mode=mode))
            for lanes in (1, 32):
                cases[f"{era} {lanes}"] = in_flight(echo(client), lanes), None
            cases[f"{era} progress"] = count(client), None
        await take_turns(cases)


if __name__ == "__main__":
    asyncio.run(main())
