"""Our client with servers on the official SDK of both eras over HTTP (peers/http_server.py)."""

import asyncio
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing, asynccontextmanager
from pathlib import Path
from typing import Final, NamedTuple

import pytest

import sluicegate
from sluicegate.protocol.types import ProgressEvent, ToolResult
from tests.strangers.visits import DEADLINE, Era

PEERS: Final = Path(__file__).parent / "peers"


class Server(NamedTuple):
    sdk: str
    path: str
    era: Era
    version: str


SERVERS: Final = {
    "mcp1": Server("mcp1", "mcp", "auto", "2025-11-25"),
    "mcp1 sse": Server("mcp1", "sse", "auto", "2025-11-25"),
    "mcp2": Server("mcp2", "mcp", "auto", "2026-07-28"),
    "mcp2 sse": Server("mcp2", "sse", "auto", "2025-11-25"),
    "mcp2 session": Server("mcp2", "mcp", "session", "2025-11-25"),
}


@pytest.fixture(params=SERVERS.values(), ids=list(SERVERS))
def server(request: pytest.FixtureRequest) -> Server:
    return request.param


@asynccontextmanager
async def visiting(server: Server, folder: Path) -> AsyncGenerator[sluicegate.Client]:
    """A client that is connected to such a server."""
    command = [str(folder / "bin" / "python"), str(PEERS / "http_server.py"), server.sdk, server.path]
    process = await asyncio.create_subprocess_exec(*command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdin is not None and process.stdout is not None
    try:
        async with asyncio.timeout(DEADLINE):
            port = int(await process.stdout.readline())
            url = f"http://127.0.0.1:{port}/{server.path}"
            async with sluicegate.connect(url, era=server.era, timeout=DEADLINE, elicit=_elicit) as client:
                yield client
    finally:
        process.stdin.close()
        await process.wait()


def _elicit(request: sluicegate.ElicitRequest) -> dict[str, object]:
    return {"colour": "red", "amount": 3}


async def test_tools_are_listed_and_called(server: Server, stranger: Callable[[str], Path]) -> None:
    async with visiting(server, stranger(server.sdk)) as client:
        assert client.version == server.version
        assert {"add", "count"} <= {tool.name for tool in await client.tools()}
        assert (await client.call("echo", text="grüße\u2028")).text == "grüße\u2028"
        assert (await client.call("fail")).is_error


async def test_a_thousand_progress_events_come_in_order(server: Server, stranger: Callable[[str], Path]) -> None:
    async with visiting(server, stranger(server.sdk)) as client:
        events = [event async for event in client.stream("count", to=1000)]
        numbers = [event.progress for event in events if isinstance(event, ProgressEvent)]
        assert numbers == sorted(numbers) and len(numbers) == 1000
        assert isinstance(events[-1], ToolResult)


async def test_a_question_is_answered_in_the_middle_of_a_call(server: Server, stranger: Callable[[str], Path]) -> None:
    async with visiting(server, stranger(server.sdk)) as client:
        result = await client.call("choose", message="Which?")
        assert "red" in result.text and "3" in result.text


async def test_a_cancelled_call_is_cancelled_at_the_server(server: Server, stranger: Callable[[str], Path]) -> None:
    async with visiting(server, stranger(server.sdk)) as client:
        async with aclosing(client.stream("hang", ticket="t")) as events:
            assert await anext(events) == ProgressEvent(1)
        assert (await client.call("ended", ticket="t")).text == "ended"
