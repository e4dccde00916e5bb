"""The fault proxy does what it says: otherwise the tests that lean on it prove nothing."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from tests.faults.proxy import Block, Cut, Drip, FaultProxy, Latency, Reset, Stall, Toxic, fault_proxy

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def echoed() -> AsyncGenerator[tuple[FaultProxy, Ends]]:
    """A proxy in front of a server that repeats what it hears, and a client's connection through it."""

    async def repeat(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while data := await reader.read(1000):
                writer.write(data)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(repeat, "127.0.0.1", 0)
    try:
        async with asyncio.timeout(10), fault_proxy(*server.sockets[0].getsockname()) as proxy:
            reader, writer = await asyncio.open_connection(proxy.host, proxy.port)
            try:
                yield proxy, (reader, writer)
            finally:
                writer.transport.abort()
    finally:
        server.close()


async def test_everything_passes_by_default() -> None:
    async with echoed() as (proxy, (reader, writer)):
        writer.write(b"x" * 200_000)
        assert await reader.readexactly(200_000) == b"x" * 200_000
        assert proxy.accepted == 1 and proxy.passed == {"up": 200_000, "down": 200_000} and not proxy.struck
        writer.write_eof()
        assert await reader.read() == b""
        await proxy.wait_clients(0)


async def test_a_reset_comes_at_its_byte() -> None:
    async with echoed() as (proxy, (reader, writer)):
        proxy.down = Reset(after=7)
        writer.write(b"0123456789")
        assert await reader.readexactly(7) == b"0123456"
        with pytest.raises(ConnectionResetError):
            await reader.read()
        await proxy.wait_struck()


async def test_a_cut_is_an_orderly_end_at_its_byte() -> None:
    async with echoed() as (proxy, (reader, writer)):
        proxy.down = Cut(after=3)
        writer.write(b"0123456789")
        assert await reader.read() == b"012"
        await proxy.wait_servers(0)


async def test_bytes_count_from_when_the_toxic_is_set() -> None:
    async with echoed() as (proxy, (reader, writer)):
        writer.write(b"before")
        assert await reader.readexactly(6) == b"before"
        proxy.down = Cut(after=3)
        writer.write(b"behind")
        assert await reader.read() == b"beh"


async def test_a_toxic_may_wait_for_what_the_client_says() -> None:
    async with echoed() as (proxy, (reader, writer)):
        writer.write(b"call")
        assert await reader.readexactly(4) == b"call"
        proxy.down = Cut(seen=b"call")
        writer.write(b"list")
        assert await reader.readexactly(4) == b"list"
        writer.write(b"ca")
        assert await reader.readexactly(2) == b"ca"
        writer.write(b"ll")
        assert await reader.read() == b""


async def test_half_open_is_silence_and_neither_side_learns_of_it() -> None:
    async with echoed() as (proxy, (reader, writer)):
        proxy.down = Stall(after=2)
        writer.write(b"0123")
        assert await reader.readexactly(2) == b"01"
        await proxy.wait_struck()
        proxy.heal()
        writer.write(b"lost")
        writer.close()
        await proxy.wait_clients(0)
        await proxy.wait_servers(1)
        assert proxy.passed["down"] == 2


async def test_a_blocked_direction_goes_on_when_it_is_healed() -> None:
    async with echoed() as (proxy, (reader, writer)):
        proxy.up = Block(after=1)
        writer.write(b"0123")
        assert await reader.readexactly(1) == b"0"
        await proxy.wait_struck()
        proxy.heal()
        assert await reader.readexactly(3) == b"123"


@pytest.mark.parametrize("toxic", [Drip(size=2, every=0.001, after=1), Latency(0.001)])
async def test_slow_bytes_arrive(toxic: Toxic) -> None:
    async with echoed() as (proxy, (reader, writer)):
        proxy.down = toxic
        writer.write(b"0123456789")
        assert await reader.readexactly(10) == b"0123456789"


async def test_a_refusing_proxy_accepts_again_at_the_same_port() -> None:
    async with echoed() as (proxy, _):
        port = proxy.port
        proxy.refuse()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(proxy.host, port)
        await proxy.accept()
        _, writer = await asyncio.open_connection(proxy.host, port)
        await proxy.wait_clients(2)
        proxy.reset()
        await proxy.wait_clients(0)
        writer.close()
