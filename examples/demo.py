"""The smallest server: one tool that streams. `python examples/demo.py` serves a client over stdio."""

import sluicegate

server = sluicegate.Server("demo", version="1.0")


@server.tool
async def count(to: int):
    """Count aloud, one number at a time."""
    for n in range(1, to + 1):
        yield sluicegate.Progress(n, total=to)
    yield f"counted to {to}"


if __name__ == "__main__":
    sluicegate.run(server)
