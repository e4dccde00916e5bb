"""A server at a URL that refuses one caller still serves the calls of others (R14, R19)."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager

import pytest

from sluicegate.errors import SluicegateError, UpstreamClosed, UpstreamError
from sluicegate.exchange import NOBODY, Exchange
from sluicegate.hub import calls
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import Mount, MountSettings, MountState
from sluicegate.protocol.message import Reply, Result, opened
from sluicegate.runtime import deadlines
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream import http
from sluicegate.upstream.http import HttpUpstream
from tests.hub.scripted import Scripted, tools, until
from tests.upstream.http_server import Answer, Asked, Json, Script, modern, scripted

LISTED: Json = {
    "tools": [{"name": name, "inputSchema": {"type": "object"}} for name in ("bad", "good", "long")],
    "resultType": "complete",
}
DONE: Json = {"resultType": "complete", "content": []}


@pytest.fixture(autouse=True)
def no_verdicts() -> Iterator[None]:
    http.forget_verdicts()
    yield
    http.forget_verdicts()


class Clock:
    """The time, as a test tells it."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        for module in (calls, deadlines):
            monkeypatch.setattr(module, "monotonic", lambda: self.now)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


class Remote:
    """A server that answers `good`, does with `bad` what the test says, and with `long` takes until `finish`."""

    def __init__(self) -> None:
        self.bad: Answer = lambda asked: asked.result(DONE)
        self.begun, self.finish = asyncio.Event(), asyncio.Event()

    def __call__(self, asked: Asked) -> Awaitable[None] | None:
        if asked.called == "tools/list":
            asked.result(LISTED)
            return None
        match asked.header("mcp-name"):
            case "bad":
                return self.bad(asked)
            case "long":
                return self._answer_late(asked)
            case _:
                asked.result(DONE)
        return None

    async def _answer_late(self, asked: Asked) -> None:
        self.begun.set()
        await self.finish.wait()
        asked.result(DONE)


@asynccontextmanager
async def mounted(remote: Remote) -> AsyncGenerator[tuple[Hub, Mount, Script]]:
    hub = Hub()
    async with asyncio.timeout(20), scripted(modern(remote)) as script:
        mount = hub.mount("s", HttpUpstream(script.url, name="s"))
        async with hub:
            await hub.settled()
            yield hub, mount, script


def call(hub: Hub, tool: str) -> Awaitable[Reply]:
    return hub(Exchange("tools/call", {"name": f"s__{tool}", "arguments": {}}, NOBODY))


async def refused(hub: Hub, tool: str = "bad") -> SluicegateError:
    with pytest.raises(SluicegateError) as caught:
        await call(hub, tool)
    return caught.value


async def answers(hub: Hub, tool: str = "good") -> bool:
    reply = await call(hub, tool)
    return isinstance(reply, Result) and opened(reply)["content"] == []


def says(status: int, *headers: tuple[str, str]) -> Answer:
    return lambda asked: asked.status(status, b"", *headers)


# -------------------------------------------------------------------------------------------------- one refused request


@pytest.mark.parametrize("status", [302, 400, 401, 403, 404, 408, 409, 413, 422])
async def test_repeated_refusals_of_one_request_do_not_open_the_circuit(status: int) -> None:
    remote = Remote()
    remote.bad = says(status)
    async with mounted(remote) as (hub, mount, _):
        for _ in range(7):
            assert (await refused(hub)).data["status"] == status, "it was asked each time"
        assert await answers(hub)
        assert mount.condition().state is MountState.READY


async def test_redirect_loops_do_not_open_the_circuit() -> None:
    remote = Remote()
    remote.bad = says(307, ("Location", "/mcp"))
    async with mounted(remote) as (hub, _, _):
        for _ in range(7):
            assert "redirects more than 3 times" in (await refused(hub)).message
        assert await answers(hub)


@pytest.mark.parametrize(
    ("status", "why"),
    [(401, "s requires authorization (status 401)."), (403, "s denies authorization (status 403).")],
)
async def test_credentials_that_are_refused_show_until_a_call_is_answered(status: int, why: str) -> None:
    remote = Remote()
    remote.bad = says(status)
    async with mounted(remote) as (hub, mount, _):
        for _ in range(7):
            await refused(hub)
        shown = mount.condition()
        assert (shown.state, shown.sentence) == (MountState.DEGRADED, f"{why} It is tried again with the next call.")
        assert await answers(hub)
        assert mount.condition().state is MountState.READY


async def test_a_request_that_is_too_large_shows_nothing_of_a_server_that_took_it() -> None:
    remote = Remote()
    remote.bad = says(413)
    async with mounted(remote) as (hub, mount, _):
        for _ in range(7):
            await refused(hub)
        assert mount.condition().state is MountState.READY


async def test_a_server_that_failed_call_after_call_and_refuses_the_one_that_tries_it_is_back(clock: Clock) -> None:
    remote = Remote()
    remote.bad = says(500)
    async with mounted(remote) as (hub, _, _):
        for _ in range(5):
            assert (await refused(hub)).data["status"] == 500
        assert (await refused(hub, "good")).message.startswith("s failed call after call: it failed (status 500).")
        clock.now += 11
        remote.bad = says(422)
        assert (await refused(hub)).data["status"] == 422
        assert await answers(hub)


# --------------------------------------------------------------------------------------------- one that has no time now


async def test_other_calls_get_the_retry_time_of_a_busy_server(clock: Clock) -> None:
    remote = Remote()
    remote.bad = says(429, ("Retry-After", "7"))
    async with mounted(remote) as (hub, _, _):
        assert (await refused(hub)).data == {"status": 429, "retryAfter": 7}
        problem = await refused(hub, "good")
        assert problem.message == "s takes no requests now (status 429). It is tried again within 7 s."
        assert problem.delivered == "no"
        clock.now += 7
        assert await answers(hub)


async def test_a_server_that_wants_days_is_asked_again_after_a_minute(clock: Clock) -> None:
    remote = Remote()
    remote.bad = says(503, ("Retry-After", "999999"))
    async with mounted(remote) as (hub, mount, _):
        assert (await refused(hub)).data["retryAfter"] == 999_999
        assert (await refused(hub, "good")).message.endswith(" It is tried again within 60 s.")
        clock.now += 61
        assert await answers(hub)
        assert mount.condition().state is MountState.READY


@pytest.mark.parametrize("answer", [says(429, ("Retry-After", "1")), says(500), says(502)], ids=["429", "500", "502"])
async def test_a_call_that_tries_the_server_in_vain_cuts_nobodys(clock: Clock, answer: Answer) -> None:
    remote = Remote()
    remote.bad = answer
    done: list[bool] = []

    async def take_long(hub: Hub) -> None:
        done.append(await answers(hub, "long"))

    async with mounted(remote) as (hub, _, script):
        async with TaskScope() as tasks:
            tasks.start(take_long(hub))
            await remote.begun.wait()
            for _ in range(5):
                await refused(hub)
            for _ in range(3):
                clock.now += 11
                assert "status" in (await refused(hub)).data, "it was asked"
            remote.finish.set()
            await until(lambda: bool(done))
        assert done == [True]
        assert script.methods().count("server/discover") == 1


# ----------------------------------------------------------------------------------------------------- one that is gone


def status_of(status: int) -> UpstreamError:
    return UpstreamError(f"status {status}", delivered="unknown", data={"status": status})


@asynccontextmanager
async def failing(problem: Callable[[], UpstreamError]) -> AsyncGenerator[tuple[Hub, Scripted, asyncio.Event]]:
    """A server whose tool `bad` fails; its tool `long` takes until the event."""
    finish = asyncio.Event()

    async def answer(exchange: Exchange) -> Reply:
        if exchange.method == "tools/list":
            return tools("bad", "long")
        if exchange.params["name"] == "bad":
            raise problem()
        await finish.wait()
        return Result(DONE)

    server, hub = Scripted(answer, {"tools": {}}), Hub()
    hub.mount("s", server, MountSettings(prefix="s"))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        yield hub, server, finish


@pytest.mark.parametrize(
    ("problem", "begins_anew"),
    [(UpstreamClosed("gone"), True), (status_of(502), True), (status_of(500), False), (status_of(429), False)],
    ids=str,
)
async def test_a_server_that_may_have_been_replaced_is_reconnected(
    clock: Clock, problem: UpstreamError, begins_anew: bool
) -> None:
    async with failing(lambda: problem) as (hub, server, _):
        for _ in range(5):
            await refused(hub)
        clock.now += 11
        await refused(hub)
        if begins_anew:
            await until(lambda: len(server.connections) == 2)
        else:
            clock.now += 11
            await refused(hub)
            assert len(server.connections) == 1


async def test_a_server_that_seems_gone_is_not_reconnected_during_another_call(clock: Clock) -> None:
    async with failing(lambda: UpstreamClosed("gone")) as (hub, server, finish), TaskScope() as tasks:
        done: list[Reply] = []

        async def take_long() -> None:
            done.append(await call(hub, "long"))

        tasks.start(take_long())
        mount = hub.find("s")
        assert mount is not None
        await until(lambda: mount.in_flight == 1)
        for _ in range(5):
            await refused(hub)
        for _ in range(3):
            clock.now += 11
            assert (await refused(hub)).message == "gone; the call may have run."
        assert len(server.connections) == 1
        finish.set()
        await until(lambda: bool(done))


async def test_calls_that_end_with_an_old_connection_do_not_open_the_circuit_of_the_new_one() -> None:
    end, left = asyncio.Event(), 6

    async def answer(exchange: Exchange) -> Reply:
        nonlocal left
        if exchange.method == "tools/list":
            return tools("one")
        if left:
            left -= 1
            await end.wait()
            raise UpstreamClosed("s went away.")
        return Result(DONE)

    server, hub = Scripted(answer, {"tools": {}}), Hub()
    mount = hub.mount("s", server, MountSettings(prefix="s"))
    over: list[SluicegateError] = []

    async def ask() -> None:
        over.append(await refused(hub, "one"))

    async with asyncio.timeout(10), hub, TaskScope() as tasks:
        await hub.settled()
        for _ in range(6):
            tasks.start(ask())
        await until(lambda: not left)
        server.connections[0].hang_up()
        await until(lambda: len(server.connections) == 2 and mount.is_ready)
        end.set()
        await until(lambda: len(over) == 6)
        assert await answers(hub, "one")
