"""The official SDK's server over HTTP: 1.x or 2.x, whichever environment it is run in. Prints its port.

As `server.run("streamable-http")` does it, but on a port that the system chooses. Ends at SIGTERM.
"""
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import asyncio
import socket

import uvicorn

try:
    from bench.peers.official_server import server
except ImportError:
    from bench.peers.official1_server import server


async def main():
    # Of protocol TCP by name, as asyncio makes its own: for others it leaves Nagle's algorithm on, 40 ms a call.
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.bind(("127.0.0.1", 0))
    listening.listen(1024)
    print(listening.getsockname()[1], flush=True)
    await uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).serve(sockets=[listening])


if __name__ == "__main__":
    asyncio.run(main())
