"""Who was left alone for longest, however many there are."""

from hypothesis import given
from hypothesis import strategies as st

from sluicegate.downstream.resting import Resting
from sluicegate.exchange import Caller


class Bed:
    """Something that may be idle, and counts how often somebody looks whether it is."""

    def __init__(self, caller: str = "local") -> None:
        self.caller = Caller(caller)
        self.busy = False
        self.looks = 0

    @property
    def idle(self) -> bool:
        self.looks += 1
        return not self.busy


def test_the_first_is_the_one_that_came_to_rest_first() -> None:
    resting: Resting[Bed] = Resting()
    beds = [Bed() for _ in range(3)]
    for bed in beds:
        resting.add(bed)
    assert resting.first() is beds[0]
    resting.add(beds[0])
    assert resting.first() is beds[1]
    resting.discard(beds[1])
    resting.discard(beds[1])
    assert resting.first() is beds[2]


def test_one_that_is_in_use_gives_no_way_and_comes_back_when_it_rests() -> None:
    resting: Resting[Bed] = Resting()
    bed = Bed()
    assert resting.first() is None
    resting.add(bed)
    bed.busy = True
    assert resting.first() is None
    bed.busy = False
    resting.add(bed)
    assert resting.first() is bed


def test_those_in_use_are_looked_at_once_and_not_by_everybody_who_comes() -> None:
    resting: Resting[Bed] = Resting()
    beds = [Bed() for _ in range(1000)]
    for bed in beds:
        resting.add(bed)
        bed.busy = True
    for _ in range(100):
        assert resting.first() is None
    assert all(bed.looks == 1 for bed in beds)


@given(
    st.lists(
        st.tuples(st.sampled_from(["use", "rest", "leave", "first"]), st.integers(0, 5), st.sampled_from([None, "a"]))
    )
)
def test_whatever_happens_the_first_is_who_rests_for_longest(steps: list[tuple[str, int, str | None]]) -> None:
    resting: Resting[Bed] = Resting()
    beds = [Bed(caller) for caller in ("local", "a", "a", "a", "b", "local")]
    order: list[Bed] = []  # all that are idle, in the order in which they came to rest
    for what, number, caller in steps:
        bed = beds[number]
        if what == "first":
            own = [each for each in order if caller is None or each.caller.id == caller]
            assert resting.first(None if caller is None else Caller(caller)) is (own[0] if own else None)
            continue
        if bed in order:
            order.remove(bed)
        if what == "rest":
            bed.busy = False
            order.append(bed)
            resting.add(bed)
        elif what == "use":
            bed.busy = True
        else:
            resting.discard(bed)


def test_callers_of_whom_nothing_rests_take_no_room() -> None:
    resting: Resting[Bed] = Resting()
    for number in range(100):
        bed = Bed(str(number))
        resting.add(bed)
        resting.discard(bed)
    assert not resting._of and not resting._all  # pyright: ignore[reportPrivateUsage]
