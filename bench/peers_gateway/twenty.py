"""Twenty servers of fifty tools in one process, at `/mcp/0` to `/mcp/19`; prints its port, and ends with its stdin."""

import asyncio
import sys
from contextlib import AsyncExitStack

import sluicegate
from sluicegate import http1
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.downstream.http_response import HttpRequest
from sluicegate.serve.run_server import run_in_loop

SERVERS = 20
TOOLS = 50


def fifty(number: int) -> sluicegate.Server:
    """A server with fifty tools, each with a description and a schema of the usual size."""
    server = sluicegate.Server(f"bench-{number}")

    async def work(path: str, pattern: str, limit: int = 100, recursive: bool = False) -> str:
        return f"{path} {pattern} {limit} {recursive}"

    for tool in range(TOOLS):
        work.__doc__ = (
            f"Search the files of project {number} for number {tool}.\n\n"
            "Returns one line for each match, with the file, the line and the text. Long lines are cut.\n\n"
            "Args:\n"
            "    path: The folder to search in, relative to the project's root.\n"
            "    pattern: A regular expression that a line must match somewhere.\n"
            "    limit: How many matches to return at most.\n"
            "    recursive: Whether to look into folders inside the folder, too.\n"
        )
        server.tool(name=f"search_files_{tool}")(work)
    return server


async def serve() -> None:
    """Serve until stdin ends."""
    endpoints: dict[str, HttpEndpoint] = {}

    def answer(request: HttpRequest) -> None:
        endpoints[request.path](request)

    async with AsyncExitStack() as stack:
        for number in range(SERVERS):
            path = f"/mcp/{number}"
            endpoints[path] = await stack.enter_async_context(HttpEndpoint(fifty(number), path=path))
        listener = await stack.enter_async_context(http1.serve(answer, host="127.0.0.1", port=0))
        sys.stdout.write(f"{listener.addresses[0][1]}\n")
        sys.stdout.flush()
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)


if __name__ == "__main__":
    run_in_loop(serve())
