"""A concurrency limit when two events happen at once, and when the limit changes."""

import asyncio

import pytest

from sluicegate.errors import LimitExceeded
from sluicegate.runtime.quota import ConcurrencyLimit


async def test_a_call_cancelled_just_before_a_place_is_freed_is_passed_over() -> None:
    places = ConcurrencyLimit("files", concurrency=1)
    assert places.try_acquire()
    leaving = asyncio.ensure_future(places.acquire())
    staying = asyncio.ensure_future(places.acquire())
    await asyncio.sleep(0)
    leaving.cancel()
    places.release()  # Before the one that leaves has had its turn to say so.
    async with asyncio.timeout(10):
        with pytest.raises(asyncio.CancelledError):
            await leaving
        await staying
    places.release()
    assert (places.in_use, places.waiting) == (0, 0)


async def test_added_places_go_to_waiting_calls() -> None:
    places = ConcurrencyLimit("files", concurrency=1)
    assert places.try_acquire()
    waiting = [asyncio.ensure_future(places.acquire()) for _ in range(3)]
    await asyncio.sleep(0)
    places.adjust(concurrency=3, queue=10, longest_wait=5)
    async with asyncio.timeout(10):
        await asyncio.gather(*waiting[:2])
    assert (places.in_use, places.waiting) == (3, 1)
    places.release()
    async with asyncio.timeout(10):
        await waiting[2]
    assert (places.in_use, places.waiting) == (3, 0)


async def test_fewer_places_count_from_the_next_one_that_is_freed() -> None:
    places = ConcurrencyLimit("files", concurrency=3, longest_wait=0.01)
    assert all(places.try_acquire() for _ in range(3))
    places.adjust(concurrency=1, queue=10, longest_wait=0.01)
    places.release()
    with pytest.raises(LimitExceeded):
        await places.acquire()
    places.release()
    places.release()
    assert places.in_use == 0 and places.try_acquire() and not places.try_acquire()


async def test_calls_under_way_before_a_change_are_waited_for() -> None:
    places = ConcurrencyLimit("files", concurrency=3)
    assert places.try_acquire()
    places.adjust(concurrency=9, queue=1, longest_wait=1)
    idle = asyncio.ensure_future(places.wait_idle())
    await asyncio.sleep(0)
    assert not idle.done()
    places.release()
    async with asyncio.timeout(10):
        await idle
