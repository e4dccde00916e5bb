"""Threads for plain functions are reused, and their number is limited."""

import asyncio
import contextvars
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator, Iterator
from functools import partial

import pytest

from sluicegate.activations.invoke import SteppedGenerator
from sluicegate.errors import ThreadsBusy, error_object
from sluicegate.runtime import task_scope as concurrency
from sluicegate.runtime.task_scope import MAX_THREADS, in_thread
from sluicegate.server import Server
from tests.activations.helpers import ask, call, text
from tests.polling import until

BUSY: set[object] = vars(concurrency)["_busy"]

Start = Callable[[], Coroutine[object, object, object]]


async def all_are_free() -> None:
    await until(lambda: not BUSY, within=10)


@pytest.fixture
async def release() -> AsyncGenerator[threading.Event]:
    """What threads of a test wait for; it is set at the end, and then all are free again."""
    await all_are_free()
    release = threading.Event()
    yield release
    release.set()
    await all_are_free()


async def abandon(start: Start) -> None:
    """Wait for something in a thread, and give up at once."""
    waiting = asyncio.create_task(start())
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait([waiting])


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for a thread."""
    monkeypatch.setattr(concurrency, "MAX_WAIT", 0.0)


async def test_more_functions_than_threads_wait_their_turn_and_all_are_run() -> None:
    results = await asyncio.gather(*(in_thread(lambda n=n: n) for n in range(10 * MAX_THREADS)))
    assert results == list(range(10 * MAX_THREADS))


async def test_a_cancelled_wait_for_a_thread_leaves_the_turn_to_others(release: threading.Event) -> None:
    running = [asyncio.create_task(in_thread(release.wait)) for _ in range(MAX_THREADS)]
    await asyncio.sleep(0)
    waiting = [asyncio.create_task(in_thread(lambda: 1)) for _ in range(3)]
    await asyncio.sleep(0)
    waiting[0].cancel()
    release.set()
    async with asyncio.timeout(10):
        assert await asyncio.gather(*waiting[1:]) == [1, 1]
        assert all(await asyncio.gather(*running))


@pytest.mark.usefixtures("impatient")
async def test_a_function_is_refused_while_too_many_abandoned_threads_run(release: threading.Event) -> None:
    before = threading.active_count()
    for _ in range(MAX_THREADS):
        await abandon(partial(in_thread, release.wait))
    for _ in range(500):
        with pytest.raises(ThreadsBusy, match=r"^All 64 threads for plain functions are busy; try again later\.$"):
            await asyncio.wait_for(in_thread(release.wait), 5)
    assert threading.active_count() <= before + MAX_THREADS
    release.set()
    await all_are_free()
    assert await in_thread(lambda: 1) == 1


@pytest.mark.usefixtures("impatient")
async def test_generators_count_as_well(release: threading.Event) -> None:
    def steps() -> Generator[None]:
        release.wait()
        yield

    async def step() -> None:
        generator = SteppedGenerator(steps())
        try:
            await anext(generator)
        finally:
            await generator.aclose()

    for _ in range(MAX_THREADS):
        await abandon(step)
    with pytest.raises(ThreadsBusy):
        SteppedGenerator(steps())
    with pytest.raises(ThreadsBusy):
        await asyncio.wait_for(in_thread(release.wait), 5)


@pytest.mark.usefixtures("impatient")
async def test_call_without_a_thread_is_an_error_and_no_result(release: threading.Event) -> None:
    server = Server("demo")

    @server.tool
    def plain() -> str:
        release.wait()
        return "done"

    @server.tool
    def steps() -> Iterator[str]:
        yield "never"

    server.add_resource("a://b", lambda: "", name="b")
    server.add_prompt(lambda: "", name="p")
    server.add_tool(asyncio.sleep, name="free", input_schema={"type": "object", "required": ["delay"]})
    for _ in range(MAX_THREADS):
        await abandon(partial(call, server, "plain"))
    for method, params in (
        ("tools/call", {"name": "plain"}),
        ("tools/call", {"name": "steps"}),
        ("resources/read", {"uri": "a://b"}),
        ("prompts/get", {"name": "p"}),
    ):
        with pytest.raises(ThreadsBusy) as refusal:
            await ask(server, method, params)
        error = error_object(refusal.value)
        assert (error.code, error.data["retryable"]) == (1004, True)  # pyright: ignore
    assert "isError" not in await call(server, "free", {"delay": 0}), "what runs in the loop needs no thread"
    release.set()
    await all_are_free()
    assert text(await call(server, "plain")) == "done"


async def test_thread_is_free_before_its_caller_is_answered(release: threading.Event) -> None:
    def steps() -> Generator[int]:
        yield 1

    async def ask_again_and_again() -> None:
        for _ in range(30):
            assert await in_thread(lambda: 1) == 1
            assert [value async for value in SteppedGenerator(steps())] == [1]

    async with asyncio.timeout(20), asyncio.TaskGroup() as tasks:
        for _ in range(MAX_THREADS):
            tasks.create_task(ask_again_and_again())


async def test_function_sees_the_context_of_its_caller_and_its_exceptions_arrive() -> None:
    who: contextvars.ContextVar[str] = contextvars.ContextVar("who")
    who.set("ada")
    assert await in_thread(who.get) == "ada"
    with pytest.raises(ZeroDivisionError):
        await in_thread(lambda: 1 // 0)
    with pytest.raises(RuntimeError, match="raised StopIteration"):
        await in_thread(partial(next, iter(())))


async def test_generator_that_will_not_be_closed_gives_its_thread_back(
    release: threading.Event, caplog: pytest.LogCaptureFixture
) -> None:
    def stubborn() -> Generator[int]:
        try:
            yield 1
        finally:
            raise SystemExit

    generator = SteppedGenerator(stubborn())
    assert await anext(generator) == 1
    await generator.aclose()
    await all_are_free()
    assert "A generator could not be closed" in caplog.text
