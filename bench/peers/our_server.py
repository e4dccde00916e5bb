"""Our server: an echo, a count with progress, a knock, and its own CPU time."""

import asyncio
import time

import sluicegate

server = sluicegate.Server("bench")


@server.tool
async def echo(text: str) -> str:
    """Say the same again."""
    return text


@server.tool
async def count(to: int):
    """Count aloud."""
    for n in range(1, to + 1):
        yield sluicegate.Progress(n, total=to)
    yield f"counted to {to}"


@server.tool
async def knock():
    """Say something at once, and come a moment later."""
    yield sluicegate.Progress(1, total=2)
    await asyncio.sleep(0.02)
    yield "come"


@server.tool
async def cpu() -> str:
    """The nanoseconds of CPU that this process has used."""
    return str(time.process_time_ns())


if __name__ == "__main__":
    sluicegate.run(server)
