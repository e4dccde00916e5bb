"""Tasks through the gateway with peers of others: the official SDK on both sides, and the official client for tasks."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import pytest

from sluicegate.hub.hub import Hub
from sluicegate.upstream.stdio import StdioUpstream
from tests.downstream.http_client import http_client

ROOT: Final = Path(__file__).parents[2]
PEERS: Final = Path(__file__).parent / "peers"
EXTENSION: Final = "io.modelcontextprotocol/tasks"

Json = dict[str, Any]
Stranger = Callable[[str], Path]


@asynccontextmanager
async def gateway(command: Sequence[str]) -> AsyncGenerator[str]:
    """The address of a gateway in front of a server."""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    hub = Hub()
    hub.mount("s", StdioUpstream(list(command), env=env, cwd=ROOT))
    async with asyncio.timeout(50), hub:
        await hub.settled()
        async with http_client(hub) as client:
            yield f"http://{client.host}/mcp"


async def seen_by(command: Sequence[str | Path], cwd: Path) -> Json:
    """What a client says that it saw."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(*command, stdout=pipe, stderr=pipe, cwd=cwd)
    try:
        said, complaints = await process.communicate()
    except asyncio.CancelledError:
        process.kill()
        await process.wait()
        raise
    assert process.returncode == 0, complaints.decode()
    return json.loads(said)


async def test_the_python_sdk_on_both_sides(stranger: Stranger) -> None:
    python, peer = stranger("mcp2") / "bin" / "python", PEERS / "tasks_mcp2.py"
    async with gateway([str(python), str(peer), "server"]) as url:
        saw = await seen_by([python, peer, "client", url], ROOT)
    assert saw["offered"] == {EXTENSION: {}}
    assert saw["id"].startswith("s.")
    assert saw["states"] == [[saw["id"], "input_required"], [saw["id"], "completed"]]
    assert saw["asked"] == {"sure": "[s] Sure?"}
    assert saw["result"] == "dug, for you said accept"
    assert saw["unknown"] == -32602
    assert saw["plain"] == "dug at once", "to a client that does not know tasks it is a tool like any other"


async def test_the_official_client_for_tasks(stranger: Stranger) -> None:
    npm = stranger("npm")
    if not (npm / "node_modules" / "@modelcontextprotocol" / "ext-tasks").exists():
        pytest.skip("the client for tasks is not installed: run ./scripts/strangers")
    async with gateway([sys.executable, "-m", "tests.hub.foreman"]) as url:
        saw = await seen_by([npm / "node", PEERS / "tasks_typescript.mjs", url], npm)
    assert saw["kind"] == "task" and saw["id"].startswith("s.")
    assert saw["asked"] == ["[s] Sure?"]
    assert json.loads(saw["result"]) == {"sure": {"action": "accept", "content": {"name": "Ada"}}}
    assert saw["failed"] == "failed"
    assert saw["plain"] == "immediate"
    assert saw["cancelled"] == "cancelled"
    asked = {method for method, _ in saw["names"]}
    assert asked == {"tools/call", "tasks/get", "tasks/update", "tasks/cancel"}
