"""MCP over HTTP on loopback: what a call costs the server, what it costs the client, events, and idle sessions.

Every server is driven by the same plain client (`load.py`), and every client asks the same server, ours. CPU is that of
the one process that the block is about. nginx answers everything with the very bytes that our server answers with,
and reads nothing: the least that a call over HTTP can cost.
"""

import asyncio
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from typing import Final, NamedTuple

import msgspec
import uvloop

from bench import workers
from bench.load import (
    MODERN,
    SESSION,
    Ask,
    Place,
    answer_to,
    ask_all,
    connect,
    counting,
    echo,
    hang_up,
    knock,
    open_session,
)
from bench.measure import Contestant, Cost, Effort, Row, Turn, race, skipped
from bench.peers.turns import EVENTS
from bench.servers import Server, bare_server, nginx, nginx_missing, official_server, our_server
from bench.workers import official_missing, official_version, peer_worker

OURS: Final = "sluicegate"
LANES: Final = (32, 1)
SESSIONS: Final = 1000
_ERAS: Final = {MODERN: "modern", SESSION: "session"}


class Entry(NamedTuple):
    """A server in the race, and a revision that it speaks."""

    name: str
    place: Place
    server: Server


def run(effort: Effort) -> list[Row]:
    """The rows of this benchmark."""
    rows: list[Row] = []
    with ExitStack() as stack:
        loop = stack.enter_context(uvloop_of_its_own())
        ours = stack.enter_context(our_server())
        servers = {OURS: ours}
        absent: dict[str, str] = {}
        for sdk in ("mcp2", "mcp1"):
            missing = official_missing(sdk)
            name = f"official SDK {official_version(sdk)}"
            if missing is None:
                servers[name] = stack.enter_context(official_server(sdk))
            else:
                absent[name] = missing
        entries = [
            Entry(f"{name}, {version}", loop.run_until_complete(_place(server, version)), server)
            for name, server in servers.items()
            for version in (MODERN, SESSION)
            if version == SESSION or " 1." not in name
        ]
        answer = loop.run_until_complete(_answer(ours)).decode()
        static = None if nginx_missing() else stack.enter_context(nginx(answer))
        bare = stack.enter_context(bare_server())
        least = Entry("bare Python", Place(bare.port, MODERN), bare)
        rows += _calls(loop, static, [least, *entries], absent, effort)
        rows += _events(loop, entries, absent, effort)
        rows += _clients(ours, effort)
    return rows + _sessions(effort)


# ------------------------------------------------------------------------------------------------------------- servers


async def _place(server: Server, version: str) -> Place:
    if version == MODERN:
        return Place(server.port, version)
    [asker] = await connect(server.port, 1)
    place = Place(server.port, version, await open_session(asker, server.port))
    await hang_up([asker])
    return place


async def _answer(server: Server) -> bytes:
    """The body of a call's answer."""
    [asker] = await connect(server.port, 1)
    answer = await answer_to(asker, echo(Place(server.port, MODERN)).next())
    await hang_up([asker])
    return answer.partition(b"\r\n\r\n")[2]


def _calls(
    loop: asyncio.AbstractEventLoop,
    static: Server | None,
    entries: Sequence[Entry],
    absent: dict[str, str],
    effort: Effort,
) -> list[Row]:
    rows: list[Row] = []
    for lanes in LANES:
        benchmark = f"a call answered over HTTP, {lanes} in flight: the server"
        contestants = [
            Contestant(entry.name, _answered(loop, entry.server, echo(entry.place), lanes)) for entry in entries
        ]
        if static is not None:
            ask = echo(Place(static.port, MODERN))
            base = Contestant(
                "nginx", _answered(loop, static, ask, lanes), remark="the same bytes, from its configuration"
            )
            contestants.insert(0, base)
        rows += race(benchmark, contestants, effort)
        if static is None:
            rows.append(skipped(benchmark, "nginx", nginx_missing() or ""))
        rows += [skipped(benchmark, name, reason) for name, reason in absent.items()]
    return rows


def _answered(loop: asyncio.AbstractEventLoop, server: Server, ask: Ask, lanes: int) -> Turn:
    """The server's part of so many calls."""

    async def turn(calls: int) -> Cost:
        askers = await connect(server.port, lanes)
        await ask_all(askers, ask, lanes)
        before, start = await _settled(server), time.perf_counter_ns()
        await ask_all(askers, ask, calls)
        wall = time.perf_counter_ns() - start
        cost = Cost(await _settled(server) - before, wall=wall)
        await hang_up(askers)
        return cost

    return lambda calls: loop.run_until_complete(turn(calls))


async def _settled(server: Server) -> int:
    """Its CPU time once it stands still: some tidy up behind the answer, and Linux counts only up to the last tick."""
    await asyncio.sleep(0.005)
    return server.cpu()


def _events(
    loop: asyncio.AbstractEventLoop, entries: Sequence[Entry], absent: dict[str, str], effort: Effort
) -> list[Row]:
    streamed = f"a progress event over HTTP, {EVENTS} in a call: the server"
    contestants = [
        Contestant(entry.name, _answered(loop, entry.server, counting(entry.place, EVENTS), 1), EVENTS)
        for entry in entries
    ]
    rows = [_with_rate(row) for row in race(streamed, contestants, effort)]
    first = "until the first event of a call is here: wall time"
    contestants = [
        Contestant(entry.name, _first_event(loop, entry.server, knock(entry.place)), remark="CPU of the whole call")
        for entry in entries
    ]
    # Each of these calls waits for a while: as few as show a median.
    rows += race(first, contestants, Effort(effort.rounds, min(effort.turn_seconds, 0.005)), by_wall=True)
    return rows + [skipped(name, who, reason) for name in (streamed, first) for who, reason in absent.items()]


def _with_rate(row: Row) -> Row:
    rate = f"{1e6 / row.wall_us:,.0f} events/s" if row.wall_us else ""
    return msgspec.structs.replace(row, remark=f"{row.remark} {rate}".strip())


def _first_event(loop: asyncio.AbstractEventLoop, server: Server, ask: Ask) -> Turn:
    async def turn(calls: int) -> Cost:
        [asker] = await connect(server.port, 1)
        await ask_all([asker], ask, 1)
        before, waited = await _settled(server), 0
        for _ in range(calls):
            start = time.perf_counter_ns()
            await ask_all([asker], ask, 1)
            if not asker.first_at:
                raise RuntimeError("the event did not come ahead of the answer")
            waited += asker.first_at - start
        cost = Cost(await _settled(server) - before, wall=waited)
        await hang_up([asker])
        return cost

    return lambda calls: loop.run_until_complete(turn(calls))


# ------------------------------------------------------------------------------------------------------------- clients


def _clients(server: Server, effort: Effort) -> list[Row]:
    url = f"http://127.0.0.1:{server.port}/mcp"
    absent: dict[str, str] = {}
    rows: list[Row] = []
    with ExitStack() as stack:
        peers = {
            name: stack.enter_context(peer_worker(sys.executable, "our_http_client", f"{url} {loop}"))
            for name, loop in ((OURS, "asyncio"), (f"{OURS} on uvloop", "uvloop"))
        }
        for sdk, module in (("mcp2", "official_http_client"), ("mcp1", "official1_http_client")):
            missing = official_missing(sdk)
            name = f"official SDK {official_version(sdk)}"
            if missing is None:
                python = str(workers.STRANGERS / sdk / "bin" / "python")
                peers[name] = stack.enter_context(peer_worker(python, module, url))
            else:
                absent[name] = missing
        cases = {f" {lanes}": f"a call over HTTP, {lanes} in flight: the client" for lanes in LANES}
        cases[" progress"] = f"a progress event over HTTP, {EVENTS} in a call: the client"
        for case, benchmark in cases.items():
            units = EVENTS if "progress" in case else 1
            contestants = [
                Contestant(f"{name}, {version}", worker.turn(era + case), units)
                for name, worker in peers.items()
                for version, era in _ERAS.items()
                if version == SESSION or " 1." not in name
            ]
            raced = race(benchmark, contestants, effort)
            rows += [_with_rate(row) for row in raced] if units > 1 else raced
            rows += [skipped(benchmark, name, reason) for name, reason in absent.items()]
    return rows


# ------------------------------------------------------------------------------------------------------------ sessions


def _sessions(effort: Effort) -> list[Row]:
    """What an idle session takes. A server for each: memory that was used before and is free would hide the new."""
    benchmark = "an idle session of 2025-11-25: the server"
    number = SESSIONS if effort.turn_seconds else 20
    rows: list[Row] = []
    base = 0.0
    with uvloop_of_its_own() as loop:
        for name, start, missing in _session_servers():
            if missing is not None:
                rows.append(skipped(benchmark, name, missing))
                continue
            with start() as server:
                cost, size = loop.run_until_complete(_grown(server, number))
            kib = size / number / 1024
            base = base or kib
            remark = f"memory for each of {number:,}; CPU and time to open one"
            cost = cost.over(number)
            rows.append(Row(benchmark, name, remark, cost.cpu / 1000, kib / base, wall_us=cost.wall / 1000, kib=kib))
    return rows


def _session_servers() -> Generator[tuple[str, Callable[[], AbstractContextManager[Server]], str | None]]:
    yield OURS, our_server, None
    for sdk in ("mcp2", "mcp1"):
        yield f"official SDK {official_version(sdk)}", partial(official_server, sdk), official_missing(sdk)


async def _grown(server: Server, number: int) -> tuple[Cost, int]:
    """What it took to open so many sessions, and by how much the server has grown."""
    [asker] = await connect(server.port, 1)
    for _ in range(20):
        await open_session(asker, server.port)
    size, before, start = server.resident(), server.cpu(), time.perf_counter_ns()
    for _ in range(number):
        await open_session(asker, server.port)
    cost = Cost(server.cpu() - before, wall=time.perf_counter_ns() - start)
    await hang_up([asker])
    return cost, server.resident() - size


@contextmanager
def uvloop_of_its_own() -> Generator[asyncio.AbstractEventLoop]:
    """A loop for the plain client."""
    loop = uvloop.new_event_loop()
    try:
        yield loop
    finally:
        loop.close()
