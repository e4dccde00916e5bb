"""The health activation: every gateway answers it, and lists it only if the configuration names it."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

import sluicegate
from sluicegate import __version__
from sluicegate.bundled.health import Health
from sluicegate.config.load import load
from sluicegate.config.paths import Places
from sluicegate.downstream.native.peer import NativePeer
from sluicegate.gateway.gateway import Gateway
from sluicegate.gateway.loading import load_file
from sluicegate.testing import MemoryUpstream
from tests.bundled.services import services_in
from tests.downstream.raw_client import RawClient, error_of, raw_client


async def test_it_counts_servers_by_state_and_knows_its_age(tmp_path: Path) -> None:
    states = {"ready": 2}
    health = Health(services_in(tmp_path, servers=lambda: states, since=10.0), clock=lambda: 12.5)
    found = await health.check()
    assert (found.status, found.uptime_seconds, found.servers) == ("ok", 2.5, {"ready": 2})
    assert found.version == __version__ and "2025-11-25" in found.revisions
    states["failed"] = 1
    assert (await health.check()).status == "degraded"


@pytest.mark.parametrize(
    ("settings", "listed"), [("", []), ('[activations.health]\nbundled = "health"\n', ["health__check"])]
)
async def test_every_gateway_answers_it_and_lists_it_if_it_is_named(
    tmp_path: Path, settings: str, listed: list[str]
) -> None:
    (tmp_path / "sluicegate.toml").write_text(settings)
    config = load(Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})).config
    assert config is not None
    async with asyncio.timeout(30), Gateway(config, load_file=load_file) as gateway:
        await gateway.hub.settled()
        async with sluicegate.connect(MemoryUpstream(gateway.handler())) as client:
            assert [tool.name for tool in await client.tools()] == listed
            found: Any = (await client.call("health.check")).structured_content
            assert found["status"] == "ok"
            assert found["servers"] == ({"ready": 1} if listed else {})
        async with raw_client(gateway.handler(), kind=NativePeer) as native:
            assert (await native.request(1, "health.check"))["result"] == 1
            began, ended = await _event(native), await _event(native)
            assert (began["type"], ended["type"]) == ("start", "complete")
            assert ended["status"] == "ok"
            schema: Any = (await native.request(2, "health.schema"))["result"]
            assert [each["name"] for each in schema["methods"]] == ["check"]
            assert (await native.request(3, "health.hash"))["result"] == schema["hash"]


async def test_no_member_outside_our_metadata_adds_it_to_a_list(tmp_path: Path) -> None:
    config = load(Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})).config
    assert config is not None
    async with asyncio.timeout(30), Gateway(config, load_file=load_file) as gateway:
        await gateway.hub.settled()
        async with raw_client(gateway.handler(), kind=NativePeer) as client:
            result: Any = (await client.request(1, "tools/list", {"only": "health.check"}))["result"]
            assert result["tools"] == []


async def test_its_age_is_that_of_the_gateway_not_of_the_first_question(tmp_path: Path) -> None:
    config = load(Places(root=str(tmp_path), home=str(tmp_path / "home"), environ={})).config
    assert config is not None
    made = time.monotonic()
    async with asyncio.timeout(30), Gateway(config, load_file=load_file) as gateway:
        await asyncio.sleep(0.05)  # Time itself is what is measured.
        async with sluicegate.connect(MemoryUpstream(gateway.handler())) as client:
            found: Any = (await client.call("health.check")).structured_content
    assert 0.05 <= found["uptime_seconds"] <= time.monotonic() - made + 0.001


async def _event(client: RawClient) -> Any:
    return (await client.next())["params"]["result"]  # type: ignore[index]


async def test_a_server_that_is_no_gateway_does_not_know_it() -> None:
    async with raw_client(sluicegate.Server("s", version="1"), kind=NativePeer) as native:
        assert error_of(await native.request(1, "health.check"))["code"] == -32601
