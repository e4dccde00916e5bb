"""`run(hub)` and `AsgiApp(hub)` open the hub, unless it is open already."""

import asyncio
import socket
import sys
from pathlib import Path

import pytest

import sluicegate
from sluicegate.runtime.lifespan import opened
from sluicegate.runtime.task_scope import TaskScope, forever

PROGRAM = """
import sys, sluicegate
server = sluicegate.Server("one")

@server.tool
async def hello() -> str:
    return "hello"

hub = sluicegate.Hub("team")
hub.mount("one", server)
sluicegate.run(hub, http="http" in sys.argv, port=0)
"""


@pytest.fixture
def program(tmp_path: Path) -> list[str]:
    file = tmp_path / "team.py"
    file.write_text(PROGRAM)
    return [sys.executable, str(file)]


async def test_a_hub_is_served_over_stdio(program: list[str]) -> None:
    async with asyncio.timeout(30), sluicegate.connect(program) as client:
        assert [tool.name for tool in await client.tools()] == ["one__hello"]
        assert (await client.call("one__hello")).text == "hello"


async def test_a_hub_is_served_over_http(program: list[str]) -> None:
    async with asyncio.timeout(30):
        process = await asyncio.create_subprocess_exec(*program, "http", stderr=asyncio.subprocess.PIPE)
        try:
            assert process.stderr is not None
            url = (await process.stderr.readline()).decode().split()[3]
            assert f" team {url}" in (await process.stderr.readline()).decode(), "how a client is told of it"
            async with sluicegate.connect(url) as client:
                assert [tool.name for tool in await client.tools()] == ["one__hello"]
        finally:
            process.kill()
            await process.wait()


async def test_an_app_opens_a_closed_hub_and_leaves_an_open_one_open() -> None:
    hub = sluicegate.Hub("team")
    async with sluicegate.AsgiApp(hub):
        assert hub.is_open
    assert not hub.is_open
    async with hub:
        async with sluicegate.AsgiApp(hub):
            assert hub.is_open
        assert hub.is_open


async def test_an_app_leaves_the_hub_closed_when_it_is_cancelled() -> None:
    hub = sluicegate.Hub("team")
    is_open = asyncio.Event()

    async def serve() -> None:
        async with opened(hub):
            is_open.set()
            await forever()

    async with asyncio.timeout(10), TaskScope() as tasks:
        tasks.start(serve())
        await is_open.wait()
        assert hub.is_open
        tasks.cancel_all()
    assert not hub.is_open


async def test_a_handler_without_a_lifespan_needs_no_opening() -> None:
    async with asyncio.timeout(10), opened(sluicegate.Server("one")):
        pass


def test_the_error_for_a_port_in_use_says_what_to_do() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} is in use; choose another with"):
            sluicegate.run(sluicegate.Server("x"), http=True, port=port)
