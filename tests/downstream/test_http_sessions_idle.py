"""The session that has been idle for longest, among many."""

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.downstream.http_session import HttpSession
from sluicegate.downstream.http_sessions import IdleSessions
from sluicegate.exchange import Caller


class Bed(HttpSession):
    """A session that may be idle, and counts how often that is checked."""

    __slots__ = ("busy", "looks")

    def __init__(self, caller: str = "local") -> None:  # pyright: ignore[reportMissingSuperCall]
        self.caller = Caller(caller)
        self.busy = False
        self.looks = 0

    @property
    def idle(self) -> bool:
        self.looks += 1
        return not self.busy


def test_the_oldest_is_the_session_that_became_idle_first() -> None:
    idle = IdleSessions()
    beds = [Bed() for _ in range(3)]
    for bed in beds:
        idle.add(bed)
    assert idle.oldest() is beds[0]
    idle.add(beds[0])
    assert idle.oldest() is beds[1]
    idle.discard(beds[1])
    idle.discard(beds[1])
    assert idle.oldest() is beds[2]


def test_a_session_in_use_is_passed_over_until_it_is_idle_again() -> None:
    idle = IdleSessions()
    bed = Bed()
    assert idle.oldest() is None
    idle.add(bed)
    bed.busy = True
    assert idle.oldest() is None
    bed.busy = False
    idle.add(bed)
    assert idle.oldest() is bed


def test_sessions_in_use_are_passed_over_once_and_not_at_every_search() -> None:
    idle = IdleSessions()
    beds = [Bed() for _ in range(1000)]
    for bed in beds:
        idle.add(bed)
        bed.busy = True
    for _ in range(100):
        assert idle.oldest() is None
    assert all(bed.looks == 1 for bed in beds)


@given(
    st.lists(
        st.tuples(st.sampled_from(["use", "rest", "leave", "first"]), st.integers(0, 5), st.sampled_from([None, "a"]))
    )
)
def test_the_oldest_is_always_the_session_that_is_idle_for_longest(steps: list[tuple[str, int, str | None]]) -> None:
    idle = IdleSessions()
    beds = [Bed(caller) for caller in ("local", "a", "a", "a", "b", "local")]
    order: list[Bed] = []  # all that are idle, in the order in which they came to rest
    for what, number, caller in steps:
        bed = beds[number]
        if what == "first":
            own = [each for each in order if caller is None or each.caller.id == caller]
            assert idle.oldest(None if caller is None else Caller(caller)) is (own[0] if own else None)
            continue
        if bed in order:
            order.remove(bed)
        if what == "rest":
            bed.busy = False
            order.append(bed)
            idle.add(bed)
        elif what == "use":
            bed.busy = True
        else:
            idle.discard(bed)
