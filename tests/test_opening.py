"""A hub is opened by whoever serves it, unless somebody has."""

import asyncio
import socket
import sys
from pathlib import Path

import pytest

import sluicegate

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
            async with sluicegate.connect(url) as client:
                assert [tool.name for tool in await client.tools()] == ["one__hello"]
        finally:
            process.kill()
            await process.wait()


async def test_an_app_opens_a_hub_and_leaves_one_that_is_open_to_whoever_opened_it() -> None:
    hub = sluicegate.Hub("team")
    async with sluicegate.AsgiApp(hub):
        assert hub.is_open
    assert not hub.is_open
    async with hub:
        async with sluicegate.AsgiApp(hub):
            assert hub.is_open
        assert hub.is_open


def test_a_port_that_is_taken_is_told_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} is taken by another program; choose one with"):
            sluicegate.run(sluicegate.Server("x"), http=True, port=port)
