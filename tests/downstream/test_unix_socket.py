"""Clients on a Unix socket are answered."""

import asyncio
from pathlib import Path

from sluicegate.downstream.unix_socket import serve_socket
from sluicegate.exchange import Exchange
from sluicegate.protocol.message import Reply, Result


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
