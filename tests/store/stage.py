"""What tests of the audit log share: rows, a clock that is set by hand, failures, and the files as they are."""

import asyncio
import heapq
import os
import resource
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec

from sluicegate.store.audit_check import Fault, verify
from sluicegate.store.audit_files import log_files, read_rows
from sluicegate.store.audit_log import open_audit_log
from sluicegate.store.base import AuditRow, Row

NOVEMBER = 1_794_960_000_000_000_000
"""18 November 2026."""
DAY = 86_400 * 1_000_000_000


class Clock:
    """A clock that goes on by a microsecond with each look, and by more when it is set."""

    def __init__(self, now: int = NOVEMBER) -> None:
        self.now = now

    def __call__(self) -> int:
        self.now += 1000
        return self.now


def decision(request: str, **body: object) -> Row:
    return Row(kind="decision", request=request, caller="ada", server="files", name="read", verdict="allow", body=body)


def outcome(request: str, verdict: str = "ok") -> Row:
    return Row(
        kind="outcome", request=request, caller="ada", server="files", name="read", verdict=verdict, body={"ms": 1.5}
    )


def rows_in(folder: Path, kind: str | None = None) -> list[AuditRow]:
    """The rows of all files, by time, without an index."""
    chains: dict[int, list[AuditRow]] = defaultdict(list)
    for file in log_files(str(folder)):
        for row in read_rows(file):
            members: dict[str, Any] = {**row._asdict(), "body": msgspec.json.decode(row.body), "hash": row.hash.hex()}
            del members["content"]
            chains[file.writer].append(AuditRow(writer=file.writer, **members))
    rows = heapq.merge(*chains.values(), key=lambda row: row.at)
    return [row for row in rows if kind is None or row.kind == kind]


def verdicts(rows: Sequence[AuditRow]) -> list[tuple[str, str, str]]:
    return [(row.kind, row.request, row.verdict) for row in rows]


def faults(folder: Path, *anchors: Path) -> list[Fault]:
    return verify(str(folder), anchors=[str(anchor) for anchor in anchors]).faults


def log_path(folder: Path) -> Path:
    """The one file of a log, to look into it or to tamper with it."""
    (path,) = folder.glob("*.jsonl")
    return path


async def write_months(folder: Path, clock: Clock, months: int, *, keep: int = 0, first: int = 0) -> None:
    """Write a decision `r0` and so on in each month from November 2026 on, with two looks for old files in each."""
    for month in range(first, months):
        for day in (0, 2):
            clock.now = NOVEMBER + (month * 30 + day) * DAY
            async with asyncio.timeout(10), open_audit_log(str(folder), clock=clock, keep=keep) as log:
                if not day:
                    await log.append(decision(f"r{month}"))
                await log.looked.wait()


@contextmanager
def full_after(size: int) -> Generator[None]:
    """No file of this process can grow beyond a size: a write that crosses it is short, and the next one fails."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@contextmanager
def unwritable(folder: Path) -> Generator[None]:
    """No row can be written to the one file of a log. Half of a row can: it has to be cut off again."""
    with full_after(os.stat(log_path(folder)).st_size + 100):
        yield
