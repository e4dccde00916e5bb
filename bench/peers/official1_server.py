"""The same server on the official SDK before 2.0, in its own environment."""
# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false

import asyncio
import time

from mcp.server.fastmcp import Context, FastMCP

server = FastMCP("bench", log_level="ERROR")


@server.tool(structured_output=False)
async def echo(text: str) -> str:
    """Say the same again."""
    return text


@server.tool(structured_output=False)
async def count(to: int, ctx: Context) -> str:
    """Count aloud."""
    for n in range(1, to + 1):
        await ctx.report_progress(n, to)
    return f"counted to {to}"


@server.tool(structured_output=False)
async def knock(ctx: Context) -> str:
    """Say something at once, and come a moment later."""
    await ctx.report_progress(1, 2)
    await asyncio.sleep(0.02)
    return "come"


@server.tool(structured_output=False)
async def cpu() -> str:
    """The nanoseconds of CPU that this process has used."""
    return str(time.process_time_ns())
