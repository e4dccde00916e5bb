"""A server that hangs is noticed and restarted, whoever gives up first; one that is only slow is not."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Literal

import pytest

import sluicegate
from sluicegate.errors import UpstreamTimeout
from sluicegate.exchange import Exchange
from sluicegate.hub import supervise
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import Mount, MountSettings, MountState
from sluicegate.protocol.message import Notification, Reply, Result
from sluicegate.protocol.modern_era import complete
from sluicegate.upstream.http import HttpUpstream
from sluicegate.upstream.stdio import StdioUpstream
from tests.hub.scripted import Scripted, tools, until

VERSIONS = ["2026-07-28", "2025-06-18"]
SOON = MountSettings(prefix="s", timeout=30, hang_after=0.1, ping_timeout=0.05)


class Stuck:
    """Answers its lists, calls of `quick`, and pings unless it `hangs`."""

    def __init__(self, version: str) -> None:
        self.hangs = False
        self.pings: list[str] = []
        self.pinged = asyncio.Event()
        self.upstream = Scripted(self.answer, {"tools": {}}, version)

    async def answer(self, exchange: Exchange) -> Reply:
        if exchange.method == "tools/list":
            return tools("quick", "slow", "busy")
        if exchange.method in ("ping", "server/discover"):
            self.pings.append(exchange.method)
            self.pinged.set()
            if not self.hangs:
                return Result(complete({}))
        elif exchange.params.get("name") == "quick":
            return Result(complete({"content": []}))
        elif exchange.params.get("name") == "busy":
            for number in range(1, 30):
                params: dict[str, object] = {"progressToken": exchange.profile.progress_token, "progress": number}
                await exchange.emit(Notification("notifications/progress", params))
                await asyncio.sleep(0.01)  # Longer than `hang_after` altogether.
            return Result(complete({"content": []}))
        await asyncio.Event().wait()
        raise AssertionError


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    monkeypatch.setattr(supervise, "MIN_PAUSE", 0.05)


class States:
    """The states that a mount goes through."""

    def __init__(self, mount: Mount) -> None:
        self.seen: list[tuple[MountState, str]] = []
        self._mount = mount

    def look(self) -> bool:
        """Note the state; whether the server was restarted and is ready."""
        condition = self._mount.condition()
        self.seen.append((condition.state, condition.sentence))
        return self._mount.calls.figures.restarts == 1 and self._mount.is_ready


def assert_hung(states: States) -> None:
    assert any(state is MountState.DEGRADED and "s hangs: it answered neither" in why for state, why in states.seen)
    state, sentence = states.seen[-1]
    assert state is MountState.READY and "was restarted because it answered neither calls nor pings" in sentence


async def give_up(client: sluicegate.Client, tool: str, after: float = 0.02) -> None:
    """Cancel a call, as clients with a short time-out do."""
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(after):
            await client.call(tool)


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_hung_server_is_restarted_as_after_a_crash_though_clients_give_up_first(version: str) -> None:
    stuck, hub = Stuck(version), Hub()
    states = States(hub.mount("s", stuck.upstream, SOON))
    async with asyncio.timeout(10), hub, sluicegate.connect(hub) as client:
        await hub.settled()
        stuck.hangs = True
        await give_up(client, "s__slow")
        await until(states.look)
        assert stuck.pings == ["ping" if version < "2026" else "server/discover"] * 2
        assert_hung(states)
        assert not (await client.call("s__quick")).is_error


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_hung_server_is_restarted_though_clients_wait_longer(version: str) -> None:
    stuck, hub = Stuck(version), Hub()
    states = States(hub.mount("s", stuck.upstream, SOON))
    async with asyncio.timeout(10), hub, sluicegate.connect(hub) as client:
        await hub.settled()
        stuck.hangs = True
        waiting = asyncio.ensure_future(client.call("s__slow", timeout=9))
        await until(states.look)
        assert_hung(states)
        waiting.cancel()


@pytest.mark.parametrize("version", VERSIONS)
async def test_a_slow_server_that_answers_pings_is_pinged_once_in_a_while_and_stays(version: str) -> None:
    stuck, hub = Stuck(version), Hub()
    settings = MountSettings(prefix="s", timeout=0.3, hang_after=0.1, ping_timeout=5)
    hub.mount("s", stuck.upstream, settings)
    async with asyncio.timeout(10), hub, sluicegate.connect(hub) as client:
        await hub.settled()
        with pytest.raises(UpstreamTimeout, match="did not answer within"):
            await client.call("s__slow")
        await until(lambda: len(stuck.pings) >= 2)
        assert len(stuck.pings) <= 4  # One for each 0.1 s, and one for the end of the call.
        assert stuck.upstream.attempts == 1


async def test_progress_is_a_sign_of_life() -> None:
    stuck, hub = Stuck(VERSIONS[0]), Hub()
    hub.mount("s", stuck.upstream, SOON)
    async with asyncio.timeout(10), hub, sluicegate.connect(hub) as client:
        await hub.settled()
        async for _ in client.stream("s__busy"):
            pass
    assert not stuck.pings


async def test_answers_to_other_calls_are_a_sign_of_life() -> None:
    stuck, hub = Stuck(VERSIONS[0]), Hub()
    mount = hub.mount("s", stuck.upstream, MountSettings(prefix="s", timeout=30, hang_after=0.1, ping_timeout=0.2))
    async with asyncio.timeout(10), hub, sluicegate.connect(hub) as client:
        await hub.settled()
        stuck.hangs = True
        await give_up(client, "s__slow")
        await stuck.pinged.wait()
        await client.call("s__quick")
        stuck.hangs = False
        await give_up(client, "s__slow", after=0.3)
        assert (mount.calls.figures.restarts, stuck.upstream.attempts) == (0, 1)


BUSY = """
import json, sys, time

def send(**message):
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)

for line in sys.stdin:
    message = json.loads(line)
    method, params, result = message["method"], message.get("params", {}), {}
    if method == "initialize":
        result = {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}}
        result["serverInfo"] = {"name": "busy", "version": "1"}
    elif method == "tools/list":
        result = {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("busy", "quick")]}
    elif method == "tools/call":
        result = {"content": []}
        for number in range(60 if params["name"] == "busy" else 0):
            send(method="notifications/progress", params={**params["_meta"], "progress": number})
            time.sleep(0.02)
    if "id" in message:
        send(id=message["id"], result=result)
"""


async def test_a_server_that_reports_progress_of_one_call_stays_though_others_and_pings_wait_behind_it() -> None:
    hub = Hub()
    upstream = StdioUpstream([sys.executable, "-c", BUSY], name="s", era="session")
    mount = hub.mount("s", upstream, MountSettings(prefix="s", hang_after=0.2, ping_timeout=0.2))
    async with asyncio.timeout(40), hub, sluicegate.connect(hub) as client:
        await hub.settled()
        progress = client.stream("s__busy")
        await anext(progress)
        assert not (await client.call("s__quick")).is_error
        async for _ in progress:
            pass
    assert mount.calls.figures.restarts == 0


# ------------------------------------------------------------------------------------------- processes that are stopped

SERVER = """
import os, sys, sluicegate

server = sluicegate.Server("stopped")

@server.tool
async def pid() -> int:
    return os.getpid()

sluicegate.run(server, **({"http": True, "port": 0} if sys.argv[1:] else {}))
"""


@contextmanager
def serving() -> "Generator[tuple[subprocess.Popen[str], str]]":
    """A server at a URL."""
    command = [sys.executable, "-c", SERVER, "http"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stderr is not None
            while "serving at " not in (line := process.stderr.readline()):
                assert line
            yield process, line.split("serving at ")[1].split()[0]
        finally:
            process.kill()


async def stop_and_wait(client: sluicegate.Client, pid: int, states: States, *, is_over: bool) -> None:
    """Stop the server during a call of a patient client, after another one gave up."""
    os.kill(pid, signal.SIGSTOP)
    waiting = asyncio.ensure_future(client.call("s__pid"))
    await give_up(client, "s__pid", after=0.05)
    if is_over:
        await until(states.look)
        assert_hung(states)
    with pytest.raises(UpstreamTimeout, match="s hangs: it answered neither a call nor 2 pings .* may have run"):
        await waiting


async def pid_of(client: sluicegate.Client) -> int:
    return int((await client.call("s__pid")).text)


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_a_stopped_process_is_replaced(era: Literal["modern", "session"]) -> None:
    hub = Hub()
    upstream = StdioUpstream([sys.executable, "-c", SERVER], name="s", era=era, stop_grace=0.05)
    states = States(hub.mount("s", upstream, MountSettings(prefix="s", hang_after=0.5, ping_timeout=0.3)))
    async with asyncio.timeout(40), hub, sluicegate.connect(hub) as client:
        await hub.settled()
        pid = await pid_of(client)
        await stop_and_wait(client, pid, states, is_over=True)
        assert await pid_of(client) != pid
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_a_stopped_server_at_a_url_is_degraded_until_it_continues(era: Literal["modern", "session"]) -> None:
    hub = Hub()
    with serving() as (process, url):
        upstream = HttpUpstream(url, name="s", era=era, open_timeout=1, probe_timeout=1)
        settings = MountSettings(prefix="s", hang_after=0.5, ping_timeout=0.3, is_light=True)
        mount = hub.mount("s", upstream, settings)
        states = States(mount)
        async with asyncio.timeout(40), hub, sluicegate.connect(hub) as client:
            await hub.settled()
            pid = await pid_of(client)
            await stop_and_wait(client, pid, states, is_over=False)
            await until(lambda: states.look() or mount.condition().state is MountState.DEGRADED)
            process.send_signal(signal.SIGCONT)
            await until(states.look, lambda _: mount.is_ready)
            assert await pid_of(client) == pid
