"""A handler that has to stop: what is under way finishes or is told, and nothing new begins."""

import asyncio

import pytest

from sluicegate.concurrency import forever
from sluicegate.errors import ShuttingDown
from sluicegate.exchange import NOBODY, Exchange
from sluicegate.fronts.leaving import STOPPED, Leaving
from sluicegate.protocol.message import Reply, Result

PATIENCE = 5.0
CALL = Exchange("tools/call", {"name": "dig"}, NOBODY)
LISTEN = Exchange("subscriptions/listen", {}, NOBODY)


class Stage:
    """A handler that answers when it is let."""

    def __init__(self) -> None:
        self.may_answer = asyncio.Event()
        self.begun = asyncio.Semaphore(0)
        self.ended = 0

    async def __call__(self, exchange: Exchange) -> Reply:
        self.begun.release()
        try:
            await self.may_answer.wait()
        finally:
            self.ended += 1
        return Result({"for": exchange.method})


async def test_what_is_under_way_finishes_and_nothing_new_begins() -> None:
    stage = Stage()
    leaving = Leaving(stage)
    async with asyncio.timeout(PATIENCE):
        call = asyncio.ensure_future(leaving(CALL))
        await stage.begun.acquire()
        leaving.stop_taking()
        drained = asyncio.ensure_future(leaving.drain(PATIENCE))
        with pytest.raises(ShuttingDown):
            await leaving(CALL)
        assert not drained.done()
        stage.may_answer.set()
        await drained
        assert await call == Result({"for": "tools/call"})


async def test_what_does_not_finish_in_time_is_cancelled_and_told() -> None:
    stage = Stage()
    leaving = Leaving(stage)
    async with asyncio.timeout(PATIENCE):
        calls = [asyncio.ensure_future(leaving(CALL)) for _ in range(3)]
        for _ in calls:
            await stage.begun.acquire()
        leaving.stop_taking()
        await leaving.drain(0)
        assert [await call for call in calls] == [STOPPED] * 3 and stage.ended == 3


async def test_a_subscription_ends_at_once_and_in_order() -> None:
    stage = Stage()
    leaving = Leaving(stage)
    async with asyncio.timeout(PATIENCE):
        listening = asyncio.ensure_future(leaving(LISTEN))
        await stage.begun.acquire()
        leaving.stop_taking()
        await leaving.drain(2 * PATIENCE)
        assert await listening == Result({"resultType": "complete"})


async def test_who_comes_late_still_learns_what_there_is() -> None:
    stage = Stage()
    stage.may_answer.set()
    leaving = Leaving(stage)
    leaving.stop_taking()
    for method in ("server/discover", "tools/list"):
        assert await leaving(Exchange(method, {}, NOBODY)) == Result({"for": method})


async def test_with_nothing_under_way_nobody_waits() -> None:
    async with asyncio.timeout(PATIENCE):
        await Leaving(Stage()).drain(2 * PATIENCE)


async def test_one_who_hangs_up_is_not_waited_for() -> None:
    stage = Stage()
    leaving = Leaving(stage)
    async with asyncio.timeout(PATIENCE):
        call = asyncio.ensure_future(leaving(CALL))
        await stage.begun.acquire()
        drained = asyncio.ensure_future(leaving.drain(2 * PATIENCE))
        call.cancel()
        await drained
        assert call.cancelled()


async def test_a_handlers_own_timeout_stays_its_own() -> None:
    async def tardy(exchange: Exchange) -> Reply:
        async with asyncio.timeout(0):
            await forever()
        raise AssertionError

    with pytest.raises(TimeoutError):
        await Leaving(tardy)(CALL)
