"""Clients on a Unix socket are answered."""

import asyncio
import socket
from pathlib import Path

import pytest

from sluicegate.downstream.unix_socket import serve_socket
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Reply, Result
from sluicegate.runtime import byte_channel


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
