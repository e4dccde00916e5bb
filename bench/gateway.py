"""Gateways side by side: what a call costs the gateway on its way to a server, and what else a gateway is asked for.

Every gateway has the same server behind it and the same plain client before it. CPU is that of all processes of the
gateway, without the servers that it started. The first line of a block is nginx as a plain reverse proxy, which reads
nothing of what it passes: the practical limit. `no gateway` is the server asked directly, with its own CPU.
"""

import asyncio
import os
import re
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from bench import workers
from bench.gateway_load import Call, Door, Pipe, entered, lanes_of, open_channel, open_session
from bench.gateway_peers import PEERS, Peer, gate_of
from bench.gateway_stage import (
    PYTHON,
    Gate,
    by_pipe,
    folder,
    free_port,
    started,
    twenty_servers,
    web_server,
)
from bench.http import uvloop_of_its_own
from bench.load import MODERN, SESSION, Ask, Asker, answer_to, ask_all, connect, hang_up
from bench.measure import Contestant, Cost, Effort, Row, Turn, race, skipped
from bench.samples import TEXT
from bench.servers import nginx_missing, wait_until_open
from bench.workers import ROOT, official_missing

OURS: Final = "sluicegate"
LANES: Final = (32, 1)
EVENTS: Final = 1000
SESSIONS: Final = 1000

ECHO: Final[dict[str, object]] = {"text": TEXT}
HEARD: Final = b'"text":"' + TEXT.encode()

_NGINX: Final = """
worker_processes 1; daemon off; master_process off; pid {home}/pid; error_log {home}/error.log;
events {{ worker_connections 1024; }}
http {{
    access_log off; keepalive_requests 100000000;
    client_body_temp_path {home}/body; proxy_temp_path {home}/proxy; fastcgi_temp_path {home}/fastcgi;
    uwsgi_temp_path {home}/uwsgi; scgi_temp_path {home}/scgi;
    upstream behind {{ server 127.0.0.1:{behind}; keepalive 64; keepalive_requests 100000000; }}
    server {{
        listen 127.0.0.1:{port};
        location / {{
            proxy_pass http://behind; proxy_http_version 1.1; proxy_set_header Connection "";
            proxy_set_header Host $http_host; proxy_buffering off;
        }}
    }}
}}
"""


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


Absent = dict[str, str]


def run(effort: Effort) -> list[Row]:
    """The rows of this benchmark."""
    present: list[Peer] = []
    absent: Absent = {}
    for peer in PEERS:
        missing = peer.missing() if effort.turn_seconds else "left out of a quick run"
        if missing is None:
            present.append(peer)
        else:
            absent[peer.name] = missing
    rows: list[Row] = []
    with uvloop_of_its_own() as loop:
        rows += _by_http(loop, present, absent, effort)
        rows += _by_pipe(loop, present, absent, effort)
        rows += _lists(loop, present, absent, effort)
        rows += _idle(loop, present, absent, effort)
        rows += _starts(loop, present, absent, effort)
    return rows


# ------------------------------------------------------------------------------------------------------ the stage


@contextmanager
def nginx_before(behind: int) -> Generator[Gate]:
    """nginx as a reverse proxy for a port, in one process."""
    with tempfile.TemporaryDirectory(prefix="bench-") as home:
        config, port = Path(home, "nginx.conf"), free_port()
        config.write_text(_NGINX.format(home=home, port=port, behind=behind))
        with started(["nginx", "-c", str(config)], pids_in(home), port) as gate:
            yield gate


def pids_in(home: str) -> Path:
    """A new folder for process ids."""
    place = Path(home, "pids")
    place.mkdir()
    return place


@contextmanager
def ours(servers: dict[str, object], pids: Path, settings: str = "", *, stdio: bool = False) -> Generator[Gate]:
    """Our gateway for these servers."""
    port = 0 if stdio else free_port()
    with folder(servers, settings) as place:
        command = [PYTHON, "-m", "bench.peers_gateway.ours", str(place), str(port or "stdio")]
        home = {"HOME": str(place), "XDG_CONFIG_HOME": str(place), "XDG_RUNTIME_DIR": str(place)}
        with started(command, pids, port, environment=home) as gate:
            yield gate


def _say(words: str) -> None:
    sys.stderr.write(f"  {words} (load {os.getloadavg()[0]:.1f})\n")


def _raced(benchmark: str, contestants: Sequence[Contestant], effort: Effort) -> list[Row]:
    """A row for each; for one that fails, at once or in the middle, it says so, and the others go on."""
    failures: dict[str, str] = {}

    def carefully(contestant: Contestant) -> Contestant:
        def turn(count: int) -> Cost:
            if contestant.name not in failures:
                try:
                    return contestant.turn(count)
                except (RuntimeError, OSError, TimeoutError) as problem:
                    failures[contestant.name] = _short(problem)
            return Cost(1e9 * count)

        return Contestant(contestant.name, turn, contestant.units, contestant.remark)

    careful = [carefully(contestant) for contestant in contestants]
    for contestant in careful:
        contestant.turn(1)
    rows = race(benchmark, [contestant for contestant in careful if contestant.name not in failures], effort)
    return [_with_rate(row) for row in rows if row.contestant not in failures] + [
        skipped(benchmark, name, reason) for name, reason in failures.items()
    ]


def _short(problem: BaseException) -> str:
    return f"it does not work: {str(problem)[:160] or type(problem).__name__}"


# ------------------------------------------------------------------------------------------------------- by HTTP


def _by_http(loop: asyncio.AbstractEventLoop, present: Sequence[Peer], absent: Absent, effort: Effort) -> list[Row]:
    rows: list[Row] = []
    with ExitStack() as stack:
        home = stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-"))
        web = stack.enter_context(web_server())
        base: list[Entrant] = []
        if nginx_missing() is None:
            gate = stack.enter_context(nginx_before(web.port))
            base.append(Entrant("nginx", gate, Door(gate.port, MODERN), remark="reads nothing of it"))
        direct = [Entrant("no gateway", web, Door(web.port, MODERN), remark="the server's own CPU")]
        mine = pids_in(home)
        gate = stack.enter_context(_ours_with_all(web, mine))
        own = {
            way: [
                Entrant(f"{OURS}, {_ERAS[front]} → {_ERAS[back]}", gate, Door(gate.port, front), f"{name}__{{}}")
                for front in (MODERN, SESSION)
                for back, name in ((front, names[front]), (_OTHER[front], names[_OTHER[front]]))
            ]
            for way, names in (("web", _WEB), ("pipe", _PIPE))
        }
        for way, title in (("web", "HTTP → HTTP"), ("pipe", "HTTP → stdio")):
            with ExitStack() as others:
                peers, away = _peers(others, present, way, web)
                entrants = [*base, *(direct if way == "web" else ()), *own[way], *peers]
                entrants = [entrant._replace(door=door) for entrant, door in _entered(loop, entrants, away)]
                rows += _calls(loop, title, entrants, absent | away, effort)
                rows += _large(loop, title, entrants, absent | away, effort)
                rows += _events(loop, title, entrants, absent | away, effort)
    return rows


_ERAS: Final = {MODERN: "2026", SESSION: "2025"}
_OTHER: Final = {MODERN: SESSION, SESSION: MODERN}
_WEB: Final = {MODERN: "web", SESSION: "oldweb"}
_PIPE: Final = {MODERN: "pipe", SESSION: "oldpipe"}


def _ours_with_all(web: Gate, pids: Path) -> AbstractContextManager[Gate]:
    url = {"url": f"http://127.0.0.1:{web.port}/mcp"}
    servers: dict[str, object] = {"web": url, "oldweb": url, "pipe": by_pipe(pids), "oldpipe": by_pipe(pids)}
    # Two entries for one URL are told apart by nothing but the revision that they are asked in.
    return ours(servers, pids, '[servers.oldweb]\nera = "session"\n[servers.oldpipe]\nera = "session"\n')


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
            away[peer.title] = _short(problem)
            continue
        entrants += [
            Entrant(f"{peer.title}, {_ERAS[version]}", gate, door_of(peer, gate.port, version), peer.tool)
            for version in peer.versions
        ]
    return entrants, away


def door_of(peer: Peer, port: int, version: str) -> Door:
    """Where a gateway of somebody else is asked."""
    return Door(port, version, "/messages" if peer.channel else "/mcp", channel=peer.channel)


def _entered(
    loop: asyncio.AbstractEventLoop, entrants: Sequence[Entrant], away: Absent
) -> Generator[tuple[Entrant, Door]]:
    for entrant in entrants:
        try:
            door = loop.run_until_complete(_answers(entrant))
        except (RuntimeError, OSError, TimeoutError) as problem:
            away[entrant.name] = _short(problem)
        else:
            yield entrant, door


async def _answers(entrant: Entrant) -> Door:
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


def _calls(
    loop: asyncio.AbstractEventLoop, title: str, entrants: Sequence[Entrant], absent: Absent, effort: Effort
) -> list[Row]:
    rows: list[Row] = []
    for lanes in LANES:
        benchmark = f"{title}, a call, {lanes} in flight: the gateway"
        _say(benchmark)
        turns = [(entrant, _answered(loop, entrant, entrant.call("echo", ECHO, HEARD), lanes)) for entrant in entrants]
        rows += _race(benchmark, turns, absent, effort, lanes)
    return rows


def _large(
    loop: asyncio.AbstractEventLoop, title: str, entrants: Sequence[Entrant], absent: Absent, effort: Effort
) -> list[Row]:
    benchmark = f"{title}, a result of 1 MiB: the gateway"
    _say(benchmark)
    words = b"0123456789abcde\\n" * 16 + b'"'
    turns = [(entrant, _answered(loop, entrant, entrant.call("big", {}, words), 1)) for entrant in entrants]
    return _race(benchmark, turns, absent, effort, 1)


def _events(
    loop: asyncio.AbstractEventLoop, title: str, entrants: Sequence[Entrant], absent: Absent, effort: Effort
) -> list[Row]:
    benchmark = f"{title}, a progress event, {EVENTS} in a call: the gateway"
    _say(benchmark)
    turns: list[tuple[Entrant, Turn]] = []
    for entrant in entrants:
        call = entrant.call("count", {"to": EVENTS}, b"counted to %d" % EVENTS, token="p")
        try:
            delivered = loop.run_until_complete(_delivered(entrant.door, call))
        except (RuntimeError, OSError, TimeoutError) as problem:
            absent = {**absent, entrant.name: _short(problem)}
            continue
        remark = f"{delivered:,} delivered" if delivered < EVENTS else "all delivered"
        turns.append((entrant._replace(remark=remark), _answered(loop, entrant, call, 1)))
    return _race(benchmark, turns, absent, effort, 1, units=EVENTS)


async def _delivered(door: Door, call: Call) -> int:
    """How many events of a call arrive."""
    askers = await lanes_of(door, 1)
    try:
        answer = await answer_to(askers[0], call.next())
        return re.sub(rb"\r\n[0-9a-f]+\r\n", b"", answer).count(b"notifications/progress")  # chunks cut anywhere
    finally:
        await hang_up(askers)


def _race(
    benchmark: str,
    turns: Sequence[tuple[Entrant, Turn]],
    absent: Absent,
    effort: Effort,
    lanes: int,
    *,
    units: int = 1,
) -> list[Row]:
    """Rows for those who pass a first try; one repetition is a call on each lane."""
    contestants = [Contestant(entrant.name, turn, lanes * units, entrant.remark) for entrant, turn in turns]
    return _raced(benchmark, contestants, effort) + [
        skipped(benchmark, name, reason) for name, reason in absent.items()
    ]


def _with_rate(row: Row) -> Row:
    rate = f"{1e6 / row.wall_us:,.0f}/s" if row.wall_us else ""
    return msgspec.structs.replace(row, remark=", ".join(filter(None, (rate, row.remark))))


def _answered(loop: asyncio.AbstractEventLoop, entrant: Entrant, ask: Ask, lanes: int) -> Turn:
    """The gateway's part of so many calls on each lane."""

    kept: list[Asker] = []  # A channel is dear to open, and many at a time are too much for some.

    async def turn(calls: int) -> Cost:
        askers = kept or await lanes_of(entrant.door, lanes)
        if entrant.door.channel and not kept:
            kept.extend(askers)
        try:
            await ask_all(askers, ask, lanes)
            before, start = await _settled(entrant.gate), time.perf_counter_ns()
            await ask_all(askers, ask, calls * lanes)
            wall = time.perf_counter_ns() - start
            return Cost(await _settled(entrant.gate) - before, wall=wall)
        finally:
            if not kept:
                await hang_up(askers)

    return lambda calls: loop.run_until_complete(turn(calls))


async def _settled(gate: Gate) -> int:
    """Its CPU time once it stands still: some tidy up behind the answer, and Linux counts only up to the last tick."""
    await asyncio.sleep(0.005)
    return gate.cpu()


# ------------------------------------------------------------------------------------------------------- by pipe


def _by_pipe(loop: asyncio.AbstractEventLoop, present: Sequence[Peer], absent: Absent, effort: Effort) -> list[Row]:
    """Calls of a client that started the gateway itself, to a server over HTTP. nginx has no pipe: ours is first."""
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
            name = f"{OURS}, {_ERAS[version]} → {_ERAS[version]}"
            pipes.append((name, gate, _ready_pipe(gate, version, "bench__{}"), "bench__{}"))
        for peer in present:
            if peer.to_web is None:
                away[peer.title] = "it does not go from stdio to HTTP"
                continue
            pids = pids_in(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            gate = stack.enter_context(gate_of(peer.to_web, {"bench": entry}, pids, stdio=True))
            name = f"{peer.title}, {_ERAS[SESSION]}"
            try:
                pipes.append((name, gate, _ready_pipe(gate, SESSION, "{}"), "{}"))
            except RuntimeError as problem:
                away[name] = _short(problem)
        for lanes in LANES:
            benchmark = f"stdio → HTTP, a call, {lanes} in flight: the gateway"
            _say(benchmark)
            contestants = [
                Contestant(name, _piped(gate, pipe, tool.format("echo"), lanes), lanes)
                for name, gate, pipe, tool in pipes
            ]
            rows += _raced(benchmark, contestants, effort)
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


# --------------------------------------------------------------------------------------------------------- lists


def _lists(loop: asyncio.AbstractEventLoop, present: Sequence[Peer], absent: Absent, effort: Effort) -> list[Row]:
    benchmark = "tools/list of 1,000 tools over 20 servers: the gateway"
    _say(benchmark)
    with ExitStack() as stack:
        port = stack.enter_context(twenty_servers())
        servers: dict[str, object] = {f"s{n}": {"url": f"http://127.0.0.1:{port}/mcp/{n}"} for n in range(20)}
        pids = pids_in(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        gate = stack.enter_context(ours(servers, pids))
        entrants = [Entrant(f"{OURS}, {_ERAS[version]}", gate, Door(gate.port, version)) for version in _ERAS]
        away: Absent = {}
        for peer in present:
            if peer.many is None:
                away[peer.title] = "it has one server only"
                continue
            pids = pids_in(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            try:
                gate = stack.enter_context(gate_of(peer.many, servers, pids))
            except (RuntimeError, OSError) as problem:
                away[peer.title] = _short(problem)
                continue
            entrants.append(Entrant(f"{peer.title}, 2025", gate, door_of(peer, gate.port, SESSION)))
        turns: list[tuple[Entrant, Turn]] = []
        for entrant in entrants:
            try:
                door = loop.run_until_complete(_lists_all(entrant.door))
            except (RuntimeError, OSError, TimeoutError) as problem:
                away[entrant.name] = _short(problem)
                continue
            call = Call(door, "tools/list", {}, b"search_files_49")
            turns.append((entrant, _answered(loop, entrant._replace(door=door), call, 1)))
        return _race(benchmark, turns, absent | away, effort, 1)


async def _lists_all(door: Door) -> Door:
    """The door of a gateway, once it lists every tool on one page."""
    end = time.monotonic() + 60
    while True:
        try:
            ready = await entered(door)
            askers = await lanes_of(ready, 1)
            try:
                answer = await answer_to(askers[0], Call(ready, "tools/list", {}, b"").next())
            finally:
                await hang_up(askers)
            tools = answer.count(b'"inputSchema"')
            if tools >= 1000:
                return ready
            raise RuntimeError(f"it lists {tools} tools: {answer[:100]!r}")
        except (RuntimeError, OSError, TimeoutError):
            if time.monotonic() > end:
                raise
            await asyncio.sleep(0.2)


# ------------------------------------------------------------------------------------------------- idle sessions


def _idle(loop: asyncio.AbstractEventLoop, present: Sequence[Peer], absent: Absent, effort: Effort) -> list[Row]:
    """What an idle session takes, with all that the gateway started for it. A gateway for each, as in `http`."""
    benchmark = "an idle session, HTTP → stdio: memory"
    _say(benchmark)
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
                rows.append(skipped(benchmark, name, _short(problem)))
                continue
        base = base or kib
        remark = f"each of {number:,}, with the processes it started; CPU and time to open one"
        cost = cost.over(number)
        rows.append(Row(benchmark, name, remark, cost.cpu / 1000, kib / base, wall_us=cost.wall / 1000, kib=kib))
    return rows + [skipped(benchmark, name, reason) for name, reason in absent.items()]


async def _grown(entrant: Entrant, number: int) -> tuple[float, Cost]:
    await _answers(entrant)  # Its server is there, and grows no more.
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


# --------------------------------------------------------------------------------------------- start to first call


def _starts(loop: asyncio.AbstractEventLoop, present: Sequence[Peer], absent: Absent, effort: Effort) -> list[Row]:
    """From nothing to the first answer, in front of a server that takes its time to start."""
    benchmark = "start to first call, HTTP → stdio: wall time"
    _say(benchmark)
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
                    rows.append(skipped(benchmark, name, _short(problem)))
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
            loop.run_until_complete(_answers(Entrant("", gate, door, tool)))
            return Cost(gate.cpu(), wall=time.perf_counter_ns() - start)
