"""Clients that hang up anywhere leave nothing behind, and older ones find their answer when they come back (R20)."""

import asyncio
import random
import socket
from collections.abc import Awaitable, Callable
from typing import NamedTuple, cast

import msgspec
import pytest

from tests.downstream.http_client import Headers, initialize, notification, request
from tests.downstream.http_stage import heard
from tests.downstream.raw_client import Json
from tests.faults.load import RST, LoadServer, call_of, encoded, load_server, raw_post

POINTS = 100
TIMES = 10
EVENTS = "application/json, text/event-stream"


class Seen(NamedTuple):
    """An event that came in whole."""

    id: str
    message: Json


def events_in(raw: bytes) -> list[Seen]:
    """The events of an answer that came in whole; comments are left out, one without data is an empty message."""
    _, _, rest = raw.partition(b"\r\n\r\n")
    body = b""
    while b"\r\n" in rest:
        size, _, rest = rest.partition(b"\r\n")
        body += rest[: int(size, 16)]
        rest = rest[int(size, 16) + 2 :]
    seen: list[Seen] = []
    *blocks, _ = body.split(b"\n\n")
    for block in blocks:
        lines = (line.partition(b": ") for line in block.split(b"\n") if not line.startswith(b":"))
        fields = {name.rstrip(b":"): value for name, _, value in lines}
        if b"data" in fields:
            message = msgspec.json.decode(fields[b"data"], type=Json) if fields[b"data"] else {}
            seen.append(Seen(fields.get(b"id", b"").decode(), message))
    return seen


async def cut_at(server: LoadServer, data: bytes, sent: int, received: int, *, reset: bool) -> bytes:
    """What came before we hung up: after so many bytes of the request, and of the answer if all of it was sent."""
    loop = asyncio.get_running_loop()
    sock = await server.socket()
    raw = b""
    try:
        await loop.sock_sendall(sock, data[:sent])
        async with asyncio.timeout(20):
            while sent >= len(data) and len(raw) < received:
                more = await loop.sock_recv(sock, received - len(raw))
                assert more, raw
                raw += more
    finally:
        if reset:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
        sock.close()
    return raw


async def read_all(server: LoadServer, data: bytes) -> bytes:
    """The whole answer to a request that asks for the connection to be closed behind it."""
    loop = asyncio.get_running_loop()
    sock = await server.socket()
    raw = b""
    try:
        await loop.sock_sendall(sock, data)
        async with asyncio.timeout(20):
            while more := await loop.sock_recv(sock, 1 << 16):
                raw += more
    finally:
        sock.close()
    return raw


async def at_random_points(cut: Callable[[int, bool, int, bool], Awaitable[None]]) -> None:
    """Cut at a hundred points, ten at a time: a fifth of them in the request, the others in the answer."""
    turn = asyncio.Semaphore(10)

    async def one(number: int) -> None:
        async with turn:
            await cut(number, number % 5 == 0, random.randrange(1 << 30), random.random() < 0.5)

    async with asyncio.timeout(50), asyncio.TaskGroup() as group:
        for number in range(POINTS):
            group.create_task(one(number))


async def warm(server: LoadServer) -> tuple[int, int]:
    """Tasks and descriptors once the server has seen its first client."""
    assert (await server.call("echo", text="first")).text == "first"
    server.hang_up()
    census = await server.census()
    return census.tasks, server.descriptors


async def check_nothing_left(server: LoadServer, tasks: int, descriptors: int) -> None:
    assert (await server.call("echo", text="next")).text == "next"
    server.hang_up()
    await server.wait_census(lambda census: census.running == 0 and census.tasks <= tasks)
    await server.wait_descriptors(descriptors)


def told(raw: bytes) -> int:
    """How many bytes of an answer there are up to the last event before the gate; chunks may fall otherwise."""
    return raw.rindex(b'"progress":%d' % TIMES) - 100


async def test_modern_clients_that_hang_up_at_100_points_have_their_calls_cancelled() -> None:
    async with load_server() as server:
        tasks, descriptors = await warm(server)
        data = call_of("tell", {"times": TIMES, "until": "never"}, accept=EVENTS)
        await server.aside("open_gate", name="probe")
        whole = await read_all(
            server, call_of("tell", {"times": TIMES, "until": "probe"}, [("Connection", "close")], accept=EVENTS)
        )
        size = told(whole[: whole.index(b'"progress":%d' % (TIMES + 1))])

        async def cut(number: int, in_request: bool, lot: int, reset: bool) -> None:
            sent = lot % len(data) if in_request else len(data)
            await cut_at(server, data, sent, 1 + lot % size, reset=reset)

        await at_random_points(cut)
        await check_nothing_left(server, tasks, descriptors)
        census = await server.census()
        assert census.finished == 1 and census.cancelled == census.begun - 1 > 0


class Session:
    """A session-era client, as far as these tests need one."""

    def __init__(self, headers: Headers) -> None:
        self.headers = headers

    @staticmethod
    async def open(server: LoadServer, version: str) -> "Session":
        wire = await server.wire()
        opened = await wire.ask(raw_post(encoded(initialize(version))))
        own = [] if version == "2025-03-26" else [("MCP-Protocol-Version", version)]
        session = Session([("Mcp-Session-Id", opened.header("mcp-session-id")), *own])
        started = await wire.ask(raw_post(encoded(notification("notifications/initialized")), session.headers))
        assert started.status == 202
        return session

    def call(self, id: object, until: str) -> bytes:
        body = encoded(request(id, "tools/call", heard("tell", times=TIMES, until=until)))
        return raw_post(body, [*self.headers, ("Connection", "close")], accept=EVENTS)

    def get(self, last_event: str) -> bytes:
        return self._bare("GET", ("Accept", EVENTS), ("Last-Event-ID", last_event))

    def delete(self) -> bytes:
        return self._bare("DELETE")

    def _bare(self, method: str, *headers: tuple[str, str]) -> bytes:
        fields = [("Host", "localhost"), ("Connection", "close"), *self.headers, *headers]
        return "\r\n".join([f"{method} /mcp HTTP/1.1", *(f"{k}: {v}" for k, v in fields), "", ""]).encode()


@pytest.mark.parametrize("version", ["2025-03-26", "2025-11-25"])
async def test_session_clients_that_hang_up_at_100_points_come_back_for_the_rest(version: str) -> None:
    async with load_server() as server:
        tasks, descriptors = await warm(server)
        # A session remembers a thousand events, and all calls together say more.
        sessions = [await Session.open(server, version) for _ in range(5)]
        server.hang_up()
        await server.aside("open_gate", name="probe")
        whole = await read_all(server, sessions[0].call("probe", "probe"))
        size = told(whole[: whole.index(b'"progress":%d' % (TIMES + 1))])
        resumed = 0

        async def cut(number: int, in_request: bool, lot: int, reset: bool) -> None:
            nonlocal resumed
            session, gate = sessions[number % 5], f"gate {number}"
            data = session.call(number, gate)
            sent = lot % len(data) if in_request else len(data)
            seen = events_in(await cut_at(server, data, sent, 1 + lot % size, reset=reset))
            if number % 2:
                await server.aside("open_gate", name=gate)
            if seen:
                async with asyncio.TaskGroup() as group:
                    rest = group.create_task(read_all(server, session.get(seen[-1].id)))
                    if not number % 2:
                        await server.aside("open_gate", name=gate)
                seen += events_in(rest.result())
                *news, last = [event.message for event in seen if event.message]
                assert [cast(Json, new["params"])["progress"] for new in news] == list(range(1, 2 * TIMES + 1))
                assert last["id"] == number and f"told {2 * TIMES}" in str(last["result"])
                assert len({event.id for event in seen}) == len(seen)
                resumed += 1
            else:
                await server.aside("open_gate", name=gate)

        await at_random_points(cut)
        assert resumed > POINTS // 4
        census = await server.wait_census(lambda census: census.running == 0)
        assert census.cancelled == 0, "to hang up is not to cancel"
        for session in sessions:
            assert (await read_all(server, session.delete())).startswith(b"HTTP/1.1 204")
        await check_nothing_left(server, tasks, descriptors)


async def test_clients_of_the_oldest_transport_that_hang_up_have_all_their_calls_cancelled() -> None:
    async with load_server() as server:
        tasks, descriptors = await warm(server)
        loop = asyncio.get_running_loop()
        sockets: list[socket.socket] = []
        for _ in range(20):
            sockets.append(sock := await server.socket())
            await loop.sock_sendall(sock, b"GET /sse HTTP/1.1\r\nHost: localhost\r\nAccept: text/event-stream\r\n\r\n")
            raw = b""
            async with asyncio.timeout(20):
                while b"\n\n" not in raw.partition(b"\r\n\r\n")[2]:
                    raw += await loop.sock_recv(sock, 4096)
            path = raw.partition(b"data: ")[2].split(b"\n")[0].decode()
            params: Json = {"name": "hold", "arguments": {"text": "x", "until": "never"}}
            wire = await server.wire()
            for message in (
                initialize("2024-11-05"),
                notification("notifications/initialized"),
                *(request(id, "tools/call", params) for id in range(5)),
            ):
                assert (await wire.ask(raw_post(encoded(message), path=path))).status == 202
        await server.wait_census(lambda census: census.running == 100)
        for number, sock in enumerate(sockets):
            if number % 2:
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RST)
            sock.close()
        await check_nothing_left(server, tasks, descriptors)
        assert (await server.census()).cancelled == 100
