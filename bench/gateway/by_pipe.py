"""Calls of a client that started the gateway itself, to a server over HTTP. nginx has no pipe: ours is first."""

import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack

from bench.gateway.load import Pipe
from bench.gateway.peers import Peer, gate_of
from bench.gateway.race import ECHO, ERAS, LANES, OURS, Absent, raced, say, short
from bench.gateway.stage import Gate, ours, pids_in, web_server
from bench.load import MODERN, SESSION
from bench.measure import Contestant, Cost, Effort, Row, Turn, skipped
from bench.samples import TEXT


def run(present: Sequence[Peer], absent: Absent, effort: Effort) -> list[Row]:
    """The rows of these."""
    rows: list[Row] = []
    with ExitStack() as stack:
        web = stack.enter_context(web_server())
        entry: dict[str, object] = {"url": f"http://127.0.0.1:{web.port}/mcp"}
        away: Absent = {}
        pipes: list[tuple[str, Gate, Pipe, str]] = []
        for version in (MODERN, SESSION):
            pids = pids_in(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            settings = '[servers.bench]\nera = "session"\n' if version == SESSION else ""
            gate = stack.enter_context(ours({"bench": entry}, pids, settings, stdio=True))
            name = f"{OURS}, {ERAS[version]} → {ERAS[version]}"
            pipes.append((name, gate, _ready_pipe(gate, version, "bench__{}"), "bench__{}"))
        for peer in present:
            if peer.to_web is None:
                away[peer.title] = "it does not go from stdio to HTTP"
                continue
            pids = pids_in(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            gate = stack.enter_context(gate_of(peer.to_web, {"bench": entry}, pids, stdio=True))
            name = f"{peer.title}, {ERAS[SESSION]}"
            try:
                pipes.append((name, gate, _ready_pipe(gate, SESSION, "{}"), "{}"))
            except RuntimeError as problem:
                away[name] = short(problem)
        for lanes in LANES:
            benchmark = f"stdio → HTTP, a call, {lanes} in flight: the gateway"
            say(benchmark)
            contestants = [
                Contestant(name, _piped(gate, pipe, tool.format("echo"), lanes), lanes)
                for name, gate, pipe, tool in pipes
            ]
            rows += raced(benchmark, contestants, effort)
            rows += [skipped(benchmark, name, reason) for name, reason in (absent | away).items()]
    return rows


def _ready_pipe(gate: Gate, version: str, tool: str) -> Pipe:
    """A pipe on which a call has been answered."""
    pipe, end = Pipe(gate, version), time.monotonic() + 30
    while True:
        try:
            pipe.ask(tool.format("echo"), ECHO, TEXT.encode(), 1, 1)
            return pipe
        except RuntimeError:
            if time.monotonic() > end:
                raise
            time.sleep(0.05)


def _piped(gate: Gate, pipe: Pipe, tool: str, lanes: int) -> Turn:
    def turn(calls: int) -> Cost:
        pipe.ask(tool, ECHO, TEXT.encode(), lanes, lanes)
        time.sleep(0.005)
        before, start = gate.cpu(), time.perf_counter_ns()
        pipe.ask(tool, ECHO, TEXT.encode(), calls * lanes, lanes)
        wall = time.perf_counter_ns() - start
        time.sleep(0.005)
        return Cost(gate.cpu() - before, wall=wall)

    return turn
