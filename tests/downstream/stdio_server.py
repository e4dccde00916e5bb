"""The server that tests/downstream/test_stdio.py runs as a process."""

import asyncio
import subprocess
import sys
import time

import sluicegate

server = sluicegate.Server("stdio", version="1")


@server.tool
async def echo(text: str) -> str:
    """Say it again."""
    return text


@server.tool
def noise() -> str:
    """Print in every way there is."""
    print("printed by a tool")
    sys.stdout.write("written by a tool\n")
    subprocess.run(["echo", "printed by a child"], check=True)
    return "quiet" if not sys.stdin.read() else "the protocol was readable"


@server.tool
def stuck() -> str:
    """Block a thread for longer than any test waits."""
    print("stuck", file=sys.stderr, flush=True)
    time.sleep(600)  # Longer than any test waits.
    return "never"


@server.tool
async def wait() -> str:
    """Wait for ever."""
    print("waiting", file=sys.stderr, flush=True)
    await asyncio.Event().wait()
    return "never"


@server.tool
async def stubborn() -> str:
    """Refuse to be cancelled."""
    print("stubborn", file=sys.stderr, flush=True)
    while True:
        try:
            await asyncio.sleep(600)  # Longer than any test waits.
        except asyncio.CancelledError:
            print("no", file=sys.stderr, flush=True)


print("printed while the program starts")
sluicegate.run(server)
