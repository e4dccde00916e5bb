"""Waiting for decisions in the record of a folder."""

import asyncio
import time

from sluicegate.control.folder_operations import FolderOperations
from sluicegate.store.base import Approval
from sluicegate.store.memory_decisions import MemoryDecisions


async def test_a_wait_for_a_decision_ends_at_the_deadline_of_the_question() -> None:
    decisions = MemoryDecisions()
    now = time.time_ns()
    # Its gateway was killed, so the question stays pending.
    question = Approval(
        id="aaaaaa",
        run="killed",
        binding="b1",
        caller="ada",
        method="tools/call",
        server="files",
        kind="tool",
        name="write",
        definition="d1",
        arguments="{}",
        asked=now,
        deadline=now + 50_000_000,
    )
    await decisions.ask(question, 10)
    async with asyncio.timeout(5):
        await FolderOperations(decisions).wait_decided("aaaaaa")
    found = await decisions.find("aaaaaa")
    assert found is not None and found.state == "pending"
