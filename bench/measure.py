"""Fair races: contestants take turns in rounds, CPU time is what counts, and every ratio is taken within one round.

These machines are shared: a neighbour makes everything slower for a second, the baseline too. So the one rule: nothing
is compared that was not measured side by side, and no figure is worth more than its ratio.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import repeat
from statistics import median, quantiles
from typing import NamedTuple

import msgspec


class Cost(NamedTuple):
    """What some work took, in nanoseconds. `cpu` is that of all processes, `server` the other process's part of it."""

    cpu: float
    server: float = 0
    wall: float = 0

    def over(self, count: int) -> "Cost":
        """The cost of one of so many."""
        return Cost(self.cpu / count, self.server / count, self.wall / count)


Turn = Callable[[int], Cost]
"""Does the work so many times."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How long to measure: rounds, and the CPU seconds that one turn should take. With 0 it only has to work once."""

    rounds: int = 15
    turn_seconds: float = 0.05


FULL = Effort()
QUICK = Effort(rounds=1, turn_seconds=0)


@dataclass(frozen=True, slots=True)
class Contestant:
    """One way to do it. `units` is how many of the things that are told about one repetition does."""

    name: str
    turn: Turn
    units: int = 1
    remark: str = ""


class Row(msgspec.Struct, frozen=True, omit_defaults=True):
    """One line of the report. `ratio` is to the first contestant of the benchmark; who was not there has no figures."""

    benchmark: str
    contestant: str
    remark: str = ""
    cpu_us: float | None = None
    """The best round's."""
    ratio: float | None = None
    """The median of the rounds' own ratios; `low` and `high` hold the middle half of them."""
    low: float | None = None
    high: float | None = None
    server_us: float | None = None
    wall_us: float | None = None
    kib: float | None = None
    """Memory, where it is that what is measured; `ratio` is of it then."""


def loop(work: Callable[[], object]) -> Turn:
    """A turn of something that is simply called. A `partial` costs the least around it, about 0.03 µs."""

    def turn(count: int) -> Cost:
        calls = repeat(work, count)
        start = time.process_time_ns()
        for call in calls:
            call()
        return Cost(time.process_time_ns() - start)

    return turn


class DidNotFinish(Exception):
    """A contestant did not finish a turn, and says so in its row."""


def race(benchmark: str, contestants: Sequence[Contestant], effort: Effort, *, by_wall: bool = False) -> list[Row]:
    """A row for each contestant; the first is the baseline of the others. Ratios are of CPU, or of the time it took.

    Raises:
        DidNotFinish: the first did not finish; of the others it is a remark.
    """
    runs = [_Run(contestant) for contestant in contestants]
    for run in runs:
        run.attempt(partial(run.warm_up, effort))
    for _ in range(effort.rounds):
        for run in runs:
            run.attempt(run.take_turn)
    if runs[0].lost:
        raise DidNotFinish(f"{runs[0].entry.name} {runs[0].lost}")
    return [
        Row(benchmark, run.entry.name, remark=run.lost)
        if run.lost
        else _row(benchmark, run.entry, runs[0].costs, run.costs, by_wall)
        for run in runs
    ]


class _Run:
    """A contestant in a race, until it does not finish a turn."""

    def __init__(self, entry: Contestant) -> None:
        self.entry = entry
        self.costs: list[Cost] = []
        self.lost = ""
        self._count = 1

    def attempt(self, step: Callable[[], None]) -> None:
        """Do a step of it."""
        if not self.lost:
            try:
                step()
            except DidNotFinish as problem:
                self.lost = str(problem)

    def warm_up(self, effort: Effort) -> None:
        """Find out how long a turn is."""
        self._count = _repetitions(self.entry.turn, effort)

    def take_turn(self) -> None:
        """Take one turn."""
        self.costs.append(self.entry.turn(self._count).over(self._count * self.entry.units))


def skipped(benchmark: str, contestant: str, reason: str) -> Row:
    """The row of somebody who could not come."""
    return Row(benchmark, contestant, remark=f"skipped: {reason}")


def _repetitions(turn: Turn, effort: Effort) -> int:
    """How often a turn has to do its work; to find that out is the warm-up as well."""
    count = 1
    wanted = effort.turn_seconds * 1e9
    if not wanted:
        turn(count)
        return count
    # The better of two: what is done once, such as an import, would make all turns too short.
    while (spent := min(turn(count).cpu, turn(count).cpu)) < wanted / 4:
        count *= 4
    return max(1, round(count * wanted / spent))


def _row(benchmark: str, entry: Contestant, base: Sequence[Cost], own: Sequence[Cost], by_wall: bool) -> Row:
    def time_of(cost: Cost) -> float:
        return cost.wall if by_wall else cost.cpu

    ratios = [
        time_of(mine) / time_of(theirs) if time_of(theirs) else 0.0 for mine, theirs in zip(own, base, strict=True)
    ]
    low, _, high = quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
    best = min(own, key=time_of)
    return Row(
        benchmark,
        entry.name,
        remark=entry.remark,
        cpu_us=best.cpu / 1000,
        ratio=median(ratios),
        low=low,
        high=high,
        server_us=best.server / 1000 if best.server else None,
        wall_us=best.wall / 1000 if best.wall else None,
    )
