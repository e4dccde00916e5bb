"""R30, A3: processes that write the log are killed at random moments, and no committed row is lost."""

import asyncio
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from sluicegate.store.audit_log import open_audit_log
from tests.store.stage import faults, rows_in

ROOT = Path(__file__).parents[2]


@pytest.mark.timeout(3600)
@pytest.mark.soak(short=50, full=1000)
async def test_r30_no_committed_row_is_lost_when_writers_are_killed(tmp_path: Path, repeats: int) -> None:
    command = [sys.executable, str(ROOT / "tests" / "store" / "killed_writers.py"), str(tmp_path), str(repeats)]
    run = subprocess.run
    done = await asyncio.to_thread(run, command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=3500)
    committed = {tuple(line.split()) for line in done.stdout.splitlines()}
    assert len(committed) > repeats
    async with open_audit_log(str(tmp_path)):
        pass
    assert faults(tmp_path) == []
    rows = rows_in(tmp_path)
    assert committed <= {(row.kind, row.request) for row in rows}, "a committed row is missing"
    calls = Counter((row.kind, row.request) for row in rows if row.kind != "audit")
    assert set(calls.values()) == {1}, "a row is there twice"
    decided = {request for kind, request in calls if kind == "decision"}
    assert decided == {request for kind, request in calls if kind == "outcome"}, "every call has an end"
    # A third one, if a process started while another looked after the calls of the second.
    assert {row.writer for row in rows} <= {1, 2, 3}, "a killed writer is used again"
