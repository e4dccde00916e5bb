"""Deadlines of calls: kept, given again by progress, bounded in all, and never mixed up with a caller's leaving."""

import asyncio

import pytest

from sluicegate.errors import UpstreamTimeout
from sluicegate.hub.deadlines import Deadlines


async def test_a_call_that_takes_too_long_is_ended() -> None:
    with pytest.raises(UpstreamTimeout, match=r"files did not answer within 0.01 s"):
        async with asyncio.timeout(5), Deadlines("files").deadline(0.01, 10):
            await asyncio.Event().wait()


async def test_progress_gives_it_its_time_again_but_not_for_ever() -> None:
    deadlines = Deadlines("files")
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(UpstreamTimeout):
        async with asyncio.timeout(5), deadlines.deadline(0.2, 0.6) as deadline:
            while True:
                await asyncio.sleep(0.05)
                deadline.again()
    assert loop.time() - began > 0.5, "longer than it would have had without"


async def test_no_time_passes_while_a_person_is_asked() -> None:
    async with asyncio.timeout(5), Deadlines("files").deadline(0.01, 10) as deadline:
        deadline.wait()
        await asyncio.sleep(0.2)
        deadline.again()


async def test_a_caller_that_leaves_is_not_told_of_a_timeout() -> None:
    deadlines = Deadlines("files")

    async def call() -> None:
        async with deadlines.deadline(0.01, 10):
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
    deadlines = Deadlines("files")
    async with deadlines.deadline(0.05, 10):
        pass
    await asyncio.sleep(0.15)
    current = asyncio.current_task()
    assert current is not None and current.cancelling() == 0
