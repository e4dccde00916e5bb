"""A hub is opened by whoever serves it, unless somebody has."""

import asyncio
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

import sluicegate
from sluicegate.client.in_process import InProcess
from sluicegate.concurrency import TaskScope, forever
from sluicegate.opening import kept_open

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


async def test_an_app_opens_a_hub_and_leaves_one_that_is_open_to_whoever_opened_it() -> None:
    hub = sluicegate.Hub("team")
    async with sluicegate.AsgiApp(hub):
        assert hub.is_open
    assert not hub.is_open
    async with hub:
        async with sluicegate.AsgiApp(hub):
            assert hub.is_open
        assert hub.is_open


class Fragile:
    """A handler that lives until it is told to fail, in a task of its own."""

    def __init__(self, *, opens: bool = True) -> None:
        self.is_open = False
        self.fails = asyncio.Event()
        self._opens = opens
        self._scope = TaskScope()

    async def __aenter__(self) -> "Fragile":
        if not self._opens:
            raise ValueError("it does not open")
        await self._scope.__aenter__()
        self._scope.start(self._fail())
        self.is_open = True
        return self

    async def __aexit__(self, *error: object) -> None:
        self.is_open = False
        self._scope.cancel_all()
        await self._scope.__aexit__(None, None, None)

    async def _fail(self) -> None:
        await self.fails.wait()
        raise ValueError("it failed")

    async def settled(self) -> None:
        pass

    async def __call__(self, exchange: object) -> Any:
        raise AssertionError


async def test_if_it_fails_all_who_have_it_open_do_and_nobody_who_has_left() -> None:
    handler = Fragile()
    heard: list[str] = []

    async def stay(is_in: asyncio.Event) -> None:
        try:
            async with kept_open(handler):
                is_in.set()
                await forever()
        except* ValueError as problems:
            heard.append(str(problems.exceptions[0]))

    async with asyncio.timeout(10):
        first = kept_open(handler)
        await first.__aenter__()
        async with TaskScope() as tasks:
            for is_in in (asyncio.Event(), asyncio.Event()):
                tasks.start(stay(is_in))
                await is_in.wait()
            await first.__aexit__(None, None, None)
            assert handler.is_open
            handler.fails.set()
    assert len(heard) == 2 and not handler.is_open


async def test_one_that_does_not_open_says_why() -> None:
    async with asyncio.timeout(10):
        for _ in range(2):
            with pytest.raises(ValueError, match="it does not open"):
                async with kept_open(Fragile(opens=False)):
                    raise AssertionError


async def test_a_hub_and_what_stands_for_it_are_opened_as_one() -> None:
    hub = sluicegate.Hub("team")
    async with asyncio.timeout(10):
        first = kept_open(InProcess(hub))
        await first.__aenter__()
        async with kept_open(hub):
            await first.__aexit__(None, None, None)
            assert hub.is_open
        assert not hub.is_open


async def test_whoever_is_cancelled_while_it_closes_leaves_it_closed() -> None:
    closing, closes = asyncio.Event(), asyncio.Event()

    class Slow(Fragile):
        async def __aexit__(self, *error: object) -> None:
            closing.set()
            try:
                await closes.wait()
            finally:
                await super().__aexit__(*error)

    handler = Slow()

    async def visit() -> None:
        async with kept_open(handler):
            pass

    async with asyncio.timeout(10):
        async with TaskScope() as tasks:
            tasks.start(visit())
            await closing.wait()
            tasks.cancel_all()
        assert not handler.is_open
        closes.set()
        async with kept_open(handler):
            assert handler.is_open


def test_a_port_that_is_taken_is_told_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(OSError, match=f"port {port} is taken by another program; choose one with"):
            sluicegate.run(sluicegate.Server("x"), http=True, port=port)
