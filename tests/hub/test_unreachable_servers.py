"""A connected server that cannot be reached: its state from the first failure to the next success."""

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from sluicegate.errors import (
    INTERNAL_ERROR,
    ErrorObject,
    InputRefused,
    SluicegateError,
    Truncated,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from sluicegate.exchange import Exchange
from sluicegate.hub import fetch_catalog as lists
from sluicegate.hub import subscriptions as listening
from sluicegate.hub import supervise as plan
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import Mount, MountSettings, MountState
from sluicegate.hub.supervise import out_of_reach
from sluicegate.protocol.message import Notification, Params, Reply, Result, as_object, opened
from sluicegate.protocol.modern_era import complete
from sluicegate.runtime.task_scope import TaskScope, forever
from tests.hub.scripted import Answer, Scripted, acknowledge, tools, until

CHANGED = Notification("notifications/tools/list_changed", {})
DONE = Result({"resultType": "complete", "content": []})
LISTENS = {"tools": {"listChanged": True}}
NOWHERE = UpstreamUnavailable("s could not be reached: nothing listens there.")
READY = (MountState.READY, "s is ready.")
UNREACHED = (MountState.DEGRADED, f"{NOWHERE.message} It is tried again with the next call.")


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (listening, lists):
        monkeypatch.setattr(module, "FIRST_RETRY", 0.01)
        monkeypatch.setattr(module, "MAX_RETRY", 0.02)
    monkeypatch.setattr(plan, "MIN_PAUSE", 0.01)


class Mute:
    """The way back to a client that hears nothing and is asked nothing."""

    async def emit(self, notification: object) -> None:
        pass

    async def ask(self, questions: object) -> dict[str, Params]:
        raise InputRefused("nobody is there")


@asynccontextmanager
async def mounted(server: Scripted) -> AsyncGenerator[tuple[Hub, Mount]]:
    hub = Hub()
    mount = hub.mount("s", server, MountSettings(prefix="s", debounce=0))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        assert shown(mount) == READY
        yield hub, mount


def answering(answer: Answer) -> Scripted:
    """A server that tells of no changes, and answers calls in this way."""

    async def answer_all(exchange: Exchange) -> Reply:
        return tools("one") if exchange.method == "tools/list" else await answer(exchange)

    return Scripted(answer_all, {"tools": {}})


def call() -> Exchange:
    return Exchange("tools/call", {"name": "s__one", "arguments": {}}, Mute())


def shown(mount: Mount) -> tuple[MountState, str]:
    condition = mount.condition()
    return condition.state, condition.sentence


async def becomes(mount: Mount, condition: tuple[MountState, str]) -> None:
    await until(lambda: shown(mount) == condition)


# ---------------------------------------------------------------------------------------------------------------- calls


async def test_the_first_call_that_is_not_delivered_shows_with_its_cause_until_one_is() -> None:
    outcomes: list[Reply | UpstreamError] = [NOWHERE, NOWHERE, DONE]

    async def answer(exchange: Exchange) -> Reply:
        outcome = outcomes.pop(0)
        if isinstance(outcome, UpstreamError):
            raise outcome
        return outcome

    async with mounted(answering(answer)) as (hub, mount):
        for _ in range(2):
            with pytest.raises(UpstreamUnavailable):
                await hub(call())
            assert shown(mount) == UNREACHED
            assert mount.condition().problem is NOWHERE
            # It is shown, and that is all: it is asked as before, and nobody is told that it is away.
            assert mount.is_ready and not mount.calls.circuit.is_open
            listed = await hub(Exchange("tools/list", {}, Mute()))
            assert isinstance(listed, Result) and len(as_tools(listed)) == 1
            assert "dev.sluicegate/servers" not in (as_object(opened(listed)["_meta"]) or {})
        await hub(call())
        assert shown(mount) == READY


def as_tools(listed: Result) -> list[object]:
    found = opened(listed)["tools"]
    assert isinstance(found, list)
    return found  # pyright: ignore[reportUnknownVariableType]


@pytest.mark.parametrize(
    "outcome",
    [
        UpstreamTimeout("s did not answer."),
        UpstreamProtocolError("s answers nonsense."),
        ErrorObject(INTERNAL_ERROR, "no"),
    ],
)
async def test_one_that_is_slow_or_answers_nonsense_was_reached(outcome: Reply | UpstreamError) -> None:
    async def answer(exchange: Exchange) -> Reply:
        if isinstance(outcome, UpstreamError):
            raise outcome
        return outcome

    async with mounted(answering(answer)) as (hub, mount):
        try:
            assert await hub(call()) == outcome
        except UpstreamError:
            pass
        assert shown(mount) == READY


async def test_one_that_is_left_alone_for_a_while_says_why() -> None:
    is_well = False

    async def answer(exchange: Exchange) -> Reply:
        if not is_well:
            raise NOWHERE
        return DONE

    async with mounted(answering(answer)) as (hub, mount):
        for _ in range(6):
            with pytest.raises(SluicegateError):
                await hub(call())
        cause = "s failed call after call: it could not be reached: nothing listens there."
        assert shown(mount) == (MountState.DEGRADED, f"{cause} It is tried again within 10 s.")
        # A person need not wait for the next call.
        is_well = True
        mount.restart()
        await becomes(mount, READY)


async def test_what_ends_with_an_older_connection_says_nothing_of_the_one_that_is_there_now() -> None:
    asked, end = asyncio.Event(), asyncio.Event()

    async def answer(exchange: Exchange) -> Reply:
        if exchange.method == "tools/call":
            asked.set()
            await end.wait()
        raise UpstreamClosed("s went away.")

    server = answering(answer)
    async with mounted(server) as (hub, mount), TaskScope() as tasks:
        over = asyncio.Event()

        async def ask() -> None:
            with pytest.raises(UpstreamClosed):
                await hub(call())
            over.set()

        tasks.start(ask())
        await asked.wait()
        server.connections[0].hang_up()
        await until(lambda: len(server.connections) == 2)
        await becomes(mount, READY)
        end.set()
        await over.wait()
        assert shown(mount) == READY


def test_the_sentence_says_when_it_is_tried_again() -> None:
    circuit = plan.CircuitBreaker()

    def sentence(now: float) -> str:
        condition = out_of_reach("s", circuit, lambda problem: problem.message, now)
        return "" if condition is None else condition.sentence

    assert sentence(0.0) == ""
    busy = UpstreamUnavailable("s takes no requests now", data={"retryAfter": 40})
    circuit.failed(busy, 0.0)
    assert sentence(1.0) == "s takes no requests now. It is tried again within 40 s."
    assert sentence(40.0) == "s takes no requests now. It is tried again with the next call."
    circuit.reached(41.0)
    assert sentence(41.0) != "", "calls are refused until one of them shows that it is well"
    circuit.succeeded(42.0)
    assert (sentence(42.0), circuit.since) == ("", 42.0)
    circuit.unreachable(UpstreamUnavailable("nothing listens there"), 50.0)
    assert sentence(50.0) == "s: nothing listens there. It is tried again with the next call."
    assert circuit.since == 50.0


# ---------------------------------------------------------------------------------------------------------------- lists


class Changing:
    """A server that tells of changes, and whose lists are fetched with what a test says."""

    def __init__(self) -> None:
        self.problem: UpstreamError | None = None
        self.fetches = 0
        self.change = asyncio.Event()

    async def __call__(self, exchange: Exchange) -> Reply:
        if exchange.method == "tools/call":
            return DONE
        if exchange.method == "tools/list":
            self.fetches += 1
            if self.problem is not None:
                raise self.problem
            return tools("one")
        await acknowledge(exchange)
        await self.change.wait()
        await exchange.emit(CHANGED)
        await forever()
        raise AssertionError

    async def tried(self, times: int) -> None:
        """Wait until its lists were asked for so often from now on."""
        wanted = self.fetches + times
        await until(lambda: self.fetches >= wanted)


async def test_failed_refreshes_keep_the_old_lists_and_are_logged_once_per_cause(
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING, "sluicegate")
    server = Changing()
    other = UpstreamUnavailable("s failed (status 502).", delivered="unknown")
    async with mounted(Scripted(server, LISTENS)) as (hub, mount):
        server.problem = NOWHERE
        server.change.set()
        await becomes(mount, UNREACHED)
        await server.tried(3)
        server.problem = other
        await server.tried(3)
        server.problem = NOWHERE
        await server.tried(3)
        assert list(hub.catalog.tools) == ["s__one"]
        server.problem = None
        await becomes(mount, READY)
    assert caplog.messages == [
        f"s: lists could not be fetched: {NOWHERE}",
        f"s: lists could not be fetched: {other}",
        "s: its lists can be fetched again, and are up to date.",
    ]


async def test_a_call_that_is_answered_shows_that_the_server_is_there_whatever_became_of_its_lists() -> None:
    server = Changing()
    async with mounted(Scripted(server, LISTENS)) as (hub, mount):
        server.problem = NOWHERE
        server.change.set()
        await becomes(mount, UNREACHED)
        await hub(call())
        assert shown(mount) == READY


async def test_lists_that_cannot_be_read_show_until_they_can_though_calls_are_answered() -> None:
    server = Changing()
    async with mounted(Scripted(server, LISTENS)) as (hub, mount):
        server.problem = UpstreamProtocolError("s answers nonsense.")
        server.change.set()
        why = "s did not return valid lists. Its lists stay as they were and are fetched again within 30 s."
        await becomes(mount, (MountState.DEGRADED, why))
        await hub(call())
        assert shown(mount) == (MountState.DEGRADED, why)
        server.problem = None
        await becomes(mount, READY)


# -------------------------------------------------------------------------------------------------------- subscriptions


class Holding:
    """A server whose subscriptions end when a test says so, and are opened again or not; its lists never change."""

    def __init__(self) -> None:
        self.problem: UpstreamError | None = None
        self.cut = asyncio.Event()
        self.opened = self.attempts = 0

    async def __call__(self, exchange: Exchange) -> Reply:
        if exchange.method != "subscriptions/listen":
            return Result(complete({"resources": [], "resourceTemplates": []}, ttl_ms=0))
        self.attempts += 1
        if self.problem is not None:
            raise self.problem
        await acknowledge(exchange)
        self.opened += 1
        await self.cut.wait()
        self.cut.clear()
        raise Truncated("s cut the stream.")

    async def tried(self, times: int) -> None:
        """Wait until it was asked for a subscription so often from now on."""
        wanted = self.attempts + times
        await until(lambda: self.attempts >= wanted)


async def test_a_subscription_that_cannot_be_opened_again_shows_without_any_call() -> None:
    server = Holding()
    async with mounted(Scripted(server, {"resources": {"subscribe": True}})) as (_, mount):
        assert await mount.subscriptions.watch("note://one")
        server.problem = NOWHERE
        server.cut.set()
        await becomes(mount, UNREACHED)
        server.problem = None
        await becomes(mount, READY)
        mount.subscriptions.unwatch("note://one")


@pytest.mark.parametrize("problem", [None, UpstreamUnavailable("s is busy (status 503).", data={"status": 503})])
async def test_a_server_that_lets_go_of_a_subscription_or_gives_out_none_is_there(
    problem: UpstreamError | None,
) -> None:
    server = Holding()
    async with mounted(Scripted(server, {"resources": {"subscribe": True}})) as (_, mount):
        assert await mount.subscriptions.watch("note://one")
        server.problem = problem
        server.cut.set()
        await server.tried(2 if problem is not None else 1)
        assert shown(mount) == READY
        mount.subscriptions.unwatch("note://one")
