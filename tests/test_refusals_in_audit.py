"""What is refused before it is decided on is on record, whatever refused it."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from sluicegate.config.model import GatewayConfig, PythonFile, ServerConfig
from sluicegate.errors import ShuttingDown, SluicegateError
from sluicegate.exchange import NOBODY, Exchange
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.governance import Stores
from sluicegate.serve.endpoints import Endpoints
from sluicegate.server import Server
from sluicegate.store.memory import MemoryAudit
from sluicegate.store.memory_decisions import MemoryDecisions
from sluicegate.testing import MemoryUpstream


async def raw_request(port: int, data: bytes) -> bytes:
    """The first bytes of the answer to what is sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(data)
    try:
        return await reader.readuntil(b"\r\n\r\n")
    finally:
        writer.close()


def server() -> MemoryUpstream:
    made = Server("demo")

    @made.tool
    def echo(text: str) -> str:  # pyright: ignore[reportUnusedFunction]
        return text

    return MemoryUpstream(made)


@asynccontextmanager
async def recorded() -> AsyncGenerator[tuple[Gateway, MemoryAudit]]:
    audit = MemoryAudit()
    servers = {"demo": ServerConfig(name="demo", key="demo", source=PythonFile(file="demo.py"))}
    stores = Stores(audit, MemoryDecisions(), is_recorded=True)
    gateway = Gateway(GatewayConfig(root="/", servers=servers), load_file=lambda file: server(), stores=stores)
    async with asyncio.timeout(10), gateway:
        await gateway.hub.settled()
        yield gateway, audit


def rejects(audit: MemoryAudit) -> list[tuple[str, dict[str, object]]]:
    return [(row.verdict, json.loads(row.body)) for row in audit.rows if row.kind == "reject"]


async def test_an_unknown_tool_is_on_record() -> None:
    async with recorded() as (gateway, audit):
        try:
            await gateway.handler()(Exchange("tools/call", {"name": "demo__none", "arguments": {}}, NOBODY))
        except SluicegateError:
            pass
    assert rejects(audit) == [("invalid_params", {"method": "tools/call", "code": -32602, "name": "demo__none"})]


async def test_r29_a_call_that_comes_while_the_gateway_stops_is_on_record_once() -> None:
    async with recorded() as (gateway, audit):
        gateway.admission.stop()
        with pytest.raises(ShuttingDown):
            await gateway.handler()(Exchange("tools/call", {"name": "demo__echo", "arguments": {"text": "x"}}, NOBODY))
    assert rejects(audit) == [("shutting_down", {"method": "tools/call", "code": 1031, "name": "demo__echo"})]


async def test_a_call_that_ran_is_no_refusal() -> None:
    async with recorded() as (gateway, audit):
        params: dict[str, object] = {"name": "demo__echo", "arguments": {"text": "x"}}
        await gateway.handler()(Exchange("tools/call", params, NOBODY))
    assert rejects(audit) == []
    assert [(row.kind, row.verdict) for row in audit.rows if row.server == "demo" and row.request] == [
        ("decision", "allow"),
        ("outcome", "ok"),
    ]


async def test_refusals_of_http_are_recorded_with_the_address_of_the_client() -> None:
    async with recorded() as (gateway, audit), Endpoints(gateway) as endpoints:
        async with endpoints.listen("127.0.0.1", 0) as listener:
            port = listener.addresses[0][1]
            await raw_request(port, b"POST /mcp HTTP/1.1\r\nHost: evil.example\r\nContent-Length: 0\r\n\r\n")
            body = b'{"jsonrpc":"2.0","id":1,"id":2,"method":"ping"}'
            head = b"POST /mcp HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            await raw_request(port, head + b"Accept: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
            await raw_request(port, b"GARBAGE\r\n\r\n")
    found = rejects(audit)
    assert [reason for reason, _ in found] == ["bad_host", "invalid_request", "http_400"]
    assert all("127.0.0.1" in str(body["source"]) for _, body in found)


async def test_readyz_says_that_nothing_can_be_recorded() -> None:
    async with recorded() as (gateway, audit), Endpoints(gateway) as endpoints:
        async with endpoints.listen("127.0.0.1", 0) as listener:
            port, ask = listener.addresses[0][1], b"GET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n"
            assert b" 200 " in await raw_request(port, ask)
            audit.problem = "The disk is full."
            assert b" 503 " in await raw_request(port, ask)
