"""FastMCP's server with the tools that stream: `fastmcp_server PORT`."""
# pyright: basic, reportMissingImports=false

import asyncio
import sys

import fastmcp
from fastmcp import Context, FastMCP

server = FastMCP("bench")


@server.tool
async def count(to: int, ctx: Context) -> str:
    """Count aloud."""
    for number in range(1, to + 1):
        await ctx.report_progress(number, to)
    return f"counted to {to}"


@server.tool
async def knock(ctx: Context) -> str:
    """Say something at once, and come a moment later."""
    await ctx.report_progress(1, 2)
    await asyncio.sleep(0.02)
    return "come"


if __name__ == "__main__":
    fastmcp.settings.log_level = "ERROR"
    server.run(
        transport="http",
        show_banner=False,
        host="127.0.0.1",
        port=int(sys.argv[1]),
        log_level="error",
        uvicorn_config={"access_log": False},
    )
