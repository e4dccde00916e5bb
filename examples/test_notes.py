"""How to test a server: directly, or through the protocol of an era. Run it with `pytest examples/test_notes.py`."""

import pytest

import sluicegate
from examples.notes import server
from sluicegate.testing import MemoryUpstream


async def test_a_note_can_be_read_after_it_was_written() -> None:
    async with sluicegate.connect(server) as client:
        result = await client.call("write", day="sunday", text="Sleep.")
        assert result.structured_content == {"day": "sunday", "length": 6}
        assert (await client.read("note://sunday")).text == "Sleep."


@pytest.mark.parametrize("era", ["session", "modern"])
async def test_forgetting_asks_first_in_either_era(era: sluicegate.Era) -> None:
    upstream = MemoryUpstream(server, era=era)
    async with sluicegate.connect(upstream, elicit=lambda question: {"sure": False}) as client:
        assert (await client.call("forget", day="monday")).text == "Kept."


async def test_a_wrong_argument_is_told_to_the_model() -> None:
    async with sluicegate.connect(server) as client:
        result = await client.call("write", day="someday", text="x")
        assert result.is_error and "day" in result.text
