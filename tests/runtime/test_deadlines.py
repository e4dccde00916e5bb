"""Deadlines of calls: kept, given again by signs of life, bounded in all, never mixed up with a caller's leaving."""

import asyncio
from typing import ClassVar

import pytest

from sluicegate.runtime import deadlines
from sluicegate.runtime.deadlines import Deadline, DeadlineExceeded, Deadlines
from tests.polling import until


class Time:
    """The time, as a test tells it, and the deadlines that are looked at by it."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.deadlines = Deadlines()

    def deadline(self, seconds: float, longest: float = 1000) -> Deadline:
        return Deadline(self.deadlines, seconds, self.now + seconds, self.now + longest)

    async def passes(self, seconds: float) -> None:
        """Let it pass, until the deadlines have been looked at: then one that has no time at all is over."""
        self.now += seconds
        with pytest.raises(DeadlineExceeded), self.deadline(0):
            await for_long()
        await asyncio.sleep(0)  # Others who were told so in the same turn of the loop have come to know it.


@pytest.fixture
def time(monkeypatch: pytest.MonkeyPatch) -> Time:
    time = Time()
    monkeypatch.setattr(deadlines, "monotonic", lambda: time.now)
    return time


async def for_long() -> None:
    """Wait for longer than any of these deadlines takes, but not for ever."""
    await asyncio.sleep(10)  # Ends only if no deadline does.
    raise AssertionError("nobody looked")


def is_left_alone() -> bool:
    current = asyncio.current_task()
    return current is not None and not current.cancelling()


async def test_a_call_that_takes_too_long_is_ended(time: Time) -> None:
    with pytest.raises(DeadlineExceeded), time.deadline(60):
        await time.passes(59)
        time.now += 1
        await for_long()
    assert is_left_alone()


async def test_a_sign_of_life_gives_it_its_time_again_but_not_for_ever(time: Time) -> None:
    its = time.deadline(60, 150)
    with pytest.raises(DeadlineExceeded), its:
        for _ in range(2):
            await time.passes(59)
            its.is_renewed = True
            await time.passes(0)
        its.is_renewed = True
        time.now += 32
        await for_long()
    assert its.expires > its.ends, "as whoever tells of it can see"


async def test_the_deadline_does_not_run_while_the_call_waits_for_our_side(time: Time) -> None:
    its = time.deadline(60)
    with its:
        its.waits = 2
        await time.passes(61)
        its.waits -= 1
        await time.passes(61)
        its.is_renewed = True
        its.waits -= 1
        await time.passes(59)


class Bounded(Deadline):
    ends_though_it_waits: ClassVar[bool] = True


async def test_a_call_that_waits_ends_at_its_absolute_limit(time: Time) -> None:
    its = Bounded(time.deadlines, 60, time.now + 60, time.now + 150)
    with pytest.raises(DeadlineExceeded), its:
        its.waits = 1
        await time.passes(61)
        await time.passes(88)
        time.now += 1
        await for_long()
    assert its.reached_its_end


async def test_paused_time_counts_unless_it_is_given_back(time: Time) -> None:
    for given_back in (0, 100):
        its = time.deadline(60, 120)
        with its:
            its.waits += 1
            await time.passes(150)
            its.waits -= 1
            its.is_renewed = True
            its.ends += given_back
            if given_back:
                await time.passes(59)
            else:
                with pytest.raises(asyncio.CancelledError):
                    await for_long()


async def test_a_call_that_is_made_again_has_what_is_left(time: Time) -> None:
    first, second = time.deadline(60), time.deadline(120)
    second.go_on(first)
    with pytest.raises(DeadlineExceeded), second:
        time.now += 61
        await for_long()


async def test_a_call_that_gave_a_sign_of_life_before_it_is_made_again_has_all_its_time(time: Time) -> None:
    first, second = time.deadline(60), time.deadline(120)
    first.is_renewed = True
    second.go_on(first)
    with second:
        await time.passes(61)
        await time.passes(119)


async def test_each_of_many_has_its_own_time(time: Time) -> None:
    ended: list[int] = []

    async def call(seconds: int) -> None:
        with pytest.raises(DeadlineExceeded), time.deadline(seconds):
            await for_long()
        ended.append(seconds)

    async with asyncio.TaskGroup() as group:
        for seconds in (30, 10, 20):
            group.create_task(call(seconds))
        while len(time.deadlines.running) < 3:  # noqa: ASYNC110 - the next turn of the loop is all it takes
            await asyncio.sleep(0)
        for so_far in ([], [10], [10, 20]):
            await time.passes(9.9)
            assert ended == so_far
        time.now += 9.9


async def test_a_caller_that_leaves_gets_no_timeout(time: Time) -> None:
    is_over = asyncio.Event()

    async def call() -> None:
        with time.deadline(60):
            try:
                await for_long()
            finally:
                time.now += 61
                with pytest.raises(asyncio.CancelledError):
                    await for_long()  # It is cancelled here, when its time is over as well.
                is_over.set()

    task = asyncio.ensure_future(call())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert is_over.is_set()


async def test_clean_up_of_a_cancelled_task_has_its_deadline_too(time: Time) -> None:
    async def call() -> str:
        try:
            await for_long()
        finally:
            with pytest.raises(DeadlineExceeded), time.deadline(60):
                time.now += 61
                await for_long()
        return "never"

    task = asyncio.ensure_future(call())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_call_in_time_leaves_no_timer(time: Time) -> None:
    with time.deadline(60):
        pass
    await time.passes(61)
    assert is_left_alone()


async def test_a_call_that_is_answered_at_its_deadline_keeps_its_answer(time: Time) -> None:
    with time.deadline(60):
        time.now += 61
        with pytest.raises(asyncio.CancelledError):
            await for_long()
    assert is_left_alone()


@pytest.mark.parametrize("failure", [OSError, TimeoutError])
async def test_a_call_that_fails_at_its_deadline_keeps_its_own_failure(time: Time, failure: type[Exception]) -> None:
    with pytest.raises(failure), time.deadline(60):
        time.now += 61
        try:
            await for_long()
        finally:
            raise failure
    assert is_left_alone()


async def test_no_timer_runs_while_nothing_is_in_progress(time: Time) -> None:
    await time.passes(1)
    await until(lambda: not time.deadlines.timer, within=10)
    await time.passes(1)  # And somebody does again, when something is.
