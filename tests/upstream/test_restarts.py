"""Many servers, nearly all of which misbehave, started and stopped, eight at a time."""

import asyncio
import gc
import itertools
import os
import py_compile
import signal
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import sluicegate
from sluicegate.upstream.duplex import DuplexConnection
from sluicegate.upstream.process import Child
from sluicegate.upstream.stdio import StdioUpstream
from tests.descriptors import descriptors
from tests.marks import new_mark, processes_with

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc, and only Linux promises all of this")

HOSTILE = Path(__file__).with_name("hostile.py")
AT_ONCE = 8

# How a server is started, what is then called, and what comes of it.
Way = tuple[tuple[str, ...], dict[str, object] | None, str]
WAYS: tuple[Way, ...] = (
    (("era=modern",), {"name": "echo", "text": "ok"}, "ok"),
    (("era=session",), {"name": "echo", "text": "ok"}, "ok"),
    (("start=exit",), None, "exited with status 3"),
    (("era=session", "quit=initialize"), None, "exited with status 5"),
    (("era=session", "quit=notifications/initialized"), {"name": "hang"}, "exited with status 5"),
    (("start=garbage",), None, "exited with status 4"),
    (("era=fatal",), {"name": "die", "part": '{"jsonrpc":', "words": "oh"}, "exited with status 0; its last output:"),
    (("era=modern",), {"name": "die", "number": signal.SIGKILL}, "was killed by SIGKILL"),
    (("era=session", "child=daemon"), {"name": "die", "status": 7}, "exited with status 7"),
    (("era=modern", "child=background"), {"name": "echo", "text": "ok"}, "ok"),
    (("era=modern",), {"name": "close", "fd": 1}, "closed its output"),
)
STUBBORN: Way = (("era=modern", "stubborn"), {"name": "echo", "text": "ok"}, "ok")


def visits(count: int) -> Iterator[Way]:
    """The ways in turn, and now and then one that takes its time."""
    for n, way in zip(range(count), itertools.cycle(WAYS), strict=False):
        yield STUBBORN if n % 100 == 50 else way


async def outcome_of(way: Way, program: Path, mark: str) -> str:
    """What a client gets to know of one server."""
    words, call, _ = way
    command = [sys.executable, "-I", "-S", str(program), *words]
    # Where the era is known nothing is probed, and a server that exits is not given a second chance.
    era = "session" if "era=session" in words else "auto"
    upstream = StdioUpstream(command, env={"MARK": mark}, era=era, stop_grace=0.1)
    try:
        async with asyncio.timeout(60), sluicegate.connect(upstream) as client:
            arguments = dict(call or {})
            return (await client.call(str(arguments.pop("name", "echo")), arguments)).text
    except sluicegate.UpstreamClosed as problem:
        return str(problem)


def belongings() -> set[object]:
    """What this process has: descriptors, threads, tasks, and connections that are still referenced."""
    found = descriptors()
    connections = {id(thing) for thing in gc.get_objects() if isinstance(thing, Child | DuplexConnection)}
    return {*found, *threading.enumerate(), *asyncio.all_tasks(), *connections}


def has_children() -> bool:
    """Whether there is any process of ours, be it only a zombie."""
    try:
        os.waitpid(-1, os.WNOHANG)
    except ChildProcessError:
        return False
    return True


@pytest.mark.timeout(300)
@pytest.mark.soak(short=100, full=1000)
async def test_many_restarts_of_misbehaving_servers_leave_nothing(tmp_path: Path, repeats: int) -> None:
    mark = new_mark()
    program = tmp_path / "hostile.pyc"
    py_compile.compile(str(HOSTILE), str(program), doraise=True)  # Once for all of them.
    await outcome_of(WAYS[0], program, mark)  # What is made once for all is made now.
    before = belongings()
    left = visits(repeats)
    told: Counter[str] = Counter()

    async def visit_on() -> None:
        for way in left:
            outcome = await outcome_of(way, program, mark)
            # A machine out of breath may see the pipes close well before it sees the exit.
            assert way[2] in outcome or (way[2] != "ok" and "closed its" in outcome), (way, outcome)
            told[way[2]] += 1

    async with asyncio.TaskGroup() as group:
        for _ in range(AT_ONCE):
            group.create_task(visit_on())

    assert told.total() == repeats
    assert belongings() <= before
    assert not processes_with(mark)
    assert not has_children()
