"""The worker's side of a race with a contestant in another process: it takes its turns when it is told to.

Needs the standard library only, for it runs in the official SDK's environment too. One line in: `CASE COUNT`. One line
out: `{"cpu": …, "server": …, "wall": …}` in nanoseconds.
"""

import asyncio
import json
import sys
import time
from collections.abc import Awaitable, Callable, Mapping

Work = Callable[[int], Awaitable[None]]
"""Does something so many times."""

ServerCpu = Callable[[], Awaitable[int]]
"""The CPU nanoseconds that the server's process has used so far."""

EVENTS = 1000
"""How many progress events one call of `count` sends."""


async def take_turns(cases: Mapping[str, tuple[Work, ServerCpu | None]]) -> None:
    """Do what the lines on stdin say until there are no more. In between the loop stands still, and uses no CPU."""
    print("ready", flush=True)
    for line in sys.stdin:
        case, count = line.rsplit(maxsplit=1)
        work, server_cpu = cases[case]
        server_before = await server_cpu() if server_cpu else 0
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        await work(int(count))
        cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
        # One call more than was asked for is in here: the one that asks how much it was.
        server = await server_cpu() - server_before if server_cpu else 0
        print(json.dumps({"cpu": cpu + server, "server": server, "wall": wall}), flush=True)


def in_flight(call: Callable[[], Awaitable[object]], lanes: int) -> Work:
    """Calls, so many of them under way at any time."""

    async def lane(count: int) -> None:
        for _ in range(count):
            await call()

    async def work(count: int) -> None:
        if lanes == 1:
            await lane(count)
            return
        shares = [count // lanes + (place < count % lanes) for place in range(lanes)]
        await asyncio.gather(*(lane(share) for share in shares if share))

    return work
