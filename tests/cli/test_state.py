"""The record of approvals, as commands wait for changes of it."""

import threading
from collections.abc import Callable, Generator
from contextlib import closing

import pytest

from sluicegate.cli import state as cli_state
from sluicegate.cli.state import wait_decided
from sluicegate.config.paths import Places, state_file
from sluicegate.errors import StateUnavailable
from sluicegate.store.base import Approval
from sluicegate.store.sqlite_decisions import SqliteDecisions
from tests.cli.folders import Folder


class Steps(threading.Event):
    """Each wait for its end does the next of these steps instead; after the last one it is set."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self._steps = list(steps)

    def wait(self, timeout: float | None = None) -> bool:
        if self._steps:
            self._steps.pop(0)()
        else:
            self.set()
        return self.is_set()


@pytest.fixture
def places(folder: Folder) -> Places:
    return Places(root=str(folder.path), home=str(folder.home), environ=folder.env)


@pytest.fixture
def record(places: Places) -> Generator[SqliteDecisions]:
    """The record with a question, as a gateway of the folder has it open."""
    question = Approval(
        id="abcdef",
        run="",
        binding="b",
        caller="ada",
        client="",
        method="tools/call",
        server="files",
        kind="tool",
        name="write",
        arguments="{}",
        rule="",
        why="",
        asked=1,
        deadline=2**62,
    )
    with closing(SqliteDecisions(state_file(places.root, places.environ))) as opened:
        assert opened.ask(question, 10) is not None
        yield opened


@pytest.fixture
def openings(monkeypatch: pytest.MonkeyPatch) -> list[Exception | None]:
    """What becomes of each time that the record is opened: a problem, or None for success."""
    outcomes: list[Exception | None] = []

    def opened(path: str | None, **_: object) -> SqliteDecisions:
        assert outcomes, "it is opened once more"
        if (problem := outcomes.pop(0)) is not None:
            raise problem
        return SqliteDecisions(path, asks=False)

    monkeypatch.setattr(cli_state, "SqliteDecisions", opened)
    return outcomes


def nothing() -> None:
    pass


@pytest.mark.parametrize("problem", [None, OSError("no more files"), StateUnavailable("It is locked.")])
def test_one_connection_serves_a_whole_wait_once_it_can_be_opened(
    places: Places, record: SqliteDecisions, openings: list[Exception | None], problem: Exception | None
) -> None:
    openings += [None] if problem is None else [problem, None]
    waits = Steps(nothing, nothing, lambda: record.void("abcdef"))
    wait_decided(places, "abcdef", waits)
    assert not waits.is_set() and not openings


def test_a_wait_ends_when_it_is_over(places: Places, record: SqliteDecisions) -> None:
    waits = Steps(nothing)
    wait_decided(places, "abcdef", waits)
    question = record.find("abcdef")
    assert waits.is_set() and question is not None and question.state == "pending"
