"""Clients that come, leave or are refused are on record, and so is what people do to the gateway."""

import json
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing, asynccontextmanager
from typing import Any

import pytest

from sluicegate import Caller, Refusal
from sluicegate.control.operations import Operations
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.gateway.gateway import Gateway
from sluicegate.http1 import serve
from sluicegate.runtime import clients
from sluicegate.runtime.clients import Clients
from sluicegate.runtime.identity import Identity, IncomingRequest
from sluicegate.store.base import Row
from sluicegate.store.memory import MemoryAudit
from tests.downstream.http_client import BOTH, HttpClient
from tests.downstream.raw_client import Json, modern, raw_client
from tests.test_refusals_in_audit import recorded

MODERN: dict[str, Any] = {"io.modelcontextprotocol/clientInfo": {"name": "agent", "version": "3"}}
JSON = ("Content-Type", "application/json"), ("Accept", BOTH)
CALL: Json = {"name": "demo__echo", "arguments": {"text": "x"}}


def rows(audit: MemoryAudit, kind: str) -> list[tuple[str, str, dict[str, Any]]]:
    return [(row.verdict, row.caller, json.loads(row.body)) for row in audit.rows if row.kind == kind]


def sessions(audit: MemoryAudit) -> list[tuple[str, str, str, str, str]]:
    found = [(row, json.loads(row.body)) for row in audit.rows if row.kind == "session"]
    return [(row.verdict, row.name, body["revision"], body["era"], body["transport"]) for row, body in found]


def shown(gateway: Gateway) -> list[tuple[str, str]]:
    return [(each.name, each.transport) for each in gateway.clients.list()]


async def only_ada(request: IncomingRequest) -> Identity:
    return Caller("ada") if request.headers.get("authorization") == "ada" else Refusal(401, "bad_key", "Sign in.")


@asynccontextmanager
async def over_http(gateway: Gateway) -> AsyncGenerator[HttpClient]:
    async with HttpEndpoint(gateway.handler(), identify=only_ada) as endpoint, serve(endpoint) as listener:
        client = HttpClient(endpoint, listener)
        async with aclosing(client):
            yield client


async def post(client: HttpClient, message: Json, *headers: tuple[str, str]) -> tuple[int, dict[str, str]]:
    answer = await client.open("POST", "/mcp", [*JSON, *headers], json.dumps({"jsonrpc": "2.0", **message}).encode())
    await answer.body()
    return answer.status, answer.headers


ADA = ("Authorization", "ada")


async def test_a_session_over_http_is_on_record_from_its_handshake_to_its_end(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "sluicegate.clients")
    async with recorded() as (gateway, audit), over_http(gateway) as client:
        info = {"name": "cur\x1bsor", "version": "1.2"}
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
        status, headers = await post(client, {"id": 1, "method": "initialize", "params": params}, ADA)
        assert status == 200 and shown(gateway) == [("cur\x1bsor", "http")]
        await client.open("DELETE", "/mcp", [ADA, ("Mcp-Session-Id", headers["mcp-session-id"])])
        assert shown(gateway) == []
    described = ("cur\x1bsor", "2025-06-18", "session", "http")
    assert sessions(audit) == [("connected", *described), ("left", *described)]
    assert [caller for _, caller, _ in rows(audit, "session")] == ["ada", "ada"]
    connected = next(record for record in caplog.records if "has connected" in record.getMessage())
    assert connected.levelno == logging.INFO and "1.2 (2025-06-18, http, caller ada)" in connected.getMessage()
    assert "\x1b" not in connected.getMessage()


async def test_a_client_without_a_connection_comes_with_its_first_request(monkeypatch: pytest.MonkeyPatch) -> None:
    call: Json = {"id": 1, "method": "tools/call", "params": modern(CALL, **MODERN)}
    named = ("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call"), ("Mcp-Name", "demo__echo")
    async with recorded() as (gateway, audit), over_http(gateway) as client:
        for _ in range(3):
            assert (await post(client, call, ADA, *named))[0] == 200
        assert shown(gateway) == [("agent", "http")] and len(rows(audit, "session")) == 1
        monkeypatch.setattr(clients, "IDLE", -1.0)
        assert shown(gateway) == []
    described = ("agent", "2026-07-28", "modern", "http")
    assert sessions(audit) == [("connected", *described), ("left", *described)]


async def test_clients_on_a_pipe_come_in_their_era_and_leave_with_it() -> None:
    async with recorded() as (gateway, audit):
        async with raw_client(gateway.handler()) as client:
            await client.initialize()
            assert shown(gateway) == [("raw", "stdio")]
        async with raw_client(gateway.handler()) as client:
            for number in range(2):
                await client.request(number, "tools/call", modern(CALL, **MODERN))
    assert sessions(audit) == [
        ("connected", "raw", "2025-11-25", "session", "stdio"),
        ("left", "raw", "2025-11-25", "session", "stdio"),
        ("connected", "agent", "2026-07-28", "modern", "stdio"),
        ("left", "agent", "2026-07-28", "modern", "stdio"),
    ]


async def test_a_gateway_that_stops_records_that_its_clients_leave() -> None:
    async with recorded() as (gateway, audit):
        gateway.clients.connected_stateless(("ada", "2026-07-28", "agent", "3"))
    assert [row[0] for row in sessions(audit)] == ["connected", "left"]


def test_clients_without_a_connection_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_STATELESS", 10)
    noted: list[Row] = []
    known = Clients(noted.append)
    for number in range(100):
        known.connected_stateless(("ada", "2026-07-28", f"agent{number}", "3"))
    assert len(known.stateless) == len(known.list()) == 10 and known.list()[-1].name == "agent99"
    assert len(noted) == 190


@pytest.mark.parametrize("member", ["name", "version"])
async def test_a_long_name_or_version_is_cut_before_it_is_remembered(member: str) -> None:
    named = ("MCP-Protocol-Version", "2026-07-28"), ("Mcp-Method", "tools/call"), ("Mcp-Name", "demo__echo")
    async with recorded() as (gateway, audit), over_http(gateway) as client:
        for end in "ab":
            info: Json = {"name": "agent", "version": "3", member: "x" * 100_000 + end}
            params = modern(CALL, **{"io.modelcontextprotocol/clientInfo": info})
            assert (await post(client, {"id": 1, "method": "tools/call", "params": params}, ADA, *named))[0] == 200
        ((_, _, name, version),) = gateway.clients.stateless
    assert {"name": name, "version": version}[member] == "x" * 200
    assert [verdict for verdict, _, _ in rows(audit, "session")] == ["connected", "left"]


def test_a_flood_of_new_clients_does_not_fill_the_log(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO, "sluicegate.clients")
    minutes = 1
    monkeypatch.setattr(clients.time, "monotonic", lambda: minutes * 60.0)
    known = Clients(lambda row: None)
    for number in range(500):
        known.connected_stateless(("ada", "2026-07-28", f"agent{number}", "3"))
    assert len(caplog.records) == clients.LOG_LINES + 1 and "More clients" in caplog.messages[-1]
    minutes += 1
    known.connected_stateless(("ada", "2026-07-28", "late", "3"))
    assert "late 3" in caplog.messages[-1]


async def test_refused_credentials_are_no_other_refusal() -> None:
    async with recorded() as (gateway, audit), over_http(gateway) as client:
        assert (await post(client, {"id": 1, "method": "ping"}, ("Authorization", "eve-secret")))[0] == 401
    ((verdict, caller, body),) = rows(audit, "auth_fail")
    assert (verdict, caller, body) == ("bad_key", "", {"source": "127.0.0.1"})
    assert rows(audit, "reject") == [] and "eve-secret" not in str(audit.rows)


@pytest.mark.parametrize("era", ["session", "modern"])
@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_t3_a_call_without_an_id_is_on_record_and_does_not_run(era: str, transport: str) -> None:
    params = modern(CALL, **MODERN) if era == "modern" else CALL
    message: Json = {"method": "tools/call", "params": params}
    async with recorded() as (gateway, audit):
        if transport == "stdio":
            async with raw_client(gateway.handler()) as raw:
                await raw.initialize()
                raw.send(**message)
                await raw.nothing_more()
        else:
            async with over_http(gateway) as client:
                opening: Json = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {}}
                _, headers = await post(client, {"id": 1, "method": "initialize", "params": opening}, ADA)
                session = ("Mcp-Session-Id", headers["mcp-session-id"])
                mine = ("MCP-Protocol-Version", "2026-07-28") if era == "modern" else session
                assert (await post(client, message, ADA, mine))[0] == 202
    ((verdict, _, body),) = rows(audit, "reject")
    assert (verdict, body) == ("without_id", {"method": "tools/call", "name": "demo__echo"})
    assert rows(audit, "decision") == []


async def test_changes_by_people_are_on_record_with_their_names() -> None:
    async def reload() -> list[str]:
        return []

    async with recorded() as (gateway, audit):
        operations = Operations(gateway, reload)
        operations.restart("demo", by="ada")
        operations.clear_counts(by="cyd")
        await operations.reload(by="bob")
        assert not await operations.revoke_grant("none", by="eve"), "nothing has changed"
    changes = [(verdict, caller) for verdict, caller, _ in rows(audit, "admin")]
    assert changes == [("restart", "ada"), ("clear_counts", "cyd"), ("reload", "bob")]
