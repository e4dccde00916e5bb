"""What tests of the audit log share: rows, a clock that is set by hand, and reading the files as they are."""

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from sluicegate.store.audit_check import Fault, verify
from sluicegate.store.audit_files import AuditRow, read_rows
from sluicegate.store.base import Row

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
    return list(read_rows(str(folder), kind=kind))


def said(rows: Sequence[AuditRow]) -> list[tuple[str, str, str]]:
    return [(row.kind, row.request, row.verdict) for row in rows]


def faults(folder: Path, *anchors: Path) -> list[Fault]:
    return verify(str(folder), anchors=[str(anchor) for anchor in anchors]).faults


@contextmanager
def database(folder: Path, name: str = "*.db") -> Generator[sqlite3.Connection]:
    """The one file of a log, to look into it or to tamper with it."""
    (path,) = folder.glob(name)
    with closing(sqlite3.connect(path, isolation_level=None)) as connection:
        yield connection
