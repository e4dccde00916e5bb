"""Calls of HTTP clients, to a server over HTTP and to one by a pipe: small ones, one of 1 MiB, one with events."""

import asyncio
import re
import tempfile
import time
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path
from typing import Final

from bench.gateway.load import Call, Door, lanes_of
from bench.gateway.peers import Peer, gate_of
from bench.gateway.race import (
    ECHO,
    ERAS,
    HEARD,
    LANES,
    OURS,
    Absent,
    Entrant,
    answered,
    door_of,
    entered_all,
    race_between,
    say,
    settled,
    short,
)
from bench.gateway.stage import Gate, bare_before, by_pipe, nginx_before, ours, pids_in, web_server
from bench.load import MODERN, SESSION, answer_to, ask_all, hang_up
from bench.measure import Cost, Effort, Row, Turn
from bench.peers.bare import PREFIX
from bench.servers import nginx_missing

EVENTS: Final = 1000
DIRECT: Final = "no gateway"


def run(loop: asyncio.AbstractEventLoop, present: Sequence[Peer], absent: Absent, effort: Effort) -> list[Row]:
    """The rows of these."""
    rows: list[Row] = []
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        web = stack.enter_context(web_server())
        base: list[Entrant] = []
        if nginx_missing() is None:
            gate = stack.enter_context(nginx_before(web.port))
            base.append(Entrant("nginx", gate, Door(gate.port, MODERN), remark="reads nothing of it"))
        direct = [Entrant(DIRECT, web, Door(web.port, MODERN), remark="the server's own CPU")]
        gate = stack.enter_context(bare_before(web.port))
        bare = [Entrant("bare Python", gate, Door(gate.port, MODERN), f"{PREFIX}{{}}", remark="knows calls only")]
        mine = pids_in(home)
        gate = stack.enter_context(_ours_with_all(web, mine))
        own = {
            way: [
                Entrant(f"{OURS}, {ERAS[front]} → {ERAS[back]}", gate, Door(gate.port, front), f"{name}__{{}}")
                for front in (MODERN, SESSION)
                for back, name in ((front, names[front]), (_OTHER[front], names[_OTHER[front]]))
            ]
            for way, names in (("web", _WEB), ("pipe", _PIPE))
        }
        for way, title in (("web", "HTTP → HTTP"), ("pipe", "HTTP → stdio")):
            with ExitStack() as others:
                peers, away = _peers(others, present, way, web)
                entrants = [*base, *(direct if way == "web" else ()), *own[way], *peers]
                entrants = [entrant._replace(door=door) for entrant, door in entered_all(loop, entrants, away)]
                least = bare if way == "web" else []
                rows += _calls(loop, title, [*entrants[:1], *least, *entrants[1:]], absent | away, effort)
                rows += _large(loop, title, entrants, absent | away, effort)
                rows += _events(loop, title, entrants, absent | away, effort)
                rows += _first_event(loop, title, entrants, absent | away, effort)
    return rows


_OTHER: Final = {MODERN: SESSION, SESSION: MODERN}
_WEB: Final = {MODERN: "web", SESSION: "oldweb"}
_PIPE: Final = {MODERN: "pipe", SESSION: "oldpipe"}


def _ours_with_all(web: Gate, pids: Path) -> AbstractContextManager[Gate]:
    url = {"url": f"http://127.0.0.1:{web.port}/mcp"}
    servers: dict[str, object] = {"web": url, "oldweb": url, "pipe": by_pipe(pids), "oldpipe": by_pipe(pids)}
    # Two entries for one URL are told apart by nothing but the revision that they are asked in.
    # Both are said, for a server of both eras would be asked in that of each caller.
    eras = {"web": "modern", "oldweb": "session", "oldpipe": "session"}
    settings = "".join(f'[servers.{name}]\nera = "{era}"\n' for name, era in eras.items())
    return ours(servers, pids, settings)


def _peers(stack: ExitStack, present: Sequence[Peer], way: str, web: Gate) -> tuple[list[Entrant], Absent]:
    entrants: list[Entrant] = []
    away: Absent = {}
    for peer in present:
        line = peer.web if way == "web" else peer.pipe
        if line is None:
            away[peer.title] = f"it does not go from {'HTTP to HTTP' if way == 'web' else 'HTTP to stdio'}"
            continue
        pids = pids_in(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        entry = {"url": f"http://127.0.0.1:{web.port}/mcp"} if way == "web" else by_pipe(pids)
        try:
            gate = stack.enter_context(gate_of(line, {"bench": entry}, pids))
        except (RuntimeError, OSError) as problem:
            away[peer.title] = short(problem)
            continue
        entrants += [
            Entrant(f"{peer.title}, {ERAS[version]}", gate, door_of(peer, gate.port, version), peer.tool)
            for version in peer.versions
        ]
    return entrants, away


def _calls(
    loop: asyncio.AbstractEventLoop, title: str, entrants: Sequence[Entrant], absent: Absent, effort: Effort
) -> list[Row]:
    rows: list[Row] = []
    for lanes in LANES:
        benchmark = f"{title}, a call, {lanes} in flight: the gateway"
        say(benchmark)
        turns = [(entrant, answered(loop, entrant, entrant.call("echo", ECHO, HEARD), lanes)) for entrant in entrants]
        rows += race_between(benchmark, turns, absent, effort, lanes)
    benchmark = f"{title}, a call of another length each time, {LANES[0]} in flight: the gateway"
    say(benchmark)
    turns = [(entrant, answered(loop, entrant, entrant.echoes(), LANES[0])) for entrant in entrants]
    return rows + race_between(benchmark, turns, absent, effort, LANES[0])


def _large(
    loop: asyncio.AbstractEventLoop, title: str, entrants: Sequence[Entrant], absent: Absent, effort: Effort
) -> list[Row]:
    benchmark = f"{title}, a result of 1 MiB: the gateway"
    say(benchmark)
    words = b"0123456789abcde\\n" * 16 + b'"'
    turns = [(entrant, answered(loop, entrant, entrant.call("big", {}, words), 1)) for entrant in entrants]
    return race_between(benchmark, turns, absent, effort, 1)


def _events(
    loop: asyncio.AbstractEventLoop, title: str, entrants: Sequence[Entrant], absent: Absent, effort: Effort
) -> list[Row]:
    benchmark = f"{title}, a progress event, {EVENTS} in a call: the gateway"
    say(benchmark)
    turns: list[tuple[Entrant, Turn]] = []
    for entrant in entrants:
        call = entrant.call("count", {"to": EVENTS}, b"counted to %d" % EVENTS, token="p")
        try:
            delivered = loop.run_until_complete(_delivered(entrant.door, call))
        except (RuntimeError, OSError, TimeoutError) as problem:
            absent = {**absent, entrant.name: short(problem)}
            continue
        remark = f"{delivered:,} delivered" if delivered < EVENTS else "all delivered"
        turns.append((entrant._replace(remark=remark), answered(loop, entrant, call, 1)))
    return race_between(benchmark, turns, absent, effort, 1, units=EVENTS)


async def _delivered(door: Door, call: Call) -> int:
    """How many events of a call arrive."""
    askers = await lanes_of(door, 1)
    try:
        answer = await answer_to(askers[0], call.next())
        return re.sub(rb"\r\n[0-9a-f]+\r\n", b"", answer).count(b"notifications/progress")  # chunks cut anywhere
    finally:
        await hang_up(askers)


def _first_event(
    loop: asyncio.AbstractEventLoop, title: str, entrants: Sequence[Entrant], absent: Absent, effort: Effort
) -> list[Row]:
    """How long the first event of a call takes; over HTTP beside the server without a gateway, which is then first."""
    benchmark = f"{title}, until the first event of a call is here: wall time"
    say(benchmark)
    ordered = sorted(entrants, key=lambda entrant: entrant.name != DIRECT)
    turns = [(entrant._replace(remark="CPU of the whole call"), _heard(loop, entrant)) for entrant in ordered]
    # Each of these calls waits for a while: as few as show a median.
    few = Effort(effort.rounds, min(effort.turn_seconds, 0.005))
    return race_between(benchmark, turns, absent, few, 1, by_wall=True)


def _heard(loop: asyncio.AbstractEventLoop, entrant: Entrant) -> Turn:
    call = entrant.call("knock", {}, b'"come"', token="p")

    async def turn(calls: int) -> Cost:
        askers = await lanes_of(entrant.door, 1)
        try:
            await ask_all(askers, call, 1)
            before, waited = await settled(entrant.gate), 0
            for _ in range(calls):
                start = time.perf_counter_ns()
                await ask_all(askers, call, 1)
                if not askers[0].first_at:
                    raise RuntimeError("the event did not come ahead of the answer")
                waited += askers[0].first_at - start
            return Cost(await settled(entrant.gate) - before, wall=waited)
        finally:
            await hang_up(askers)

    return lambda calls: loop.run_until_complete(turn(calls))
