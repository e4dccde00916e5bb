"""Our client of an HTTP server: `our_http_client URL asyncio|uvloop`. Its CPU is measured, not the server's."""

import asyncio
import sys
from contextlib import AsyncExitStack

import sluicegate
from bench.peers.our_client import Cases, count, echo
from bench.peers.turns import in_flight, take_turns
from sluicegate.client.connect import Era


async def main() -> None:
    """Take turns in either era."""
    eras: tuple[Era, ...] = ("modern", "session")
    cases: Cases = {}
    async with AsyncExitStack() as stack:
        for era in eras:
            client = await stack.enter_async_context(sluicegate.connect(sys.argv[1], era=era))
            for lanes in (1, 32):
                cases[f"{era} {lanes}"] = in_flight(echo(client), lanes), None
            cases[f"{era} progress"] = count(client), None
        await take_turns(cases)


if __name__ == "__main__":
    if sys.argv[2] == "uvloop":
        import uvloop

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(main())
    else:
        asyncio.run(main())
