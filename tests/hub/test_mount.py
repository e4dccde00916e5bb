"""One server behind the hub: what its calls may ask of whom, and what passes with them."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Literal

import pytest

import sluicegate
from sluicegate import Client
from sluicegate.errors import MISSING_CAPABILITY, InputRefused, RpcError
from sluicegate.exchange import Exchange
from sluicegate.hub.hub import Hub
from sluicegate.hub.mount import MountSettings, MountState
from sluicegate.protocol.message import Params, Result, as_object, opened
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.testing import MemoryUpstream

Era = Literal["session", "modern"]


def asking() -> sluicegate.Server:
    """A server whose tools ask the client's model."""
    server = sluicegate.Server("asking")

    @server.tool
    async def insist(call: sluicegate.Call) -> str:  # pyright: ignore[reportUnusedFunction]
        return (await call.sample("Well?", max_tokens=10)).text

    @server.tool
    async def suggest(call: sluicegate.Call) -> str:  # pyright: ignore[reportUnusedFunction]
        try:
            return (await call.sample("Well?", max_tokens=10)).text
        except InputRefused:
            return "without"

    return server


@asynccontextmanager
async def hub_before(server: sluicegate.Server, era: Era) -> AsyncGenerator[Hub]:
    hub = Hub()
    hub.mount("s", MemoryUpstream(server, era=era), MountSettings(prefix=""))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        await asyncio.sleep(0)  # The catalog is built once for all that changed in one turn of the loop.
        yield hub


def client(hub: Hub, era: Era, *, is_able: bool) -> AbstractAsyncContextManager[Client]:
    return sluicegate.connect(MemoryUpstream(hub, era=era), sample=says_yes if is_able else None)


def says_yes(request: sluicegate.SampleRequest) -> str:
    return "yes"


# ---------------------------------------------------------------------------------------------------- who can be asked


@pytest.mark.parametrize("era", ["session", "modern"])
@pytest.mark.parametrize("upstream_era", ["session", "modern"])
async def test_a_caller_with_the_capability_is_asked(era: Era, upstream_era: Era) -> None:
    async with hub_before(asking(), upstream_era) as hub, client(hub, era, is_able=True) as able:
        assert (await able.call("insist")).text == "yes"
        assert (await able.call("suggest")).text == "yes"


async def test_a_caller_of_2026_hears_what_it_would_have_to_declare_when_a_session_era_server_fails_without() -> None:
    async with hub_before(asking(), "session") as hub, client(hub, "modern", is_able=False) as unable:
        with pytest.raises(RpcError) as refusal:
            await unable.call("insist")
        assert refusal.value.code == MISSING_CAPABILITY
        told = as_object(refusal.value.error.data) or {}
        assert told["requiredCapabilities"] == {"sampling": {}}
        assert (as_object(told["upstream"]) or {})["isError"] is True


async def test_a_caller_of_the_session_era_gets_what_the_server_itself_says_of_its_failure() -> None:
    async with hub_before(asking(), "session") as hub, client(hub, "session", is_able=False) as unable:
        assert (await unable.call("insist")).is_error


@pytest.mark.parametrize("era", ["session", "modern"])
async def test_a_server_that_finds_another_way_is_not_held_up(era: Era) -> None:
    async with hub_before(asking(), "session") as hub, client(hub, era, is_able=False) as unable:
        assert (await unable.call("suggest")).text == "without"


# ------------------------------------------------------------------------------------------------------ what passes on


class Mute:
    """The way back to a client that hears nothing and is asked nothing."""

    async def emit(self, notification: object) -> None:
        pass

    async def ask(self, questions: object) -> dict[str, Params]:
        raise InputRefused("nobody is there")


@pytest.mark.parametrize("upstream_era", ["session", "modern"])
async def test_t18_a_question_names_its_server_also_where_names_have_no_prefix(upstream_era: Era) -> None:
    server = sluicegate.Server("files")

    @server.tool
    async def imitate(call: sluicegate.Call) -> str:  # pyright: ignore[reportUnusedFunction]
        return (await call.elicit("sluicegate asks: may this call run?", {"type": "object", "properties": {}})).action

    asked: list[str] = []

    async def decline(request: sluicegate.ElicitRequest) -> sluicegate.ElicitAnswer:
        asked.append(request.message)
        return sluicegate.ElicitAnswer("decline")

    async with hub_before(server, upstream_era) as hub:
        async with sluicegate.connect(MemoryUpstream(hub), elicit=decline) as caller:
            assert (await caller.call("imitate")).text == "decline"
    assert asked == ["[s] sluicegate asks: may this call run?"]


async def test_a_call_can_let_go_of_its_clients_response() -> None:
    server = sluicegate.Server("slow")

    @server.tool
    def slow(call: sluicegate.Call) -> str:  # pyright: ignore[reportUnusedFunction]
        call.end_response_early()
        return "at last"

    hub, end_response_early = Hub(), asyncio.Event()
    hub.mount("s", server, MountSettings(prefix=""))
    async with asyncio.timeout(10), hub:
        await hub.settled()
        await asyncio.sleep(0)
        exchange = Exchange(
            "tools/call", {"name": "slow"}, Mute(), ClientProfile(), end_response_early=end_response_early.set
        )
        reply = await hub(exchange)
        assert isinstance(reply, Result)
        assert opened(reply)["content"] == [{"type": "text", "text": "at last"}]
        await end_response_early.wait()


async def test_a_mount_says_how_it_is_from_beginning_to_end() -> None:
    hub = Hub()
    mount = hub.mount("s", asking())
    assert (mount.state, mount.is_ready) == (MountState.STARTING, False)
    async with asyncio.timeout(10), hub:
        await mount.settled()
        assert (mount.state, mount.is_ready, mount.sentence) == (MountState.READY, True, "s is ready.")
        await hub.unmount("s")
        assert mount.state is MountState.DISABLED
        assert hub.find("s") is None


class Gone(Mute):
    """The way back to a client that is asked something and never comes back with an answer."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()

    async def ask(self, questions: object) -> dict[str, Params]:
        self.asked.set()
        await asyncio.Event().wait()
        raise AssertionError("nobody comes back")


async def test_a_caller_that_never_answers_does_not_block_questions_of_other_calls() -> None:
    # On a pipe nothing in a question says which call it belongs to; both calls are of one caller.
    able = ClientProfile(capabilities={"sampling": {}})
    async with hub_before(asking(), "session") as hub, TaskScope() as tasks:
        gone = Gone()

        async def call() -> None:
            await hub(Exchange("tools/call", {"name": "insist"}, gone, able))

        tasks.start(call())
        await gone.asked.wait()
        async with client(hub, "modern", is_able=True) as present:
            assert (await present.call("insist")).text == "yes"
        tasks.cancel_all()
