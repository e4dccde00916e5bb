"""Searches an audit log: an `AuditReader` with an index in SQLite, which is built from the lines of the log.

The index is a cache. It has the columns that filters use and where each line is; what readers get comes from the lines.
Each read first adds the lines that are new, so no process has to keep the index. Several processes may do so at once,
each group of lines in a transaction of its own. An index that is missing or broken is built again; where none can be
written, it is built in memory.
"""

import heapq
import os
import sqlite3
import threading
from array import array
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import ExitStack, closing, suppress
from functools import partial
from itertools import islice
from typing import BinaryIO, Final, Literal, NamedTuple, Protocol, TypeVar

import msgspec

from sluicegate.runtime.task_scope import in_thread
from sluicegate.store.audit_files import LogFile, log_files, read_lines, read_values
from sluicegate.store.base import ALL_ROWS, AuditFilter, AuditPage, AuditRequest, AuditRow, AuditStats, CallStats
from sluicegate.store.chain import RecordedValues, StoredRow, read_row, row_hash

T = TypeVar("T")

_FORMAT: Final = 1
_SCHEMA: Final = """
CREATE TABLE files(id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, writer INTEGER NOT NULL, offset INTEGER NOT NULL,
  seq INTEGER NOT NULL, hash BLOB NOT NULL, time INTEGER NOT NULL, problem TEXT NOT NULL) STRICT;
CREATE TABLE rows(writer INTEGER NOT NULL, seq INTEGER NOT NULL, file INTEGER NOT NULL, offset INTEGER NOT NULL,
  size INTEGER NOT NULL, time INTEGER NOT NULL, at INTEGER NOT NULL, kind TEXT NOT NULL, request TEXT NOT NULL,
  caller TEXT NOT NULL, server TEXT NOT NULL, name TEXT NOT NULL, verdict TEXT NOT NULL, ms REAL,
  PRIMARY KEY(writer, seq, file)) STRICT, WITHOUT ROWID;
CREATE INDEX requests ON rows(request);
"""
# `time` is `at`, but never before that of an earlier row of the writer: a clock that is set back does not change the
# order of rows.
_LINES_AT_ONCE: Final = 10_000
_BROKEN: Final = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_ERROR)
_CLOSED: Final = "the reader is closed"
_STEPS_PER_LOOK: Final = 100_000
"""Steps of SQLite, some milliseconds, between two looks whether the index was closed."""
_BUSY: Final = 30.0
"""Seconds to wait for another process that adds lines."""


class LineSource(Protocol):
    """The lines of an audit log, in named files."""

    def files(self) -> Sequence[tuple[str, int]]:
        """The name and the writer of each file, those of one writer in the order of time."""
        ...

    def open(self, name: str) -> BinaryIO:
        """A file, to be read; raises OSError if it cannot be."""
        ...

    def values(self, name: str) -> Iterator[RecordedValues]:
        """The recorded values of a file's rows; raises OSError or ValueError if they cannot be read."""
        ...


class FolderSource:
    """The lines in the folder of an audit log."""

    def __init__(self, folder: str) -> None:
        self._folder = folder
        self._files: dict[str, LogFile] = {}

    def files(self) -> list[tuple[str, int]]:
        """The name and the writer of each file, those of one writer in the order of time."""
        self._files = {file.name: file for file in log_files(self._folder)}
        return [(name, file.writer) for name, file in self._files.items()]

    def open(self, name: str) -> BinaryIO:
        """A file, to be read; raises OSError if it cannot be."""
        return open(self._files[name].path, "rb")

    def values(self, name: str) -> Iterator[RecordedValues]:
        """The recorded values of a file's rows; raises OSError or ValueError if they cannot be read."""
        return (recorded for _, _, recorded in read_values(self._files[name]) if recorded is not None)


def open_audit_reader(folder: str) -> "IndexedReader":
    """A reader of the audit log in a folder, whose index is in the same folder."""
    return IndexedReader(FolderSource(folder), os.path.join(folder, "index.db"))


class IndexedReader:
    """An `AuditReader`. All work is done in threads, one read at a time."""

    def __init__(self, source: LineSource, path: str = ":memory:") -> None:
        self._index = _Index(source, path)

    def rows(self, where: AuditFilter = ALL_ROWS, *, after: str = "", limit: int = 1000) -> Awaitable[AuditPage]:
        """The first rows that match, after a position of an earlier page.

        Raises:
            ValueError: the position is not one of this log.
            OSError: the log cannot be read.
        """
        return in_thread(partial(self._index.rows, where, _parse_position(after), limit))

    def last(self, where: AuditFilter = ALL_ROWS, *, limit: int = 20) -> Awaitable[AuditPage]:
        """The newest rows that match. The position is the end of the log."""
        return in_thread(partial(self._index.last, where, limit))

    def stats(self, where: AuditFilter = ALL_ROWS) -> Awaitable[AuditStats]:
        """Counts and times of the calls that match, ordered by server and name."""
        return in_thread(partial(self._index.stats, where))

    def request(self, request: str) -> Awaitable[AuditRequest]:
        """The rows of one request; none if the log does not have it."""
        return in_thread(partial(self._index.request, request))

    def close(self) -> None:
        """Close the index, without waiting: a read in progress ends soon, and later ones fail, with OSError."""
        self._index.close()


# ---------------------------------------------------------------------------------------------------------- positions

Position = dict[int, int]
"""The last row of each writer that has been read."""


def _parse_position(text: str) -> Position:
    """The position of a text such as `1:120,2:40`; raises ValueError if it is none."""
    position: Position = {}
    for part in text.split(",") if text else ():
        writer, colon, seq = part.partition(":")
        if not (colon and writer.isdecimal() and seq.isdecimal()):
            raise ValueError(f"{text!r} is not a position in an audit log")
        position[int(writer)] = int(seq)
    return position


def _format_position(position: Position) -> str:
    return ",".join(f"{writer}:{seq}" for writer, seq in sorted(position.items()))


# -------------------------------------------------------------------------------------------------------------- index


class _Place(NamedTuple):
    """Where a row is, in the order in which rows are listed."""

    time: int
    writer: int
    seq: int
    file: str
    offset: int
    size: int


class _Index:
    """The index and what is read with it. Its methods block, and may be called by any thread."""

    def __init__(self, source: LineSource, path: str) -> None:
        self._source = source
        self._path = path
        self._database: sqlite3.Connection | None = None
        self._lock = threading.Lock()
        self._is_closed = False

    def close(self) -> None:
        self._is_closed = True
        self._close_if_free()

    def _close_if_free(self) -> None:
        """Close the index unless a thread reads, which does so after its read."""
        if self._lock.acquire(blocking=False):
            try:
                self._close()
            finally:
                self._lock.release()

    def _close(self) -> None:
        if self._database is not None:
            with suppress(sqlite3.Error):
                self._database.close()
        self._database = None

    def _read(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Bring the index up to date, and read with it; raises OSError if that is not possible."""
        try:
            with self._lock:
                return self._read_alone(work)
        finally:
            # After the lock is free: `close` either gets the lock, or this thread sees that the index is closed.
            if self._is_closed:
                self._close_if_free()

    def _read_alone(self, work: Callable[[sqlite3.Connection], T]) -> T:
        for path in (self._path, self._path, ":memory:"):
            if self._is_closed:
                raise OSError(_CLOSED)
            try:
                if self._database is None:
                    self._database = _opened(path)
                    # Ends a statement that runs when the index is closed. `Connection.interrupt` would miss a
                    # statement that begins just after it.
                    self._database.set_progress_handler(lambda: self._is_closed, _STEPS_PER_LOOK)
                self._update(self._database)
                if self._is_closed:
                    raise OSError(_CLOSED)
                with _transaction(self._database, "DEFERRED"):
                    return work(self._database)
            except sqlite3.Error as problem:
                failure = problem
            except OSError as problem:
                if self._database is not None:
                    raise  # It is the log that cannot be read.
                failure = problem
            self._close()
            if path != ":memory:" and _is_broken(failure):
                for ending in ("", "-wal", "-shm"):
                    with suppress(OSError):
                        os.unlink(path + ending)
        raise OSError(f"The index of the audit log cannot be built: {failure}")

    # ----------------------------------------------------------------------------------------------------- reading

    def rows(self, where: AuditFilter, after: Position, limit: int) -> AuditPage:
        """The first rows after a position."""
        return self._read(lambda database: self._rows(database, where, after, limit))

    def _rows(self, database: sqlite3.Connection, where: AuditFilter, after: Position, limit: int) -> AuditPage:
        heads = _heads(database)
        streams = [_places(database, where, writer, after.get(writer, 0)) for writer in heads]
        places = list(islice(heapq.merge(*streams), limit))
        has_more = len(places) == limit
        position = {**after, **{place.writer: place.seq for place in places}} if has_more else heads
        return self._page(database, places, position, has_more=has_more)

    def last(self, where: AuditFilter, limit: int) -> AuditPage:
        """The last rows."""
        return self._read(lambda database: self._last(database, where, limit))

    def _last(self, database: sqlite3.Connection, where: AuditFilter, limit: int) -> AuditPage:
        heads = _heads(database)
        streams = [_places(database, where, writer, 0, is_backwards=True) for writer in heads]
        places = list(islice(heapq.merge(*streams, reverse=True), limit))
        return self._page(database, places[::-1], heads)

    def _page(
        self, database: sqlite3.Connection, places: Sequence[_Place], position: Position, *, has_more: bool = False
    ) -> AuditPage:
        problems = _problems(database)
        rows: list[AuditRow] = []
        with ExitStack() as stack:
            files: dict[str, BinaryIO] = {}
            for place in places:
                try:
                    if place.file not in files:
                        files[place.file] = stack.enter_context(self._source.open(place.file))
                    files[place.file].seek(place.offset)
                    rows.append(_audit_row(place.writer, read_row(files[place.file].read(place.size))))
                except (OSError, ValueError) as problem:
                    problems.append(f"{place.file}: row {place.seq} cannot be read: {problem}.")
        return AuditPage(rows=rows, position=_format_position(position), has_more=has_more, problems=problems)

    def stats(self, where: AuditFilter) -> AuditStats:
        """Counts and times of calls."""
        return self._read(lambda database: _stats(database, where))

    def request(self, request: str) -> AuditRequest:
        """The rows of a request, with its values."""
        return self._read(lambda database: self._request(database, request))

    def _request(self, database: sqlite3.Connection, request: str) -> AuditRequest:
        query = f"SELECT {_PLACE} FROM rows JOIN files ON file = id WHERE request = ?"
        places = sorted(map(_Place._make, database.execute(query, (request,))))
        page = self._page(database, places, {})
        wanted: dict[str, set[int]] = defaultdict(set)
        values: list[dict[str, object]] = []
        for place in places:
            wanted[place.file].add(place.seq)
        for name, numbers in wanted.items():
            try:
                for recorded in self._source.values(name):
                    if recorded.seq in numbers and recorded.salt:
                        values.append(msgspec.json.decode(recorded.values, type=dict[str, object]))
            except (OSError, ValueError) as problem:
                page.problems.append(f"The recorded values of {name} cannot be read: {problem}.")
        return AuditRequest(rows=page.rows, values=values, problems=page.problems)

    # ----------------------------------------------------------------------------------------------------- building

    def _update(self, database: sqlite3.Connection) -> None:
        """Add the lines that are new, and remove those of files that are gone."""
        files = self._source.files()
        known = dict[str, int](database.execute("SELECT name, offset FROM files"))
        for gone in known.keys() - {name for name, _ in files}:
            with _transaction(database):
                _remove(database, gone)
        for name, writer in files:
            try:
                with self._source.open(name) as file:
                    if file.seek(0, os.SEEK_END) != known.get(name):
                        while not self._is_closed and _add_lines(database, file, name, writer):
                            pass
            except OSError as problem:
                with _transaction(database):
                    _remove(database, name)
                    _add_file(database, name, writer, f"{name} cannot be read: {problem.strerror or problem}.")


def _add_lines(database: sqlite3.Connection, lines: BinaryIO, name: str, writer: int) -> bool:
    """Add a group of lines of a file; whether there may be more. Raises OSError if the file cannot be read."""
    with _transaction(database):
        file = _IndexedFile(database, name, writer)
        if lines.seek(0, os.SEEK_END) < file.offset:
            file.forget()
            return True
        added: list[tuple[object, ...]] = []
        count = 0
        try:
            for offset, line in islice(read_lines(lines, file.offset), _LINES_AT_ONCE):
                count += 1
                if (row := file.follow(offset, line)) is not None:
                    added.append(row)
        except _Replaced:
            file.forget()
            return True
        except ValueError as problem:
            file.problem = f"{name} cannot be read: {problem}."
        database.executemany(f"INSERT OR REPLACE INTO rows VALUES ({','.join('?' * 14)})", added)
        file.save()
        return count == _LINES_AT_ONCE


class _Replaced(Exception):
    """A file has been cut or replaced since it was read: it must be read from its beginning."""


class _IndexedFile:
    """How far a file is in the index."""

    def __init__(self, database: sqlite3.Connection, name: str, writer: int) -> None:
        self._database = database
        self._name = name
        self._writer = writer
        query = "SELECT id, offset, seq, hash, time, problem FROM files WHERE name = ?"
        found = database.execute(query, (name,)).fetchone()
        if found is None:
            _add_file(database, name, writer)
            found = database.execute(query, (name,)).fetchone()
        self._id: int
        self.offset: int
        self._seq: int
        self._hash: bytes
        self._time: int
        self.problem: str
        self._id, self.offset, self._seq, self._hash, self._time, self.problem = found
        self._is_continued = self.offset > 0
        if not self._is_continued:
            self.problem = ""  # It could not be opened before.

    def forget(self) -> None:
        """Remove the file from the index."""
        _remove(self._database, self._name)

    def follow(self, offset: int, line: bytes) -> tuple[object, ...] | None:
        """The columns of the next line; None if it is not a row.

        Raises:
            _Replaced: the file does not continue what was read of it before.
        """
        is_continued, self._is_continued = self._is_continued, False
        row: StoredRow | None = None
        with suppress(ValueError):
            row = read_row(line)
        is_next = row is not None and (
            not self._hash or (row.seq == self._seq + 1 and row_hash(self._hash, row.content) == row.hash)
        )
        if is_continued and not is_next:
            raise _Replaced
        self.offset = offset + len(line)
        if row is None:
            self.problem = f"{self._name} cannot be read after row {self._seq}."
            self._hash = b""
            return None
        if not is_next:
            self.problem = f"{self._name}: row {row.seq} does not follow the row before it."
        self._seq, self._hash, self._time = row.seq, row.hash, max(self._time, row.at)
        return (self._writer, row.seq, self._id, offset, len(line), self._time, row.at, *row[2:8], _milliseconds(row))

    def save(self) -> None:
        """Write down how far the file was read."""
        self._database.execute(
            "UPDATE files SET offset = ?, seq = ?, hash = ?, time = ?, problem = ? WHERE id = ?",
            (self.offset, self._seq, self._hash, self._time, self.problem, self._id),
        )


class _Took(msgspec.Struct):
    ms: float | None = None


_decode_took: Final = msgspec.json.Decoder(_Took).decode
_decode_body: Final = msgspec.json.Decoder(dict[str, object]).decode


def _milliseconds(row: StoredRow) -> float | None:
    if row.kind != "outcome":
        return None
    try:
        return _decode_took(row.body).ms
    except msgspec.DecodeError:
        return None


def _audit_row(writer: int, row: StoredRow) -> AuditRow:
    body: dict[str, object] = {"unreadable": True}
    with suppress(msgspec.DecodeError):
        body = _decode_body(row.body)
    return AuditRow(
        writer=writer,
        seq=row.seq,
        at=row.at,
        kind=row.kind,
        request=row.request,
        caller=row.caller,
        server=row.server,
        name=row.name,
        verdict=row.verdict,
        body=body,
        hash=row.hash.hex(),
    )


# ----------------------------------------------------------------------------------------------------------- database

_PLACE: Final = "rows.time, rows.writer, rows.seq, files.name, rows.offset, rows.size"


def _opened(path: str) -> sqlite3.Connection:
    """The index at a path, created if there is none; raises OSError or sqlite3.Error if it cannot be used."""
    if path != ":memory:":
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
    with ExitStack() as opened:  # Closes the index if it cannot be used.
        connection = sqlite3.connect(path, isolation_level=None, timeout=_BUSY, check_same_thread=False)
        database = opened.enter_context(closing(connection))
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = NORMAL")
        with _transaction(database):
            (version,) = database.execute("PRAGMA user_version").fetchone()
            if version == 0:
                for statement in _SCHEMA.split(";"):
                    database.execute(statement)
                database.execute(f"PRAGMA user_version = {_FORMAT}")
            elif version != _FORMAT:
                raise sqlite3.DatabaseError("it is an index of another version")
        opened.pop_all()
    return database


def _is_broken(problem: Exception) -> bool:
    """Whether an index must be built again, as opposed to a disk that is full or read-only."""
    if not isinstance(problem, sqlite3.Error):
        return False
    return getattr(problem, "sqlite_errorcode", sqlite3.SQLITE_CORRUPT) & 0xFF in _BROKEN


class _transaction:  # noqa: N801 - used like a function
    """A transaction: one that writes, or one that reads the same state throughout."""

    def __init__(self, database: sqlite3.Connection, kind: Literal["IMMEDIATE", "DEFERRED"] = "IMMEDIATE") -> None:
        self._database = database
        self._kind = kind

    def __enter__(self) -> None:
        self._database.execute(f"BEGIN {self._kind}")

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self._database.execute("COMMIT")
        elif self._database.in_transaction:
            with suppress(sqlite3.Error):  # The first problem is what counts.
                self._database.execute("ROLLBACK")


def _add_file(database: sqlite3.Connection, name: str, writer: int, problem: str = "") -> None:
    query = "SELECT coalesce(max(time), 0) FROM files WHERE writer = ?"
    (time,) = database.execute(query, (writer,)).fetchone()
    database.execute(
        "INSERT INTO files(name, writer, offset, seq, hash, time, problem) VALUES (?, ?, 0, 0, x'', ?, ?)",
        (name, writer, time, problem),
    )


def _remove(database: sqlite3.Connection, name: str) -> None:
    database.execute("DELETE FROM rows WHERE file = (SELECT id FROM files WHERE name = ?)", (name,))
    database.execute("DELETE FROM files WHERE name = ?", (name,))


def _heads(database: sqlite3.Connection) -> Position:
    return dict[int, int](database.execute("SELECT writer, max(seq) FROM files GROUP BY writer"))


def _problems(database: sqlite3.Connection) -> list[str]:
    return [problem for (problem,) in database.execute("SELECT problem FROM files WHERE problem != '' ORDER BY name")]


def _places(
    database: sqlite3.Connection, where: AuditFilter, writer: int, after: int, *, is_backwards: bool = False
) -> Iterator[_Place]:
    """Where the rows of one writer are, in their order."""
    condition, values = _condition(where)
    if where.since is not None:
        after = max(after, _first_since(database, writer, where.since) - 1)
    query = (
        f"SELECT {_PLACE} FROM rows JOIN files ON file = id WHERE rows.writer = ? AND rows.seq > ? AND {condition}"
        f" ORDER BY rows.seq {'DESC' if is_backwards else ''}"
    )
    return map(_Place._make, database.execute(query, (writer, after, *values)))


def _first_since(database: sqlite3.Connection, writer: int, since: int) -> int:
    """The number of a writer's first row that is not older than a time: found by halving, for times only grow."""
    query = "SELECT seq, time FROM rows WHERE writer = ? AND seq >= ? ORDER BY seq LIMIT 1"
    low, high = 1, _heads(database).get(writer, 0) + 1
    while low < high:
        middle = (low + high) // 2
        found = database.execute(query, (writer, middle)).fetchone()
        if found is None or found[1] >= since:
            high = middle
        else:
            low = found[0] + 1
    return low


def _condition(where: AuditFilter) -> tuple[str, list[object]]:
    """A filter in SQL, and its parameters."""
    conditions, values = ["1"], list[object]()
    for column, operator, value in (("at", ">=", where.since), ("at", "<", where.until), ("kind", "=", where.kind)):
        if value is not None:
            conditions.append(f"rows.{column} {operator} ?")
            values.append(value)
    for column in ("request", "caller", "server", "name", "verdict"):
        if (value := getattr(where, column)) is None:
            continue
        forms = {f"rows.{column}": value}
        if column == "name":  # Also as clients name it, with its server.
            own = value.removeprefix("mcp__")
            forms |= {f"rows.server || '{mark}' || rows.name": own for mark in ("__", ".") if mark in own}
        conditions.append(f"({' OR '.join(f'{form} GLOB ?' for form in forms)})")
        values += forms.values()
    return " AND ".join(conditions), values


def _stats(database: sqlite3.Connection, where: AuditFilter) -> AuditStats:
    condition, values = _condition(where)
    calls = f"FROM rows WHERE {condition} AND rows.kind IN ('decision', 'outcome') AND rows.server != ''"
    verdicts: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    query = f"SELECT server, name, verdict, count(*) {calls} GROUP BY server, name, verdict ORDER BY verdict"
    for server, name, verdict, count in database.execute(query, values):
        verdicts[server, name][verdict] = count
    times: dict[tuple[str, str], array[float]] = defaultdict(lambda: array("d"))
    for server, name, ms in database.execute(f"SELECT server, name, ms {calls} AND ms IS NOT NULL ORDER BY ms", values):
        times[server, name].append(ms)
    stats = [
        CallStats(
            server=server,
            name=name,
            verdicts=dict(verdicts[server, name]),
            p50_ms=_percentile(times[server, name], 0.5),
            p95_ms=_percentile(times[server, name], 0.95),
        )
        for server, name in sorted(verdicts)
    ]
    return AuditStats(calls=stats, problems=_problems(database))


def _percentile(sorted_times: Sequence[float], part: float) -> float:
    return sorted_times[int(len(sorted_times) * part)] if sorted_times else 0.0
