"""A gateway with servers behind it that are reached by URL and fail in every way of HTTP (R14–R19)."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

import sluicegate
from sluicegate import RpcError, Server
from sluicegate.http1 import serve
from sluicegate.hub import supervise as plan
from tests.faults.gateway_stage import BriefStartup, Stage, data_of, hostile, refusal, staged, why
from tests.faults.proxy import fault_proxy
from tests.polling import until_called
from tests.ports import free_port
from tests.upstream.http_server import DISCOVERED, INFO, Answer, Asked, Json, Script, endpoint, message, scripted

TOOLS: Json = {
    "tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("run", "wait")],
    "resultType": "complete",
}
DONE: Json = {"resultType": "complete", "content": [{"type": "text", "text": "done"}]}
SECRET = "canary-header-4711"
QUICK = "[servers.bad]\ntool_timeouts = { wait = 1 }\nqueue_wait = 0.5\n"
"""Little time for the one tool alone that is not answered in time."""


@pytest.fixture(autouse=True)
def soon_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let what failed be tried again sooner than a person would want."""
    monkeypatch.setattr(plan, "MIN_PAUSE", 0.05)
    monkeypatch.setattr("sluicegate.gateway.gateway.StartupWait", BriefStartup)
    monkeypatch.setattr(plan, "CIRCUIT_PAUSE", 0.3)


class Remote:
    """A server by URL that lists two tools and does with their calls what the test says."""

    def __init__(self, era: str = "modern") -> None:
        self.era = era
        self.calls = 0
        self.sessions = 0
        self.answer: Answer = lambda asked: asked.result(DONE)

    def __call__(self, asked: Asked) -> Awaitable[None] | None:
        match asked.called or asked.method:
            case "server/discover" if self.era == "modern":
                asked.result(DISCOVERED)
            case "server/discover":
                asked.status(400)
            case "initialize":
                self.sessions += 1
                welcome: Json = {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": INFO}
                asked.result(welcome, ("Mcp-Session-Id", f"s{self.sessions}"))
            case "notifications/initialized" | "notifications/cancelled":
                asked.status(202)
            case "GET" | "DELETE":
                asked.status(405)
            case "tools/list":
                asked.result(TOOLS)
            case _:
                self.calls += 1
                return self.answer(asked)
        return None


def entry(url: str) -> Json:
    return {"type": "http", "url": url, "headers": {"Authorization": f"Bearer {SECRET}"}}


def html(status: int) -> Answer:
    def answer(asked: Asked) -> None:
        said = f"<h1>canary-in-body {asked.header('authorization')}</h1>".encode()
        asked.status(status, said, ("Content-Type", "text/html"))

    return answer


def moved(status: int, place: str) -> Answer:
    return lambda asked: asked.status(status, b"", ("Location", place))


def truncated(asked: Asked) -> None:
    asked.stream()
    asked.event(message(method="notifications/message", params={"level": "info", "data": "x"}))
    asked.end()


async def endless(asked: Asked) -> None:
    asked.stream()
    while True:
        asked.event(b"")
        await asyncio.sleep(0.05)  # The pace of a stream without an end.


async def silent(asked: Asked) -> None:
    await asyncio.Event().wait()


FAULTS: dict[str, tuple[Answer, tuple[str, str]]] = {
    "400": (html(400), ("backend_protocol", "unknown")),
    "401": (html(401), ("backend_auth", "no")),
    "403": (html(403), ("backend_auth", "no")),
    "418": (html(418), ("backend_protocol", "unknown")),
    "429": (html(429), ("backend_unavailable", "no")),
    "500": (html(500), ("backend_unavailable", "unknown")),
    "502": (html(502), ("backend_unavailable", "unknown")),
    "503": (html(503), ("backend_unavailable", "unknown")),
    "html": (html(200), ("backend_protocol", "yes")),
    "302": (moved(302, "/other"), ("backend_protocol", "unknown")),
    "elsewhere": (moved(307, "http://127.0.0.2:9/mcp"), ("backend_protocol", "no")),
    "loop": (moved(308, "/mcp"), ("backend_protocol", "no")),
    "truncated": (truncated, ("backend_protocol", "unknown")),
    "endless": (endless, ("backend_timeout", "unknown")),
    "silent": (silent, ("backend_timeout", "unknown")),
}


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_the_caller_learns_why_a_url_failed_and_nothing_of_its_content(era: str, tmp_path: Path) -> None:
    remote = Remote(era)
    async with (
        scripted(remote) as server,
        staged(tmp_path, {"bad": entry(server.url), "good": hostile()}, QUICK) as stage,
    ):
        async with stage.client() as client:
            for name, (answer, expected) in FAULTS.items():
                remote.answer = answer
                error = await refusal(client.call("bad__wait" if expected[0] == "backend_timeout" else "bad__run"))
                assert (name, *why(error)) == (name, *expected)
                assert "canary" not in f"{error.message} {json.dumps(error.data)}", name
                remote.answer = lambda asked: asked.result(DONE)
                assert await until_called(lambda: runs(stage), bool), name
                assert (await client.call("good__echo", text=name)).text == name
            assert stage.status("bad").state == "ready"
        assert all("canary" not in status.sentence + status.details for status in stage.gateway.status())


async def runs(stage: Stage) -> bool:
    """Whether a call gets through."""
    async with stage.client() as client:
        try:
            return (await client.call("bad__run")).text == "done"
        except RpcError:
            return False


async def test_a_server_that_fails_call_after_call_is_not_asked_until_one_call_has_tried_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "CIRCUIT_PAUSE", 3)  # In which five calls are refused.
    remote = Remote()
    async with scripted(remote) as server, staged(tmp_path, {"bad": entry(server.url)}, QUICK) as stage:
        async with stage.client() as client:
            remote.answer = html(500)
            for _ in range(5):
                assert why(await refusal(client.call("bad__run"))) == ("backend_unavailable", "unknown")
            assert stage.status("bad").state == "degraded"
            refused = [await refusal(client.call("bad__run")) for _ in range(5)]
            assert {why(error) for error in refused} == {("backend_unavailable", "no")}
            assert remote.calls == 5, "nothing reached it"
            remote.answer = lambda asked: asked.result(DONE)
            assert await until_called(lambda: runs(stage), bool)
            assert stage.status("bad").state == "ready"
            assert remote.calls == 6, "one that tried, and it worked"


async def test_a_call_that_tries_and_hangs_does_not_close_the_way_for_ever(tmp_path: Path) -> None:
    remote = Remote()
    async with scripted(remote) as server, staged(tmp_path, {"bad": entry(server.url)}, QUICK) as stage:
        async with stage.client() as client:
            remote.answer = html(500)
            for _ in range(5):
                await refusal(client.call("bad__run"))
            remote.answer = silent
            tried = await until_called(
                lambda: refusal(client.call("bad__wait")), lambda error: why(error)[0] == "backend_timeout"
            )
            assert why(tried) == ("backend_timeout", "unknown")
            remote.answer = lambda asked: asked.result(DONE)
            assert await until_called(lambda: runs(stage), bool)


async def test_a_server_that_says_when_to_come_again_is_left_alone_until_then(tmp_path: Path) -> None:
    remote = Remote()
    async with scripted(remote) as server, staged(tmp_path, {"bad": entry(server.url)}, QUICK) as stage:
        async with stage.client() as client:
            remote.answer = lambda asked: asked.status(429, b"", ("Retry-After", "600"))
            error = await refusal(client.call("bad__run"))
            assert why(error) == ("backend_unavailable", "no")
            assert data_of(error)["retryAfter"] == 600
            remote.answer = lambda asked: asked.result(DONE)
            for _ in range(3):
                assert why(await refusal(client.call("bad__run"))) == ("backend_unavailable", "no")
            assert remote.calls == 1
            # Whoever knows better begins anew.
            stage.gateway.restart("bad")
            assert await until_called(lambda: runs(stage), bool)


async def test_a_lost_session_is_opened_again_and_the_call_that_was_not_run_is_sent_again(tmp_path: Path) -> None:
    remote = Remote("session")

    def forgetful(asked: Asked) -> None:
        if asked.header("mcp-session-id") == "s1":
            asked.status(404)
        else:
            asked.result(DONE)

    async with scripted(remote) as server, staged(tmp_path, {"bad": entry(server.url)}, QUICK) as stage:
        async with stage.client() as client:
            remote.answer = forgetful
            assert (await client.call("bad__run")).text == "done"
            assert (remote.sessions, remote.calls) == (2, 2)
            remote.answer = html(404)
            assert why(await refusal(client.call("bad__run")))[1] in ("no", "unknown")
            remote.answer = lambda asked: asked.result(DONE)
            assert await until_called(lambda: runs(stage), bool)


async def test_a_server_that_is_not_there_yet_is_found_when_it_comes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plan, "PROBE_PAUSE", 0.2)
    port = free_port()
    url = f"http://127.0.0.1:{port}/mcp"
    async with staged(tmp_path, {"bad": entry(url), "good": hostile()}, ready=["good"]) as stage:
        status = await stage.until("bad", lambda status: status.state == "failed")
        assert "bad" in status.sentence and "nothing listens" in status.sentence.lower()
        async with stage.client() as client:
            assert {tool.name.partition("__")[0] for tool in await client.tools()} == {"good"}
        async with serve(Script(Remote()), port=port):
            await stage.ready("bad")
            assert await until_called(lambda: runs(stage), bool)


async def test_connections_that_are_reset_fail_the_calls_on_them_and_the_next_one_works(tmp_path: Path) -> None:
    remote = Remote()
    remote.answer = silent
    async with scripted(remote) as server, fault_proxy(*server.place) as proxy:
        servers = {"bad": entry(proxy.url("/mcp")), "good": hostile()}
        async with staged(tmp_path, servers, "[servers.bad]\ntimeout = 30\n") as stage, stage.client() as client:
            calls = [asyncio.ensure_future(refusal(client.call("bad__run"))) for _ in range(20)]
            await until_called(lambda: _count(remote), lambda calls: calls == 20)
            proxy.reset()
            errors = await asyncio.gather(*calls)
            assert {why(error)[1] for error in errors} == {"unknown"}
            assert remote.calls == 20, "nothing was sent twice"
            remote.answer = lambda asked: asked.result(DONE)
            assert await until_called(lambda: runs(stage), bool)
            assert (await client.call("good__echo", text="here")).text == "here"


async def _count(remote: Remote) -> int:
    return remote.calls


async def test_the_authorization_of_one_server_goes_to_no_other_and_a_clients_to_none(tmp_path: Path) -> None:
    first, second = Remote(), Remote("session")
    heard: dict[str, list[str | None]] = {"one": [], "two": []}

    def noting(name: str) -> Callable[[Asked], None]:
        def answer(asked: Asked) -> None:
            heard[name].append(asked.header("authorization"))
            heard[name].append(asked.header("x-api-key"))
            asked.result(DONE)

        return answer

    first.answer, second.answer = noting("one"), noting("two")
    async with scripted(first) as one, scripted(second) as two:
        servers = {"one": entry(one.url), "two": {"type": "http", "url": two.url}}
        async with staged(tmp_path, servers) as stage:
            own = {"Authorization": "Bearer canary-of-the-client", "X-Api-Key": "canary-of-the-client"}
            async with sluicegate.connect(stage.running.address, headers=own, era="modern") as client:
                assert (await client.call("one__run")).text == (await client.call("two__run")).text == "done"
    assert heard == {"one": [f"Bearer {SECRET}", None], "two": [None, None]}


async def test_a_server_of_ours_by_url_that_is_stopped_and_started_is_met_again(tmp_path: Path) -> None:
    server = Server("ours")

    @server.tool
    def run() -> str:
        return "done"

    assert run
    async with endpoint(server) as origin:
        host, port = origin.removeprefix("http://").split(":")
        async with fault_proxy(host, int(port)) as proxy:
            async with staged(tmp_path, {"bad": entry(proxy.url("/mcp"))}, QUICK) as stage:
                assert await runs(stage)
                proxy.reset()
                assert await until_called(lambda: runs(stage), bool)
