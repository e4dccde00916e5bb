"""Commands that decide: a running gateway is asked, and without one the record of the folder is used."""

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import pytest

from sluicegate.cli.gateway_client import GatewayClient
from sluicegate.cli.operations import operations_of, wait_decided
from sluicegate.config.paths import Places, state_file
from sluicegate.control.folder_operations import FolderOperations
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.store.base import Approval
from sluicegate.store.sqlite_decisions import SqliteDecisions
from tests.cli.folders import COUNTING, Folder


@pytest.fixture
def places(folder: Folder) -> Places:
    return Places(root=str(folder.path), home=str(folder.home), environ=folder.env)


@asynccontextmanager
async def record(places: Places) -> AsyncGenerator[SqliteDecisions]:
    """The record with a question, as a gateway of the folder without a socket has it open."""
    opened = SqliteDecisions(state_file(places.root, places.environ))
    question = Approval(
        id="abcdef",
        run=opened.run,
        binding="b",
        caller="ada",
        method="tools/call",
        server="files",
        kind="tool",
        name="write",
        arguments="{}",
        asked=1,
        deadline=2**62,
    )
    assert await opened.ask(question, 10) is not None
    try:
        yield opened
    finally:
        await opened.aclose()


async def test_a_wait_ends_when_another_process_withdraws_the_question(places: Places) -> None:
    async with asyncio.timeout(10), record(places) as gateway, TaskScope() as tasks:
        is_waiting = asyncio.Event()
        is_decided = asyncio.Event()

        async def wait() -> None:
            is_waiting.set()
            await wait_decided(places, "abcdef")
            is_decided.set()

        tasks.start(wait())
        await is_waiting.wait()
        assert not is_decided.is_set()
        await gateway.void("abcdef")
        await is_decided.wait()


async def test_a_wait_for_a_record_that_cannot_be_used_does_not_end(places: Places, folder: Folder) -> None:
    async with record(places):
        pass
    (folder.home / ".local").mkdir(exist_ok=True)
    with open(state_file(places.root, places.environ), "wb") as file:  # noqa: ASYNC230 - a small file
        file.write(b"this is no database, but long enough to be read as one " * 40)
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await wait_decided(places, "abcdef")


async def test_commands_use_the_record_without_a_gateway(places: Places) -> None:
    async with record(places), operations_of(places) as operations:
        assert isinstance(operations, FolderOperations)
        assert [question.id for question in await operations.approvals()] == ["abcdef"]


async def test_commands_ask_a_running_gateway_also_about_questions_of_another_one(
    folder: Folder, places: Places
) -> None:
    folder.servers(counting=COUNTING)
    with folder.serving():
        async with asyncio.timeout(20), record(places), operations_of(places) as operations:
            assert isinstance(operations, GatewayClient)
            assert [question.id for question in await operations.approvals()] == ["abcdef"]
            assert await operations.grants() == [] and await operations.login_link(by="ada") is None
            assert not await operations.revoke_grant("nothing", by="ada")
            assert not await operations.approve_pin("files", "tool", "read", "h", by="ada")
            assert {pin.server for pin in await operations.pins()} == {"counting"}


def test_watching_goes_on_when_the_gateway_stops(folder: Folder, places: Places) -> None:
    folder.servers(counting=COUNTING)
    with folder.serving() as (process, _, _), folder.started("approvals", "--watch", "--json") as watch:
        assert watch.stdout is not None
        process.terminate()
        process.wait(30)

        async def read_question() -> str:
            async with record(places):
                assert watch.stdout is not None
                return await asyncio.to_thread(watch.stdout.readline)

        assert json.loads(asyncio.run(read_question()))["id"] == "abcdef"
