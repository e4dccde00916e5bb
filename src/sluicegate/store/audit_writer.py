"""Writes the chain of one writer of an audit log. Used by one thread at a time; knows nothing of an event loop."""

import calendar
import os
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing, suppress
from typing import Final

from sluicegate.protocol.canonical_json import canonical_json
from sluicegate.runtime.lock import try_lock
from sluicegate.store.audit_files import (
    MAX_WRITERS,
    Keys,
    LogFile,
    append_note,
    checkpoints_path,
    create_database,
    load_keys,
    log_files,
    open_database,
    read_head,
    read_notes,
    stored_rows,
    writers,
)
from sluicegate.store.base import Row
from sluicegate.store.chain import Checkpoint, Head, beginning, row_content, row_hash, values_digest

_INSERT: Final = "INSERT INTO rows VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
_INSERT_VALUES: Final = "INSERT INTO row_values VALUES (?, ?, ?)"
_LARGE_WAL: Final = 4 << 20
_HUGE_WAL: Final = 64 << 20
_BOUNDARIES: Final = "kind = 'audit' AND verdict IN ('opened', 'closed', 'recovered')"
"""Rows before which no call is left open."""
_UNREADABLE: Final = Row(kind="audit", verdict="unreadable", body={"reason": "The row cannot be written as JSON."})


Timed = tuple[Row, int]
"""A row and when it happened, in nanoseconds since 1970."""
Columns = tuple[int, int, str, str, str, str, str, str, bytes, bytes]
Values = tuple[int, bytes, bytes]


def encoded(seq: int, previous: bytes, row: Row, at: int) -> tuple[Columns, Values | None]:
    """The columns of a row, of which the last one is its hash, and those of its values if it has any."""
    beside, body = None, row.body
    if row.values is not None:
        salt, values = os.urandom(16), canonical_json(row.values)
        beside, body = (seq, salt, values), {**body, "values": values_digest(salt, values)}
    kind, request, caller, server, name, verdict = row.kind, row.request, row.caller, row.server, row.name, row.verdict
    data = canonical_json(body)
    content = row_content(seq, at, kind, request, caller, server, name, verdict, data)
    return (seq, at, kind, request, caller, server, name, verdict, data, row_hash(previous, content)), beside


class Writer:
    """The chain of one writer, open for writing. The caller holds its lock."""

    def __init__(self, folder: str, number: int, keys: Keys, sync: str, clock: Callable[[], int]) -> None:
        self.number = number
        self.head: Head | None = None
        self.open_calls: set[str] = set()
        """Requests with a decision and without an outcome."""
        self.is_spoiled = False
        """Whether the file must not be used any more."""
        self._folder = folder
        self._keys = keys
        self._origin = keys.signer.origin(f"writer{number}")
        self._sync = sync
        self._clock = clock
        self._database: sqlite3.Connection | None = None
        self._file: LogFile | None = None
        self._identity: tuple[int, int] | None = None
        self._month_end = 0

    # ----------------------------------------------------------------------------------------------------- opening

    def open(self) -> str:
        """Open the newest file, or a new one that continues the chain; returns why the newest one cannot be used.

        Raises:
            sqlite3.Error, OSError: neither can be opened.
        """
        self.close_file()
        files = log_files(self._folder, self.number)
        newest = files[-1] if files else None
        why = ""
        if newest is not None:
            why = self._open_newest(newest)
            if not why:
                return ""
            why = f"{newest.name} {why}"
        month = _month(self._clock())
        if newest is not None and newest.month >= month:
            file = newest._replace(part=newest.part + 1)
        else:
            file = LogFile(self.number, month, 1, self._folder)
        self.head = self.head or self._last_checkpoint() or beginning(self._origin)
        create_database(file, self.head)
        self._use(file, open_database(file, self._sync))
        return why

    def _open_newest(self, newest: LogFile) -> str:
        if self.is_spoiled:
            return "cannot be written any more"
        try:
            database = open_database(newest, self._sync)
        except sqlite3.Error as problem:
            if not is_corrupt(problem):
                raise
            return f"is broken: {problem}"
        try:
            head = read_head(database)
        except sqlite3.Error as problem:
            database.close()
            if not is_corrupt(problem):
                raise
            return f"is broken: {problem}"
        if self.head is not None and head != self.head:
            database.close()
            return f"ends with row {head.seq}, but the last one written is {self.head.seq}"
        self.head = head
        self._use(newest, database)
        return ""

    def _use(self, file: LogFile, database: sqlite3.Connection) -> None:
        self._database, self._file = database, file
        self._identity = _identity(file)
        self._month_end = _end_of(file.month)
        self.is_spoiled = False

    def _last_checkpoint(self) -> Head | None:
        notes = read_notes(checkpoints_path(self._folder, self.number), self._keys.signer.verifier, self._origin)
        return max((checkpoint.head for _, checkpoint in notes), default=None)

    def close_file(self) -> None:
        """Close the file; what is in its log of changes is moved into it, if possible."""
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
        self._database = None

    @property
    def is_in_place(self) -> bool:
        """Whether the file that is written is still the one at its path."""
        file = self._file
        return file is None or _identity(file) == self._identity

    @property
    def month(self) -> str:
        """The month of the file that is written."""
        return self._file.month if self._file is not None else ""

    # ----------------------------------------------------------------------------------------------------- writing

    def write(self, rows: Sequence[Timed]) -> None:
        """Commit rows, all or none.

        Raises:
            sqlite3.Error, OSError: nothing was written.
        """
        last = rows[-1][1]
        if last >= self._month_end:
            self._begin_month(last)
        database = self._database
        if database is None or self.head is None:
            raise sqlite3.OperationalError("the file is not open")
        seq, hash_ = self.head
        columns: list[Columns] = []
        values: list[Values] = []
        for row, at in rows:
            seq += 1
            try:
                written, beside = encoded(seq, hash_, row, at)
            except (TypeError, ValueError, RecursionError):  # It must not keep the others out.
                written, beside = encoded(seq, hash_, _UNREADABLE, at)
            hash_ = written[-1]
            columns.append(written)
            if beside is not None:
                values.append(beside)
        try:
            database.execute("BEGIN IMMEDIATE")
            database.executemany(_INSERT, columns)
            if values:
                database.executemany(_INSERT_VALUES, values)
            database.execute("COMMIT")
        except sqlite3.Error as problem:
            self.is_spoiled = is_corrupt(problem)
            with suppress(sqlite3.Error):
                if database.in_transaction:
                    database.execute("ROLLBACK")
            raise
        self.head = Head(seq, hash_)
        self._follow_calls(rows)

    def _follow_calls(self, rows: Sequence[Timed]) -> None:
        open_calls = self.open_calls
        for row, _ in rows:
            if row.kind == "decision":
                open_calls.add(row.request)
            elif row.kind == "outcome":
                open_calls.discard(row.request)

    def _begin_month(self, now: int) -> None:
        """Go on in a new file. The old one ends with a checkpoint, which stays when the file is removed one day."""
        if self.head is None or self._file is None:
            return
        file = LogFile(self.number, _month(now), 1, self._folder)
        self.checkpoint(self.head)
        create_database(file, self.head)
        database = open_database(file, self._sync)
        self.close_file()
        self._use(file, database)

    # ------------------------------------------------------------------------------------------- calls left open

    def find_open_calls(self) -> None:
        """Find the calls that a process left open which died."""
        found: list[tuple[str, str]] = []
        for file in reversed(log_files(self._folder, self.number)):
            try:
                with closing(open_database(file)) as database:
                    # From the end backwards: max(seq) would read the whole file.
                    query = f"SELECT seq FROM rows WHERE {_BOUNDARIES} ORDER BY seq DESC LIMIT 1"
                    last = database.execute(query).fetchone()
                    rows = stored_rows(database, "seq > ? AND kind IN ('decision', 'outcome')", last or (0,))
                    found = [*((row.kind, row.request) for row in rows), *found]
            except sqlite3.Error:
                last = None
            if last is not None:
                break
        for kind, request in found:
            (self.open_calls.add if kind == "decision" else self.open_calls.discard)(request)

    def close_open_calls(self) -> list[Timed]:
        """Rows that say of each open call that its outcome is unknown."""
        now = self._clock()
        body = {"recovered": now}
        left = sorted(self.open_calls)
        return [(Row(kind="outcome", request=request, verdict="unknown", body=body), now) for request in left]

    # ------------------------------------------------------------------------------------------------ maintenance

    def checkpoint(self, head: Head) -> str:
        """Sign a row that is committed; the note is on the disk when this returns, and so are all rows up to it.

        Another thread may write meanwhile.

        Raises:
            OSError: the note cannot be written.
        """
        note = self._keys.signer.sign(Checkpoint(self._origin, head, self._clock()))
        if self._file is not None:
            # Otherwise rows could be lost with the power that the note vouches for.
            with suppress(FileNotFoundError):
                descriptor = os.open(f"{self._file.path}-wal", os.O_RDONLY)
                try:
                    os.fsync(descriptor)
                finally:
                    os.close(descriptor)
        append_note(checkpoints_path(self._folder, self.number), note)
        return note

    def fold_wal(self) -> None:
        """Move changes from SQLite's log into the file if the log is large. Another thread may write meanwhile."""
        file = self._file
        if file is None:
            return
        with suppress(OSError, sqlite3.Error):
            size = os.stat(f"{file.path}-wal").st_size
            if size < _LARGE_WAL:
                return
            with closing(open_database(file)) as database:
                database.execute("PRAGMA wal_checkpoint(PASSIVE)")
                if size > _HUGE_WAL:  # The writer is so busy that the log was never free; let it wait (A7).
                    database.execute("PRAGMA busy_timeout = 40")
                    database.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def is_corrupt(problem: sqlite3.Error) -> bool:
    """Whether a file cannot be used any more, as opposed to a disk that is full, read-only or locked."""
    code = getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF
    return code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)


def is_locked(problem: BaseException) -> bool:
    """Whether another process has locked the file for the moment."""
    code = getattr(problem, "sqlite_errorcode", 0) & 0xFF
    return code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _identity(file: LogFile) -> tuple[int, int] | None:
    try:
        status = os.stat(file.path)
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _month(now: int) -> str:
    return time.strftime("%Y-%m", time.gmtime(now // 1_000_000_000))


def _end_of(month: str) -> int:
    year, number = int(month[:4]), int(month[5:])
    return calendar.timegm((year + number // 12, number % 12 + 1, 1, 0, 0, 0)) * 1_000_000_000


# -------------------------------------------------------------------------------------------------------- the folder


class Journal:
    """The log of one process: takes a writer that is free, and closes what dead processes have left open."""

    def __init__(
        self, folder: str, *, sync: str = "normal", keep: int = 12, clock: Callable[[], int] = time.time_ns
    ) -> None:
        self.writer: Writer | None = None
        self.keys: Keys | None = None
        self._folder = folder
        self._sync = sync
        self._keep = keep
        self._clock = clock
        self._lock: int | None = None
        self._was_opened = False

    def open(self, also: Iterable[Timed] = ()) -> None:
        """Open the log, for the first time or after a failure, and write rows.

        Raises:
            sqlite3.Error, OSError, ValueError: it cannot be opened or written.
        """
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if self.keys is None:
            self.keys = load_keys(self._folder)
        if self.writer is None:
            number, self._lock = self._free_writer()
            self.writer = Writer(self._folder, number, self.keys, self._sync, self._clock)
        writer = self.writer
        why = writer.open()
        rows = [self._note("gap", {"reason": why})] if why else []
        if not self._was_opened:
            writer.find_open_calls()
            rows += [*writer.close_open_calls(), self._note("opened", {"process": os.getpid()})]
        rows += also
        if rows:
            writer.write(rows)
        if not self._was_opened:
            self._was_opened = True
            self._close_calls_of_the_dead()
            if removed := self.remove_old():
                writer.write([(removed, self._clock())])

    def _free_writer(self) -> tuple[int, int]:
        for number in range(1, MAX_WRITERS):
            lock = try_lock(os.path.join(self._folder, f"writer{number}.lock"))
            if lock is not None:
                return number, lock
        raise OSError(f"More than {MAX_WRITERS} processes write this audit log")

    def _note(self, verdict: str, body: dict[str, object]) -> Timed:
        return Row(kind="audit", verdict=verdict, body=body), self._clock()

    def _close_calls_of_the_dead(self) -> None:
        """Do for each writer that no process holds what its process would have done at its next start."""
        for number in writers(self._folder):
            if self.keys is None or self.writer is None or number == self.writer.number:
                continue
            lock = try_lock(os.path.join(self._folder, f"writer{number}.lock"))
            if lock is None:
                continue
            dead = Writer(self._folder, number, self.keys, self._sync, self._clock)
            try:
                dead.find_open_calls()
                if dead.open_calls:
                    dead.open()
                    dead.write([*dead.close_open_calls(), self._note("recovered", {"process": os.getpid()})])
                    if dead.head is not None:
                        dead.checkpoint(dead.head)
            except (sqlite3.Error, OSError):
                pass  # Its next start will do it, or say what is wrong.
            finally:
                dead.close_file()
                os.close(lock)

    def remove_old(self) -> Row | None:
        """Remove the files of months before those that are kept; the row that says so. Their checkpoints stay."""
        if not self._keep:
            return None
        year, month = map(int, _month(self._clock()).split("-"))
        year, month = divmod(year * 12 + month - self._keep, 12)
        limit = f"{year:04}-{month + 1:02}"
        files = log_files(self._folder)
        removed: list[str] = []
        for file, next_one in zip(files, files[1:], strict=False):
            # The newest one of a writer may be in use, however old it is.
            if file.month < limit and next_one.writer == file.writer:
                for ending in ("", "-wal", "-shm"):
                    with suppress(FileNotFoundError):
                        os.unlink(file.path + ending)
                removed.append(file.name)
        return Row(kind="audit", verdict="removed", body={"files": removed, "keep": self._keep}) if removed else None

    def close(self, rows: Sequence[Timed] = ()) -> str:
        """Write the last rows and a checkpoint, which is returned, and let go of the writer.

        Raises:
            sqlite3.Error, OSError: not all of it could be written.
        """
        writer, self.writer = self.writer, None
        try:
            if writer is None or writer.head is None:
                return ""
            if rows:
                writer.write(rows)
            writer.write([*writer.close_open_calls(), self._note("closed", {})])
            return writer.checkpoint(writer.head)
        finally:
            if writer is not None:
                writer.close_file()
            if self._lock is not None:
                os.close(self._lock)
            self._lock = None
