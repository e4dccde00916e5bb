"""Pipes are read in portions: everything in order, the end once, and several pipes in turn."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Generator
from functools import partial

import pytest
import uvloop

from sluicegate.upstream.process import CAPACITY, PORTION, PipeReader


class Pipe:
    """A pipe with a reader at its end."""

    def __init__(self) -> None:
        self.portions: list[bytes] = []
        self.ends = 0
        self._news = asyncio.Event()
        ours, self.theirs = os.pipe()
        self.reader = PipeReader(os.fdopen(ours, "rb", buffering=0), self._on_data, self._on_end)

    def _on_data(self, data: bytes) -> None:
        self.portions.append(data)
        self._news.set()

    def _on_end(self) -> None:
        self.ends += 1
        self._news.set()

    @property
    def received(self) -> bytes:
        return b"".join(self.portions)

    async def wait(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                self._news.clear()
                await self._news.wait()

    def hang_up(self) -> None:
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1


Make = Callable[[], Pipe]
Run = Callable[[Callable[[Make], Awaitable[None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Run:
    """Run a scenario on one of the loops, with a function that makes pipes for it."""
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    @contextlib.contextmanager
    def pipes() -> Generator[Make]:
        made: list[Pipe] = []

        def make() -> Pipe:
            made.append(Pipe())
            return made[-1]

        try:
            yield make
        finally:
            for pipe in made:
                pipe.reader.close()
                pipe.hang_up()

    def run(scenario: Callable[[Make], Awaitable[None]]) -> None:
        async def main() -> None:
            with pipes() as make:
                await scenario(make)

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return run


async def turn_the_loop() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


def test_everything_is_read_in_order_and_the_end_once(run: Run) -> None:
    async def scenario(make: Make) -> None:
        pipe = make()
        written = b""
        for size in (1, PORTION - 1, PORTION, PORTION + 1, 3):
            data = os.urandom(size)
            written += data
            os.write(pipe.theirs, data)
        pipe.hang_up()
        await pipe.wait(lambda: pipe.ends)
        await turn_the_loop()
        assert pipe.received == written
        assert pipe.ends == 1
        assert not pipe.reader.is_open

    run(scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a pipe be larger")
def test_a_server_may_write_a_few_portions_ahead(run: Run) -> None:
    async def scenario(make: Make) -> None:
        pipe = make()
        os.set_blocking(pipe.theirs, False)
        data = os.urandom(CAPACITY)
        assert os.write(pipe.theirs, data) == CAPACITY
        await pipe.wait(lambda: len(pipe.received) == CAPACITY)
        assert pipe.received == data

    run(scenario)


def test_two_full_pipes_are_read_in_turn(run: Run) -> None:
    async def scenario(make: Make) -> None:
        order, is_done = list[int](), asyncio.Event()

        def note(number: int, data: bytes) -> None:
            order.append(number)
            if len(order) == 8:
                is_done.set()

        for number in range(2):
            pipe = make()
            pipe.reader.on_data = partial(note, number)
            os.write(pipe.theirs, b"x" * 4 * PORTION)
        async with asyncio.timeout(5):
            await is_done.wait()
        assert all({first, second} == {0, 1} for first, second in zip(order[::2], order[1::2], strict=True))

    run(scenario)


def test_a_paused_pipe_is_not_read_until_it_is_resumed(run: Run) -> None:
    async def scenario(make: Make) -> None:
        pipe = make()
        pipe.reader.pause()
        pipe.reader.pause()
        os.write(pipe.theirs, b"x")
        await turn_the_loop()
        assert pipe.portions == [] and pipe.reader.is_paused
        pipe.reader.resume()
        await pipe.wait(lambda: pipe.received == b"x")

    run(scenario)


def test_nothing_is_read_after_close(run: Run) -> None:
    async def scenario(make: Make) -> None:
        pipe = make()
        os.write(pipe.theirs, b"x")
        pipe.reader.close()
        pipe.reader.close()
        pipe.reader.pause()
        pipe.reader.resume()
        await turn_the_loop()
        assert pipe.portions == [] and pipe.ends == 0

    run(scenario)


def test_the_callback_may_close_the_reader(run: Run) -> None:
    async def scenario(make: Make) -> None:
        pipe = make()
        on_data = pipe.reader.on_data

        def close(data: bytes) -> None:
            pipe.reader.close()
            on_data(data)

        pipe.reader.on_data = close
        os.write(pipe.theirs, b"x" * 2 * PORTION)
        await pipe.wait(lambda: pipe.portions)
        await turn_the_loop()
        assert [len(portion) for portion in pipe.portions] == [PORTION] and pipe.ends == 0

    run(scenario)
