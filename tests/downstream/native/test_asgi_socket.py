"""Native clients on a WebSocket of an ASGI server: uvicorn, and one of ours that keeps messages as long as it likes."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvicorn
from websockets.asyncio.client import connect
from websockets.exceptions import InvalidStatus

import sluicegate
from sluicegate.runtime.task_scope import TaskScope
from tests.downstream.native.native_stage import Json, Stage
from tests.downstream.native.test_peer import START, STREAMS
from tests.downstream.native.test_websocket import answer_to, closed_with, events, receive, send


class Uvicorn(uvicorn.Server):
    """A server with an event for the end of its start."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_listening.set()


@asynccontextmanager
async def served(app: sluicegate.AsgiApp) -> AsyncGenerator[str]:
    """The URL of an app in uvicorn."""
    config = uvicorn.Config(app, port=0, log_level="critical", ws="websockets-sansio", lifespan="on")
    server = Uvicorn(config)
    async with TaskScope() as tasks:
        tasks.start(server.serve())
        async with asyncio.timeout(10):
            await server.is_listening.wait()
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"ws://127.0.0.1:{port}/native"
        server.should_exit = True


async def test_uvicorn_serves_native_clients() -> None:
    stage = Stage()
    async with served(sluicegate.AsgiApp(stage.server)) as url:
        async with connect(url, close_timeout=0.1) as socket:
            for method, expected in STREAMS.items():
                assert await events(socket, method) == [START, *expected]
            await send(socket, "act.count", {"to": 1 << 40})
            subscription = (await receive(socket))["result"]
            await send(socket, "unsubscribe", [subscription], id=2)
            assert (await answer_to(socket, 2))["result"] is True
            assert stage.closed.is_set()
            await socket.send(b"binary")
            assert await closed_with(socket) == 1003


@pytest.mark.parametrize(("path", "origin", "status"), [("", "https://evil.example", 403), ("/elsewhere", None, 404)])
async def test_foreign_pages_and_other_paths_are_refused(path: str, origin: Any, status: int) -> None:
    async with served(sluicegate.AsgiApp(Stage().server)) as url:
        with pytest.raises(InvalidStatus) as refusal:
            await connect(url + path, origin=origin)
        assert refusal.value.response.status_code == status


class Socket:
    """An ASGI server with one WebSocket, which takes messages one by one."""

    def __init__(self, **headers: str) -> None:
        fields = [(name.encode(), value.encode()) for name, value in {"host": "localhost", **headers}.items()]
        self.scope: Mapping[str, Any] = {"type": "websocket", "path": "/native", "headers": fields}
        self.incoming: asyncio.Queue[Mapping[str, Any]] = asyncio.Queue()
        self.outgoing: asyncio.Queue[dict[str, Any]] = asyncio.Queue(maxsize=1)
        self.incoming.put_nowait({"type": "websocket.connect"})

    def say(self, text: str) -> None:
        self.incoming.put_nowait({"type": "websocket.receive", "text": text})

    async def next(self) -> Json:
        async with asyncio.timeout(10):
            return await self.outgoing.get()


@asynccontextmanager
async def socket_of(app: sluicegate.AsgiApp) -> AsyncGenerator[Socket]:
    socket = Socket()
    async with app, TaskScope() as tasks:

        async def serve() -> None:
            await app(socket.scope, socket.incoming.get, socket.outgoing.put)

        tasks.start(serve())
        assert await socket.next() == {"type": "websocket.accept"}
        yield socket
        tasks.cancel_all()


COUNT = '{"jsonrpc":"2.0","id":1,"method":"act.count","params":[1000000000]}'


async def test_a_reader_that_stops_stops_the_generator() -> None:
    stage = Stage()
    async with socket_of(sluicegate.AsgiApp(stage.server)) as socket:
        socket.say(COUNT)
        async with asyncio.timeout(10):
            await stage.started.wait()
        said = -1
        while said != stage.said:
            said = stage.said
            for _ in range(100):
                await asyncio.sleep(0)
        assert 0 < said <= 64


async def test_a_client_that_leaves_closes_its_streams() -> None:
    stage = Stage()
    async with socket_of(sluicegate.AsgiApp(stage.server)) as socket:
        socket.say(COUNT)
        await socket.next()
        socket.incoming.put_nowait({"type": "websocket.disconnect", "code": 1000})
        async with asyncio.timeout(10):
            await stage.closed.wait()


async def test_a_message_that_is_too_large_closes_the_socket() -> None:
    async with socket_of(sluicegate.AsgiApp(Stage().server)) as socket:
        socket.say(" " * (4 * 1024 * 1024 + 1))
        assert (await socket.next())["code"] == 1009


async def test_stopping_closes_idle_sockets() -> None:
    app = sluicegate.AsgiApp(Stage().server)
    async with socket_of(app) as socket:
        app.stop_taking()
        assert (await socket.next())["code"] == 1001


async def test_a_socket_too_many_is_refused() -> None:
    app = sluicegate.AsgiApp(Stage().server, caller=lambda scope: sluicegate.Caller("one"))
    async with socket_of(app):
        refused = [Socket() for _ in range(60)]
        async with TaskScope() as tasks:

            async def serve(socket: Socket) -> None:
                await app(socket.scope, socket.incoming.get, socket.outgoing.put)

            for socket in refused:
                tasks.start(serve(socket))
            first = [(await socket.next())["type"] for socket in refused]
            assert first == ["websocket.accept"] * 49 + ["websocket.close"] * 11
            tasks.cancel_all()
