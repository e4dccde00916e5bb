"""Clients on a Unix socket are answered."""

import asyncio
import json
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from sluicegate.downstream.unix_socket import serve_socket
from sluicegate.exchange import Exchange, Handler
from sluicegate.protocol.message import Reply, Result
from sluicegate.runtime import byte_channel
from tests.downstream.raw_client import standstill


async def answer(exchange: Exchange) -> Reply:
    return Result({})


async def test_a_client_is_answered_and_the_socket_is_removed_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "run" / "gateway.sock"
    async with asyncio.timeout(10):
        async with serve_socket(answer, str(path)):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n')
            assert b'"result"' in await reader.readline()
            writer.close()
            assert not await reader.read()
    assert not path.exists()


async def test_a_client_that_sends_and_never_reads_is_stopped_then_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R24."""
    monkeypatch.setattr(byte_channel, "BLOCKED_TIME", 0.2)
    path = str(tmp_path / "run" / "gateway.sock")
    pings, sent = b'{"jsonrpc":"2.0","id":1,"method":"ping"}\n' * 1000, 0
    async with asyncio.timeout(30), serve_socket(answer, path):
        with socket.socket(socket.AF_UNIX) as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(client, path)
            with pytest.raises(ConnectionError):
                while sent < 100_000_000:
                    await loop.sock_sendall(client, pings)
                    sent += len(pings)
    assert sent < 5_000_000


async def test_a_client_that_reads_late_gets_every_answer(tmp_path: Path) -> None:
    path = str(tmp_path / "run" / "gateway.sock")
    async with asyncio.timeout(30), serve_socket(answer, path):
        reader, writer = await asyncio.open_unix_connection(path)
        for number in range(50_000):
            writer.write(b'{"jsonrpc":"2.0","id":%d,"method":"ping"}\n' % number)
        for number in range(50_000):
            assert b'"id":%d,' % number in await reader.readline()
        writer.close()


META: dict[str, object] = {
    "io.modelcontextprotocol/protocolVersion": "2026-07-28",
    "io.modelcontextprotocol/clientCapabilities": {},
}
CALL: dict[str, object] = {
    "jsonrpc": "2.0",
    "method": "tools/call",
    "params": {"name": "long", "arguments": {"text": "x" * 10_000}, "_meta": META},
}


async def test_no_requests_are_taken_from_a_client_that_does_not_read_its_answers_t4(tmp_path: Path) -> None:
    taken, requests = 0, 400

    async def answer_at_length(exchange: Exchange) -> Reply:
        nonlocal taken
        taken += 1
        return Result({"content": [{"type": "text", "text": "x" * 100_000}]})

    path = tmp_path / "run" / "gateway.sock"
    async with asyncio.timeout(30), serve_socket(answer_at_length, str(path)):
        reader, writer = await asyncio.open_unix_connection(path, limit=1_000_000)
        # In one write, which the kernel takes in pieces as the other side reads.
        writer.write(b"".join(json.dumps({**CALL, "id": number}).encode() + b"\n" for number in range(requests)))
        assert await standstill(lambda: taken) < requests / 2  # Neither side can go on.
        for _ in range(requests):
            assert b'"result"' in await reader.readline()
        assert taken == requests
        writer.close()


def greeting(handler: Handler) -> Callable[[bytes], tuple[Handler | None, bytes]]:
    return lambda line: (handler, b"come in\n") if line == b"hello\n" else (None, b"no\n")


async def test_the_first_line_of_a_client_selects_its_handler_and_clients_are_counted(tmp_path: Path) -> None:
    async def refuse(exchange: Exchange) -> Reply:
        raise AssertionError("not the handler that was chosen")

    path = str(tmp_path / "run" / "gateway.sock")
    counts: list[int] = []
    async with (
        asyncio.timeout(10),
        serve_socket(refuse, path, greet=greeting(answer), changed=counts.append),
    ):
        reader, writer = await asyncio.open_unix_connection(path)
        writer.write(b"hel")
        await asyncio.sleep(0)
        writer.write(b"lo\n")
        assert await reader.readline() == b"come in\n"
        writer.write(json.dumps({**CALL, "id": 1}).encode() + b"\n")
        assert b'"result"' in await reader.readline()
        assert counts == [1]
        writer.write_eof()
        assert not await reader.read()
        writer.close()
        assert counts == [1, 0]
        for wrong in (b"what?\n", b"x" * 5000):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(wrong)
            assert await reader.read() == b"no\n"
            writer.close()
        assert counts == [1, 0]
