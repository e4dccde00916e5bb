"""What every audit log does, whatever it keeps its rows in."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

import msgspec
import pytest

from sluicegate.store.audit_files import log_files, read_start, reading, stored_rows
from sluicegate.store.base import AuditLog, Row
from sluicegate.store.chain import Head, StoredRow, check_rows
from sluicegate.store.memory import MemoryAudit
from sluicegate.store.sqlite_audit import open_audit_log
from tests.store.stage import Clock, decision, outcome

Contents = Callable[[], tuple[Head, list[StoredRow], list[bytes]]]
Opened = tuple[AuditLog, Contents, Clock]
"""A log, what is in it (the head before its first row, its rows, the values beside them), and its clock."""


@asynccontextmanager
async def in_memory(folder: Path) -> AsyncGenerator[Opened]:
    clock = Clock()
    log = MemoryAudit(clock)
    yield log, lambda: (log.beginning, log.rows, list(log.values.values())), clock


@asynccontextmanager
async def in_files(folder: Path) -> AsyncGenerator[Opened]:
    clock = Clock()
    async with open_audit_log(str(folder), clock=clock) as log:
        yield log, lambda: contents(folder), clock


@asynccontextmanager
async def in_synced_files(folder: Path) -> AsyncGenerator[Opened]:
    clock = Clock()
    async with open_audit_log(str(folder), sync="full", clock=clock) as log:
        yield log, lambda: contents(folder), clock


def contents(folder: Path) -> tuple[Head, list[StoredRow], list[bytes]]:
    (file,) = log_files(str(folder))
    with reading(file) as database:
        values = [value for (value,) in database.execute("SELECT value FROM row_values ORDER BY seq")]
        return read_start(database), list(stored_rows(database)), values


Make = Callable[[Path], AbstractAsyncContextManager[Opened]]
every_log = pytest.mark.parametrize("make", [in_memory, in_files, in_synced_files])


@every_log
async def test_a_row_is_there_when_append_returns(make: Make, tmp_path: Path) -> None:
    async with asyncio.timeout(20), make(tmp_path) as (log, seen, _):
        await log.append(decision("r1", rule="a.toml:3"))
        row = seen()[1][-1]
        assert row[2:8] == ("decision", "r1", "ada", "files", "read", "allow")
        assert msgspec.json.decode(row.body) == {"rule": "a.toml:3"}
        log.note(Row(kind="config", verdict="rejected"))
        await log.append(outcome("r1"))
        assert [each.kind for each in seen()[1][-2:]] == ["config", "outcome"], "a note comes with the next rows"


@every_log
async def test_rows_of_many_callers_form_one_chain_without_gaps(make: Make, tmp_path: Path) -> None:
    async def call(number: int) -> None:
        await log.append(decision(f"r{number}"))
        await log.append(outcome(f"r{number}"))

    async with asyncio.timeout(20), make(tmp_path) as (log, seen, _):
        await asyncio.gather(*(call(number) for number in range(50)))
        start, rows, _values = seen()
    assert check_rows(start, rows)[1] is None and [row.seq for row in rows] == list(range(1, len(rows) + 1))
    calls = [(row.request, row.kind) for row in rows if row.kind != "audit"]
    assert sorted(calls) == sorted((f"r{n}", kind) for n in range(50) for kind in ("decision", "outcome"))
    assert all(calls.index((f"r{n}", "decision")) < calls.index((f"r{n}", "outcome")) for n in range(50))


@every_log
async def test_values_are_kept_beside_the_row_which_has_only_their_digest(make: Make, tmp_path: Path) -> None:
    async with asyncio.timeout(20), make(tmp_path) as (log, seen, _):
        await log.append(Row(kind="decision", request="r1", values={"b": 1, "a": "x"}))
        _start, rows, values = seen()
    assert values == [b'{"a":"x","b":1}']
    digest = msgspec.json.decode(rows[-1].body)["values"]
    assert len(digest) == 64 and b'"x"' not in rows[-1].body


@every_log
async def test_a_cancelled_wait_does_not_disturb_the_others(make: Make, tmp_path: Path) -> None:
    async with asyncio.timeout(20), make(tmp_path) as (log, seen, _):
        waits = [asyncio.ensure_future(log.append(decision(f"r{number}"))) for number in range(3)]
        waits[1].cancel()
        await asyncio.wait(waits)
        assert waits[0].result() is None and waits[2].result() is None
        assert {"r0", "r2"} <= {row.request for row in seen()[1]}


@every_log
async def test_a_digest_is_the_same_for_the_same_data_only(make: Make, tmp_path: Path) -> None:
    async with asyncio.timeout(20), make(tmp_path) as (log, _seen, _):
        assert log.digest(b"a") == log.digest(b"a") != log.digest(b"b") and len(log.digest(b"a")) == 32


@every_log
async def test_t31_a_flood_of_refusals_is_counted_and_ten_rows_a_second_are_written(make: Make, tmp_path: Path) -> None:
    def refusal(source: str) -> Row:
        return Row(kind="reject", verdict="parse_error", body={"source": source})

    async with asyncio.timeout(20), make(tmp_path) as (log, seen, clock):
        for _ in range(100):
            await log.append(refusal("10.0.0.1"))
        await log.append(refusal("10.0.0.2"))
        clock.now += 2_000_000_000
        await log.append(refusal("10.0.0.1"))
        bodies = [msgspec.json.decode(row.body) for row in seen()[1] if row.kind == "reject"]
    assert len(bodies) == 12 and bodies[10] == {"source": "10.0.0.2"}
    assert bodies[-1] == {"source": "10.0.0.1", "suppressed": 90}
