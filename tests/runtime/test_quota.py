"""A concurrency limit: calls that run, calls that wait, and the order in which they are served."""

import asyncio

import pytest

from sluicegate.errors import LimitExceeded
from sluicegate.runtime.quota import ConcurrencyLimit


async def test_a_freed_place_goes_to_the_longest_waiting_call() -> None:
    places = ConcurrencyLimit("s", concurrency=1)
    order: list[str] = []

    async def call(name: str) -> None:
        await places.acquire()
        order.append(name)
        await asyncio.sleep(0)
        places.release()

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        for name in "abcde":
            tasks.create_task(call(name))
    assert order == list("abcde")
    assert (places.in_use, places.waiting) == (0, 0)


async def test_a_full_queue_refuses_at_once() -> None:
    places = ConcurrencyLimit("files", concurrency=1, queue=1)
    assert places.try_acquire()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(places.acquire())
        await asyncio.sleep(0)
        with pytest.raises(
            LimitExceeded, match=r"files is busy: 1 calls run \(`concurrency`\), and 1 more wait \(`queue`\)"
        ):
            await places.acquire()
        places.release()
        await waiting


async def test_a_call_that_waits_too_long_is_refused_and_takes_no_place() -> None:
    places = ConcurrencyLimit("files", concurrency=1, longest_wait=0.01)
    assert places.try_acquire()
    with pytest.raises(LimitExceeded, match=r"busy for 0\.01 s \(`queue_wait`\)"):
        await places.acquire()
    places.release()
    assert (places.in_use, places.waiting) == (0, 0)


async def test_a_call_cancelled_at_its_turn_passes_the_place_on() -> None:
    places = ConcurrencyLimit("files", concurrency=1)
    assert places.try_acquire()
    first = asyncio.ensure_future(places.acquire())
    second = asyncio.ensure_future(places.acquire())
    await asyncio.sleep(0)
    places.release()
    first.cancel()
    async with asyncio.timeout(10):
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
    places.release()
    assert (places.in_use, places.waiting) == (0, 0)


async def test_wait_idle_returns_when_the_last_place_is_freed() -> None:
    places = ConcurrencyLimit("files")
    assert places.try_acquire() and places.try_acquire()
    waiting = asyncio.ensure_future(places.wait_idle())
    await asyncio.sleep(0)
    places.release()
    await asyncio.sleep(0)
    assert not waiting.done()
    places.release()
    async with asyncio.timeout(10):
        await waiting


async def test_a_parked_call_frees_its_place_and_still_counts_as_in_progress() -> None:
    places = ConcurrencyLimit("files", concurrency=1, queue=1)
    assert places.try_acquire()
    waiting = asyncio.ensure_future(places.acquire())
    await asyncio.sleep(0)
    assert places.park() and not places.park()  # No more of them than may wait.
    async with asyncio.timeout(10):
        await waiting
    assert places.in_use == 2 and not places.try_acquire()
    places.unpark()
    third = asyncio.ensure_future(places.acquire())
    await asyncio.sleep(0)
    places.release()
    await asyncio.sleep(0)
    assert not third.done()  # Two had begun, so one has to end for the next.
    places.release()
    async with asyncio.timeout(10):
        await third
    places.release()
    assert (places.in_use, places.waiting) == (0, 0)
