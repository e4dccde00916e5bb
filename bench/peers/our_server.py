"""Our server: an echo, a count with progress, and its own CPU time."""

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
async def cpu() -> str:
    """The nanoseconds of CPU that this process has used."""
    return str(time.process_time_ns())


if __name__ == "__main__":
    sluicegate.run(server)
