"""A client and a server of 2025-11-25 over HTTP+SSE, which that revision still has: the asking of their era passes."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from sluicegate.http1 import Pool, serve
from sluicegate.runtime.task_scope import TaskScope
from tests.bridge.carriers import Sse
from tests.bridge.checks import VISITED, Check, Pair, arming, browsing, logging, rooting, visiting
from tests.bridge.clients import PATIENCE, Client
from tests.bridge.http_servers import SsePeer
from tests.bridge.servers import Peer
from tests.bridge.stage import Side, Stage, opened_stage

SIDE = Side("2025-11-25", "stdio")  # One channel for all calls, as a pipe is.


@asynccontextmanager
async def over_sse(folder: Path) -> AsyncGenerator[tuple[Stage, Client, Client]]:
    """A gateway, and two clients of it."""
    async with asyncio.timeout(2 * PATIENCE), TaskScope() as tasks:
        async with serve(SsePeer(Peer(SIDE.revision, tasks))) as listener:
            host, port = listener.addresses[0]
            url = f"http://{host}:{port}/sse"
            async with opened_stage(folder, {SIDE.name: {"type": "sse", "url": url}}) as stage:
                pool = Pool()
                origin = stage.address.removesuffix("/mcp")
                client, other = (Client(SIDE.revision, Sse(origin, pool, tasks)) for _ in range(2))
                try:
                    await client.open()
                    await other.open()
                    yield stage, client, other
                finally:
                    tasks.cancel_all()
                    await pool.aclose()
        tasks.cancel_all()


@pytest.mark.parametrize("check", [browsing, visiting, arming, rooting, logging])
async def test_questions_and_notices_of_a_server_reach_a_client_over_sse(tmp_path: Path, check: Check) -> None:
    async with over_sse(tmp_path) as (stage, client, other):
        assert await check(Pair(client, SIDE)) == set()
        assert other.count(VISITED) == 0 and other.questions == []
        assert not client.complaints and not stage.mount(SIDE).calls.losses
