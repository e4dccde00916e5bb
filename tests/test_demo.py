"""The demo server: each of its tools does what its description says."""

import asyncio
import re

import sluicegate
from sluicegate.demo import server


async def test_each_tool_does_what_it_says() -> None:
    async with asyncio.timeout(10), sluicegate.connect(server, elicit=lambda _: {"name": "Ada"}) as client:
        assert (await client.call("echo", text="a", times=2)).text == "a\na"
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", (await client.call("clock")).text)
        assert (await client.call("clock", form="unix")).text.isdigit()
        assert (await client.call("greet")).text == "Hello, Ada."
        assert (await client.call("fail")).is_error
        assert (await client.read("demo://about")).contents[0].text
        assert "Summarise" in str((await client.prompt("summarise", text="x")).messages)


async def test_counting_reports_its_progress() -> None:
    async with asyncio.timeout(10), sluicegate.connect(server) as client:
        events = [event async for event in client.stream("count", to=3, pause=0)]
    assert [str(getattr(event, "progress", event)) for event in events] == ["1", "2", "3", "counted to 3"]


async def test_without_a_name_the_greeting_has_none() -> None:
    async with asyncio.timeout(10), sluicegate.connect(server, elicit=lambda _: None) as client:
        assert (await client.call("greet")).text == "Hello, whoever you are."
