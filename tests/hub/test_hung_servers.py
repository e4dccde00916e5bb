"""A server that hangs is noticed and restarted; one that is only slow is not."""

import asyncio

import pytest

import sluicegate
from sluicegate.errors import UpstreamTimeout
from sluicegate.exchange import Exchange
from sluicegate.hub import calls, supervise
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings, MountState
from sluicegate.protocol.message import Reply, Result
from sluicegate.protocol.modern_era import complete
from tests.hub.scripted import Scripted, tools, until

VERSIONS = ["2026-07-28", "2025-06-18"]


class Stuck:
    """Answers its lists, calls of `quick`, and pings unless it `hangs`."""

    def __init__(self, version: str) -> None:
        self.hangs = False
        self.pings = 0
        self.upstream = Scripted(self.answer, {"tools": {}}, version)

    async def answer(self, exchange: Exchange) -> Reply:
        if exchange.method == "tools/list":
            return tools("quick", "slow")
        if exchange.method in ("ping", "server/discover"):
            self.pings += 1
            if not self.hangs:
                return Result(complete({}))
        elif exchange.params.get("name") == "quick":
            return Result(complete({"content": []}))
        await asyncio.Event().wait()
        raise AssertionError


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(calls, "PING_TIMEOUT", 0.05)
    monkeypatch.setattr(supervise, "MIN_PAUSE", 0.01)


async def time_out(client: sluicegate.Client, count: int) -> None:
    for _ in range(count):
        with pytest.raises(UpstreamTimeout, match="did not answer within"):
            await client.call("s__slow")


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_server_that_hangs_is_restarted_as_after_a_crash(version: str) -> None:
    stuck, hub = Stuck(version), Hub()
    states: list[tuple[MountState, str]] = []
    mount = hub.mount("s", stuck.upstream, MountSettings(prefix="s", timeout=0.03))
    async with asyncio.timeout(10), hub, sluicegate.connect(hub) as client:
        await hub.settled()
        stuck.hangs = True
        await time_out(client, 2)
        assert (stuck.pings, stuck.upstream.attempts) == (0, 1)

        def note() -> bool:
            states.append((mount.state, mount.sentence))
            return stuck.upstream.attempts == 2 and mount.is_ready

        await time_out(client, 1)
        await until(note)
        assert mount.calls.figures.restarts == 1
        assert any("hangs: it did not answer 3 calls in a row" in sentence for _, sentence in states)
        assert not (await client.call("s__quick")).is_error


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_server_that_is_slow_but_answers_a_ping_stays(version: str) -> None:
    stuck, hub = Stuck(version), Hub()
    hub.mount("s", stuck.upstream, MountSettings(prefix="s", timeout=0.03))
    async with asyncio.timeout(10), hub, sluicegate.connect(hub) as client:
        await hub.settled()
        await time_out(client, 3)
        assert (stuck.pings, stuck.upstream.attempts) == (1, 1)


async def test_an_answer_between_means_that_it_does_not_hang() -> None:
    stuck, hub = Stuck(VERSIONS[0]), Hub()
    hub.mount("s", stuck.upstream, MountSettings(prefix="s", timeout=0.03))
    async with asyncio.timeout(10), hub, sluicegate.connect(hub) as client:
        await hub.settled()
        for _ in range(2):
            await time_out(client, 2)
            await client.call("s__quick")
        assert stuck.pings == 0
