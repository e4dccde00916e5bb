"""New definitions are reviewed before they are shown; a review that fails or hangs holds up nothing else."""

import asyncio
import logging
from collections.abc import Mapping

import pytest

import sluicegate
from sluicegate.errors import Quarantined
from sluicegate.exchange import BEING_REVIEWED, NOBODY, Caller, Exchange, Target
from sluicegate.hub import hub as hub_module
from sluicegate.hub.hub import Hub
from sluicegate.protocol.message import Params
from sluicegate.testing import MemoryUpstream
from tests.hub.test_governed_hub import Judge


class Reviewer(Judge):
    """A governor whose review waits and fails as a test says."""

    def __init__(self) -> None:
        super().__init__()
        self.decided: set[Target] = set()
        self.attempts = 0
        self.problem: Exception | None = None
        self.is_reviewing = asyncio.Event()
        self.may_end = asyncio.Event()
        self.may_end.set()

    async def review(self, definitions: Mapping[Target, Params]) -> Mapping[Target, str]:
        self.attempts += 1
        self.is_reviewing.set()
        await self.may_end.wait()
        if self.problem is not None:
            raise self.problem
        self.decided |= definitions.keys()
        return {}

    def reviewed(self, definitions: Mapping[Target, Params]) -> Mapping[Target, str]:
        return {target: BEING_REVIEWED for target in definitions if target not in self.decided}


def server(*tools: str) -> sluicegate.Server:
    made = sluicegate.Server("any")
    for name in tools:
        add(made, name)
    return made


def add(to: sluicegate.Server, name: str) -> None:
    def tool() -> str:
        return name

    to.tool(name=name)(tool)


async def until_listed(hub: Hub, *names: str) -> None:
    async with asyncio.timeout(5):
        while list(hub.catalog.tools) != list(names):
            await hub.wait_change()


async def test_a_review_that_fails_ends_no_server_and_is_tried_again(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hub_module, "REVIEW_AGAIN_AFTER", 0.02)
    caplog.set_level(logging.ERROR, "sluicegate")
    hub, governor, files = Hub(), Reviewer(), server("read")
    hub.mount("files", MemoryUpstream(files))
    hub.govern(governor)
    async with asyncio.timeout(10), hub:
        await hub.settled()
        governor.problem = RuntimeError("the database is gone")
        add(files, "write")
        while governor.attempts < 4:
            await hub.wait_change()
        assert hub.is_open and list(hub.catalog.tools) == ["files__read"]
        assert len([record for record in caplog.records if "could not be reviewed" in record.message]) == 1
        await hub.settled()  # It does not wait for a review that fails.
        governor.problem = None
        await until_listed(hub, "files__read", "files__write")


async def test_t21_what_is_being_reviewed_is_not_shown_and_all_else_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "REVIEW_PATIENCE", 0.02)
    hub, governor, files = Hub(), Reviewer(), server("read")
    hub.mount("files", MemoryUpstream(files))
    hub.mount("notes", MemoryUpstream(server("note")))
    hub.govern(governor)
    async with asyncio.timeout(10), hub:
        await hub.settled()
        governor.may_end.clear()
        governor.is_reviewing.clear()
        add(files, "write")
        await governor.is_reviewing.wait()
        hub.dismiss("notes")  # A removal is shown without waiting.
        assert list(hub.catalog.tools) == ["files__read"]
        call = Exchange("tools/call", {"name": "files__write", "arguments": {}}, NOBODY, caller=Caller("ada"))
        with pytest.raises(Quarantined, match="may not be used yet. Its definition is being reviewed"):
            await hub(call)
        governor.may_end.set()
        await until_listed(hub, "files__read", "files__write")


async def test_a_server_is_shown_while_the_review_of_another_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_module, "REVIEW_PATIENCE", 0.02)
    monkeypatch.setattr(hub_module, "MAX_REVIEW", 0.1)
    hub, governor, files = Hub(), Reviewer(), server("read")
    hub.mount("files", MemoryUpstream(files))
    hub.govern(governor)
    async with asyncio.timeout(10), hub:
        await hub.settled()
        governor.may_end.clear()
        governor.is_reviewing.clear()
        add(files, "write")
        await governor.is_reviewing.wait()
        governor.decided |= {Target("notes", "tool", "note", each) for each in await _digests("note")}
        hub.mount("notes", MemoryUpstream(server("note")))
        await until_listed(hub, "files__read", "notes__note")
        await hub.settled()  # It waits for no longer than a review may take.


async def _digests(name: str) -> list[str]:
    async with Hub() as other:
        other.mount("notes", MemoryUpstream(server(name)))
        await other.settled()
        return [entry.target.definition for entry in other.catalog.tools.values()]
