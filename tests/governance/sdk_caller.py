# pyright: basic, reportMissingImports=false, reportAttributeAccessIssue=false
"""`sdk_caller.py mcp1|mcp2 MODE URL yes|no|silent`: an official SDK's client that makes the calls it is told to.

Runs in a stranger's Python, which does not have sluicegate. It reads one call per line of stdin, as JSON, and writes
what came of it. The last word says how it answers elicitation; `silent` is a client that does not support it.
"""

import json
import sys
from datetime import timedelta

import anyio

sdk, mode, url, manner = sys.argv[1:]
asked = []


def answer_of(params):
    asked.append(params.message)
    if manner == "no":
        return {"action": "decline"}
    choices = params.model_dump(by_alias=True)["requestedSchema"]["properties"]["answer"]["enum"]
    return {"action": "accept", "content": {"answer": choices[0]}}


async def serve(call):
    """Make the calls, one after the other."""
    print(json.dumps({"ready": True}), flush=True)
    async for line in anyio.wrap_file(sys.stdin):
        work = json.loads(line)
        try:
            result = await call(work["name"], work["arguments"], work.get("within"))
            saw = {"text": result.content[0].text, "asked": len(asked)}
        except Exception as error:  # Each SDK has its own for a call that took too long.
            saw = {"failed": f"{type(error).__name__}: {error}", "asked": len(asked)}
        print(json.dumps(saw), flush=True)


async def mcp1():
    import mcp.types as types
    from mcp import ClientSession
    from mcp.client.streamable_http import streamable_http_client

    async def on_elicit(context, params):
        return types.ElicitResult.model_validate(answer_of(params))

    async with (
        streamable_http_client(url) as (read, write, *_),
        ClientSession(read, write, elicitation_callback=None if manner == "silent" else on_elicit) as session,
    ):
        await session.initialize()

        async def call(name, arguments, within):
            limit = None if within is None else timedelta(seconds=within)
            return await session.call_tool(name, arguments, read_timeout_seconds=limit)

        await serve(call)


async def mcp2():
    import mcp_types as types
    from mcp.client import Client

    async def on_elicit(context, params):
        return types.ElicitResult.model_validate(answer_of(params))

    async with Client(url, mode=mode, elicitation_callback=None if manner == "silent" else on_elicit) as client:

        async def call(name, arguments, within):
            return await client.call_tool(name, arguments, read_timeout_seconds=within)

        await serve(call)


anyio.run(mcp1 if sdk == "mcp1" else mcp2)
