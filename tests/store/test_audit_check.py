"""What was done to a log afterwards is found, and a single row can be proven (T30, A6)."""

import asyncio
import hashlib
import json
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import msgspec
import pytest

from sluicegate.store.audit_check import erase, prove, read_values, verify
from sluicegate.store.audit_files import LogFile, Where, create_database, load_keys, log_files, stored_rows
from sluicegate.store.base import Row
from sluicegate.store.chain import Head, Signer, StoredRow, Verifier, beginning, row_content, row_hash
from sluicegate.store.sqlite_audit import open_audit_log
from tests.store.stage import database, decision, faults, outcome, rows_in

CALLS = 20
LAST = 2 * CALLS + 2
"""The number of the last row: two for each call, one for the opening and one for the closing."""


@pytest.fixture
async def folder(tmp_path: Path) -> Path:
    """The log of twenty calls, of which one has recorded values."""
    async with open_audit_log(str(tmp_path / "log")) as log:
        for number in range(CALLS):
            values = {"path": "/srv/a"} if number == 7 else None
            await log.append(msgspec.structs.replace(decision(f"r{number}"), values=values))
            await log.append(outcome(f"r{number}"))
    return tmp_path / "log"


# --------------------------------------------------------------------------------------------------------- tampering


def flip(rows: sqlite3.Connection) -> None:
    rows.execute("UPDATE rows SET verdict = 'deny' WHERE seq = 12")


def flip_a_byte_of_the_body(rows: sqlite3.Connection) -> None:
    rows.execute("UPDATE rows SET body = CAST(replace(CAST(body AS TEXT), '1.5', '1.6') AS BLOB) WHERE seq = 13")


def delete(rows: sqlite3.Connection) -> None:
    rows.execute("DELETE FROM rows WHERE seq = 12")


def reorder(rows: sqlite3.Connection) -> None:
    rows.executescript("UPDATE rows SET seq = -1 WHERE seq = 12; UPDATE rows SET seq = 12 WHERE seq = 13;")
    rows.execute("UPDATE rows SET seq = 13 WHERE seq = -1")


def insert(rows: sqlite3.Connection) -> None:
    rows.execute("UPDATE rows SET seq = -seq WHERE seq >= 12")
    rows.execute("UPDATE rows SET seq = 1 - seq WHERE seq < 0")
    rows.execute("INSERT INTO rows SELECT 12, at, kind, 'forged', caller, server, name, verdict, body, hash FROM rows"
                 " WHERE seq = 11")  # fmt: skip


def cut(rows: sqlite3.Connection) -> None:
    rows.execute("DELETE FROM rows WHERE seq >= 12")


def empty(rows: sqlite3.Connection) -> None:
    rows.execute("DELETE FROM rows")


@pytest.mark.parametrize(
    ("tamper", "row"),
    [(flip, 12), (flip_a_byte_of_the_body, 13), (delete, 12), (reorder, 12), (insert, 12), (cut, 12), (empty, 1)],
)
def test_t30_the_first_bad_row_is_named(folder: Path, tamper: Callable[[sqlite3.Connection], None], row: int) -> None:
    assert faults(folder) == []
    with database(folder) as rows:
        tamper(rows)
    (fault,) = faults(folder)
    assert (fault.row, fault.writer) == (row, 1)
    assert str(fault).startswith(f"{log_files(str(folder))[0].name}: row {row} ")


def rewrite(file: LogFile, change: Callable[[StoredRow], StoredRow | None]) -> None:
    """Write a file anew with some rows changed or left out, and with hashes that fit: what its owner could do."""
    with closing(sqlite3.connect(file.path)) as old:
        rows = list(stored_rows(old))
    origin = load_keys(file.folder).signer.origin("writer1")
    head = beginning(origin)
    for ending in ("", "-wal", "-shm"):
        Path(file.path + ending).unlink(missing_ok=True)
    create_database(file, head)
    with closing(sqlite3.connect(file.path)) as new:
        for row in filter(None, map(change, rows)):
            columns = (head.seq + 1, *row[1:-1])
            head = Head(head.seq + 1, row_hash(head.hash, row_content(*columns)))
            new.execute(f"INSERT INTO rows VALUES ({','.join('?' * 10)})", (*columns, head.hash))
        new.commit()


def test_t30_a_rewritten_chain_differs_from_the_signed_checkpoint(folder: Path) -> None:
    (file,) = log_files(str(folder))
    rewrite(file, lambda row: row._replace(verdict="deny") if row.seq == 12 else row)
    (fault,) = faults(folder)
    assert fault.row == LAST and "checkpoint" in fault.problem
    rewrite(file, lambda row: None if row.seq in (12, 13) else row)
    (fault,) = faults(folder)
    assert fault.row == LAST - 1, "two rows fewer than were signed"


async def test_a_history_that_was_signed_again_is_found_with_a_copy_from_elsewhere(folder: Path) -> None:
    copy = folder.parent / "copy"
    copy.write_bytes((folder / "writer1.checkpoints").read_bytes())
    (folder / "writer1.checkpoints").unlink()
    (file,) = log_files(str(folder))
    rewrite(file, lambda row: row._replace(verdict="deny") if row.seq == 12 else row._replace(body=b"{}"))
    async with open_audit_log(str(folder)):
        pass
    assert faults(folder) == [], "the owner of the machine can do that"
    (fault,) = faults(folder, copy)
    assert fault.row == LAST


async def test_another_signing_key_is_noticed_by_a_check_with_the_right_one(folder: Path) -> None:
    key = Verifier.parse((folder / "signing.pub").read_text())
    assert verify(str(folder), key=key).faults == []
    other = Signer(bytes(32)).verifier
    assert verify(str(folder), key=other).faults != []


def test_a_file_that_is_not_readable_any_more_is_named(folder: Path) -> None:
    (file,) = log_files(str(folder))
    Path(file.path).write_bytes(b"x" * 10_000)
    (fault,) = faults(folder)
    assert fault.file == file.name and "cannot be read" in fault.problem


def test_a_removed_file_is_missed(folder: Path) -> None:
    for path in folder.glob("*.db*"):
        path.unlink()
    (fault,) = faults(folder)
    assert fault.row == 1 and f"{LAST} rows" in fault.problem


# ------------------------------------------------------------------------------------------------------------- values


def test_a6_erased_values_leave_a_valid_chain_and_a_row_about_it(folder: Path) -> None:
    assert read_values(str(folder), "r7") == [{"path": "/srv/a"}]
    assert erase(str(folder), Where(request="r7")) == 1
    assert read_values(str(folder), "r7") == [] and faults(folder) == []
    (row,) = [row for row in rows_in(folder, "audit") if row.verdict == "erased"]
    assert row.body == {"file": log_files(str(folder))[0].name, "rows": [16]}
    assert b"/srv/a" not in b"".join(path.read_bytes() for path in folder.iterdir()), "not even in free pages"
    assert erase(str(folder), Where(request="r7")) == 0


async def test_a6_values_can_be_erased_while_the_gateway_runs(folder: Path) -> None:
    async with asyncio.timeout(20), open_audit_log(str(folder)) as log:
        await log.append(decision("open"))
        assert await asyncio.to_thread(erase, str(folder), Where(caller="a*")) == 1
        await log.append(outcome("open"))
    assert faults(folder) == [] and read_values(str(folder), "r7") == []
    assert [row.verdict for row in rows_in(folder, "outcome") if row.request == "open"] == ["ok"]


@pytest.mark.parametrize(
    ("statement", "problem"),
    [
        ("UPDATE row_values SET value = CAST('{}' AS BLOB)", "other recorded values"),
        ("DELETE FROM row_values", "no row says that they were erased"),
        ("UPDATE row_values SET seq = 17", "lost its recorded values"),
        ("INSERT INTO row_values SELECT 17, salt, value FROM row_values", "does not know of"),
    ],
)
def test_a6_values_that_were_changed_or_removed_in_silence_are_found(
    folder: Path, statement: str, problem: str
) -> None:
    with database(folder) as rows:
        rows.execute(statement)
    (fault,) = faults(folder)
    assert problem in fault.problem and fault.row in (16, 17)


# ------------------------------------------------------------------------------------------------------------- proofs


def test_a_proof_shows_the_rows_of_one_request_and_of_no_other(folder: Path) -> None:
    proof = prove(str(folder), "r7")
    assert [json.loads(row.content)[2] for row in proof.rows] == ["decision", "outcome"]
    assert [len(row.following) for row in proof.rows] == [LAST - 16, LAST - 17]
    assert {json.loads(row.content)[3] for row in proof.rows} == {"r7"}
    digest = json.loads(proof.rows[0].content)[-1]["values"]
    salt = bytes.fromhex(proof.rows[0].salt)
    assert hashlib.blake2b(proof.rows[0].values.encode(), key=salt, digest_size=32).hexdigest() == digest


async def test_a_request_that_no_checkpoint_covers_yet_cannot_be_proven(tmp_path: Path) -> None:
    async with open_audit_log(str(tmp_path)) as log:
        await log.append(decision("r1"))
        with pytest.raises(LookupError, match="No checkpoint covers"):
            prove(str(tmp_path), "r1")
    assert len(prove(str(tmp_path), "r1").rows) == 2
    with pytest.raises(LookupError, match="no request"):
        prove(str(tmp_path), "r2")


async def test_a_chain_over_two_months_is_proven_across_their_files(tmp_path: Path) -> None:
    now = 1_796_083_190_000_000_000  # Ten seconds before the end of November 2026.

    def clock() -> int:
        nonlocal now
        now += 4_000_000_000
        return now

    async with open_audit_log(str(tmp_path), clock=clock) as log:
        for number in range(4):
            await log.append(Row(kind="decision", request=f"r{number}"))
    assert len(log_files(str(tmp_path))) == 2
    for number in range(4):
        assert prove(str(tmp_path), f"r{number}").rows
