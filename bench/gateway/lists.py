"""A list of a thousand tools, which twenty servers offer."""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from contextlib import ExitStack

from bench.gateway.load import Call, Door, entered, lanes_of
from bench.gateway.peers import Peer, gate_of
from bench.gateway.race import ERAS, OURS, Absent, Entrant, answered, door_of, race_between, say, short
from bench.gateway.stage import ours, pids_in, twenty_servers
from bench.load import SESSION, answer_to, hang_up
from bench.measure import Effort, Row, Turn


def run(loop: asyncio.AbstractEventLoop, present: Sequence[Peer], absent: Absent, effort: Effort) -> list[Row]:
    """The rows of these."""
    benchmark = "tools/list of 1,000 tools over 20 servers: the gateway"
    say(benchmark)
    with ExitStack() as stack:
        port = stack.enter_context(twenty_servers())
        servers: dict[str, object] = {f"s{n}": {"url": f"http://127.0.0.1:{port}/mcp/{n}"} for n in range(20)}
        pids = pids_in(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
        gate = stack.enter_context(ours(servers, pids))
        entrants = [Entrant(f"{OURS}, {ERAS[version]}", gate, Door(gate.port, version)) for version in ERAS]
        away: Absent = {}
        for peer in present:
            if peer.many is None:
                away[peer.title] = "it has one server only"
                continue
            pids = pids_in(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-")))
            try:
                gate = stack.enter_context(gate_of(peer.many, servers, pids))
            except (RuntimeError, OSError) as problem:
                away[peer.title] = short(problem)
                continue
            entrants.append(Entrant(f"{peer.title}, 2025", gate, door_of(peer, gate.port, SESSION)))
        turns: list[tuple[Entrant, Turn]] = []
        for entrant in entrants:
            try:
                door = loop.run_until_complete(_lists_all(entrant.door))
            except (RuntimeError, OSError, TimeoutError) as problem:
                away[entrant.name] = short(problem)
                continue
            call = Call(door, "tools/list", {}, b"search_files_49")
            turns.append((entrant, answered(loop, entrant._replace(door=door), call, 1)))
        return race_between(benchmark, turns, absent | away, effort, 1)


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
