"""SIGKILL of a gateway under load, again and again: what ran was decided on record, what was seen is on record."""

import asyncio
import random
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Final, cast

import pytest

from tests.downstream.raw_client import Json
from tests.faults.gateway_stage import Process
from tests.faults.promises import ORPHANED, STALL
from tests.governance.stage import Governed, call_bytes, governing, outcome_of, wire_to
from tests.marks import new_mark, processes_with
from tests.polling import until

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="looks at /proc"),
    pytest.mark.timeout(7200),
]

AT_ONCE: Final = 12
MAX_LENGTH: Final = 0.3
"""Seconds of load before a gateway is killed, at most."""
RULES: Final = """
[[permissions]]
tool = "mcp__*__rm"
action = "ask"

[[permissions]]
tool = "*"
action = "allow"
record = "values"
"""


async def call_until_killed(gateway: Process, nonces: Iterator[int], seen: set[int]) -> None:
    """Make one call after the other, and note the answered ones, until the gateway is gone."""
    with suppress(OSError):
        wire = await wire_to(gateway)
        for nonce in nonces:
            if outcome_of(await wire.ask(call_bytes(f"{'ab'[nonce % 2]}__put", f'{{"nonce": {nonce}}}'))) == "ok":
                seen.add(nonce)


async def hang_until_killed(gateway: Process, call: bytes) -> None:
    wire = await wire_to(gateway)
    with suppress(OSError):
        answer = await wire.ask(call)
        raise AssertionError(answer)


async def kill_once(folder: Governed, mark: str, nonces: Iterator[int], seen: set[int], life: float) -> None:
    async with governing(folder) as gateway, asyncio.TaskGroup() as group:
        hanging = next(nonces)
        held = next(nonces)
        for tool, nonce in (("a__get", hanging), ("a__rm", held)):  # One that runs, one that a person is asked about.
            group.create_task(hang_until_killed(gateway, call_bytes(tool, f'{{"nonce": {nonce}, "hang": true}}')))
        await until(lambda: f'"nonce":{hanging},'.encode() in folder.journal("a").read_bytes(), bool)
        for _ in range(AT_ONCE):
            group.create_task(call_until_killed(gateway, nonces, seen))
        await asyncio.sleep(life)  # The gateway is killed at a random moment.
        gateway.process.kill()
        killed = time.monotonic()
        assert await gateway.process.wait() == -signal.SIGKILL
    await until(lambda: processes_with(mark), lambda left: not left)
    assert time.monotonic() - killed <= ORPHANED + STALL


async def assert_kills_lose_nothing(tmp_path: Path, kills: int) -> None:
    mark, lots, nonces = new_mark(), random.Random(30), count()
    seen: set[int] = set()
    folder = Governed(tmp_path, {"a": (), "b": ("session",)}, RULES, {"MARK": mark})
    try:
        for _ in range(kills):
            await kill_once(folder, mark, nonces, seen, lots.uniform(0, MAX_LENGTH))
        before = {row.request for row in folder.rows("outcome")}
        cut = {row.request for row in folder.rows("decision")} - before
        async with governing(folder) as gateway:
            assert await gateway.stopped() == 0
        assert "nothing waits for approval" in (await folder.command("approvals")).stderr
        await folder.verified()
        received = [*folder.received("a"), *folder.received("b")]
        arrived = [cast(Json, cast(Json, each["params"])["arguments"]) for each in received]
        decisions = folder.rows("decision")
        outcomes = {row.request: row.verdict for row in folder.rows("outcome")}
        assert {folder.digest(each) for each in arrived} <= {str(row.body["digest"]) for row in decisions}
        answered = {str(row.body["digest"]) for row in decisions if outcomes[row.request] == "ok"}
        assert {folder.digest({"nonce": nonce}) for nonce in seen} <= answered
        # What was cut off is closed at the next start: each time one that ran, one that was held, and others.
        closed = {request for request, verdict in outcomes.items() if verdict == "unknown"}
        assert closed >= cut and len(closed) >= 2 * kills
        assert len(outcomes) == len(folder.rows("outcome")) == len(decisions)
        assert not [each for each in received if cast(Json, each["params"])["name"] == "rm"]
        print(f"{kills} kills, {len(arrived)} calls arrived, {len(seen)} answers, {len(closed)} unknown")
    finally:
        folder.remove()


@pytest.mark.soak(short=10, full=50)
async def test_r30_a1_a2_a3_what_ran_was_decided_on_record_and_what_was_seen_is_on_record(
    tmp_path: Path, repeats: int
) -> None:
    await assert_kills_lose_nothing(tmp_path, repeats)


@pytest.mark.soak
async def test_r30_a_thousand_kills_lose_nothing(tmp_path: Path) -> None:
    await assert_kills_lose_nothing(tmp_path, 1000)
