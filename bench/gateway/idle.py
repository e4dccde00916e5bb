"""What an idle session takes, with all that the gateway started for it. A gateway for each, as in `http`."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Final

from bench.gateway.load import Door, open_channel, open_session
from bench.gateway.peers import Peer, gate_of
from bench.gateway.race import OURS, Absent, Entrant, door_of, door_that_answers, say, short
from bench.gateway.stage import Gate, by_pipe, ours, pids_in
from bench.load import SESSION, connect, hang_up
from bench.measure import Cost, Effort, Row, skipped

SESSIONS: Final = 1000


def run(loop: asyncio.AbstractEventLoop, present: Sequence[Peer], absent: Absent, effort: Effort) -> list[Row]:
    """The rows of these."""
    benchmark = "an idle session, HTTP → stdio: memory"
    say(benchmark)
    rows: list[Row] = []
    base = 0.0
    ways: list[tuple[str, int, Callable[[Path], AbstractContextManager[Gate]], Callable[[Gate], Entrant]]] = [
        (
            OURS,
            SESSIONS,
            lambda pids: ours({"bench": by_pipe(pids)}, pids),
            lambda gate: Entrant(OURS, gate, Door(gate.port), "bench__{}"),
        )
    ]
    for peer in present:
        if peer.pipe is not None:
            start = partial(gate_of, peer.pipe)
            ways.append(
                (
                    peer.title,
                    peer.idle,
                    lambda pids, start=start: start({"bench": by_pipe(pids)}, pids),
                    lambda gate, peer=peer: Entrant("", gate, door_of(peer, gate.port, SESSION), peer.tool),
                )
            )
    for name, number, start, entrant in ways:
        number = number if effort.turn_seconds else 5
        with tempfile.TemporaryDirectory(prefix="bench-") as home:
            pids = pids_in(home)
            try:
                with start(pids) as gate:
                    kib, cost = loop.run_until_complete(_grown(entrant(gate), number))
            except (RuntimeError, OSError, TimeoutError) as problem:
                rows.append(skipped(benchmark, name, short(problem)))
                continue
        base = base or kib
        remark = f"each of {number:,}, with the processes it started; CPU and time to open one"
        cost = cost.over(number)
        rows.append(Row(benchmark, name, remark, cost.cpu / 1000, kib / base, wall_us=cost.wall / 1000, kib=kib))
    return rows + [skipped(benchmark, name, reason) for name, reason in absent.items()]


async def _grown(entrant: Entrant, number: int) -> tuple[float, Cost]:
    await door_that_answers(entrant)  # Its server is there, and grows no more.
    gate, door = entrant.gate, entrant.door
    warm = min(20, number)
    if door.channel:
        channels = [await open_channel(door) for _ in range(warm)]
        size, before, start = gate.with_servers(), gate.cpu(), time.perf_counter_ns()
        channels += [await open_channel(door) for _ in range(number)]
        cost = Cost(gate.cpu() - before, wall=time.perf_counter_ns() - start)
        grown = gate.with_servers() - size
        await hang_up(channels)
        return grown / number / 1024, cost
    [asker] = await connect(door.port, 1)
    for _ in range(warm):
        await open_session(asker, door)
    size, before, start = gate.with_servers(), gate.cpu(), time.perf_counter_ns()
    for _ in range(number):
        await open_session(asker, door)
    cost = Cost(gate.cpu() - before, wall=time.perf_counter_ns() - start)
    grown = gate.with_servers() - size
    await hang_up([asker])
    return grown / number / 1024, cost
