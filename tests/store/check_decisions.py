"""What every `Decisions` does: a suite to which a store is given as a function that opens it."""

import inspect
from collections.abc import Callable
from typing import Protocol

import msgspec

from sluicegate.store.base import Approval, ApprovalAnswer, Decisions, Pin

SECOND = 10**9


class Make(Protocol):
    """Opens a new, empty store with this clock."""

    def __call__(self, *, clock: Callable[[], int]) -> Decisions: ...


class Clock:
    """A clock that stands still until it is set."""

    def __init__(self) -> None:
        self.now = 1_800_000_000 * SECOND

    def __call__(self) -> int:
        return self.now


def question(state: Decisions, clock: Clock, id: str = "aaaaaa", binding: str = "b1") -> Approval:
    return Approval(
        id=id,
        run=state.run,
        binding=binding,
        caller="ada",
        method="tools/call",
        server="files",
        kind="tool",
        name="write",
        definition="d1",
        arguments="{}",
        asked=clock.now,
        deadline=clock.now + 300 * SECOND,
    )


ONCE = ApprovalAnswer(scope="once", by="bob", way="command")
NO = ApprovalAnswer(scope=None, by="bob", way="page", reason="Not on a Friday.")


def an_equal_call_finds_the_open_question(state: Decisions, clock: Clock) -> None:
    first = state.ask(question(state, clock), 10)
    assert first is not None and first.id == "aaaaaa"
    second = state.ask(question(state, clock, "bbbbbb"), 10)
    assert second == first
    assert [found.id for found in state.open_questions()] == ["aaaaaa"]


def a_question_for_which_no_call_waits_says_so_until_the_call_is_made_again(state: Decisions, clock: Clock) -> None:
    state.ask(question(state, clock), 10)
    state.abandon("aaaaaa")
    assert [found.abandoned for found in state.open_questions()] == [True]
    again = state.ask(question(state, clock, "bbbbbb"), 10)
    assert again is not None and (again.id, again.abandoned) == ("aaaaaa", False)
    assert [found.abandoned for found in state.open_questions()] == [False]


def another_binding_is_another_question(state: Decisions, clock: Clock) -> None:
    state.ask(question(state, clock), 10)
    other = state.ask(question(state, clock, "bbbbbb", "b2"), 10)
    assert other is not None and other.id == "bbbbbb"


def another_run_does_not_find_it(state: Decisions, clock: Clock) -> None:
    state.ask(question(state, clock), 10)
    restarted = msgspec.structs.replace(question(state, clock, "bbbbbb"), run="another")
    assert state.ask(restarted, 10) == restarted


def only_so_many_questions_of_a_caller_are_open(state: Decisions, clock: Clock) -> None:
    assert state.ask(question(state, clock), 1) is not None
    assert state.ask(question(state, clock, "bbbbbb", "b2"), 1) is None
    assert state.ask(question(state, clock, "bbbbbb"), 1) is not None  # It is open already.
    assert state.ask(msgspec.structs.replace(question(state, clock, "cccccc", "b3"), caller="eve"), 1) is not None


def the_first_answer_wins(state: Decisions, clock: Clock) -> None:
    state.ask(question(state, clock), 10)
    assert state.decide("aaaaaa", NO)
    assert not state.decide("aaaaaa", ONCE)
    found = state.find("aaaaaa")
    assert found is not None
    assert (found.state, found.scope, found.by, found.reason) == ("declined", None, "bob", "Not on a Friday.")
    assert (found.way, found.decided) == ("page", clock.now)


def an_answer_is_used_once(state: Decisions, clock: Clock) -> None:
    state.ask(question(state, clock), 10)
    assert not state.take("aaaaaa")
    assert state.decide("aaaaaa", ONCE)
    found = state.ask(question(state, clock, "bbbbbb"), 10)
    assert found is not None and (found.id, found.state) == ("aaaaaa", "approved")
    assert state.take("aaaaaa")
    assert not state.take("aaaaaa")
    again = state.ask(question(state, clock, "cccccc"), 10)
    assert again is not None and (again.id, again.state) == ("cccccc", "pending")


def nothing_counts_after_the_deadline(state: Decisions, clock: Clock) -> None:
    state.ask(question(state, clock), 10)
    state.ask(question(state, clock, "bbbbbb", "b2"), 10)
    assert state.decide("bbbbbb", ONCE)
    clock.now += 300 * SECOND
    assert not state.decide("aaaaaa", ONCE)
    assert not state.take("bbbbbb")
    assert list(state.open_questions()) == []
    asked = state.ask(question(state, clock, "cccccc"), 10)
    assert asked is not None and asked.id == "cccccc"


def a_clock_set_back_does_not_lengthen_anything(state: Decisions, clock: Clock) -> None:
    state.ask(question(state, clock), 10)
    state.ask(question(state, clock, "bbbbbb", "b2"), 10)
    state.decide("bbbbbb", msgspec.structs.replace(ONCE, scope="minutes"))
    clock.now -= 3600 * SECOND
    assert not state.decide("aaaaaa", ONCE)
    assert not state.take("bbbbbb")
    assert state.find_grant("ada", "files", "tool", "write", "d1") is None


def old_questions_are_removed(state: Decisions, clock: Clock) -> None:
    state.ask(question(state, clock), 10)
    clock.now += 2 * 3600 * SECOND
    state.ask(question(state, clock, "bbbbbb", "b2"), 10)
    assert state.find("aaaaaa") is None


def a_void_question_cannot_be_answered(state: Decisions, clock: Clock) -> None:
    state.ask(question(state, clock), 10)
    assert state.void("aaaaaa")
    assert not state.void("aaaaaa")
    assert not state.decide("aaaaaa", ONCE)
    state.ask(question(state, clock, "bbbbbb"), 10)
    state.decide("bbbbbb", ONCE)
    assert state.void("bbbbbb")
    assert not state.take("bbbbbb")


def a_wider_yes_is_a_grant(state: Decisions, clock: Clock) -> None:
    assert state.find_grant("ada", "files", "tool", "write", "d1") is None
    state.ask(question(state, clock), 10)
    state.decide("aaaaaa", msgspec.structs.replace(ONCE, scope="minutes"))
    found = state.find_grant("ada", "files", "tool", "write", "d1")
    assert found is not None and found.until == clock.now + 600 * SECOND
    others = [("eve", "files", "tool", "write", "d1"), ("ada", "mail", "tool", "write", "d1")]
    others += [("ada", "files", "prompt", "write", "d1"), ("ada", "files", "tool", "read", "d1")]
    for other in [*others, ("ada", "files", "tool", "write", "d2")]:
        assert state.find_grant(*other) is None
    clock.now += 600 * SECOND
    assert state.find_grant("ada", "files", "tool", "write", "d1") is None
    assert list(state.grants()) == []


def a_grant_without_end_can_be_revoked(state: Decisions, clock: Clock) -> None:
    state.ask(question(state, clock), 10)
    state.decide("aaaaaa", msgspec.structs.replace(ONCE, scope="always"))
    clock.now += 10**9 * SECOND
    [grant] = state.grants()
    assert grant.until is None and (grant.by, grant.way) == ("bob", "command")
    assert state.revoke(grant.id)
    assert not state.revoke(grant.id)
    assert state.find_grant("ada", "files", "tool", "write", "d1") is None


def a_late_or_losing_answer_grants_nothing(state: Decisions, clock: Clock) -> None:
    state.ask(question(state, clock), 10)
    state.decide("aaaaaa", NO)
    assert not state.decide("aaaaaa", msgspec.structs.replace(ONCE, scope="always"))
    assert not state.decide("unknown", msgspec.structs.replace(ONCE, scope="always"))
    assert list(state.grants()) == []


def the_version_tells_of_changes(state: Decisions, clock: Clock) -> None:
    before = state.version()
    assert state.version() == before
    state.ask(question(state, clock), 10)
    assert state.version() != before


def pin(hash: str, name: str = "write", server: str = "files") -> Pin:
    return Pin(server=server, kind="tool", name=name, hash=hash, definition=f'{{"name":"{hash}"}}')


def the_first_sight_is_pinned(state: Decisions, clock: Clock) -> None:
    [first, second] = state.see([pin("h1"), pin("h1", "read")])
    assert first.news == second.news == "first"
    assert (first.pin.state, first.pin.seen) == ("approved", clock.now)
    clock.now += SECOND
    [again, _] = state.see([pin("h1"), pin("h1", "read")])
    assert again.news == "" and again.pin == first.pin
    assert len(state.pins()) == 2


def a_change_waits_beside_what_was_approved(state: Decisions, clock: Clock) -> None:
    state.see([pin("h1")])
    [changed] = state.see([pin("h2")])
    assert (changed.news, changed.pin.state, changed.pin.definition) == ("changed", "pending", '{"name":"h2"}')
    [again] = state.see([pin("h2")])
    assert (again.news, again.pin.state) == ("", "pending")
    assert [(found.hash, found.state) for found in state.pins("files")] == [("h1", "approved"), ("h2", "pending")]
    [third] = state.see([pin("h3")])
    assert third.news == "changed"
    assert [found.hash for found in state.pins("files")] == ["h1", "h3"]
    [back] = state.see([pin("h1")])
    assert (back.news, back.pin.state) == ("", "approved")
    assert [found.hash for found in state.pins("files")] == ["h1"]


def only_the_definition_that_was_shown_is_approved(state: Decisions, clock: Clock) -> None:
    state.see([pin("h1")])
    state.see([pin("h2")])
    assert not state.approve_pin("files", "tool", "write", "h3")
    assert state.approve_pin("files", "tool", "write", "h2")
    assert not state.approve_pin("files", "tool", "write", "h2")
    [kept] = state.pins()
    assert (kept.hash, kept.state) == ("h2", "approved")


def a_new_definition_may_have_to_wait(state: Decisions, clock: Clock) -> None:
    [new] = state.see([msgspec.structs.replace(pin("h1"), state="pending")])
    assert (new.news, new.pin.state) == ("first", "pending")
    [changed] = state.see([pin("h2")])
    assert (changed.news, changed.pin.state) == ("changed", "pending")
    assert state.approve_pin("files", "tool", "write", "h2")


def a_forgotten_pin_is_seen_for_the_first_time(state: Decisions, clock: Clock) -> None:
    state.see([pin("h1"), pin("h1", server="mail")])
    state.see([pin("h2")])
    assert state.forget_pin("files", "tool", "write")
    assert not state.forget_pin("files", "tool", "write")
    assert [found.server for found in state.pins()] == ["mail"]
    assert state.see([pin("h2")])[0].news == "first"


def a_key_opens_the_page_once(state: Decisions, clock: Clock) -> None:
    state.add_login("key", 60.0)
    assert not state.use_login("another")
    assert state.use_login("key")
    assert not state.use_login("key")
    state.add_login("late", 60.0)
    clock.now += 60 * SECOND
    assert not state.use_login("late")


def the_page_of_a_gateway_is_known(state: Decisions, clock: Clock) -> None:
    assert state.page() is None
    state.set_page("http://127.0.0.1:1/approvals")
    state.set_page("http://127.0.0.1:2/approvals")
    assert state.page() == "http://127.0.0.1:2/approvals"


CHECKS = [
    check
    for check in list(globals().values())
    if inspect.isfunction(check) and list(inspect.signature(check).parameters) == ["state", "clock"]
]


def check_decisions(make: Make, check: Callable[[Decisions, Clock], None]) -> None:
    """Run one of `CHECKS` against a new store."""
    clock = Clock()
    state = make(clock=clock)
    try:
        check(state, clock)
    finally:
        state.close()
