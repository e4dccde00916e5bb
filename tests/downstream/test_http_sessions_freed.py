"""Ended sessions and connections are freed at once, without the garbage collector (T4)."""

import asyncio
import gc
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sluicegate.downstream.duplex import DuplexServer
from sluicegate.downstream.http_session import HttpSession
from sluicegate.downstream.unix_socket import serve_socket
from sluicegate.http1.server_connection import HttpConnection
from sluicegate.runtime.unix_socket import SocketWire
from tests.downstream.http_client import HttpClient, Session, http_client
from tests.downstream.http_stage import Stage, call
from tests.downstream.test_legacy_sse import connect

PATIENCE = 10.0


@contextmanager
def without_collector() -> Generator[Callable[..., Awaitable[None]]]:
    """Gives a function that waits until no more objects of some types are alive than before."""
    kinds = (HttpSession, DuplexServer, HttpConnection, SocketWire)

    def count() -> list[int]:
        found: list[object] = [type(each) for each in gc.get_objects()]
        return [found.count(kind) for kind in kinds]

    async def all_freed() -> None:
        async with asyncio.timeout(PATIENCE):
            while any(now > then for now, then in zip(count(), before, strict=True)):  # noqa: ASYNC110 - no event
                await asyncio.sleep(0)

    gc.collect()
    before = count()
    gc.disable()
    try:
        yield all_freed
    finally:
        gc.enable()


async def plain(session: Session) -> None:
    pass


async def called(session: Session) -> None:
    await (await session.request(1, "tools/call", call("echo", text="a"))).body()


async def with_progress(session: Session) -> None:
    await (await session.request(1, "tools/call", {**call("count", to=3), "_meta": {"progressToken": 1}})).body()


async def refused(session: Session) -> None:
    await (await session.request(1, "tools/call", call("nowhere"))).body()


async def listening(session: Session) -> None:
    await session.listen()


async def subscribed(session: Session) -> None:
    await (await session.request(1, "resources/subscribe", {"uri": "note://a"})).body()


async def asked(session: Session) -> None:
    answer = await session.request(1, "tools/call", call("greet"))
    while (await answer.event()).data == "":
        pass


@pytest.mark.parametrize("use", [plain, called, with_progress, refused, listening, subscribed, asked])
async def test_a_session_is_freed_when_it_ends(use: Callable[[Session], Awaitable[None]]) -> None:
    async with http_client(Stage().server) as client:
        await use_and_end(client, use)  # What is made once is there now.
        with without_collector() as all_freed:
            for _ in range(3):
                await use_and_end(client, use)
            await client.aclose()
            await all_freed()


async def use_and_end(client: HttpClient, use: Callable[[Session], Awaitable[None]]) -> None:
    session = await client.initialize(elicitation={})
    await use(session)
    assert (await session.delete()).status == 204


async def test_a_channel_of_http_sse_is_freed_when_its_stream_is_closed() -> None:
    async with http_client(Stage().server) as client:
        with without_collector() as all_freed:
            for _ in range(3):
                channel = await connect(client)
                await channel.initialize()
                await channel.request(1, "tools/call", call("echo", text="a"))
                channel.stream.hang_up()
            await client.aclose()
            await all_freed()


async def test_a_connection_to_a_socket_is_freed_when_it_is_closed(tmp_path: Path) -> None:
    path = str(tmp_path / "run" / "gateway.sock")
    async with serve_socket(Stage().server, path):
        with without_collector() as all_freed:
            for _ in range(3):
                reader, writer = await asyncio.open_unix_connection(path)
                writer.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
                await reader.readline()
                writer.close()
                await writer.wait_closed()
            await all_freed()
