"""Ids of tasks: one for each task, of use to its own caller only, and to nobody else even as a sign that it exists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sluicegate.exchange import Caller
from sluicegate.hub import task_ids
from sluicegate.hub.task_ids import Known, Owners, TaskIds

ADA, BOB = Caller("ada"), Caller("bob")
words = st.text(st.characters(exclude_categories=["Cs"]))


@given(mount=words, tool=words, own=words)
def test_an_id_leads_back_to_its_task_and_is_always_the_same(mount: str, tool: str, own: str) -> None:
    ids, task = TaskIds(), Known(mount, tool, own)
    given_id = ids.give(ADA, task)
    assert ids.give(ADA, task) == given_id
    assert given_id.startswith(f"{mount}.")
    assert ids.find(ADA, given_id) == task


@given(own=words, other=words)
def test_two_tasks_have_two_ids(own: str, other: str) -> None:
    ids = TaskIds()
    alike = ids.give(ADA, Known("a", "dig", own)) == ids.give(ADA, Known("a", "dig", other))
    assert alike == (own == other)


def test_to_anybody_else_it_is_unknown() -> None:
    ids = TaskIds()
    assert ids.find(BOB, ids.give(ADA, Known("a", "dig", "1"))) is None


def test_it_says_nothing_of_what_it_leads_to_but_the_server() -> None:
    assert "secret" not in TaskIds().give(ADA, Known("a", "secret-tool", "secret-id"))


@given(st.data())
def test_one_that_was_changed_anywhere_is_unknown(data: st.DataObject) -> None:
    ids = TaskIds()
    given_id = ids.give(ADA, Known("a", "dig", "1"))
    at = data.draw(st.integers(0, len(given_id) - 1))
    letter = data.draw(st.characters(exclude_categories=["Cs"]).filter(lambda found: found != given_id[at]))
    assert ids.find(ADA, given_id[:at] + letter + given_id[at + 1 :]) is None


@given(st.one_of(words, words.map(lambda text: f"a.{text}")))
def test_one_that_was_never_given_is_unknown(text: str) -> None:
    assert TaskIds().find(ADA, text) is None


def test_of_another_server_it_is_unknown() -> None:
    ids = TaskIds()
    sealed = ids.give(ADA, Known("a", "dig", "1")).removeprefix("a.")
    assert ids.find(ADA, f"b.{sealed}") is None


def test_it_does_not_outlive_who_gave_it() -> None:
    assert TaskIds().find(ADA, TaskIds().give(ADA, Known("a", "dig", "1"))) is None


# ------------------------------------------------------------------------------------------------------- whose they are


def test_a_task_is_his_for_whom_the_last_one_of_its_id_was_begun() -> None:
    owners = Owners()
    assert not owners.has("1", ADA)
    owners.note("1", ADA)
    assert owners.has("1", ADA) and not owners.has("1", BOB)
    owners.note("1", BOB)
    assert owners.has("1", BOB) and not owners.has("1", ADA)


def test_one_that_a_replaced_server_began_takes_nobodys_place() -> None:
    owners = Owners()
    owners.note("1", BOB)
    for own in ("1", "2"):
        owners.note(own, ADA, is_late=True)
    assert owners.has("1", BOB) and not owners.has("1", ADA)
    assert owners.has("2", ADA)


def test_whose_the_oldest_is_is_forgotten_and_then_it_is_nobodys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(task_ids, "MOST_OWNED", 2)
    owners = Owners()
    for own in ("1", "2", "1", "3"):
        owners.note(own, BOB)
    assert [owners.has(own, BOB) for own in ("1", "2", "3")] == [True, False, True]
    assert not owners.has("2", ADA)
