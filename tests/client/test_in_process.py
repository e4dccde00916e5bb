"""`connect(hub)`: a hub of this process is used like any server."""

import asyncio
from typing import Any

import pytest

import sluicegate
from sluicegate.client.in_process import InProcess
from sluicegate.errors import ConfigError, UpstreamUnavailable
from sluicegate.exchange import NOBODY, Host
from sluicegate.runtime.task_scope import TaskScope

PATIENCE = 10.0


def team() -> sluicegate.Hub:
    server = sluicegate.Server("clock")

    async def sure(call: sluicegate.Call) -> str:
        answer = await call.elicit("Sure?", {"type": "object", "properties": {"sure": {"type": "boolean"}}})
        return f"{answer.action}: {answer.content}"

    async def count(call: sluicegate.Call) -> str:
        await call.progress(1, 2)
        return "counted"

    server.add_tool(lambda: "noon", name="now")
    server.add_tool(sure)
    server.add_tool(count)
    hub = sluicegate.Hub("team")
    hub.mount("clock", server)
    return hub


async def test_a_closed_hub_is_open_while_a_client_is_connected() -> None:
    hub = team()
    async with asyncio.timeout(PATIENCE):
        for _ in range(2):
            async with sluicegate.connect(hub) as client:
                assert hub.is_open and client.name == "team"
                assert [tool.name for tool in await client.tools()] == ["clock__now", "clock__sure", "clock__count"]
                assert (await client.call("clock__now")).text == "noon"
            assert not hub.is_open


async def test_an_open_hub_stays_open() -> None:
    async with asyncio.timeout(PATIENCE), team() as hub:
        async with sluicegate.connect(hub) as first, sluicegate.connect(hub) as second:
            assert (await first.call("clock__now")).text == (await second.call("clock__now")).text == "noon"
        assert hub.is_open


async def test_the_connection_that_opened_it_closes_it() -> None:
    hub = team()
    async with asyncio.timeout(PATIENCE):
        first = sluicegate.connect(hub)
        await first.__aenter__()
        async with sluicegate.connect(hub) as second:
            assert (await second.call("clock__now")).text == "noon"
            await first.__aexit__(None, None, None)
            with pytest.raises(UpstreamUnavailable, match="its hub is closed"):
                await second.call("clock__now")
        assert not hub.is_open


def test_a_hub_can_be_used_in_consecutive_event_loops() -> None:
    hub = team()

    async def use() -> list[str]:
        async with asyncio.timeout(PATIENCE), sluicegate.connect(hub) as client:
            return [tool.name for tool in await client.tools()] + [(await client.call("clock__now")).text]

    for _ in range(3):
        assert asyncio.run(use()) == ["clock__now", "clock__sure", "clock__count", "noon"]
    calls = hub.mounts[0].calls
    assert calls.figures.calls == 3, "figures are kept"


@pytest.mark.parametrize("opened_by", ["async with", "connect"])
async def test_a_hub_that_is_open_in_another_event_loop_is_refused(opened_by: str) -> None:
    hub = team()
    problems: list[str] = []

    async def use_elsewhere() -> None:
        try:
            async with sluicegate.connect(hub):
                pass
        except ConfigError as problem:
            problems.append(problem.message)

    async with asyncio.timeout(PATIENCE), hub if opened_by == "async with" else sluicegate.connect(hub):
        await asyncio.to_thread(asyncio.run, use_elsewhere())
    assert problems == ["This Hub is open in another event loop; use it in that one."]


async def test_clients_learn_at_once_that_the_hub_was_closed() -> None:
    hub = team()
    async with asyncio.timeout(PATIENCE):
        await hub.__aenter__()
        async with sluicegate.connect(hub) as client, InProcess(hub).connect(Host({}, {}, NOBODY)) as connection:
            async with TaskScope() as tasks:
                tasks.start(connection.wait_closed())
                await hub.__aexit__(None, None, None)
            # How long a call waits for a server that is to come is more than we wait here.
            async with asyncio.timeout(hub.mounts[0].settings.queue_wait / 2):
                with pytest.raises(UpstreamUnavailable, match=r"^clock is not connected: its hub is closed\.$"):
                    await client.call("clock__now")


async def test_opening_it_twice_is_refused() -> None:
    async with asyncio.timeout(PATIENCE), team() as hub:
        with pytest.raises(ConfigError, match=r"^This Hub is open already\. Open it once"):
            await hub.__aenter__()
        async with sluicegate.connect(hub) as client:
            assert (await client.call("clock__now")).text == "noon"


async def test_its_tools_can_elicit_and_report_progress() -> None:
    told: list[float] = []
    async with asyncio.timeout(PATIENCE), sluicegate.connect(team(), elicit=lambda question: {"sure": True}) as client:
        assert (await client.call("clock__sure")).text == "accept: {'sure': True}"
        await client.call("clock__count", on_progress=lambda event: told.append(event.progress))
    assert told == [1]


@pytest.mark.parametrize("kind", [sluicegate.Hub, sluicegate.Server])
def test_a_class_instead_of_an_instance_is_refused(kind: Any) -> None:
    with pytest.raises(
        ConfigError, match=rf"^Connect to a {kind.__name__}, not to the class: connect\({kind.__name__}"
    ):
        sluicegate.connect(kind)


def test_other_targets_are_refused() -> None:
    target: Any = print
    with pytest.raises(ConfigError, match="a URL, a Server or a Hub, not to builtin_function_or_method"):
        sluicegate.connect(target)


def test_variables_are_for_a_command_and_not_for_a_hub() -> None:
    with pytest.raises(ConfigError, match="are for a command"):
        sluicegate.connect(team(), env={"A": "b"})
