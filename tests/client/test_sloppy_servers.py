"""A server that leaves out what the protocol requires works with the client and the gateway, and both say so once."""

import asyncio
import logging
import sys
from collections.abc import Sequence

import pytest

import sluicegate
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings
from sluicegate.protocol.parse_response import NO_RESULT, NO_VERSION
from sluicegate.upstream.stdio import StdioUpstream

# Answers without `jsonrpc`, a call with `null`, and lists a tool without a schema; prompts are not even a list.
SERVER = """
import json, sys

for line in sys.stdin:
    request = json.loads(line)
    match request.get("method"):
        case "initialize":
            info = {"name": "sloppy", "version": "1"}
            capabilities = {"tools": {}, "prompts": {}}
            result = {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}
        case "tools/list":
            result = {"tools": [{"name": "bare"}]}
        case "prompts/list":
            result = {}
        case "tools/call":
            result = None
        case _:
            continue
    print(json.dumps({"id": request["id"], "result": result}), flush=True)
"""
COMMAND: Sequence[str] = [sys.executable, "-c", SERVER]


async def test_the_client_reads_it_and_logs_each_fault_once(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        async with asyncio.timeout(10), sluicegate.connect(COMMAND, era="session") as client:
            assert [(tool.name, tool.input_schema) for tool in await client.tools()] == [("bare", {"type": "object"})]
            assert await client.prompts() == []
            for _ in range(2):
                result = await client.call("bare")
                assert (result.content, result.is_error) == ([], False)
    assert [record.message for record in caplog.records] == [
        f"The server sends {NO_VERSION}; its author should correct that.",
        "sloppy: tools/list has 'bare' without inputSchema; it may take any arguments.",
        "sloppy: prompts/list has no prompts, which is read as an empty list.",
        f"The server sends {NO_RESULT}; its author should correct that.",
    ]


async def test_the_gateway_reads_it_and_counts_the_faults() -> None:
    hub = Hub()
    mount = hub.mount("s", StdioUpstream(COMMAND, name="s", era="session"), MountSettings(prefix="s"))
    async with asyncio.timeout(10), hub, sluicegate.connect(hub) as client:
        await hub.settled()
        (tool,) = await client.tools()
        assert (tool.name, tool.input_schema) == ("s__bare", {"type": "object"})
        result = await client.call("s__bare", anything=1)
        assert (result.content, result.is_error) == ([], False)
        assert mount.calls.losses == {NO_VERSION: 4, NO_RESULT: 1}
        assert mount.offer is not None and len(mount.offer.findings) == 2
