"""Places for calls: so many at once, so many in the queue, first come first served."""

import asyncio

import pytest

from sluicegate.errors import LimitExceeded
from sluicegate.hub.places import Places


async def test_a_place_that_is_freed_goes_to_whoever_waits_longest() -> None:
    places = Places("s", concurrency=1)
    order: list[str] = []

    async def call(name: str) -> None:
        await places.take()
        order.append(name)
        await asyncio.sleep(0)
        places.free()

    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        for name in "abcde":
            tasks.create_task(call(name))
    assert order == list("abcde")
    assert (places.taken, places.waiting) == (0, 0)


async def test_a_full_queue_refuses_at_once() -> None:
    places = Places("files", concurrency=1, queue=1)
    assert places.take_now()
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(places.take())
        await asyncio.sleep(0)
        with pytest.raises(LimitExceeded, match="files is busy"):
            await places.take()
        places.free()
        await waiting


async def test_who_waits_too_long_is_told_and_takes_nothing() -> None:
    places = Places("files", concurrency=1, longest_wait=0.01)
    assert places.take_now()
    with pytest.raises(LimitExceeded, match="busy for 0.01 s"):
        await places.take()
    places.free()
    assert (places.taken, places.waiting) == (0, 0)


async def test_who_is_cancelled_when_its_turn_comes_passes_it_on() -> None:
    places = Places("files", concurrency=1)
    assert places.take_now()
    first = asyncio.ensure_future(places.take())
    second = asyncio.ensure_future(places.take())
    await asyncio.sleep(0)
    places.free()
    first.cancel()
    async with asyncio.timeout(10):
        await second
        with pytest.raises(asyncio.CancelledError):
            await first
    places.free()
    assert (places.taken, places.waiting) == (0, 0)


async def test_it_is_told_when_nothing_is_under_way_any_more() -> None:
    places = Places("files")
    assert places.take_now() and places.take_now()
    waiting = asyncio.ensure_future(places.wait_empty())
    await asyncio.sleep(0)
    places.free()
    await asyncio.sleep(0)
    assert not waiting.done()
    places.free()
    async with asyncio.timeout(10):
        await waiting
