"""Ids of tasks: sealed for one caller and one server, and owned by the caller of the last task of that id."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.exchange import Caller
from sluicegate.hub.tasks import ids as task_ids
from sluicegate.hub.tasks.ids import TaskId, TaskIds, TaskOwners

ADA, BOB = Caller("ada"), Caller("bob")
words = st.text(st.characters(exclude_categories=["Cs"]))


@given(mount=words, tool=words, own=words)
def test_an_id_leads_back_to_its_task_and_is_always_the_same(mount: str, tool: str, own: str) -> None:
    ids, task = TaskIds(), TaskId(mount, tool, own)
    sealed_id = ids.seal(ADA, task)
    assert ids.seal(ADA, task) == sealed_id
    assert sealed_id.startswith(f"{mount}.")
    assert ids.open(ADA, sealed_id) == task


def test_an_id_is_unknown_to_other_callers_and_for_other_servers() -> None:
    ids = TaskIds()
    sealed_id = ids.seal(ADA, TaskId("a", "secret-tool", "1"))
    assert "secret" not in sealed_id
    assert ids.open(BOB, sealed_id) is None
    assert ids.open(ADA, "b." + sealed_id.removeprefix("a.")) is None


@given(st.data())
def test_an_edited_id_is_unknown(data: st.DataObject) -> None:
    ids = TaskIds()
    sealed_id = ids.seal(ADA, TaskId("a", "dig", "1"))
    at = data.draw(st.integers(0, len(sealed_id) - 1))
    letter = data.draw(st.characters(exclude_categories=["Cs"]).filter(lambda found: found != sealed_id[at]))
    assert ids.open(ADA, sealed_id[:at] + letter + sealed_id[at + 1 :]) is None


def test_a_task_belongs_to_the_caller_of_the_last_one_of_its_id() -> None:
    owners = TaskOwners()
    assert not owners.owns(ADA, "1")
    owners.add("1", ADA)
    assert owners.owns(ADA, "1") and not owners.owns(BOB, "1")
    owners.add("1", BOB)
    assert owners.owns(BOB, "1") and not owners.owns(ADA, "1")


def test_a_task_of_a_replaced_server_does_not_take_the_id_of_another() -> None:
    owners = TaskOwners()
    owners.add("1", BOB)
    for own in ("1", "2"):
        owners.add(own, ADA, is_replaced=True)
    assert owners.owns(BOB, "1") and not owners.owns(ADA, "1")
    assert owners.owns(ADA, "2")


def test_the_owner_of_the_oldest_task_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_ids, "MAX_OWNED", 2)
    owners = TaskOwners()
    for own in ("1", "2", "1", "3"):
        owners.add(own, BOB)
    assert [owners.owns(BOB, own) for own in ("1", "2", "3")] == [True, False, True]
