"""Ids out, ids back: every answer finds the one who waits for it, once, and nobody else."""

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from sluicegate.protocol.message import Pending, RequestId


def test_ids_are_integers_from_one_on_and_never_used_twice() -> None:
    pending: Pending[str] = Pending()
    first = pending.add("a")
    assert pending.claim(first) == "a"
    assert [first, pending.add("b"), pending.add("c")] == [1, 2, 3]


def test_a_late_or_repeated_answer_finds_no_request() -> None:
    pending: Pending[str] = Pending()
    request_id = pending.add("a")
    assert [pending.claim(request_id), pending.claim(request_id), pending.find(request_id)] == ["a", None, None]


def test_progress_finds_the_request_and_does_not_end_it() -> None:
    pending: Pending[str] = Pending()
    request_id = pending.add("a")
    assert pending.find(request_id) == pending.find(request_id) == "a"
    assert pending.claim(request_id) == "a"


def test_an_answer_under_the_string_form_of_our_id_is_the_answer() -> None:
    pending: Pending[str] = Pending()
    for n in range(12):
        pending.add(f"waiter {n + 1}")
    assert pending.find("11") == "waiter 11"
    assert pending.claim("11") == "waiter 11"
    assert pending.claim(11) is None


@pytest.mark.parametrize(
    "request_id",
    [
        None,
        0,
        2,
        -1,
        "",
        "0",
        "2",
        "01",
        "1 ",
        "+1",
        "-1",
        "1.0",
        "1e0",
        "\u0661",
        "\uff11",
        "¹",
        "1" * 17,
        True,
        False,
    ],
)
def test_an_id_that_is_not_ours_finds_no_request(request_id: RequestId | None) -> None:
    pending: Pending[str] = Pending()
    pending.add("a")
    assert pending.find(request_id) is None
    assert pending.claim(request_id) is None
    assert len(pending) == 1


def test_a_waiter_that_is_none_does_not_hide_its_request() -> None:
    pending: Pending[None] = Pending()
    pending.add(None)
    assert len(pending) == 1
    assert pending.drain() == [None]


def test_requests_can_be_claimed_while_pending_is_iterated() -> None:
    pending: Pending[int] = Pending()
    ids = [pending.add(n) for n in range(3)]
    for waiter in pending:
        pending.claim(ids[waiter])
    assert len(pending) == 0


class PendingMachine(RuleBasedStateMachine):
    """Pending beside a plain dict that keeps every id it ever saw."""

    def __init__(self) -> None:
        super().__init__()
        self.pending: Pending[int] = Pending()
        self.waiting: dict[int, int] = {}
        self.given: list[int] = []

    @rule()
    def add(self) -> None:
        waiter = len(self.given)
        request_id = self.pending.add(waiter)
        assert request_id not in self.given
        self.given.append(request_id)
        self.waiting[request_id] = waiter

    @precondition(lambda self: self.given)
    @rule(data=st.data(), as_text=st.booleans(), only_look=st.booleans())
    def answer(self, data: st.DataObject, as_text: bool, only_look: bool) -> None:
        request_id = data.draw(st.sampled_from(self.given))
        key = str(request_id) if as_text else request_id
        if only_look:
            assert self.pending.find(key) == self.waiting.get(request_id)
        else:
            assert self.pending.claim(key) == self.waiting.pop(request_id, None)

    @rule(request_id=st.one_of(st.none(), st.text(max_size=3), st.integers(max_value=0), st.integers(min_value=1000)))
    def answer_nobody(self, request_id: RequestId | None) -> None:
        if isinstance(request_id, str) and request_id in map(str, self.given):
            return
        assert self.pending.find(request_id) is None
        assert self.pending.claim(request_id) is None

    @rule()
    def drain(self) -> None:
        assert self.pending.drain() == list(self.waiting.values())
        self.waiting.clear()

    @invariant()
    def those_who_wait_are_known(self) -> None:
        assert len(self.pending) == len(self.waiting)
        assert list(self.pending) == list(self.waiting.values())


TestPendingAgainstADict = PendingMachine.TestCase
