"""Tasks that end with their scope, whatever ends it."""

import asyncio

import pytest

from sluicegate.runtime.task_scope import TaskScope, forever

PATIENCE = 10.0


class Worker:
    """Work that notes how it ends."""

    def __init__(self) -> None:
        self.begun = asyncio.Event()
        self.go_on = asyncio.Event()
        self.end = ""

    async def run(self) -> None:
        self.begun.set()
        try:
            await self.go_on.wait()
            self.end = "done"
        except asyncio.CancelledError:
            self.end = "cancelled"
            raise


async def fails(problem: BaseException) -> None:
    raise problem


async def test_the_end_of_the_scope_waits_for_all_tasks() -> None:
    worker = Worker()
    async with TaskScope() as scope:
        scope.start(worker.run())
        await worker.begun.wait()
        asyncio.get_running_loop().call_soon(worker.go_on.set)
        assert len(scope) == 1
    assert worker.end == "done"
    assert len(scope) == 0


async def test_a_task_is_cancelled_by_its_key_and_by_no_other() -> None:
    first, second = Worker(), Worker()
    async with asyncio.timeout(PATIENCE), TaskScope() as scope:
        scope.start(first.run(), key="a")
        scope.start(second.run(), key="b")
        await first.begun.wait()
        assert scope.cancel("a")
        assert not scope.cancel("a")
        scope.rekey("b", "c")
        assert not scope.cancel("b")
        second.go_on.set()
    assert (first.end, second.end) == ("cancelled", "done")


async def test_a_key_is_free_again_when_its_task_has_ended() -> None:
    first, second = Worker(), Worker()
    async with asyncio.timeout(PATIENCE), TaskScope() as scope:
        scope.start(first.run(), key="a")
        first.go_on.set()
        while len(scope):  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
        assert not scope.cancel("a")
        scope.start(second.run(), key="a")
        await second.begun.wait()
        assert scope.cancel("a")


async def test_an_exception_in_one_task_cancels_the_others_and_the_body_and_travels_on() -> None:
    worker = Worker()
    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(PATIENCE), TaskScope() as scope:
            scope.start(worker.run())
            await worker.begun.wait()
            scope.start(fails(ValueError("no")))
            await forever()
    assert [str(error) for error in raised.value.exceptions] == ["no"]
    assert worker.end == "cancelled"
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()


async def test_an_exception_of_the_body_travels_on_as_it_is() -> None:
    worker = Worker()
    with pytest.raises(KeyError):
        async with TaskScope() as scope:
            scope.start(worker.run())
            await worker.begun.wait()
            raise KeyError("mine")
    assert worker.end == "cancelled"


async def test_a_task_that_is_started_while_all_are_cancelled_is_cancelled_too() -> None:
    late, scope = Worker(), TaskScope()

    async def begins_another(scope: TaskScope) -> None:
        try:
            await forever()
        finally:
            scope.start(late.run())

    with pytest.raises(KeyError):
        async with asyncio.timeout(PATIENCE), scope:
            scope.start(begins_another(scope))
            await asyncio.sleep(0)
            raise KeyError("mine")
    assert late.end != "done"
    assert len(scope) == 0


async def test_a_scope_cancelled_while_it_waits_cancels_its_tasks() -> None:
    worker = Worker()

    async def body() -> None:
        async with TaskScope() as scope:
            scope.start(worker.run())

    async with asyncio.timeout(PATIENCE):
        task = asyncio.create_task(body())
        await worker.begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert worker.end == "cancelled"


async def test_a_scope_cancelled_in_its_body_waits_for_its_tasks() -> None:
    held = asyncio.Event()
    cleaned = False

    async def cleans_up() -> None:
        nonlocal cleaned
        try:
            held.set()
            await forever()
        finally:
            await asyncio.sleep(0)
            cleaned = True

    async def body() -> None:
        async with TaskScope() as scope:
            scope.start(cleans_up())
            await forever()

    async with asyncio.timeout(PATIENCE):
        task = asyncio.create_task(body())
        await held.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
    assert cleaned


async def test_a_scope_that_is_not_open_takes_no_work() -> None:
    scope = TaskScope()
    with pytest.raises(RuntimeError):
        scope.start(forever())
    async with scope:
        pass
    with pytest.raises(RuntimeError):
        scope.start(forever())


async def test_a_task_that_fails_while_the_scope_closes_is_reported_too() -> None:
    go_on = asyncio.Event()

    async def late() -> None:
        await go_on.wait()
        raise ValueError("late")

    with pytest.raises(ExceptionGroup) as raised:
        async with asyncio.timeout(PATIENCE), TaskScope() as scope:
            scope.start(late())
            asyncio.get_running_loop().call_soon(go_on.set)
    assert [str(error) for error in raised.value.exceptions] == ["late"]


async def test_a_failure_is_reported_at_once_if_the_opener_of_the_scope_is_gone() -> None:
    told: list[dict[str, object]] = []
    asyncio.get_running_loop().set_exception_handler(lambda loop, context: told.append(context))
    scope = TaskScope()
    await asyncio.create_task(scope.__aenter__())
    scope.start(fails(ValueError("no")))
    async with asyncio.timeout(PATIENCE):
        while not told:  # noqa: ASYNC110 - nobody tells
            await asyncio.sleep(0)
    with pytest.raises(ExceptionGroup):
        await scope.__aexit__(None, None, None)
