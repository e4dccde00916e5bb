"""Deadlines of calls: kept, given again by progress, bounded in all, and never mixed up with a caller's leaving."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from time import monotonic

import pytest

from sluicegate.hub.deadlines import Deadline, Deadlines


class TooLate(Exception):
    """What a call becomes whose time is over."""


def deadline(seconds: float, longest: float = 10) -> Deadline:
    now = monotonic()
    return Deadline(seconds, now + seconds, now + longest)


@asynccontextmanager
async def within(deadlines: Deadlines, deadline: Deadline) -> AsyncGenerator[None]:
    """A call that has so much time, and no more than a test has."""
    async with asyncio.timeout(5):
        deadlines.begin(deadline)
        try:
            yield
        except asyncio.CancelledError:
            if deadlines.end(deadline):
                raise TooLate from None
            raise
        finally:
            deadlines.end(deadline)


async def test_a_call_that_takes_too_long_is_ended() -> None:
    with pytest.raises(TooLate):
        async with within(Deadlines(), deadline(0.01)):
            await asyncio.Event().wait()
    current = asyncio.current_task()
    assert current is not None and current.cancelling() == 0


async def test_progress_gives_it_its_time_again_but_not_for_ever() -> None:
    its = deadline(0.2, 0.6)
    began = monotonic()
    with pytest.raises(TooLate):
        async with within(Deadlines(), its):
            while True:
                await asyncio.sleep(0.05)
                its.is_renewed = True
    assert monotonic() - began > 0.5, "longer than it would have had without"


async def test_no_time_passes_while_a_person_is_asked() -> None:
    its = deadline(0.01)
    async with within(Deadlines(), its):
        its.waits += 1
        await asyncio.sleep(0.2)
        its.waits -= 1
        its.is_renewed = True


async def test_a_call_that_is_made_again_has_what_is_left() -> None:
    first, second = deadline(0.01), deadline(10)
    second.go_on(first)
    with pytest.raises(TooLate):
        async with within(Deadlines(), second):
            await asyncio.Event().wait()


async def test_a_call_that_gave_a_sign_of_life_before_it_is_made_again_has_all_its_time() -> None:
    first, second = deadline(0.01), deadline(10)
    first.is_renewed = True
    second.go_on(first)
    async with within(Deadlines(), second):
        await asyncio.sleep(0.2)


async def test_a_caller_that_leaves_is_not_told_of_a_timeout() -> None:
    async def call() -> None:
        async with within(Deadlines(), deadline(0.01)):
            try:
                await asyncio.Event().wait()
            finally:
                await asyncio.sleep(0.1)  # It is cancelled here, when its time is over as well.

    task = asyncio.ensure_future(call())
    await asyncio.sleep(0)
    task.cancel()
    async with asyncio.timeout(5):
        with pytest.raises(asyncio.CancelledError):
            await task


async def test_one_that_is_in_time_leaves_nothing_behind() -> None:
    async with within(Deadlines(), deadline(0.05)):
        pass
    await asyncio.sleep(0.15)
    current = asyncio.current_task()
    assert current is not None and current.cancelling() == 0


async def test_one_that_fails_when_its_time_is_over_leaves_nothing_behind() -> None:
    with pytest.raises(OSError):
        async with within(Deadlines(), deadline(0.01)):
            try:
                await asyncio.Event().wait()
            finally:
                raise OSError
    current = asyncio.current_task()
    assert current is not None and current.cancelling() == 0
