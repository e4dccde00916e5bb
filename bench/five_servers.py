"""Five servers, of which one is broken, for an agent: the start, calls, and what happens after `kill -9`.

CPU is that of the agent's process; the servers are the same for all contestants.
"""

import json
import sys
import tempfile
from collections.abc import Generator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from bench.gateway.peers import CACHE, Peer
from bench.measure import QUICK, Contestant, Cost, DidNotFinish, Effort, Row, Turn, race, skipped
from bench.workers import ROOT, STRANGERS, Worker, official_missing, official_version, peer_worker

_START: Final = "five servers, one broken: until all others have answered, imports included, once"
_ONE: Final = "five servers, one broken: a call, one in flight"
_HUNDRED: Final = "five servers, one broken: a call, 100 in parallel"
_RECOVERY: Final = "five servers, one broken: from kill -9 until a call works again, once"
_PATIENCE: Final = 8
"""Seconds that each contestant has to recover."""
_LIMIT: Final = 30.0
"""Seconds for one turn of anybody. `ClientSessionGroup` sometimes goes round in circles and answers nothing."""
_LEFT_OUT: Final = "a quick run leaves it out"
_RULE: Final = '[[permissions]]\ntool = "*"\naction = "allow"\n'
_UNRECORDED: Final = f"{_RULE}[audit]\nenabled = false\n"
_PEERS: Final = {
    "fastmcp": Peer("FastMCP client", "fastmcp", False),
    "openai_agents": Peer("openai-agents", "openai-agents", False),
    "pydantic_ai": Peer("pydantic-ai", "pydantic-ai-slim", False, extra="[mcp]"),
}


def run(effort: Effort) -> list[Row]:
    """The rows of this benchmark. A quick run leaves out the clients of others."""
    absent: dict[str, str] = {}
    with ExitStack() as stack:
        workers = {
            "sluicegate, a rule allows": stack.enter_context(_worker(sys.executable, "toolbox", _RULE)),
            "sluicegate, no audit log": stack.enter_context(_worker(sys.executable, "toolbox", _UNRECORDED)),
            "sluicegate, each call asks": stack.enter_context(_worker(sys.executable, "toolbox", "")),
        }
        group = f"ClientSessionGroup {official_version('mcp1')}"
        if (missing := _LEFT_OUT if effort == QUICK else official_missing("mcp1")) is not None:
            absent[group] = missing
        else:
            python = str(STRANGERS / "mcp1/bin/python")
            workers[group] = stack.enter_context(_worker(python, "session_group", ""))
        for kind, peer in _PEERS.items():
            missing = _LEFT_OUT if effort == QUICK else peer.missing()
            if missing is not None:
                absent[peer.name] = missing
            else:
                python = str(CACHE / peer.package / "bin/python")
                workers[peer.title] = stack.enter_context(_worker(python, kind, ""))
        return _rows(workers, absent, effort)


def _rows(workers: Mapping[str, Worker], absent: Mapping[str, str], effort: Effort) -> list[Row]:
    def with_absent(benchmark: str, rows: list[Row]) -> list[Row]:
        return [*rows, *(skipped(benchmark, name, reason) for name, reason in absent.items())]

    begun = {name: _attempt(worker.turn("begin"), 1) for name, worker in workers.items()}
    rows = with_absent(_START, _once(_START, begun))
    for case, benchmark, units in (("one", _ONE, 1), ("hundred", _HUNDRED, 100)):
        contestants = [Contestant(name, worker.turn(case), units) for name, worker in workers.items()]
        rows += with_absent(benchmark, race(benchmark, contestants, effort))
    return rows + with_absent(_RECOVERY, _once(_RECOVERY, _recoveries(workers, effort), most=_patience(effort)))


def _attempt(turn: Turn, count: int) -> Cost | DidNotFinish:
    try:
        return turn(count)
    except DidNotFinish as problem:
        return problem


def _patience(effort: Effort) -> int:
    return 2 if effort == QUICK else _PATIENCE


def _recoveries(workers: Mapping[str, Worker], effort: Effort) -> dict[str, Cost | DidNotFinish]:
    """Ours alone, one after the other; the others wait together, for most of them wait in vain."""
    turns = {name: worker.turn("recover") for name, worker in workers.items()}
    seconds = _patience(effort)
    costs = {name: _attempt(turn, seconds) for name, turn in turns.items() if name.startswith("sluicegate")}
    with ThreadPoolExecutor() as pool:
        others = {name: pool.submit(_attempt, turn, seconds) for name, turn in turns.items() if name not in costs}
    return costs | {name: cost.result() for name, cost in others.items()}


def _once(benchmark: str, costs: Mapping[str, Cost | DidNotFinish], most: float = float("inf")) -> list[Row]:
    """Rows of something that is done once; who takes longer than `most` seconds never does it."""
    first = next(cost.wall for cost in costs.values() if isinstance(cost, Cost))
    return [_row(benchmark, name, cost, first, most) for name, cost in costs.items()]


def _row(benchmark: str, name: str, cost: Cost | DidNotFinish, first: float, most: float) -> Row:
    if isinstance(cost, DidNotFinish):
        return Row(benchmark, name, remark=str(cost))
    if cost.wall >= most * 1e9:
        return Row(benchmark, name, remark=f"never: not within {most:g} s", cpu_us=cost.cpu / 1000)
    return Row(benchmark, name, cpu_us=cost.cpu / 1000, ratio=cost.wall / first, wall_us=cost.wall / 1000)


@contextmanager
def _worker(python: str, kind: str, settings: str) -> Generator[Worker]:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as home:
        folder = Path(home)
        servers: dict[str, object] = {}
        for name in ("s1", "s2", "broken", "s3", "s4"):
            (folder / name).mkdir()
            line = ["-m", "bench.peers_gateway.server", "stdio", str(folder / name)]
            broken = ["-c", "raise SystemExit(1)"]
            arguments = broken if name == "broken" else line
            servers[name] = {"command": sys.executable, "args": arguments, "env": {"PYTHONPATH": str(ROOT)}}
        (folder / ".mcp.json").write_text(json.dumps({"mcpServers": servers}))
        (folder / "sluicegate.toml").write_text(settings)
        with peer_worker(python, "five_servers", f"{kind} {folder}", _LIMIT) as worker:
            yield worker
