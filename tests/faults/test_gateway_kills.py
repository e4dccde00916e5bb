"""SIGKILL, again and again, at random moments: of the gateway, and of a server behind it (R1, R30).

`--soak` makes 1,000 kills of each, which takes six minutes. On 2026-11-17, 763 gateways died while they started and 237
while they served, no server was left 0.1 s after the tenth, and each of 1,000 servers cost the one call.
"""

import asyncio
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Final

import pytest

import sluicegate
from tests.faults.gateway_stage import (
    PROGRAM,
    Folder,
    children,
    data_of,
    descriptors,
    gateway_process,
    gone,
    hostile,
    staged,
)
from tests.faults.promises import LEFT_OVER, ORPHANED, STALL, assert_kept
from tests.marks import new_mark, processes_with
from tests.polling import until, until_called

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc"),
    pytest.mark.timeout(1200),
]

AT_ONCE: Final = 2
MAX_LIFE: Final = 1.0
"""Seconds that a gateway lives at most: some are killed while they start, some while they serve."""


@pytest.fixture
def mark() -> str:
    return new_mark()


@pytest.fixture
def folders(tmp_path: Path, mark: str) -> Generator[list[Folder]]:
    made: list[Folder] = []
    for number in range(AT_ONCE):
        (tmp_path / f"{number}").mkdir()
        env = {"MARK": f"{mark}-{number}-"}
        servers = {"one": hostile(env=env), "two": hostile("era=session", env=env)}
        made.append(Folder(tmp_path / f"{number}", servers))
    yield made
    for folder in made:
        folder.remove()


@asynccontextmanager
async def gateway_of(folder: Folder) -> AsyncGenerator[asyncio.subprocess.Process]:
    """A gateway from its first moment on."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, str(folder.root), ""),
        env=folder.environ,
        stdout=asyncio.subprocess.PIPE,
        cwd=str(Path(__file__).parents[2]),
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.mark.soak(short=20, full=1000)
async def test_a_gateway_that_is_killed_at_any_moment_leaves_no_server_and_no_obstacle(
    folders: list[Folder], mark: str, repeats: int
) -> None:
    lots = random.Random(4747)
    left, lives, slowest = repeats, Counter[str](), 0.0

    async def kill_on(folder: Folder) -> None:
        nonlocal left, slowest
        while left > 0:
            left -= 1
            async with gateway_of(folder) as process:
                assert process.stdout is not None
                with suppress(TimeoutError):
                    async with asyncio.timeout(lots.uniform(0, MAX_LIFE)):
                        await process.wait()
                assert process.returncode is None, "what the last one left is no obstacle"
                process.kill()
                killed = time.monotonic()
                lives["served" if await process.stdout.readline() else "starting"] += 1
                assert await process.wait() == -signal.SIGKILL
            if lives.total() % 10 == 0:
                # To look at every process of the machine takes longer than all else here.
                await until(lambda: processes_with(f"{mark}-{folder.root.parent.name}-"), lambda found: not found)
                slowest = max(slowest, time.monotonic() - killed)

    async with asyncio.TaskGroup() as group:
        for folder in folders:
            group.create_task(kill_on(folder))
    await until(lambda: processes_with(mark), lambda found: not found)
    assert lives.total() == repeats
    assert slowest <= ORPHANED + STALL
    print(f"{dict(lives)}; of the last servers to end, the slowest took {slowest:.1f} s")
    for folder in folders:
        async with gateway_process(folder) as gateway:
            await gateway.ready("one", "two")
            async with gateway.client() as client:
                assert (await client.call("two__echo", text="whole")).text == "whole"
            assert await gateway.stopped() == 0
        assert not folder.has_socket
        assert [name for _, _, names in os.walk(folder.runtime) for name in names] == []


@pytest.mark.soak(short=10, full=1000)
async def test_a_server_that_is_killed_in_the_middle_of_a_call_costs_that_call_and_nothing_else(
    tmp_path: Path, mark: str, repeats: int
) -> None:
    family = children()
    servers = {"bad": hostile(env={"MARK": mark}), "good": hostile(env={"MARK": mark})}
    settings = '[servers."*"]\nqueue_wait = 60\n'
    async with staged(tmp_path, servers, settings) as stage, stage.client() as client:
        good = (await client.call("good__pid")).text
        open_files, running = descriptors(), len(asyncio.all_tasks())
        reasons = Counter[str]()
        for _ in range(repeats):
            pid = int((await client.call("bad__pid")).text)
            hanging = asyncio.ensure_future(client.call("bad__hang"))
            await until(lambda: stage.status("bad").in_flight, bool)
            os.kill(pid, signal.SIGKILL)
            with pytest.raises(sluicegate.RpcError) as caught:
                await hanging
            reasons[str(data_of(caught.value.error)["reason"])] += 1
            assert (await client.call("good__echo", text="here")).text == "here"
            await gone(pid)
            # A person asks for it: by itself it would be tried less and less often.
            stage.gateway.restart("bad")

            async def is_back(pid: int = pid) -> bool:
                try:
                    return int((await client.call("bad__pid")).text) != pid
                except sluicegate.RpcError:
                    return False

            await until_called(is_back, bool)
        assert reasons == {"backend_crashed": repeats}
        assert (await client.call("good__pid")).text == good
        await until(descriptors, lambda seen: seen <= open_files)
        await until(lambda: len(asyncio.all_tasks()), lambda seen: seen <= running)
        await until(lambda: len(children() - family), lambda seen: seen == 2)  # A guardian each.
        stopped = time.monotonic()
    await until(lambda: children() - family, lambda left: not left)
    assert_kept(LEFT_OVER, stopped)
    assert not processes_with(mark)
