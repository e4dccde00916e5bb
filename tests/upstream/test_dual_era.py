"""A server at a URL that speaks both eras, behind a hub: in which of them it is asked, and for whom."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Iterator
from contextlib import asynccontextmanager
from functools import partial
from typing import cast

import pytest

from sluicegate.errors import InputRefused, UpstreamError
from sluicegate.exchange import NOBODY, Caller, Connection, Exchange, Host
from sluicegate.hub.hub import Hub
from sluicegate.hub.supervise import MountState
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, Result, opened
from sluicegate.protocol.modern_era import ACKNOWLEDGED, ClientProfile
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream import dual_era, http
from sluicegate.upstream.http import HttpUpstream
from tests.polling import until
from tests.upstream.http_server import DISCOVERED, INFO, Asked, Json, Script, message, scripted

OLDER = ClientProfile("2025-11-25", {"elicitation": {}})
NEWER = ClientProfile("2026-07-28")
NEW_ONLY = "only_here"


@pytest.fixture(autouse=True)
def no_verdicts() -> Iterator[None]:
    http.forget_verdicts()
    yield
    http.forget_verdicts()


def listed(*names: str) -> Json:
    return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in names], "resultType": "complete"}


class Dual:
    """A server of both eras that says in which of them a tool was called, and counts what it was asked in which."""

    def __init__(self) -> None:
        self.sessions = 0
        self.alive: set[str] = set()
        self.asked: Counter[tuple[str, str]] = Counter()
        self.refuses: int | None = None
        """The status with which it refuses a session."""
        self.welcome: asyncio.Event | None = None
        """What it waits for before it gives one."""
        self.names_sessions = True
        self.tools = ["echo", "ask"]
        self.capabilities: Json = {"tools": {}}
        self.listed = asyncio.Event()
        self.subscribed = asyncio.Event()
        self.pushes: Asked | None = None
        self.pushing = asyncio.Event()

    def __call__(self, asked: Asked) -> Awaitable[None] | None:
        is_modern = asked.header("mcp-protocol-version") == "2026-07-28"
        self.asked["modern" if is_modern else "session", asked.called or asked.method] += 1
        return self._modern(asked) if is_modern else self._session(asked)

    def _modern(self, asked: Asked) -> None:
        match asked.called:
            case "server/discover":
                asked.result({**DISCOVERED, "capabilities": {"tools": {}, "resources": {}}})
            case "tools/list":
                asked.result(listed(*self.tools, NEW_ONLY))
            case "tools/call" if asked.header("mcp-name") == "ask" and "inputResponses" not in self._params(asked):
                question: Json = {"method": "elicitation/create", "params": {"message": "?", "requestedSchema": {}}}
                asked.result({"resultType": "input_required", "inputRequests": {"q": question}, "requestState": "s"})
            case "tools/call":
                asked.result({"content": [{"type": "text", "text": "modern"}], "resultType": "complete"})
            case "subscriptions/listen":
                asked.error(404, -32601)
            case _:
                asked.result({"resources": [], "resourceTemplates": [], "resultType": "complete"})

    def _params(self, asked: Asked) -> Json:
        params = asked.body["params"]
        assert isinstance(params, dict)
        return params  # pyright: ignore[reportUnknownVariableType]

    def _session(self, asked: Asked) -> Awaitable[None] | None:
        if asked.called == "initialize":
            return self._give_session(asked)
        if asked.method == "DELETE":
            self.alive.discard(asked.header("mcp-session-id") or "")
            asked.status(200)
        elif self.names_sessions and asked.header("mcp-session-id") not in self.alive:
            asked.status(404)
        elif asked.method == "GET":
            return self._push(asked)
        elif asked.id is None:
            asked.status(202)
        elif asked.called == "tools/list":
            tasks: Json = {"name": "task", "inputSchema": {"type": "object"}, "execution": {"taskSupport": "required"}}
            tools = listed(*(name for name in self.tools if name != "task"))
            asked.result({"tools": [*cast(list[Json], tools["tools"]), tasks]})
            self.listed.set()
        elif asked.called == "tools/call":
            asked.result({"content": [{"type": "text", "text": "session"}]})
        elif asked.called == "resources/subscribe":
            asked.result({})
            self.subscribed.set()
        else:
            asked.result({})
        return None

    async def _push(self, asked: Asked) -> None:
        asked.stream()
        self.pushes = asked
        self.pushing.set()
        gone = asyncio.Event()
        asked.request.on_disconnect(gone.set)
        await gone.wait()

    async def _give_session(self, asked: Asked) -> None:
        if self.welcome is not None:
            await self.welcome.wait()
        if self.refuses is not None:
            (asked.status if self.refuses >= 500 else partial(asked.error, code=-32601))(self.refuses)
            return
        self.sessions += 1
        self.alive.add(name := f"s{self.sessions}")
        welcome: Json = {"protocolVersion": "2025-11-25", "capabilities": self.capabilities, "serverInfo": INFO}
        asked.result(welcome, *((("Mcp-Session-Id", name),) if self.names_sessions else ()))


@asynccontextmanager
async def mounted(dual: Dual, **options: object) -> AsyncGenerator[tuple[Hub, Script]]:
    hub = Hub()
    async with asyncio.timeout(30), scripted(dual) as script:
        upstream = HttpUpstream(script.url, name="s", **options)  # pyright: ignore[reportArgumentType]
        hub.mount("s", upstream)
        async with hub:
            await hub.settled()
            yield hub, script


class Person:
    """The sink of a caller of a call or a subscription."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[Notification] = asyncio.Queue()

    async def emit(self, notification: Notification) -> None:
        self.told.put_nowait(notification)

    async def ask(self, questions: Questions) -> Answers:
        raise InputRefused("Nobody asks here.")


async def in_session(hub: Hub) -> None:
    """Call until the server is asked in a session."""
    while (era := await call(hub)) != "session":
        assert era == "modern"


async def call(hub: Hub, tool: str = "echo", profile: ClientProfile = OLDER, more: Params | None = None) -> str:
    """What a tool says to a caller, which is the era that the server was asked in."""
    params: Params = {"name": f"s__{tool}", "arguments": {}, **(more or {})}
    reply = await hub(Exchange("tools/call", params, Person(), profile, Caller("somebody")))
    assert isinstance(reply, Result), reply
    content = opened(reply)["content"]
    return content[0]["text"]  # pyright: ignore[reportIndexIssue, reportUnknownVariableType]


async def test_each_caller_is_answered_in_its_own_era() -> None:
    dual = Dual()
    async with mounted(dual) as (hub, _):
        assert [await call(hub, profile=profile) for profile in (NEWER, OLDER, NEWER, OLDER)] == [
            "modern",
            "session",
            "modern",
            "session",
        ]
        assert dual.sessions == 1
        mount = hub.find("s")
        assert mount is not None and mount.session_version == "2025-11-25"
    assert not dual.alive, "the session was not ended with the connection"


async def test_a_server_with_a_secret_in_its_headers_is_asked_in_dual_era() -> None:
    dual = Dual()
    async with mounted(dual, headers={"Authorization": "Bearer sk-canary"}) as (hub, script):
        assert [await call(hub, profile=profile) for profile in (NEWER, OLDER)] == ["modern", "session"]
        assert {asked.header("authorization") for asked in script.asked} == {"Bearer sk-canary"}


async def test_a_level_that_was_set_before_there_was_a_session_holds_in_it() -> None:
    dual = Dual()
    dual.capabilities = {"tools": {}, "logging": {}}
    async with mounted(dual) as (hub, script):
        mount = hub.find("s")
        assert mount is not None
        mount.log_at("debug")
        assert await call(hub) == "session"
        [level] = [asked.body["params"] for asked in script.asked if asked.called == "logging/setLevel"]
        assert level == {"level": "debug"}


async def test_without_a_caller_of_the_session_era_no_session_is_asked_for() -> None:
    dual = Dual()
    async with mounted(dual) as (hub, _):
        assert await call(hub, profile=NEWER) == "modern"
        assert dual.asked["session", "initialize"] == 0


async def test_a_hundred_first_callers_share_one_session() -> None:
    dual = Dual()
    async with mounted(dual) as (hub, _):
        assert set(await asyncio.gather(*(call(hub) for _ in range(100)))) == {"session"}
        assert dual.sessions == 1


@pytest.mark.parametrize("status", [200, 400, 404, 405])
async def test_a_server_of_one_era_is_asked_for_a_session_once(status: int) -> None:
    dual = Dual()
    dual.refuses = status
    async with mounted(dual) as (hub, _):
        assert [await call(hub) for _ in range(3)] == ["modern"] * 3
        assert dual.asked["session", "initialize"] == 1


async def test_a_server_that_speaks_the_older_era_without_sessions_is_asked_in_the_newer_one() -> None:
    """As TypeScript SDK 2.x serves without a store: there it could ask nobody."""
    dual = Dual()
    dual.names_sessions = False
    async with mounted(dual) as (hub, _):
        assert [await call(hub) for _ in range(3)] == ["modern"] * 3
        assert dual.asked["session", "initialize"] == 1
        assert dual.asked["session", "tools/list"] == 0


async def test_a_server_that_had_no_time_for_a_session_is_asked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dual_era, "SESSION_RETRY", 0.0)
    dual = Dual()
    dual.refuses = 503
    async with mounted(dual) as (hub, _):
        assert await call(hub) == "modern"
        dual.refuses = None
        await in_session(hub)


@pytest.mark.parametrize("era", ["modern", "session"])
async def test_a_configured_era_is_used_for_all_clients(era: str) -> None:
    dual = Dual()
    async with mounted(dual, era=era) as (hub, _):
        assert [await call(hub, profile=profile) for profile in (OLDER, NEWER)] == [era, era]


async def test_a_tool_that_the_session_does_not_have_is_called_without_it() -> None:
    dual = Dual()
    async with mounted(dual) as (hub, _):
        assert await call(hub) == "session"
        assert await call(hub, NEW_ONLY) == "modern"


async def test_a_tool_that_comes_later_is_called_in_the_session_too() -> None:
    dual = Dual()
    async with mounted(dual) as (hub, _):
        assert await call(hub) == "session"
        dual.tools.append("late")
        mount = hub.find("s")
        assert mount is not None
        mount.restart()
        await until(lambda: mount.offer is not None and len(mount.offer.tools) == 4 and mount.is_ready)
        assert await call(hub, "late") == "session"


def called(tool: str) -> Exchange:
    return Exchange("tools/call", {"name": tool, "arguments": {}}, NOBODY, OLDER)


async def era_of(connection: Connection, tool: str) -> object:
    reply = await connection(called(tool))
    assert isinstance(reply, Result), reply
    return opened(reply)["content"][0]["text"]  # pyright: ignore[reportIndexIssue, reportUnknownVariableType]


async def test_a_list_that_is_fetched_again_brings_the_tools_of_the_session_with_it() -> None:
    dual = Dual()
    async with asyncio.timeout(30), scripted(dual) as script:
        async with HttpUpstream(script.url).connect(Host({}, INFO, NOBODY)) as connection:
            assert await era_of(connection, "late") == "modern"
            dual.tools.append("late")
            assert await era_of(connection, "late") == "modern"
            await connection(Exchange("tools/list", {}, NOBODY))
            assert await era_of(connection, "late") == "session"
            assert dual.sessions == 1


async def test_a_server_that_is_slow_to_give_a_session_delays_no_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dual_era, "WAITS_FOR_SESSION", 0.01)
    dual = Dual()
    dual.welcome = asyncio.Event()
    async with mounted(dual) as (hub, _):
        assert await call(hub) == "modern"
        assert await call(hub) == "modern"
        dual.welcome.set()
        await in_session(hub)
        assert dual.sessions == 1


async def test_a_request_that_began_in_2026_continues_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server asks in the middle of a call; meanwhile it has a session, which knows nothing of that call."""
    monkeypatch.setattr(dual_era, "WAITS_FOR_SESSION", 0.01)
    dual = Dual()
    dual.welcome = asyncio.Event()
    async with mounted(dual) as (hub, _):
        params: Params = {"name": "s__ask", "arguments": {}}
        begun = await hub(Exchange("tools/call", params, Person(), OLDER, Caller("somebody")))
        assert isinstance(begun, Result)
        assert (asks := opened(begun))["resultType"] == "input_required"
        dual.welcome.set()
        await in_session(hub)
        answer: Params = {"inputResponses": {"q": {"action": "decline"}}, "requestState": asks["requestState"]}
        assert await call(hub, "ask", more=answer) == "modern"


async def test_a_session_that_the_server_forgot_is_begun_again() -> None:
    dual = Dual()
    async with mounted(dual) as (hub, _):
        assert await call(hub) == "session"
        dual.alive.clear()
        assert await call(hub) == "session"
        assert dual.sessions == 2


async def test_a_server_that_gives_no_session_any_more_is_asked_without() -> None:
    dual = Dual()
    async with mounted(dual) as (hub, _):
        assert await call(hub) == "session"
        dual.alive.clear()
        dual.refuses = 404
        # The call itself was refused unseen, so that it can be made once more, in the other era.
        assert await call(hub) == "modern"
        assert await call(hub) == "modern"


async def test_a_server_that_goes_away_is_found_out_by_calls_of_either_era() -> None:
    dual = Dual()
    async with mounted(dual) as (hub, script):
        assert await call(hub) == "session"
        host, port = script.place
        answering = dual.__call__

        def gone(asked: Asked) -> None:
            asked.request.abort()

        script._answer = gone  # pyright: ignore[reportPrivateUsage]
        for profile in (OLDER, NEWER):
            with pytest.raises(UpstreamError):
                await call(hub, profile=profile)
        script._answer = answering  # pyright: ignore[reportPrivateUsage]
        assert (host, port) == script.place
        assert await call(hub, profile=NEWER) == "modern"
        assert await call(hub) == "session"


async def test_updates_of_resources_come_by_the_session_where_2026_has_none() -> None:
    dual = Dual()
    dual.capabilities = {"tools": {}, "resources": {"subscribe": True}}
    async with mounted(dual) as (hub, _):
        person = Person()
        wanted: Params = {"notifications": {"resourceSubscriptions": ["s+note://today"]}}
        listening = asyncio.ensure_future(
            hub(Exchange("subscriptions/listen", wanted, person, OLDER, Caller("somebody")))  # pyright: ignore[reportArgumentType]
        )
        try:
            assert (await person.told.get()).method == ACKNOWLEDGED
            await dual.subscribed.wait()
            await dual.pushing.wait()
            assert dual.pushes is not None
            dual.pushes.event(message(method="notifications/resources/updated", params={"uri": "note://today"}))
            told = await person.told.get()
            assert (told.method, told.params["uri"]) == ("notifications/resources/updated", "s+note://today")
        finally:
            listening.cancel()
            await asyncio.gather(listening, return_exceptions=True)


async def test_a_session_that_cannot_be_reopened_fails_no_call() -> None:
    """The server has forgotten it and has no other to give now, but answers in 2026-07-28 as ever."""
    dual = Dual()
    async with mounted(dual) as (hub, _):
        assert await call(hub) == "session"
        dual.alive.clear()
        dual.refuses = 503
        for _ in range(6):
            assert await call(hub) == "modern"
            assert await call(hub, profile=NEWER) == "modern"
        assert dual.asked["session", "initialize"] == 2
        mount = hub.find("s")
        assert mount is not None and mount.condition().state is MountState.READY


async def test_a_tool_that_is_a_task_in_the_session_is_called_without_it() -> None:
    dual = Dual()
    dual.tools.append("task")
    async with mounted(dual) as (hub, _):
        assert await call(hub) == "session"
        assert await call(hub, "task") == "modern"


async def test_a_list_that_is_fetched_while_the_session_opens_is_looked_at_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dual_era, "WAITS_FOR_SESSION", 0.01)
    dual = Dual()
    async with asyncio.timeout(30), scripted(dual) as script:
        async with HttpUpstream(script.url).connect(Host({}, INFO, NOBODY)) as connection:
            while await era_of(connection, "echo") != "session":
                pass
            asked = dual.asked["session", "tools/list"]
            await connection(Exchange("tools/list", {}, NOBODY))
            assert await era_of(connection, "echo") == "session"
            await until(lambda: dual.asked["session", "tools/list"] == asked + 1)


async def test_a_call_that_waits_for_a_session_has_its_place_and_gives_it_back() -> None:
    dual = Dual()
    dual.welcome = asyncio.Event()
    async with mounted(dual) as (hub, _), TaskScope() as tasks:
        mount = hub.find("s")
        assert mount is not None

        async def waits() -> None:
            await call(hub)

        tasks.start(waits(), key="waits")
        await until(lambda: mount.in_flight == 1)
        tasks.cancel("waits")
        await mount.calls.limit.wait_idle()
        assert mount.in_flight == 0


async def test_a_session_log_line_reaches_no_caller_once_two_callers_are_known() -> None:
    dual = Dual()
    async with mounted(dual) as (hub, _):
        mount = hub.find("s")
        assert mount is not None
        await call(hub)
        assert mount.calls.callers == {"somebody"}
        params: Params = {"name": "s__echo", "arguments": {}}
        await hub(Exchange("tools/call", params, Person(), NEWER, Caller("another")))
        assert len(mount.calls.callers) == 2
