"""The official SDK's server with the same tools. Runs in the SDK's own environment, which ours knows nothing of."""
# pyright: basic, reportMissingImports=false

import asyncio
import time

from mcp.server.mcpserver import Context, MCPServer

# Quiet and without structured results, as ours is: so that the same is done.
server = MCPServer("bench", log_level="ERROR")


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


if __name__ == "__main__":
    server.run("stdio")
