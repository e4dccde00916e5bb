"""The server behind every gateway: `stdio FOLDER` or `http FOLDER`. It leaves its process id in the folder.

A gateway starts its servers itself, so that they are found among its children: who wants the gateway's own CPU has to
know which of them are not it.
"""

import os
import sys
from pathlib import Path

import sluicegate
from bench.peers.our_server import server

MIB = "0123456789abcde\n" * 65536


@server.tool
async def big() -> str:
    """A text of 1 MiB."""
    return MIB


if __name__ == "__main__":
    Path(sys.argv[2], str(os.getpid())).touch()
    if sys.argv[1] == "http":
        sluicegate.run(server, http=True, port=0)
    else:
        sluicegate.run(server)
