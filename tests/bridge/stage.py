"""The gateway with a server of every revision behind it, and a client of every revision in front of it."""

import asyncio
import json
import os
import sys
from collections.abc import AsyncGenerator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Final, Literal, NamedTuple

from sluicegate.config.load import load
from sluicegate.config.model import HttpFront
from sluicegate.config.paths import Places
from sluicegate.exchange import Handler
from sluicegate.gateway.gateway import Gateway
from sluicegate.http1 import Pool
from sluicegate.hub.mount import Mount
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.serve.process import Running
from sluicegate.serve.reload import as_loaded
from tests.bridge.carriers import Carrier, Http, Pipe, Sse
from tests.bridge.clients import PATIENCE, Client
from tests.bridge.http_servers import over_http
from tests.bridge.servers import REVISIONS

ROOT: Final = Path(__file__).parents[2]


class Side(NamedTuple):
    """A revision over a transport, on either side of the gateway."""

    revision: str
    over: Literal["stdio", "http"]

    @property
    def name(self) -> str:
        """What a server of this side is mounted as."""
        return f"rev-{self.revision}-{self.over}"

    @property
    def transport(self) -> str:
        """What the transport is called: that of the oldest revision is another."""
        if self.over == "stdio":
            return "stdio"
        return "HTTP+SSE" if self.revision == "2024-11-05" else "HTTP"


SIDES: Final = [Side(revision, over) for revision in REVISIONS for over in ("stdio", "http")]


class Stage:
    """A running gateway, its mounts, and connected clients."""

    def __init__(self, running: Running, pool: Pool, tasks: TaskScope) -> None:
        self.gateway = running.gateway
        self.address = running.address
        self.clients: dict[Side, Client] = {}
        self._handler: Handler = running.gateway.handler()
        self._pool = pool
        self._tasks = tasks

    def mount(self, server: Side) -> Mount:
        """The mount of a server."""
        mount = self.gateway.hub.find(server.name)
        assert mount is not None
        return mount

    async def enter(self, side: Side) -> None:
        """Let a client of this side come in."""
        carrier: Carrier
        if side.over == "stdio":
            carrier = Pipe(self._handler, self._tasks)
        elif side.revision == "2024-11-05":
            carrier = Sse(self.address.removesuffix("/mcp"), self._pool, self._tasks)
        else:
            carrier = Http(self.address, self._pool, self._tasks)
        client = self.clients[side] = Client(side.revision, carrier)
        await client.open()


@asynccontextmanager
async def opened_stage(folder: Path, servers: Mapping[str, Mapping[str, object]]) -> AsyncGenerator[Stage]:
    """A gateway of a folder whose `.mcp.json` names these servers, all of them ready; no client yet."""
    (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
    places = Places(root=str(folder), home=str(folder), environ=dict(os.environ))
    loaded = load(places)
    assert loaded.config is not None, loaded.problems
    async with AsyncExitStack() as stack:
        gateway = await stack.enter_async_context(Gateway(loaded.config))
        running = Running(gateway, places, lambda sentence: None, as_loaded)
        await stack.enter_async_context(running.http(HttpFront(port=0)))
        async with asyncio.timeout(PATIENCE):
            await gateway.hub.settled()
        assert all(status.state == "ready" for status in gateway.status()), gateway.status()
        pool = Pool()
        stack.push_async_callback(pool.aclose)
        tasks = await stack.enter_async_context(TaskScope())
        ready = Stage(running, pool, tasks)
        try:
            yield ready
        finally:
            for client in ready.clients.values():
                await client.aclose()
            tasks.cancel_all()


@asynccontextmanager
async def stage(folder: Path) -> AsyncGenerator[Stage]:
    """A gateway with a server of every revision over both transports, and a client of every one."""
    async with AsyncExitStack() as stack:
        program = {"command": sys.executable, "env": {"PYTHONPATH": str(ROOT)}}
        servers: dict[str, dict[str, object]] = {}
        for side in SIDES:
            if side.over == "stdio":
                servers[side.name] = {**program, "args": ["-m", "tests.bridge.servers", side.revision]}
            else:
                url = await stack.enter_async_context(over_http(side.revision))
                servers[side.name] = {"type": "sse" if url.endswith("/sse") else "http", "url": url}
        ready = await stack.enter_async_context(opened_stage(folder, servers))
        await asyncio.gather(*(ready.enter(side) for side in SIDES))
        yield ready
