"""What it costs to import something, net over an interpreter that imports nothing, with byte code in place.

The best of nine rounds, not the median: a start is short and does the same every time, so all that differs is noise.
"""

import os
import resource
import subprocess
import sys
import tempfile
import time
from functools import partial

from bench.measure import Cost, Effort, Row, skipped
from bench.workers import OFFICIAL_PYTHON, ROOT, official_missing

NAME = "import, net of a bare interpreter"
BARE = "pass"
OURS = (
    "import asyncio",
    "import msgspec",
    "import sluicegate",
    "import sluicegate; sluicegate.Server; sluicegate.run",
    "import sluicegate; sluicegate.connect",
    "import uvloop",
)
REMARKS = {"import uvloop": "has asyncio in it; loaded when `run` starts"}
OFFICIAL = "import mcp"


def run(effort: Effort) -> list[Row]:
    """The rows of this benchmark; the ratio is to `import asyncio`."""
    missing = official_missing()
    starts = [(sys.executable, code) for code in (BARE, *OURS)]
    if missing is None:
        # An environment of its own: what its site-packages do at every start is not the SDK's import.
        starts += [(str(OFFICIAL_PYTHON), code) for code in (BARE, OFFICIAL)]
    # A place for byte code of our own: whether the project's has any depends on who ran it before, and how.
    with tempfile.TemporaryDirectory() as cache:
        start = partial(_start, _environment(cache))
        for python, code in starts:
            start(python, code)  # writes the byte code
        rounds = [[start(python, code) for python, code in starts] for _ in range(min(9, effort.rounds))]
    best = {
        start: Cost(min(costs[place].cpu for costs in rounds), 0, min(costs[place].wall for costs in rounds))
        for place, start in enumerate(starts)
    }
    base = _net(best, starts[1])
    rows = [_row(best, start, base) for start in starts if start[1] != BARE]
    return rows if missing is None else [*rows, skipped(NAME, OFFICIAL, missing)]


def _environment(cache: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return kept | {"PYTHONPYCACHEPREFIX": cache}


def _start(environment: dict[str, str], python: str, code: str) -> Cost:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    wall = time.perf_counter_ns()
    subprocess.run([python, "-c", code], cwd=ROOT, env=environment, check=True)
    wall = time.perf_counter_ns() - wall
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return Cost((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e9, 0, wall)


def _net(best: dict[tuple[str, str], Cost], start: tuple[str, str]) -> Cost:
    bare = best[start[0], BARE]
    return Cost(best[start].cpu - bare.cpu, 0, best[start].wall - bare.wall)


def _row(best: dict[tuple[str, str], Cost], start: tuple[str, str], base: Cost) -> Row:
    net = _net(best, start)
    ratio = net.cpu / base.cpu if base.cpu else None
    name, remark = start[1].removeprefix("import "), REMARKS.get(start[1], "")
    return Row(NAME, name, remark, cpu_us=net.cpu / 1000, ratio=ratio, wall_us=net.wall / 1000)
