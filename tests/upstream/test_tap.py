"""A pipe in portions: all of it in its order, much at once from who is quick to deal with, little from who is not."""

import asyncio
import contextlib
import os
import sys
from collections.abc import Awaitable, Callable, Generator

import pytest
import uvloop

from sluicegate.upstream import tap
from sluicegate.upstream.tap import CAPACITY, CREDIT, LARGEST, LOG_SHARE, QUICK, SHARE, SLOW, SMALLEST, Tap

FOREVER = 3600.0


class Clock:
    """A time that passes only while somebody listens."""

    def __init__(self) -> None:
        self.now = 0.0

    def thread_time(self) -> float:
        return self.now


class Pipe:
    """A pipe with a tap at its end, and a listener who takes as long for each portion as he is told to."""

    def __init__(self, clock: Clock, *, is_log: bool = False) -> None:
        self.portions: list[bytes] = []
        self.takes = 0.0
        self.ends = 0
        self._clock = clock
        self._news = asyncio.Event()
        ours, self.theirs = os.pipe()
        self.tap = Tap(os.fdopen(ours, "rb", buffering=0), self._hear, self._ended, is_log=is_log)

    def _hear(self, data: bytes) -> None:
        self.portions.append(data)
        self._clock.now += self.takes
        self._news.set()

    def _ended(self) -> None:
        self.ends += 1
        self._news.set()

    @property
    def heard(self) -> bytes:
        return b"".join(self.portions)

    @property
    def sizes(self) -> list[int]:
        return [len(portion) for portion in self.portions]

    async def wait(self, condition: Callable[[], object]) -> None:
        async with asyncio.timeout(5):
            while not condition():
                self._news.clear()
                await self._news.wait()

    async def say(self, size: int) -> list[int]:
        """Write so much, no more than fits into the pipe, and return the portions in which it came."""
        before = len(self.portions)
        goal = len(self.heard) + size
        assert os.write(self.theirs, os.urandom(size)) == size
        await self.wait(lambda: len(self.heard) == goal)
        return self.sizes[before:]

    async def warm_up(self) -> None:
        """Be quick until the portions are as large as they become."""
        self.takes = 0.0
        while max(await self.say(LARGEST)) < LARGEST:
            pass

    def hang_up(self) -> None:
        if self.theirs >= 0:
            os.close(self.theirs)
            self.theirs = -1


Make = Callable[..., Pipe]
Run = Callable[[Callable[[Make], Awaitable[None]]], None]


@pytest.fixture(params=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run a scenario on one of the loops, with a function that makes pipes for it."""
    clock = Clock()
    monkeypatch.setattr(tap, "thread_time", clock.thread_time)
    factory = uvloop.new_event_loop if request.param == "uvloop" else asyncio.new_event_loop

    @contextlib.contextmanager
    def pipes() -> Generator[Make]:
        made: list[Pipe] = []

        def make(*, is_log: bool = False) -> Pipe:
            made.append(Pipe(clock, is_log=is_log))
            return made[-1]

        try:
            yield make
        finally:
            for pipe in made:
                pipe.tap.close()
                pipe.hang_up()

    def run(scenario: Callable[[Make], Awaitable[None]]) -> None:
        async def main() -> None:
            with pipes() as make:
                await scenario(make)

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(main())

    return run


@pytest.fixture
def strict(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is given in advance, and who has used up more than its share rests until it is made good."""
    monkeypatch.setattr(tap, "CREDIT", 0.0)
    monkeypatch.setattr(tap, "LONGEST_REST", FOREVER)


def rest_of(pipe: Pipe) -> float:
    """The seconds until it is read again."""
    handle: asyncio.TimerHandle = vars(pipe.tap)["_rest"]
    return handle.when() - asyncio.get_running_loop().time()


async def others_are_served() -> None:
    """Let the loop turn a few times."""
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize("takes", [0.0, QUICK, 2 * SLOW])
def test_all_is_heard_in_its_order_and_the_end_once(run: Run, takes: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "CREDIT", 0.0)

    async def scenario(make: Make) -> None:
        pipe = make()
        pipe.takes = takes
        said = b""
        for size in (1, SMALLEST - 1, SMALLEST, SMALLEST + 1, 40_000, 3):
            data = os.urandom(size)
            said += data
            os.write(pipe.theirs, data)
        pipe.hang_up()
        await pipe.wait(lambda: pipe.ends)
        await others_are_served()
        assert pipe.heard == said
        assert pipe.ends == 1
        assert not pipe.tap.is_open

    run(scenario)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a pipe be larger")
def test_a_server_may_be_ahead_of_us_by_a_few_portions(run: Run) -> None:
    async def scenario(make: Make) -> None:
        pipe = make()
        os.set_blocking(pipe.theirs, False)
        data = os.urandom(CAPACITY)
        assert os.write(pipe.theirs, data) == CAPACITY, "it need not wait until we have read of it"
        await pipe.wait(lambda: len(pipe.heard) == CAPACITY)
        assert pipe.heard == data

    run(scenario)


def test_who_is_quick_to_deal_with_is_read_more_of_at_once(run: Run) -> None:
    async def scenario(make: Make) -> None:
        pipe = make()
        portions = await pipe.say(LARGEST)
        assert portions[:6] == [SMALLEST << n for n in range(6)]
        assert await pipe.say(LARGEST) == [LARGEST]
        assert await pipe.say(LARGEST) == [LARGEST]

    run(scenario)


def test_who_takes_long_is_read_less_of_at_once(run: Run) -> None:
    async def scenario(make: Make) -> None:
        pipe = make()
        await pipe.warm_up()
        pipe.takes = 2 * SLOW
        assert await pipe.say(LARGEST) == [LARGEST]
        assert await pipe.say(LARGEST // 2) == [LARGEST // 2]
        # What takes neither long nor little goes on as it is.
        pipe.takes = SLOW
        assert await pipe.say(LARGEST) == [LARGEST // 4] * 4
        await pipe.warm_up()

    run(scenario)


@pytest.mark.usefixtures("strict")
def test_one_that_takes_long_has_to_wait_while_others_are_served(run: Run) -> None:
    async def scenario(make: Make) -> None:
        slow, quick = make(), make()
        slow.takes = FOREVER
        os.write(slow.theirs, b"x" * 4 * SMALLEST)
        await slow.wait(lambda: slow.portions)
        await others_are_served()
        await quick.say(LARGEST)
        assert slow.sizes == [SMALLEST]
        # It is not lost: whoever must have it now gets it.
        assert slow.tap.draw() == SMALLEST
        assert slow.sizes == [SMALLEST] * 2

    run(scenario)


def test_after_its_rest_it_is_read_again(run: Run) -> None:
    async def scenario(make: Make) -> None:
        pipe = make()
        pipe.takes = 10.0  # However long it took, it does not wait for long.
        assert await pipe.say(3 * SMALLEST + 1) == [SMALLEST] * 3 + [1]

    run(scenario)


@pytest.mark.usefixtures("strict")
@pytest.mark.parametrize(("is_log", "share"), [(False, SHARE), (True, LOG_SHARE)])
def test_a_rest_is_in_proportion_to_what_it_took(run: Run, is_log: bool, share: float) -> None:
    async def scenario(make: Make) -> None:
        for takes in (50.0, 100.0):
            pipe = make(is_log=is_log)
            pipe.takes = takes
            os.write(pipe.theirs, b"x" * 4 * SMALLEST)
            await pipe.wait(lambda pipe=pipe: pipe.portions)
            assert rest_of(pipe) == pytest.approx(takes / share, abs=10)

    run(scenario)


@pytest.mark.parametrize("is_log", [False, True])
def test_a_burst_within_its_credit_does_not_wait(run: Run, is_log: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "REST", FOREVER)

    async def scenario(make: Make) -> None:
        pipe = make(is_log=is_log)
        pipe.takes = CREDIT / 40
        for _ in range(3):
            assert await pipe.say(10 * SMALLEST) == [SMALLEST] * 10

    run(scenario)


@pytest.mark.usefixtures("strict")
def test_lines_that_come_one_by_one_never_wait(run: Run) -> None:
    async def scenario(make: Make) -> None:
        pipe = make(is_log=True)
        pipe.takes = FOREVER
        for _ in range(3):
            assert await pipe.say(SMALLEST - 1) == [SMALLEST - 1]

    run(scenario)


def test_a_pause_outlasts_a_rest_and_a_rest_a_pause(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tap, "CREDIT", 0.0)

    async def scenario(make: Make) -> None:
        pipe = make()
        pipe.takes = SLOW
        monkeypatch.setattr(tap, "REST", 0.0)
        os.write(pipe.theirs, b"x" * 2 * SMALLEST)
        await pipe.wait(lambda: pipe.portions)
        pipe.tap.pause()
        pipe.tap.pause()
        await others_are_served()
        assert pipe.sizes == [SMALLEST] and pipe.tap.is_paused
        monkeypatch.setattr(tap, "REST", FOREVER)
        pipe.tap.resume()
        await pipe.wait(lambda: len(pipe.portions) == 2)
        os.write(pipe.theirs, b"x" * SMALLEST)
        pipe.tap.pause()
        pipe.tap.resume()
        await others_are_served()
        assert pipe.sizes == [SMALLEST] * 2

    run(scenario)


def test_nothing_is_read_after_it_was_closed(run: Run) -> None:
    async def scenario(make: Make) -> None:
        pipe = make()
        os.write(pipe.theirs, b"x")
        pipe.tap.close()
        pipe.tap.close()
        pipe.tap.pause()
        pipe.tap.resume()
        await others_are_served()
        assert pipe.portions == [] and pipe.ends == 0

    run(scenario)


def test_the_listener_may_close_it_whatever_he_took(run: Run) -> None:
    async def scenario(make: Make) -> None:
        pipe = make()
        pipe.takes = 2 * SLOW

        listener = pipe.tap.hear

        def hear(data: bytes) -> None:
            pipe.tap.close()
            listener(data)

        pipe.tap.hear = hear
        os.write(pipe.theirs, b"x" * 2 * SMALLEST)
        await pipe.wait(lambda: pipe.portions)
        await others_are_served()
        assert pipe.sizes == [SMALLEST] and pipe.ends == 0

    run(scenario)
