"""Native clients on a WebSocket: what they see, and what they may not do."""

import asyncio
import json
import tracemalloc
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any, cast

import pytest
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus
from websockets.frames import Opcode

from sluicegate.downstream.http_guard import HttpLimits
from sluicegate.gate.admission import Admission
from sluicegate.http1 import Limits
from tests.downstream.http_client import HttpClient, http_client
from tests.downstream.native.native_stage import Json, Stage
from tests.downstream.native.test_peer import START, STREAMS
from tests.downstream.raw_client import standstill

HANDSHAKE = (
    ("Connection", "Upgrade"),
    ("Upgrade", "websocket"),
    ("Sec-WebSocket-Version", "13"),
    ("Sec-WebSocket-Key", "dGhlIHNhbXBsZSBub25jZQ=="),
)


@asynccontextmanager
async def socket_to(client: HttpClient, **options: Any) -> AsyncGenerator[ClientConnection]:
    # Some tests leave events unread, behind which the answer to the close frame waits.
    options = {"compression": None, "close_timeout": 0.1, **options}
    async with connect(f"ws://{client.host}/native", **options) as socket:
        yield socket


async def send(socket: ClientConnection, method: str, params: object = None, id: object = 1) -> None:
    await socket.send(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}))


async def receive(socket: ClientConnection) -> Json:
    async with asyncio.timeout(10):
        return cast(Json, json.loads(await socket.recv()))


async def answer_to(socket: ClientConnection, id: object) -> Json:
    while (message := await receive(socket)).get("id") != id:
        continue
    return message


async def events(socket: ClientConnection, method: str, params: object = None) -> list[Json]:
    await send(socket, method, params)
    subscription = (await receive(socket))["result"]
    found: list[Json] = []
    while not found or found[-1]["type"] not in ("complete", "error"):
        message = await receive(socket)
        assert (message["method"], message["params"]["subscription"]) == (method, subscription)
        found.append(message["params"]["result"])
    return found


async def closed_with(socket: ClientConnection) -> int:
    """The code with which the server closes, after whatever it sent before."""
    with suppress(ConnectionClosed):
        async with asyncio.timeout(10):
            while True:
                await socket.recv()
    assert socket.close_code is not None
    return socket.close_code


async def test_events_come_as_messages() -> None:
    async with http_client(Stage().server) as client, socket_to(client) as socket:
        for method, expected in STREAMS.items():
            assert await events(socket, method) == [START, *expected]


async def test_ten_thousand_events_arrive_in_order() -> None:
    async with http_client(Stage().server) as client, socket_to(client) as socket:
        found = await events(socket, "act.count", {"to": 10_000})
        assert [each["data"] for each in found[1:-1]] == list(range(1, 10_001))


@pytest.mark.parametrize("way", ["unsubscribe", "act.count_unsub"])
async def test_unsubscribing_closes_the_generator_before_it_is_answered(way: str) -> None:
    stage = Stage()
    async with http_client(stage.server) as client, socket_to(client) as socket:
        await send(socket, "act.count", {"to": 1 << 40})
        subscription = (await receive(socket))["result"]
        await send(socket, way, [subscription], id=2)
        assert (await answer_to(socket, 2))["result"] is True
        assert stage.closed.is_set()


async def test_a_closed_socket_closes_its_streams() -> None:
    stage = Stage()
    async with http_client(stage.server) as client:
        async with socket_to(client) as socket:
            await send(socket, "act.count", {"to": 1 << 40})
            await receive(socket)
        async with asyncio.timeout(10):
            await stage.closed.wait()
        await client.all_closed()


@pytest.mark.parametrize("way", ["reset", "end"])
async def test_a_client_that_goes_away_without_a_word_closes_its_streams(way: str) -> None:
    stage = Stage()
    async with http_client(stage.server) as client, socket_to(client) as socket:
        await send(socket, "act.count", {"to": 1 << 40})
        await receive(socket)
        transport = socket.transport
        transport.abort() if way == "reset" else transport.write_eof()
        async with asyncio.timeout(10):
            await stage.closed.wait()
        await client.all_closed()


async def test_a_reader_that_stops_stops_the_generator_and_goes_on_later() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, socket_to(client, max_queue=1) as socket:
        await send(socket, "act.count", {"to": 5000, "size": 4096})
        async with asyncio.timeout(10):
            await stage.started.wait()
        said = await standstill(lambda: stage.said)
        assert 0 < said < 5000
        # What waits in this process is little: the rest is in the buffers of the system.
        (connection,) = client.listener.connections
        assert connection.unsent < 64 * 5000
        numbers: list[int] = []
        while (message := await receive(socket)).get("params", {}).get("result") != {"type": "complete"}:
            event = message.get("params", {}).get("result", {})
            numbers += [event["data"]["n"]] if event.get("type") == "data" else []
        assert numbers == list(range(1, 5001))


async def test_a_reader_that_reads_nothing_is_cut_off() -> None:
    stage = Stage()
    limits = Limits(blocked_time=0.2)
    async with http_client(stage.server, limits=limits) as client, socket_to(client, max_queue=1) as socket:
        await send(socket, "act.count", {"to": 1 << 40, "size": 4096})
        async with asyncio.timeout(20):
            await stage.closed.wait()


# ------------------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ([*HANDSHAKE, ("Origin", "https://evil.example")], 403),
        ([*HANDSHAKE, ("Host", "evil.example")], 421),
        ([], 426),
        ([("Connection", "Upgrade"), ("Upgrade", "h2c")], 426),
        (HANDSHAKE[:-1], 400),
        ([*HANDSHAKE[:-1], ("Sec-WebSocket-Key", "short")], 400),
        ([*HANDSHAKE[:2], ("Sec-WebSocket-Version", "8"), HANDSHAKE[3]], 400),
        (HANDSHAKE, 101),
    ],
)
async def test_a_handshake_is_checked_as_every_request_is(headers: Sequence[tuple[str, str]], status: int) -> None:
    async with http_client(Stage().server) as client:
        assert (await client.open("GET", "/native", headers)).status == status


async def test_other_methods_are_not_allowed() -> None:
    async with http_client(Stage().server) as client:
        answer = await client.post({}, path="/native")
        assert (answer.status, answer.headers["allow"]) == (405, "GET")


async def test_sockets_count_as_streams_of_their_caller_until_they_are_closed() -> None:
    limits = HttpLimits(streams_of_one=1)
    async with http_client(Stage().server, places=limits) as client:
        async with socket_to(client):
            with pytest.raises(InvalidStatus) as refusal:
                await connect(f"ws://{client.host}/native")
            assert refusal.value.response.status_code == 429
        await client.all_closed()
        async with socket_to(client) as socket:
            assert (await events(socket, "act.facts"))[-1]["type"] == "complete"


async def test_binary_messages_are_refused() -> None:
    async with http_client(Stage().server) as client, socket_to(client) as socket:
        await socket.send(b'{"jsonrpc":"2.0","id":1,"method":"act.facts"}')
        assert await closed_with(socket) == 1003


@pytest.mark.parametrize("before", [0, 4])
async def test_messages_beyond_four_mebibytes_are_refused(before: int) -> None:
    async with http_client(Stage().server) as client:
        writer, reader = await client.send("GET", "/native", HANDSHAKE)
        async with asyncio.timeout(10):
            await reader.readuntil(b"\r\n\r\n")
            size = 1024 * 1024 if before else 4 * 1024 * 1024 + 1
            for place in range(before):
                head = bytes([0 if place else Opcode.TEXT, 0xFF]) + size.to_bytes(8, "big") + bytes(4)
                writer.write(head + b" " * size)
            # Refused by its head: the payload need not come.
            writer.write(bytes([0x80 | (0 if before else Opcode.TEXT), 0xFF]) + size.to_bytes(8, "big") + bytes(4))
            close = await reader.readexactly(4)
        assert (close[0], int.from_bytes(close[2:], "big")) == (0x80 | Opcode.CLOSE, 1009)


async def test_a_message_of_nearly_four_mebibytes_is_taken() -> None:
    async with http_client(Stage().server) as client, socket_to(client) as socket:
        await send(socket, "act.facts", {"x": "y" * (4 * 1024 * 1024 - 1000)})
        assert (await answer_to(socket, 1))["error"]["code"] == -32602
        assert (await events(socket, "act.facts"))[-1] == {"type": "complete", "moons": 2}


async def test_a_message_may_come_in_many_frames_and_each_byte_alone() -> None:
    async with http_client(Stage().server) as client, socket_to(client) as socket:
        text = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "act.facts"})
        await socket.send([text[:5], text[5:6], text[6:]])
        assert (await receive(socket))["result"] == 1
        protocol = socket.protocol
        protocol.send_text(text.encode())
        for byte in b"".join(protocol.data_to_send()):
            socket.transport.write(bytes([byte]))
            await asyncio.sleep(0)
        assert (await answer_to(socket, 1))["result"] == 2


async def test_a_message_in_tiny_frames_takes_no_more_memory_than_its_text() -> None:
    async with http_client(Stage().server) as client, socket_to(client) as socket:
        socket.transport.write(b"\x01\x80\x00\x00\x00\x00")
        tracemalloc.start()
        try:
            for _ in range(5):
                socket.transport.write(b"\x00\x81\x00\x00\x00\x00 " * 10_000)
                await (await socket.ping())  # Answered once all of it is read.
            grown, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert grown < 500_000


@pytest.mark.parametrize(
    ("data", "code"),
    [
        (b"\x81\x02hi", 1002),  # Not masked.
        (b"\xf1\x82\x00\x00\x00\x00hi", 1002),  # Reserved bits.
        (b"\x80\x82\x00\x00\x00\x00hi", 1002),  # A continuation of nothing.
        (b"\x83\x80\x00\x00\x00\x00", 1002),  # An unknown kind of frame.
        (b"GET / HTTP/1.1\r\n\r\n", 1002),
    ],
)
async def test_garbage_closes_the_socket(data: bytes, code: int) -> None:
    async with http_client(Stage().server) as client, socket_to(client) as socket:
        socket.transport.write(data)
        assert await closed_with(socket) == code
        await client.all_closed()


async def test_text_that_is_not_json_is_answered_with_an_error() -> None:
    async with http_client(Stage().server) as client, socket_to(client) as socket:
        await socket.send("garbage")
        assert (await receive(socket))["error"]["code"] == -32700
        assert (await events(socket, "act.facts"))[-1]["type"] == "complete"


async def test_a_flood_of_requests_that_are_not_read_is_not_read_either() -> None:
    limits = Limits(unsent=4096)
    async with http_client(Stage().server, limits=limits) as client:
        writer, reader = await client.send("GET", "/native", HANDSHAKE)
        await reader.readuntil(b"\r\n\r\n")
        frame = b"\x81\xfe\x01\x00\x00\x00\x00\x00" + b"[" * 256
        cast(Any, reader)._transport.pause_reading()
        (connection,) = client.listener.connections
        async with asyncio.timeout(30):
            while writer.transport.get_write_buffer_size() < 8 * 1024 * 1024:
                writer.write(frame * 100)
                await asyncio.sleep(0)
                assert connection.unsent < 4 * 1024 * 1024


async def test_pings_are_answered_and_come_at_intervals(monkeypatch: pytest.MonkeyPatch) -> None:
    from sluicegate.downstream.native import websocket

    monkeypatch.setattr(websocket, "PING", 0.1)
    async with http_client(Stage().server) as client:
        writer, reader = await client.send("GET", "/native", HANDSHAKE)
        async with asyncio.timeout(10):
            await reader.readuntil(b"\r\n\r\n")
            assert await reader.readexactly(4) == bytes([0x80 | Opcode.PING, 0]) * 2
            assert await reader.read() == b""  # It has answered none.
        async with socket_to(client) as socket:
            await (await socket.ping())
        writer.close()


async def test_stopping_closes_idle_sockets_and_lets_streams_end() -> None:
    stage = Stage()
    async with http_client(stage.server) as client, socket_to(client) as idle, socket_to(client) as busy:
        assert (await events(idle, "act.facts"))[-1]["type"] == "complete"
        await send(busy, "act.greet")
        await receive(busy)
        await receive(busy)
        asked = (await receive(busy))["params"]["result"]
        client.endpoint.stop_taking()
        assert await closed_with(idle) == 1001
        await send(busy, "act.facts", id=2)
        assert asked["type"] == "request"
        client.endpoint.give_up()
        message = await receive(busy)
        assert message["params"]["result"]["type"] == "error"
        assert await closed_with(busy) == 1001


@pytest.mark.soak(short=50, full=1000)
async def test_many_sockets_have_a_stream_each(repeats: int) -> None:
    stage, number = Stage(), repeats
    limits = HttpLimits(streams=number, streams_of_one=number)
    async with http_client(stage.server, places=limits, calls=Admission(number, number)) as client:
        sockets: list[ClientConnection] = []
        try:
            for _ in range(number):
                sockets.append(await connect(f"ws://{client.host}/native", compression=None, ping_interval=None))
            for socket in sockets:
                await send(socket, "act.count", {"to": 20})
            for socket in sockets:
                assert "result" in await receive(socket)
                found: list[Json] = [(await receive(socket))["params"]["result"] for _ in range(22)]
                assert [each["data"] for each in found[1:-1]] == list(range(1, 21))
        finally:
            for socket in sockets:
                socket.transport.abort()
