"""Servers by URL that come back as others: with other tools, or of another era (threats R8)."""

import asyncio
from collections.abc import Awaitable
from pathlib import Path

import pytest

import sluicegate
from sluicegate.client import ChangeStream
from sluicegate.exchange import Host
from sluicegate.hub import fetch_catalog as lists
from sluicegate.hub import subscriptions as listening
from sluicegate.hub import supervise as plan
from sluicegate.protocol.message import Result
from sluicegate.protocol.types import ResourceUpdated, ToolsChanged
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream import http_session
from sluicegate.upstream.http import HttpUpstream
from sluicegate.upstream.http_endpoint import Timeouts
from tests.faults.gateway_stage import Stage, refusal, staged
from tests.polling import PATIENCE, until, until_called
from tests.upstream.http_server import DISCOVERED, INFO, Asked, Json, scripted
from tests.upstream.raw_server import Recorder, exchange

DONE: Json = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what failed be tried again sooner than a person would want."""
    for module in (listening, lists):
        monkeypatch.setattr(module, "FIRST_RETRY", 0.05)
    monkeypatch.setattr(plan, "MIN_PAUSE", 0.05)


class Changing:
    """A server at a URL that can be replaced by another, in place: of this era, with these tools."""

    def __init__(self, era: str, *tools: str) -> None:
        self.begun = 0
        self.asked: list[str] = []
        self.is_forgetful = self.is_troubled = False
        self.become(era, *tools)

    def become(self, era: str, *tools: str) -> None:
        self.era = era
        self.tools = tools
        self.known: set[str] = set()

    def __call__(self, asked: Asked) -> Awaitable[None] | None:
        self.asked.append(asked.called or asked.method)
        if self.era == "modern":
            self._answer_modern(asked)
        elif asked.called == "initialize":
            self.begun += 1
            name = f"s{self.begun}"
            self.known.add(name)
            capabilities: Json = {"tools": {}, "resources": {"subscribe": True}}
            welcome: Json = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": INFO}
            asked.result(welcome, ("Mcp-Session-Id", name))
        elif (name := asked.header("mcp-session-id")) is None:
            asked.error(400, -32600, "Bad Request: Missing session ID")
        elif name not in self.known:
            asked.status(404)
        elif asked.method in ("GET", "DELETE"):
            asked.status(405)
        elif asked.called.startswith("notifications/"):
            asked.status(202)
        else:
            self._answer(asked)
            if self.is_forgetful:
                self.known.clear()
        return None

    def _answer_modern(self, asked: Asked) -> None:
        if self.is_troubled and asked.called == "server/discover":
            asked.error(500, -32603, "The database is busy.")
        elif self.is_troubled and asked.called == "tools/call":
            asked.error(400, -32000, "Charged, and then the quota was exceeded.")
        elif asked.called == "server/discover":
            asked.result(DISCOVERED)
        elif asked.method != "POST":
            asked.status(405)
        elif asked.header("mcp-protocol-version") != "2026-07-28":
            versions: Json = {"supported": ["2026-07-28"], "requested": "2025-11-25"}
            asked.error(400, -32022, "Unsupported protocol version", data=versions)
        else:
            self._answer(asked)

    def _answer(self, asked: Asked) -> None:
        match asked.called:
            case "tools/list":
                tools = [{"name": name, "inputSchema": {"type": "object"}} for name in self.tools]
                asked.result({"resultType": "complete", "tools": tools})
            case "resources/list":
                asked.result({"resources": [{"uri": "a://b", "name": "b"}]})
            case "resources/templates/list":
                asked.result({"resourceTemplates": []})
            case "tools/call":
                asked.result(DONE)
            case _:
                asked.result({})


async def listed(stage: Stage, *names: str) -> None:
    """Return when these are the tools that clients see."""
    wanted = {f"it__{name}" for name in names}
    async with stage.client() as client:
        await until_called(client.tools, lambda tools: {tool.name for tool in tools} == wanted)


def entry(url: str) -> Json:
    return {"it": {"type": "http", "url": url}}


async def test_after_a_lost_session_lists_are_fetched_again_and_each_client_is_notified_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_session, "NEW_SESSION_INTERVAL", 0.0)
    server, heard = Changing("session", "old"), list[object]()
    async with scripted(server) as script, staged(tmp_path, entry(script.url)) as stage, stage.client() as client:
        await listed(stage, "old")
        async with client.listen(tools=True, uris=["it+a://b"]) as changes, TaskScope() as tasks:
            tasks.start(gathered(changes, heard), key="listens")
            for times, added in enumerate(("new", "newer"), 1):
                server.become("session", "old", added)
                assert (await client.call("it__old")).text == "done"
                await listed(stage, "old", added)
                await until(lambda: len(heard), lambda count, times=times: count >= 2 * times)
            tasks.cancel("listens")
    assert sorted(map(repr, heard)) == sorted(map(repr, [ToolsChanged(), ResourceUpdated("it+a://b")] * 2))
    assert server.begun == 3


async def gathered(changes: ChangeStream, heard: list[object]) -> None:
    async for change in changes:
        heard.append(change)


async def test_a_server_that_forgets_session_after_session_is_not_asked_for_its_lists_without_end() -> None:
    server, told = Changing("session", "old"), list[None]()
    server.is_forgetful = True
    async with scripted(server) as script, asyncio.timeout(PATIENCE):
        host = Host({}, INFO, Recorder(), on_session_lost=lambda: told.append(None))
        upstream = HttpUpstream(script.url, era="session", name="it", timeouts=Timeouts(retry=0.01))
        async with upstream.connect(host) as connection:
            for _ in range(5):
                assert isinstance(await connection(exchange()), Result)
    assert server.begun == 5
    assert len(told) == 1


@pytest.mark.parametrize(("before", "after"), [("modern", "session"), ("session", "modern")])
async def test_a_server_that_comes_back_of_another_era_is_met_as_such_and_no_call_is_lost(
    tmp_path: Path, before: str, after: str
) -> None:
    server = Changing(before, "old")
    async with scripted(server) as script, staged(tmp_path, entry(script.url)) as stage, stage.client() as client:
        await listed(stage, "old")
        server.become(after, "old", "new")
        assert (await client.call("it__old")).text == "done"
        await stage.ready("it")
        await listed(stage, "old", "new")
        assert stage.status("it").version == {"modern": "2026-07-28", "session": "2025-11-25"}[after]


@pytest.mark.parametrize(("era", "code"), [("modern", -32600), ("modern", -32000), ("session", -32022)])
async def test_a_server_that_refuses_as_one_of_another_era_would_and_is_none_keeps_its_connection(
    tmp_path: Path, era: str, code: int
) -> None:
    server = Changing(era, "old")

    def answer(asked: Asked) -> None:
        if asked.called == "tools/call":
            server.asked.append(asked.called)
            asked.error(400, code, "There is no valid session; go away")
        else:
            server(asked)

    async with scripted(answer) as script, staged(tmp_path, entry(script.url)) as stage, stage.client() as client:
        await listed(stage, "old")
        opened = server.asked.count("server/discover") + server.begun
        for _ in range(5):
            assert "go away" in (await refusal(client.call("it__old"))).message
        # Once it is asked who it is; that it goes on in this way is no reason to ask again so soon.
        assert server.asked.count("server/discover") + server.begun == opened + 1
        assert stage.status("it").state == "ready"


async def test_an_error_of_its_own_is_not_taken_for_another_era_and_the_call_is_made_once(tmp_path: Path) -> None:
    server = Changing("modern", "pay")
    async with scripted(server) as script, staged(tmp_path, entry(script.url)) as stage, stage.client() as client:
        await listed(stage, "pay")
        server.is_troubled = True
        for _ in range(2):
            with pytest.raises(sluicegate.RpcError, match="the quota was exceeded"):
                await client.call("it__pay")
        assert server.asked.count("tools/call") == 2
        server.is_troubled = False
        assert (await client.call("it__pay")).text == "done"
