"""What every `Decisions` does: a suite to which a store is given as a function that opens it."""

import inspect
from collections.abc import Awaitable, Callable
from typing import Protocol

import msgspec

from sluicegate.store.base import Approval, ApprovalAnswer, Change, Decisions, Pin

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
        origin="o1",
        arguments="{}",
        asked=clock.now,
        deadline=clock.now + 300 * SECOND,
    )


ONCE = ApprovalAnswer(scope="once", by="bob", way="command")
NO = ApprovalAnswer(scope=None, by="bob", way="page", reason="Not on a Friday.")


async def an_equal_call_finds_the_open_question(state: Decisions, clock: Clock) -> None:
    first = await state.ask(question(state, clock), 10)
    assert first is not None and first.id == "aaaaaa"
    second = await state.ask(question(state, clock, "bbbbbb"), 10)
    assert second == first
    assert [found.id for found in await state.open_questions()] == ["aaaaaa"]


async def a_question_for_which_no_call_waits_says_so_until_the_call_is_made_again(
    state: Decisions, clock: Clock
) -> None:
    await state.ask(question(state, clock), 10)
    await state.abandon("aaaaaa")
    assert [found.abandoned for found in await state.open_questions()] == [True]
    again = await state.ask(question(state, clock, "bbbbbb"), 10)
    assert again is not None and (again.id, again.abandoned) == ("aaaaaa", False)
    assert [found.abandoned for found in await state.open_questions()] == [False]


async def another_binding_is_another_question(state: Decisions, clock: Clock) -> None:
    await state.ask(question(state, clock), 10)
    other = await state.ask(question(state, clock, "bbbbbb", "b2"), 10)
    assert other is not None and other.id == "bbbbbb"


async def another_run_does_not_find_it(state: Decisions, clock: Clock) -> None:
    await state.ask(question(state, clock), 10)
    restarted = msgspec.structs.replace(question(state, clock, "bbbbbb"), run="another")
    assert await state.ask(restarted, 10) == restarted


async def only_so_many_questions_of_a_caller_are_open(state: Decisions, clock: Clock) -> None:
    assert await state.ask(question(state, clock), 1) is not None
    assert await state.ask(question(state, clock, "bbbbbb", "b2"), 1) is None
    assert await state.ask(question(state, clock, "bbbbbb"), 1) is not None  # It is open already.
    assert await state.ask(msgspec.structs.replace(question(state, clock, "cccccc", "b3"), caller="eve"), 1) is not None


async def the_first_answer_wins(state: Decisions, clock: Clock) -> None:
    await state.ask(question(state, clock), 10)
    assert await state.decide("aaaaaa", NO)
    assert not await state.decide("aaaaaa", ONCE)
    found = await state.find("aaaaaa")
    assert found is not None
    assert (found.state, found.scope, found.by, found.reason) == ("declined", None, "bob", "Not on a Friday.")
    assert (found.way, found.decided) == ("page", clock.now)


async def an_answer_is_used_once(state: Decisions, clock: Clock) -> None:
    await state.ask(question(state, clock), 10)
    assert not await state.take("aaaaaa")
    assert await state.decide("aaaaaa", ONCE)
    found = await state.ask(question(state, clock, "bbbbbb"), 10)
    assert found is not None and (found.id, found.state) == ("aaaaaa", "approved")
    assert await state.take("aaaaaa")
    assert not await state.take("aaaaaa")
    again = await state.ask(question(state, clock, "cccccc"), 10)
    assert again is not None and (again.id, again.state) == ("cccccc", "pending")


async def nothing_counts_after_the_deadline(state: Decisions, clock: Clock) -> None:
    await state.ask(question(state, clock), 10)
    await state.ask(question(state, clock, "bbbbbb", "b2"), 10)
    assert await state.decide("bbbbbb", ONCE)
    clock.now += 300 * SECOND
    assert not await state.decide("aaaaaa", ONCE)
    assert not await state.take("bbbbbb")
    assert list(await state.open_questions()) == []
    asked = await state.ask(question(state, clock, "cccccc"), 10)
    assert asked is not None and asked.id == "cccccc"


async def a_clock_set_back_does_not_lengthen_anything(state: Decisions, clock: Clock) -> None:
    await state.ask(question(state, clock), 10)
    await state.ask(question(state, clock, "bbbbbb", "b2"), 10)
    await state.decide("bbbbbb", msgspec.structs.replace(ONCE, scope="minutes"))
    clock.now -= 3600 * SECOND
    assert not await state.decide("aaaaaa", ONCE)
    assert not await state.take("bbbbbb")
    assert await state.find_grant("ada", "files", "tool", "write", "d1", "o1") is None


async def old_questions_are_removed(state: Decisions, clock: Clock) -> None:
    await state.ask(question(state, clock), 10)
    clock.now += 2 * 3600 * SECOND
    await state.ask(question(state, clock, "bbbbbb", "b2"), 10)
    assert await state.find("aaaaaa") is None


async def arguments_of_a_question_are_forgotten_with_its_end(state: Decisions, clock: Clock) -> None:
    for number, answer in enumerate((ONCE, NO, None)):
        asked = question(state, clock, f"aaaaa{number}", f"b{number}")
        await state.ask(msgspec.structs.replace(asked, arguments='{"a":"secret"}', others='{"b":"secret"}'), 10)
        assert "secret" in str(await state.find(asked.id))
        assert await (state.void(asked.id) if answer is None else state.decide(asked.id, answer))
        assert "secret" not in str(await state.find(asked.id))


async def arguments_of_a_question_are_forgotten_after_its_deadline(state: Decisions, clock: Clock) -> None:
    asked = msgspec.structs.replace(question(state, clock), arguments='{"a":"secret"}', others='{"b":"secret"}')
    await state.ask(asked, 10)
    await state.abandon(asked.id)
    clock.now = asked.deadline + 60 * SECOND
    await state.ask(question(state, clock, "bbbbbb", "b2"), 10)
    found = await state.find(asked.id)
    assert found is not None and found.state == "void" and "secret" not in str(found)


async def a_void_question_cannot_be_answered(state: Decisions, clock: Clock) -> None:
    await state.ask(question(state, clock), 10)
    assert await state.void("aaaaaa")
    assert not await state.void("aaaaaa")
    assert not await state.decide("aaaaaa", ONCE)
    await state.ask(question(state, clock, "bbbbbb"), 10)
    await state.decide("bbbbbb", ONCE)
    assert await state.void("bbbbbb")
    assert not await state.take("bbbbbb")


async def a_question_is_voided_after_its_deadline_and_observers_are_called(state: Decisions, clock: Clock) -> None:
    await state.ask(question(state, clock), 10)
    clock.now += 300 * SECOND
    changes: list[Change] = []
    state.observe(changes.append)
    assert await state.void("aaaaaa")
    found = await state.find("aaaaaa")
    assert found is not None and found.state == "void"
    assert changes == ["approvals"]
    assert not await state.void("aaaaaa")


async def a_wider_yes_is_a_grant(state: Decisions, clock: Clock) -> None:
    assert await state.find_grant("ada", "files", "tool", "write", "d1", "o1") is None
    await state.ask(question(state, clock), 10)
    await state.decide("aaaaaa", msgspec.structs.replace(ONCE, scope="minutes"))
    found = await state.find_grant("ada", "files", "tool", "write", "d1", "o1")
    assert found is not None and found.until == clock.now + 600 * SECOND
    others = [("eve", "files", "tool", "write", "d1", "o1"), ("ada", "mail", "tool", "write", "d1", "o1")]
    others += [("ada", "files", "prompt", "write", "d1", "o1"), ("ada", "files", "tool", "read", "d1", "o1")]
    for other in [
        *others,
        ("ada", "files", "tool", "write", "d2", "o1"),
        ("ada", "files", "tool", "write", "d1", "o2"),
    ]:
        assert await state.find_grant(*other) is None
    clock.now += 600 * SECOND
    assert await state.find_grant("ada", "files", "tool", "write", "d1", "o1") is None
    assert list(await state.grants()) == []


async def a_grant_without_end_can_be_revoked(state: Decisions, clock: Clock) -> None:
    await state.ask(question(state, clock), 10)
    await state.decide("aaaaaa", msgspec.structs.replace(ONCE, scope="always"))
    clock.now += 10**9 * SECOND
    [grant] = await state.grants()
    assert grant.until is None and (grant.by, grant.way) == ("bob", "command")
    assert await state.revoke(grant.id)
    assert not await state.revoke(grant.id)
    assert await state.find_grant("ada", "files", "tool", "write", "d1", "o1") is None


async def a_late_or_losing_answer_grants_nothing(state: Decisions, clock: Clock) -> None:
    await state.ask(question(state, clock), 10)
    await state.decide("aaaaaa", NO)
    assert not await state.decide("aaaaaa", msgspec.structs.replace(ONCE, scope="always"))
    assert not await state.decide("unknown", msgspec.structs.replace(ONCE, scope="always"))
    assert list(await state.grants()) == []


async def observers_are_called_after_each_change(state: Decisions, clock: Clock) -> None:
    changes: list[Change] = []
    stop = state.observe(changes.append)
    await state.ask(question(state, clock), 10)
    await state.ask(question(state, clock, "bbbbbb"), 10)  # It is open already.
    assert changes == ["approvals"]
    await state.decide("aaaaaa", ONCE)
    await state.decide("aaaaaa", NO)
    assert changes == ["approvals"] * 2
    await state.take("aaaaaa")
    assert changes == ["approvals"] * 3
    await state.see([pin("h1")])
    await state.see([pin("h2")])
    await state.approve_pin("files", "tool", "write", "h2")
    assert changes == [*["approvals"] * 3, "pins"]
    stop()
    await state.forget_pin("files", "tool", "write")
    assert changes == [*["approvals"] * 3, "pins"]


def pin(hash: str, name: str = "write", server: str = "files") -> Pin:
    return Pin(server=server, kind="tool", name=name, hash=hash, definition=f'{{"name":"{hash}"}}')


async def the_first_sight_is_pinned(state: Decisions, clock: Clock) -> None:
    [first, second] = await state.see([pin("h1"), pin("h1", "read")])
    assert first.news == second.news == "first"
    assert (first.pin.state, first.pin.seen) == ("approved", clock.now)
    clock.now += SECOND
    [again, _] = await state.see([pin("h1"), pin("h1", "read")])
    assert again.news == "" and again.pin == first.pin
    assert len(await state.pins()) == 2


async def a_change_waits_beside_what_was_approved(state: Decisions, clock: Clock) -> None:
    await state.see([pin("h1")])
    [changed] = await state.see([pin("h2")])
    assert (changed.news, changed.pin.state, changed.pin.definition) == ("changed", "pending", '{"name":"h2"}')
    [again] = await state.see([pin("h2")])
    assert (again.news, again.pin.state) == ("", "pending")
    assert [(found.hash, found.state) for found in await state.pins("files")] == [("h1", "approved"), ("h2", "pending")]
    [third] = await state.see([pin("h3")])
    assert third.news == "changed"
    assert [found.hash for found in await state.pins("files")] == ["h1", "h3"]
    [back] = await state.see([pin("h1")])
    assert (back.news, back.pin.state) == ("", "approved")
    assert [found.hash for found in await state.pins("files")] == ["h1"]


async def only_the_definition_that_was_shown_is_approved(state: Decisions, clock: Clock) -> None:
    await state.see([pin("h1")])
    await state.see([pin("h2")])
    assert not await state.approve_pin("files", "tool", "write", "h3")
    assert await state.approve_pin("files", "tool", "write", "h2")
    assert not await state.approve_pin("files", "tool", "write", "h2")
    [kept] = await state.pins()
    assert (kept.hash, kept.state) == ("h2", "approved")


async def an_approved_definition_gets_another_hash(state: Decisions, clock: Clock) -> None:
    await state.see([pin("h1")])
    assert not await state.renew_pin("h0", pin("h2"))
    assert await state.renew_pin("h1", pin("h2"))
    [kept] = await state.pins()
    assert (kept.hash, kept.state, kept.definition) == ("h2", "approved", '{"name":"h2"}')
    [seen] = await state.see([pin("h2")])
    assert seen.news == ""


async def a_new_definition_may_have_to_wait(state: Decisions, clock: Clock) -> None:
    [new] = await state.see([msgspec.structs.replace(pin("h1"), state="pending")])
    assert (new.news, new.pin.state) == ("first", "pending")
    [changed] = await state.see([pin("h2")])
    assert (changed.news, changed.pin.state) == ("changed", "pending")
    assert await state.approve_pin("files", "tool", "write", "h2")


async def a_forgotten_pin_is_seen_for_the_first_time(state: Decisions, clock: Clock) -> None:
    await state.see([pin("h1"), pin("h1", server="mail")])
    await state.see([pin("h2")])
    assert await state.forget_pin("files", "tool", "write")
    assert not await state.forget_pin("files", "tool", "write")
    assert [found.server for found in await state.pins()] == ["mail"]
    assert (await state.see([pin("h2")]))[0].news == "first"


async def a_key_opens_the_page_once(state: Decisions, clock: Clock) -> None:
    await state.add_login("key", 60.0)
    assert not await state.use_login("another")
    assert await state.use_login("key")
    assert not await state.use_login("key")
    await state.add_login("late", 60.0)
    clock.now += 60 * SECOND
    assert not await state.use_login("late")


async def the_page_of_a_gateway_is_known(state: Decisions, clock: Clock) -> None:
    assert await state.page() is None
    await state.set_page("http://127.0.0.1:1/approvals")
    await state.set_page("http://127.0.0.1:2/approvals")
    assert await state.page() == "http://127.0.0.1:2/approvals"


CHECKS = [
    check
    for check in list(globals().values())
    if inspect.iscoroutinefunction(check) and list(inspect.signature(check).parameters) == ["state", "clock"]
]


async def check_decisions(make: Make, check: Callable[[Decisions, Clock], Awaitable[None]]) -> None:
    """Run one of `CHECKS` against a new store."""
    clock = Clock()
    state = make(clock=clock)
    try:
        await check(state, clock)
    finally:
        await state.aclose()
