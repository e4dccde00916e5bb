"""A gateway that has to stop: what is in progress finishes, and nothing new begins."""

import asyncio

import pytest

from sluicegate.errors import ShuttingDown
from sluicegate.exchange import NOBODY, Exchange, chain
from sluicegate.gate.admission import Admission
from sluicegate.protocol.message import Reply, Result

PATIENCE = 5.0
CALL = Exchange("tools/call", {"name": "dig"}, NOBODY)


class Stage:
    """A handler that answers when the test lets it, behind the steps of a gateway."""

    def __init__(self) -> None:
        self.admission = Admission()
        self.handler = chain((self.admission,), self._answer)
        self.may_answer = asyncio.Event()
        self.begun = asyncio.Semaphore(0)

    async def _answer(self, exchange: Exchange) -> Reply:
        self.begun.release()
        await self.may_answer.wait()
        return Result({"for": exchange.method})

    async def reply(self, exchange: Exchange) -> Reply:
        return await self.handler(exchange)


async def test_what_is_in_progress_finishes_and_nothing_new_begins() -> None:
    stage = Stage()
    async with asyncio.timeout(PATIENCE):
        call = asyncio.ensure_future(stage.reply(CALL))
        await stage.begun.acquire()
        stage.admission.stop()
        drained = asyncio.ensure_future(stage.admission.wait_idle(PATIENCE))
        with pytest.raises(ShuttingDown):
            await stage.reply(CALL)
        assert not drained.done()
        stage.may_answer.set()
        assert await drained
        assert await call == Result({"for": "tools/call"})


async def test_what_does_not_finish_in_time_is_reported() -> None:
    stage = Stage()
    async with asyncio.timeout(PATIENCE):
        call = asyncio.ensure_future(stage.reply(CALL))
        await stage.begun.acquire()
        assert not await stage.admission.wait_idle(0)
        stage.may_answer.set()
        await call
        assert await stage.admission.wait_idle(0.1)


@pytest.mark.parametrize("method", ["server/discover", "tools/list"])
async def test_a_client_that_comes_late_still_learns_what_there_is(method: str) -> None:
    stage = Stage()
    stage.may_answer.set()
    stage.admission.stop()
    assert await stage.reply(Exchange(method, {}, NOBODY)) == Result({"for": method})


async def test_a_retry_of_a_call_in_progress_passes() -> None:
    stage = Stage()
    stage.admission.stop()

    async def resume(exchange: Exchange) -> Reply:
        return Result({"resumed": exchange.method})

    retry = Exchange("tools/call", {"name": "dig"}, NOBODY, resume=resume)
    assert await stage.reply(retry) == Result({"resumed": "tools/call"})


async def test_a_call_that_is_cancelled_is_not_waited_for() -> None:
    stage = Stage()
    async with asyncio.timeout(PATIENCE):
        call = asyncio.ensure_future(stage.reply(CALL))
        await stage.begun.acquire()
        drained = asyncio.ensure_future(stage.admission.wait_idle(2 * PATIENCE))
        await asyncio.sleep(0)
        call.cancel()
        assert await drained
        assert call.cancelled()
