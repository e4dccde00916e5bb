"""From nothing to the first answer, in front of a server that takes its time to start."""

import asyncio
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from bench import workers
from bench.gateway.load import Door, Pipe
from bench.gateway.peers import Peer, gate_of
from bench.gateway.race import ECHO, OURS, Absent, Entrant, door_of, door_that_answers, say, short
from bench.gateway.stage import PYTHON, by_pipe, ours, pids_in, started
from bench.load import SESSION
from bench.measure import Cost, Effort, Row, skipped
from bench.samples import TEXT
from bench.servers import wait_until_open
from bench.workers import ROOT, official_missing


def run(loop: asyncio.AbstractEventLoop, present: Sequence[Peer], absent: Absent, effort: Effort) -> list[Row]:
    """The rows of these."""
    benchmark = "start to first call, HTTP → stdio: wall time"
    say(benchmark)
    slow = None if official_missing() else str(workers.STRANGERS / "mcp2" / "bin" / "python")
    remark = "the official SDK's server" if slow else "our server"
    ways: list[tuple[str, Callable[[], Cost]]] = [("the server alone", partial(_alone, slow))]
    ways.append((f"{OURS}, two servers", partial(_first_call, loop, None, slow)))
    ways += [(peer.title, partial(_first_call, loop, peer, slow)) for peer in present if peer.pipe is not None]
    rounds = min(5, effort.rounds)
    taken: dict[str, list[Cost]] = {name: [] for name, _ in ways}
    rows: list[Row] = []
    for _ in range(rounds):
        for name, way in ways:
            if name in taken:
                try:
                    taken[name].append(way())
                except (RuntimeError, OSError, TimeoutError) as problem:
                    del taken[name]
                    rows.append(skipped(benchmark, name, short(problem)))
    middles = {name: sorted(costs, key=lambda cost: cost.wall)[len(costs) // 2] for name, costs in taken.items()}
    base = middles["the server alone"].wall
    figures = [
        Row(benchmark, name, remark, cost.cpu / 1000, cost.wall / base, wall_us=cost.wall / 1000)
        for name, cost in middles.items()
    ]
    return figures + rows + [skipped(benchmark, name, reason) for name, reason in absent.items()]


def _slow_command(python: str | None, pids: Path) -> list[str]:
    if python is None:
        return [PYTHON, "-m", "bench.peers.our_server"]
    return [python, "-m", "bench.peers.official_server"]


def _alone(python: str | None) -> Cost:
    """From its start to the answer of a server that is asked on its stdin."""
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        pids = pids_in(home)
        start = time.perf_counter_ns()
        with started(_slow_command(python, pids), pids) as gate:
            Pipe(gate, SESSION).ask("echo", ECHO, TEXT.encode(), 1, 1)
            return Cost(gate.cpu(), wall=time.perf_counter_ns() - start)


def _first_call(loop: asyncio.AbstractEventLoop, peer: Peer | None, python: str | None) -> Cost:
    """From its start to the first answer of a gateway; CPU is that of all it started."""
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        pids = pids_in(home)
        command, *arguments = _slow_command(python, pids)
        entry: dict[str, object] = {"command": command, "args": arguments, "cwd": str(ROOT)}
        entry["env"] = {"PYTHONPATH": str(ROOT)}
        start = time.perf_counter_ns()
        if peer is None:
            gates = ours({"bench": entry, "other": by_pipe(pids)}, pids)
        else:
            assert peer.pipe
            gates = gate_of(peer.pipe, {"bench": entry}, pids)
        with gates as gate:
            wait_until_open(gate.port)
            door = Door(gate.port, SESSION) if peer is None else door_of(peer, gate.port, SESSION)
            tool = "bench__{}" if peer is None else peer.tool
            loop.run_until_complete(door_that_answers(Entrant("", gate, door, tool)))
            return Cost(gate.cpu(), wall=time.perf_counter_ns() - start)
