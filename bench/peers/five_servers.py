"""A client of the given kind with five servers, of which one is broken: `KIND FOLDER`. It takes turns.

Runs in the environments of others too. The folder has a `.mcp.json`, and a folder for each server with its process id.
"""
# pyright: basic, reportMissingImports=false

import asyncio
import json
import os
import signal
import sys
import time
from contextlib import AsyncExitStack
from pathlib import Path

from bench.peers.turns import in_flight, take_turns
from bench.samples import TEXT

GOOD = ("s1", "s2", "s3", "s4")
ARGUMENTS = {"text": TEXT}


async def toolbox(stack, folder, servers):
    import sluicegate

    box = await stack.enter_async_context(sluicegate.Toolbox.load(folder, on_permission="allow"))

    async def call(server):
        outcome = await box.execute(f"mcp__{server}__echo", ARGUMENTS)
        return "" if outcome.is_error else outcome.text

    return call


async def session_group(stack, folder, servers):
    from mcp import ClientSessionGroup, StdioServerParameters

    current = ""

    def hook(name, info):
        return f"{current}_{name}"

    group = await stack.enter_async_context(ClientSessionGroup(component_name_hook=hook))
    for current, entry in servers.items():
        try:
            await group.connect_to_server(StdioServerParameters(**entry))
        except Exception as problem:
            print(f"{current}: {problem!r}", file=sys.stderr)

    async def call(server):
        return (await group.call_tool(f"{server}_echo", ARGUMENTS)).content[0].text

    return call


async def fastmcp(stack, folder, servers):
    from fastmcp import Client

    client = await stack.enter_async_context(Client({"mcpServers": servers}))

    async def call(server):
        return (await client.call_tool(f"{server}_echo", ARGUMENTS)).content[0].text

    return call


async def openai_agents(stack, folder, servers):
    from agents.mcp import MCPServerManager, MCPServerStdio

    made = [MCPServerStdio(entry, name=name) for name, entry in servers.items()]
    manager = await stack.enter_async_context(MCPServerManager(made, connect_in_parallel=True))
    active = {server.name: server for server in manager.active_servers}

    async def call(server):
        return (await active[server].call_tool("echo", ARGUMENTS)).content[0].text

    return call


async def pydantic_ai(stack, folder, servers):
    from pydantic_ai.mcp import load_mcp_toolsets

    active = {}
    for name, toolset in zip(servers, load_mcp_toolsets(folder / ".mcp.json"), strict=True):
        try:
            active[name] = await stack.enter_async_context(toolset)
        except Exception as problem:
            print(f"{name}: {problem!r}", file=sys.stderr)
    active = {name: getattr(toolset, "wrapped", toolset) for name, toolset in active.items()}

    async def call(server):
        return await active[server].direct_call_tool("echo", ARGUMENTS)

    return call


KINDS = {
    "toolbox": toolbox,
    "session_group": session_group,
    "fastmcp": fastmcp,
    "openai_agents": openai_agents,
    "pydantic_ai": pydantic_ai,
}


def kill(folder):
    """End the first server, whatever its process is now."""
    for file in (folder / "s1").iterdir():
        os.kill(int(file.name), signal.SIGKILL)
        file.unlink()


async def recover(call, folder, seconds):
    """Kill the first server and call it until it answers, at most so long."""
    kill(folder)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        try:
            await asyncio.wait_for(call(), min(2, seconds))
            return
        except (Exception, asyncio.CancelledError):  # some cancel the task that calls
            await asyncio.sleep(0.02)


async def main():
    kind, folder = sys.argv[1], Path(sys.argv[2])
    for name in ("HOME", "XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"):
        os.environ[name] = str(folder)
    servers = json.loads((folder / ".mcp.json").read_text())["mcpServers"]
    calls = []

    async def call(server="s1"):
        said = await calls[0](server)
        if said != TEXT:
            raise RuntimeError(f"not the answer: {said!r}")

    async def hundred(count):
        for _ in range(count):
            await asyncio.gather(*(call(GOOD[place % len(GOOD)]) for place in range(100)))

    async with AsyncExitStack() as stack:

        async def begin(count):
            calls.append(await KINDS[kind](stack, folder, servers))
            await asyncio.gather(*map(call, GOOD))

        cases = {"begin": begin, "one": in_flight(call, 1), "hundred": hundred}
        cases["recover"] = lambda seconds: recover(call, folder, seconds)
        await take_turns({name: (work, None) for name, work in cases.items()})
        if kind != "toolbox":
            os._exit(0)  # some clients do not end after a server was killed


if __name__ == "__main__":
    asyncio.run(main())
