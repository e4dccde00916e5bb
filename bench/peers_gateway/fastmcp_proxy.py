"""FastMCP's proxy for the servers in FILE, each connected once and kept so: `FILE PORT`, or `FILE stdio`.

By default it opens a new session for every call, which takes ten times as long; so this is the proxy at its best.
"""
# pyright: basic, reportMissingImports=false

import asyncio
import json
import sys
from pathlib import Path

import fastmcp
from fastmcp import Client
from fastmcp.server import create_proxy


async def main(servers: dict, door: str) -> None:
    """Serve until killed."""
    # With several servers it puts their names before those of the tools.
    only = next(iter(servers.values())) if len(servers) == 1 else {}
    target = only["url"] if "url" in only else {"mcpServers": servers}
    async with Client(target) as client:
        proxy = create_proxy(client)
        if door == "stdio":
            await proxy.run_stdio_async(show_banner=False)
        else:
            uvicorn = {"access_log": False}
            await proxy.run_http_async(
                show_banner=False, host="127.0.0.1", port=int(door), log_level="error", uvicorn_config=uvicorn
            )


if __name__ == "__main__":
    fastmcp.settings.log_level = "ERROR"
    asyncio.run(main(json.loads(Path(sys.argv[1]).read_text())["mcpServers"], sys.argv[2]))
