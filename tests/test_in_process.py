"""`connect(hub)`: a hub of this process is met as a server is."""

import asyncio
from typing import Any

import pytest

import sluicegate
from sluicegate.errors import ConfigError

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


async def test_a_hub_that_nobody_has_opened_is_open_meanwhile() -> None:
    hub = team()
    async with asyncio.timeout(PATIENCE):
        for _ in range(2):
            async with sluicegate.connect(hub) as client:
                assert hub.is_open and client.name == "team"
                assert [tool.name for tool in await client.tools()] == ["clock__now", "clock__sure", "clock__count"]
                assert (await client.call("clock__now")).text == "noon"
            assert not hub.is_open


async def test_a_hub_that_somebody_has_opened_stays_open() -> None:
    async with asyncio.timeout(PATIENCE), team() as hub:
        async with sluicegate.connect(hub) as first, sluicegate.connect(hub) as second:
            assert (await first.call("clock__now")).text == (await second.call("clock__now")).text == "noon"
        assert hub.is_open


async def test_its_tools_ask_and_tell_how_far_they_are() -> None:
    told: list[float] = []
    async with asyncio.timeout(PATIENCE), sluicegate.connect(team(), elicit=lambda question: {"sure": True}) as client:
        assert (await client.call("clock__sure")).text == "accept: {'sure': True}"
        await client.call("clock__count", on_progress=lambda event: told.append(event.progress))
    assert told == [1]


@pytest.mark.parametrize("kind", [sluicegate.Hub, sluicegate.Server])
def test_the_class_of_one_is_refused_with_what_to_write(kind: Any) -> None:
    with pytest.raises(
        ConfigError, match=rf"^Connect to a {kind.__name__}, not to the class: connect\({kind.__name__}"
    ):
        sluicegate.connect(kind)


def test_what_cannot_be_connected_to_is_refused_with_what_can() -> None:
    target: Any = print
    with pytest.raises(ConfigError, match="a URL, a Server or a Hub, not to builtin_function_or_method"):
        sluicegate.connect(target)


def test_variables_are_for_a_command_and_not_for_a_hub() -> None:
    with pytest.raises(ConfigError, match="are for a command"):
        sluicegate.connect(team(), env={"A": "b"})
