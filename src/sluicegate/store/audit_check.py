"""What can be done with an audit log besides writing it: verify it, prove a row, erase recorded values."""

import os
import sqlite3
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing

import msgspec

from sluicegate.store.anchors import is_url
from sluicegate.store.audit_files import (
    LogFile,
    Where,
    checkpoints_path,
    load_verifier,
    log_files,
    open_database,
    read_notes,
    read_start,
    reading,
    stored_rows,
    writers,
)
from sluicegate.store.audit_writer import Journal
from sluicegate.store.base import Row
from sluicegate.store.chain import (
    Checkpoint,
    Head,
    Proof,
    ProvenRow,
    StoredRow,
    Verifier,
    beginning,
    check_rows,
    prove_row,
    values_digest,
)


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """The first thing that is wrong in the chain of a writer."""

    writer: int
    file: str
    row: int
    """The first bad row; 0 if a whole file is."""
    problem: str

    def __str__(self) -> str:
        return f"{self.file}: row {self.row} {self.problem}" if self.row else f"{self.file} {self.problem}"


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """What was verified."""

    rows: int = 0
    files: int = 0
    checkpoints: int = 0
    signed: int = 0
    """Rows up to the last checkpoint of each writer."""
    faults: list[Fault] = []


def verify(folder: str, *, key: Verifier | None = None, anchors: Sequence[str] = ()) -> Report:
    """Check every chain, checkpoint and recorded value. `anchors` are files elsewhere with copies of checkpoints.

    Raises:
        ValueError: the folder has no public key, and none was given.
    """
    verifier = key or load_verifier(folder)
    if verifier is None:
        raise ValueError("There is no signing.pub in the folder, so its checkpoints cannot be verified.")
    erased = _erased(folder)
    reports = [_Check(folder, writer, verifier, anchors, erased).run() for writer in writers(folder)]
    return Report(
        rows=sum(each.rows for each in reports),
        files=sum(each.files for each in reports),
        checkpoints=sum(each.checkpoints for each in reports),
        signed=sum(each.signed for each in reports),
        faults=[fault for each in reports for fault in each.faults],
    )


class _Check:
    """The check of one writer's chain."""

    def __init__(
        self, folder: str, writer: int, verifier: Verifier, anchors: Sequence[str], erased: dict[str, set[int]]
    ) -> None:
        self._files = log_files(folder, writer)
        self._folder = folder
        self._writer = writer
        self._origin = f"{verifier.name}/writer{writer}"
        own = read_notes(checkpoints_path(folder, writer), verifier, self._origin)
        copies = [note for file in anchors if not is_url(file) for note in read_notes(file, verifier, self._origin)]
        self._checkpoints = {checkpoint.head for _, checkpoint in [*own, *copies]}
        self._by_seq: dict[int, set[bytes]] = defaultdict(set)
        for head in self._checkpoints:
            self._by_seq[head.seq].add(head.hash)
        self._erased = erased
        self._rows = 0
        self._file = f"writer{writer}"

    def run(self) -> Report:
        try:
            fault = self._chain() or self._values()
        except _Differs as differs:
            fault = self._fault(differs.seq, "differs from the signed checkpoint; it or a row before it was changed")
        except (sqlite3.Error, ValueError) as problem:
            fault = self._fault(0, f"cannot be read: {problem}")
        return Report(
            rows=self._rows,
            files=len(self._files),
            checkpoints=len(self._checkpoints),
            signed=max(self._by_seq, default=0),
            faults=[fault] if fault is not None else [],
        )

    def _fault(self, row: int, problem: str) -> Fault:
        return Fault(writer=self._writer, file=self._file, row=row, problem=problem)

    def _chain(self) -> Fault | None:
        head: Head | None = None
        for file in self._files:
            self._file = file.name
            with reading(file) as database:
                start = read_start(database)
                fault = self._start(head, start)
                if fault is not None:
                    return fault
                head, bad = check_rows(start, self._watched(stored_rows(database)))
                if bad is not None:
                    return self._fault(*bad)
        last, rows = max(self._by_seq, default=0), head.seq if head is not None else 0
        if last > rows:
            return self._fault(rows + 1, f"is missing: a checkpoint says that there are {last} rows")
        return None

    def _start(self, before: Head | None, start: Head) -> Fault | None:
        """What is wrong with where a file begins: after the one before it, or after a checkpoint of a removed one."""
        if before is None:
            if start in self._checkpoints or start == beginning(self._origin):
                return None
            problem = "is the first one, but no checkpoint vouches for the rows before it"
        elif start == before:
            return None
        elif start.seq > before.seq:
            problem = f"is missing: the next file begins after row {start.seq}"
            return self._fault(before.seq + 1, problem)
        else:
            problem = "does not continue the file before it"
        return self._fault(start.seq + 1, problem)

    def _watched(self, rows: Iterable[StoredRow]) -> Iterator[StoredRow]:
        """The rows, compared with the checkpoints on their way."""
        for row in rows:
            yield row
            # Resumed only if the row fits into the chain.
            self._rows += 1
            if any(row.hash != signed for signed in self._by_seq.get(row.seq, ())):
                raise _Differs(row.seq)

    def _values(self) -> Fault | None:
        """What is wrong with the recorded values: changed ones, and ones that were removed without a row about it."""
        for file in self._files:
            self._file = file.name
            with reading(file) as database:
                fault = self._values_in(database, self._erased.get(file.name, set()))
            if fault is not None:
                return fault
        return None

    def _values_in(self, database: sqlite3.Connection, erased: set[int]) -> Fault | None:
        query = """
            SELECT seq, body, salt, value FROM rows LEFT JOIN row_values USING (seq)
            WHERE salt IS NOT NULL OR instr(body, CAST('"values":' AS BLOB))
            UNION ALL SELECT seq, NULL, salt, value FROM row_values WHERE seq NOT IN (SELECT seq FROM rows)"""
        for seq, body, salt, value in database.execute(query):
            digest = msgspec.json.decode(body, type=dict[str, object]).get("values") if body is not None else None
            if salt is None and digest is not None and seq not in erased:
                return self._fault(seq, "has lost its recorded values, and no row says that they were erased")
            if salt is not None and digest is None:
                return self._fault(seq, "has recorded values that it does not know of")
            if salt is not None and values_digest(salt, value) != digest:
                return self._fault(seq, "has other recorded values than were written")
        return None


class _Differs(Exception):
    def __init__(self, seq: int) -> None:
        super().__init__(seq)
        self.seq = seq


# ------------------------------------------------------------------------------------------------------------- proofs


def prove(folder: str, request: str) -> Proof:
    """The proof that the rows of a request are in the log, up to the first checkpoint after each.

    Raises:
        LookupError: there is no such request, or no checkpoint after one of its rows yet.
        ValueError: the folder has no public key.
    """
    verifier = load_verifier(folder)
    if verifier is None:
        raise ValueError("There is no signing.pub in the folder.")
    proven: list[tuple[int, ProvenRow]] = []
    for writer in writers(folder):
        origin = f"{verifier.name}/writer{writer}"
        notes = sorted(
            read_notes(checkpoints_path(folder, writer), verifier, origin), key=lambda each: each[1].head.seq
        )
        for file in log_files(folder, writer):
            with reading(file) as database:
                for row in stored_rows(database, "request = ?", (request,)):
                    proven.append((row.at, _proven(folder, writer, database, row, notes)))
    if not proven:
        raise LookupError(f"The log has no request {request}.")
    rows = [each for _, each in sorted(proven, key=lambda each: each[0])]
    return Proof(request=request, key=str(verifier), rows=rows)


def _proven(
    folder: str,
    writer: int,
    database: sqlite3.Connection,
    row: StoredRow,
    notes: Sequence[tuple[str, Checkpoint]],
) -> ProvenRow:
    found = next(((note, each.head.seq) for note, each in notes if each.head.seq >= row.seq), None)
    if found is None:
        raise LookupError("No checkpoint covers the request yet; one is written every 60 seconds.")
    note, last = found
    before = database.execute("SELECT hash FROM rows WHERE seq = ?", (row.seq - 1,)).fetchone()
    previous: bytes = before[0] if before is not None else read_start(database).hash
    following: list[StoredRow] = []
    for file in log_files(folder, writer):
        with reading(file) as other:
            following += stored_rows(other, "seq > ? AND seq <= ?", (row.seq, last))
    proven = prove_row(previous, row, following, note)
    values = database.execute("SELECT salt, value FROM row_values WHERE seq = ?", (row.seq,)).fetchone()
    if values is None:
        return proven
    return msgspec.structs.replace(proven, salt=values[0].hex(), values=values[1].decode())


# ------------------------------------------------------------------------------------------------------------- values


def read_values(folder: str, request: str) -> list[dict[str, object]]:
    """The recorded values of a request; none if there are none or they were erased."""
    found: list[dict[str, object]] = []
    for file in log_files(folder):
        with reading(file) as database:
            query = "SELECT value FROM row_values WHERE seq IN (SELECT seq FROM rows WHERE request = ?)"
            found += [
                msgspec.json.decode(value, type=dict[str, object]) for (value,) in database.execute(query, (request,))
            ]
    return found


def erase(folder: str, where: Where) -> int:
    """Erase the recorded values of rows; a row says which. Returns how many there were.

    Raises:
        sqlite3.Error, OSError: not all could be erased. Erasing again is safe.
    """
    condition, values = where.clause()
    chosen: list[tuple[LogFile, list[int]]] = []
    query = f"SELECT seq FROM row_values WHERE seq IN (SELECT seq FROM rows WHERE {condition}) ORDER BY seq"
    for file in log_files(folder):
        with reading(file) as database:
            numbers = [seq for (seq,) in database.execute(query, values)]
        if numbers:
            chosen.append((file, numbers))
    if not chosen:
        return 0
    journal = Journal(folder, sync="full", keep=0)
    now = time.time_ns()
    rows = [
        (Row(kind="audit", verdict="erased", body={"file": file.name, "rows": numbers}), now)
        for file, numbers in chosen
    ]
    try:
        # The row comes first: a crash in between leaves values that can be erased again, and nothing unexplained.
        journal.open(rows)
        for file, numbers in chosen:
            _erase(file, numbers)
    finally:
        journal.close()
    return sum(len(numbers) for _, numbers in chosen)


def _erase(file: LogFile, numbers: list[int]) -> None:
    with closing(open_database(file, "full")) as database:
        database.execute("PRAGMA busy_timeout = 5000")
        for begin in range(0, len(numbers), 100):  # In small steps, so that the gateway can write in between.
            chosen = numbers[begin : begin + 100]
            database.execute(f"DELETE FROM row_values WHERE seq IN ({','.join('?' * len(chosen))})", chosen)
        # The old pages are in SQLite's log as well until it is emptied.
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def _erased(folder: str) -> dict[str, set[int]]:
    """The rows of each file whose values were erased on record."""
    found: dict[str, set[int]] = defaultdict(set)
    for file in log_files(folder):
        try:
            with reading(file) as database:
                for row in stored_rows(database, "kind = 'audit' AND verdict = 'erased'"):
                    body = msgspec.json.decode(row.body, type=_Erased)
                    found[os.path.basename(body.file)].update(body.rows)
        except (sqlite3.Error, msgspec.DecodeError):
            continue  # The check of its chain reports it.
    return found


class _Erased(msgspec.Struct):
    file: str
    rows: list[int]
