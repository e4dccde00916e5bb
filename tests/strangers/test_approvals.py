"""The official SDK's clients of both eras, whose calls a person must approve."""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest

from sluicegate import http1
from sluicegate.downstream.http import HttpEndpoint
from sluicegate.gate import approvals
from tests.gate.approval_stage import YES, Stage, stage
from tests.polling import until_called
from tests.strangers.runs import HERE, OVER_STDIO, Client

CLIENTS = {name: client for name, client in OVER_STDIO.items() if client.version >= "2025-06-18"}


@asynccontextmanager
async def served(here: Stage) -> AsyncGenerator[str]:
    async with HttpEndpoint(here.hub) as endpoint, http1.serve(endpoint) as listener:
        yield f"http://127.0.0.1:{listener.addresses[0][1]}/mcp"


@asynccontextmanager
async def visitor(client: Client, place: Path) -> AsyncGenerator[asyncio.subprocess.Process]:
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(str(place / "bin" / "python"), str(HERE / "peers" / "approved.py"), client.sdk, client.mode),
        stdin=pipe,
        stdout=pipe,
        env=env,
        limit=1 << 20,
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENTS)
async def test_a_client_is_asked_and_one_that_gives_up_and_calls_again_gets_one_run(
    client: Client, stranger: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    place = stranger(client.sdk)
    monkeypatch.setattr(approvals, "PROGRESS_EVERY", 0.05)
    async with stage() as asking, stage(client="none") as others:
        async with served(asking) as first, served(others) as second, visitor(client, place) as process:
            assert process.stdin is not None and process.stdout is not None
            process.stdin.write(json.dumps([first, second]).encode() + b"\n")
            assert await process.stdout.readline() == b"gave up\n"
            assert others.ran == []
            question = await others.question()
            # Before its call is cancelled here, too, that one would use the answer.
            await until_called(partial(others.decisions.find, question.id), lambda found: found and found.abandoned)
            await others.decisions.decide(question.id, YES)
            process.stdin.write(b"go on\n")
            saw = json.loads(await process.stdout.readline())
    assert saw["version"] == client.version
    asked, left = saw["asked"], saw["left"]
    assert asked["yes"] == [False, "wrote /yes"]
    assert asked["no"][0] and asked["no"][1].endswith("The reason: Not on a Friday.")
    assert asked["granted"] == [[False, f"wrote /{number}"] for number in (1, 2, 3)]
    assert len(asked["questions"]) == 3 and all("sluicegate asks" in question for question in asked["questions"])
    assert [run["path"] for run in asking.ran] == ["/yes", "/1", "/2", "/3"]
    assert left["told"][0] < -1 and "Waiting for a person to approve files: write" in left["told"][1]
    assert left["later"] == [False, "wrote /later"] and left["questions"] == []
    assert [run["path"] for run in others.ran] == ["/later"]
