"""What the races of gateways have in common: who takes part, and a turn of one of them."""

import asyncio
import os
import sys
import time
from collections.abc import Generator, Sequence
from typing import Final, NamedTuple

import msgspec

from bench.gateway.load import Call, Door, Varied, entered, lanes_of
from bench.gateway.peers import Peer
from bench.gateway.stage import Gate
from bench.load import MODERN, SESSION, Ask, Asker, ask_all, hang_up
from bench.measure import Contestant, Cost, Effort, Row, Turn, race, skipped
from bench.samples import TEXT

OURS: Final = "sluicegate"
LANES: Final = (32, 1)
ERAS: Final = {MODERN: "2026", SESSION: "2025"}

ECHO: Final[dict[str, object]] = {"text": TEXT}
LENGTHS: Final = 1000
MAX_LENGTH: Final = 1500
HEARD: Final = b'"text":"' + TEXT.encode()


class Entrant(NamedTuple):
    """A gateway in a race: where it is asked, and what it calls the tools."""

    name: str
    gate: Gate
    door: Door
    tool: str = "{}"
    remark: str = ""

    def call(self, tool: str, arguments: dict[str, object], words: bytes, token: str = "") -> Call:
        """A call of a tool."""
        params: dict[str, object] = {"name": self.tool.format(tool), "arguments": arguments}
        if token:
            params["_meta"] = {"progressToken": token}
        return Call(self.door, "tools/call", params, words)

    def echoes(self) -> Varied:
        """Calls of `echo` with words of all lengths: what is kept of one must serve the next."""
        texts = (TEXT + "." * (step * 397 % MAX_LENGTH) for step in range(LENGTHS))
        return Varied([self.call("echo", {"text": text}, HEARD) for text in texts])


Absent = dict[str, str]


def door_of(peer: Peer, port: int, version: str) -> Door:
    """Where a gateway of somebody else is asked."""
    return Door(port, version, "/messages" if peer.channel else "/mcp", channel=peer.channel)


def entered_all(
    loop: asyncio.AbstractEventLoop, entrants: Sequence[Entrant], away: Absent
) -> Generator[tuple[Entrant, Door]]:
    for entrant in entrants:
        try:
            door = loop.run_until_complete(door_that_answers(entrant))
        except (RuntimeError, OSError, TimeoutError) as problem:
            away[entrant.name] = short(problem)
        else:
            yield entrant, door


async def door_that_answers(entrant: Entrant) -> Door:
    """The door of a gateway, once a call passes: many open their port before they have reached their servers."""
    end = time.monotonic() + 30
    while True:
        try:
            door = await entered(entrant.door)
            askers = await lanes_of(door, 1)
            try:
                async with asyncio.timeout(10):
                    await ask_all(askers, entrant._replace(door=door).call("echo", ECHO, HEARD), 1)
            finally:
                await hang_up(askers)
            return door
        except (RuntimeError, OSError, TimeoutError):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.1)


def race_between(
    benchmark: str,
    turns: Sequence[tuple[Entrant, Turn]],
    absent: Absent,
    effort: Effort,
    lanes: int,
    *,
    units: int = 1,
    by_wall: bool = False,
) -> list[Row]:
    """Rows for those who pass a first try; one repetition is a call on each lane."""
    contestants = [Contestant(entrant.name, turn, lanes * units, entrant.remark) for entrant, turn in turns]
    return raced(benchmark, contestants, effort, by_wall=by_wall) + [
        skipped(benchmark, name, reason) for name, reason in absent.items()
    ]


def raced(benchmark: str, contestants: Sequence[Contestant], effort: Effort, *, by_wall: bool = False) -> list[Row]:
    """A row for each; for one that fails, at once or in the middle, it says so, and the others go on."""
    failures: dict[str, str] = {}

    def carefully(contestant: Contestant) -> Contestant:
        def turn(count: int) -> Cost:
            if contestant.name not in failures:
                try:
                    return contestant.turn(count)
                except (RuntimeError, OSError, TimeoutError) as problem:
                    failures[contestant.name] = short(problem)
            return Cost(1e9 * count)

        return Contestant(contestant.name, turn, contestant.units, contestant.remark)

    careful = [carefully(contestant) for contestant in contestants]
    for contestant in careful:
        contestant.turn(1)
    present = [contestant for contestant in careful if contestant.name not in failures]
    rows = race(benchmark, present, effort, by_wall=by_wall)
    return [row if by_wall else with_rate(row) for row in rows if row.contestant not in failures] + [
        skipped(benchmark, name, reason) for name, reason in failures.items()
    ]


def short(problem: BaseException) -> str:
    return f"it does not work: {str(problem)[:160] or type(problem).__name__}"


def with_rate(row: Row) -> Row:
    rate = f"{1e6 / row.wall_us:,.0f}/s" if row.wall_us else ""
    return msgspec.structs.replace(row, remark=", ".join(filter(None, (rate, row.remark))))


def answered(loop: asyncio.AbstractEventLoop, entrant: Entrant, ask: Ask, lanes: int) -> Turn:
    """The gateway's part of so many calls on each lane."""

    kept: list[Asker] = []  # A channel is dear to open, and many at a time are too much for some.

    async def turn(calls: int) -> Cost:
        askers = kept or await lanes_of(entrant.door, lanes)
        if entrant.door.channel and not kept:
            kept.extend(askers)
        try:
            await ask_all(askers, ask, lanes)
            before, start = await settled(entrant.gate), time.perf_counter_ns()
            await ask_all(askers, ask, calls * lanes)
            wall = time.perf_counter_ns() - start
            return Cost(await settled(entrant.gate) - before, wall=wall)
        finally:
            if not kept:
                await hang_up(askers)

    return lambda calls: loop.run_until_complete(turn(calls))


async def settled(gate: Gate) -> int:
    """Its CPU time once it stands still: some tidy up behind the answer, and Linux counts only up to the last tick."""
    await asyncio.sleep(0.005)
    return gate.cpu()


def say(words: str) -> None:
    sys.stderr.write(f"  {words} (load {os.getloadavg()[0]:.1f})\n")
