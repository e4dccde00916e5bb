"""The folder of an audit log: its files, its keys, and reading its rows.

    2026-11-writer1.db    the rows of one writer in one month; -2 and so on after a file that could not be used any more
    writer1.checkpoints   the signed checkpoints of that writer's chain, over all months
    writer1.lock          locked while the writer lives
    signing.key, digest.key, signing.pub

Several gateways may serve one folder. Each takes the first writer that is free, so there are as many as ran at once.
"""

import heapq
import os
import re
import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing, contextmanager, suppress
from typing import Final, NamedTuple

import msgspec

from sluicegate.store.chain import Checkpoint, Head, Signer, StoredRow, Verifier, split_notes

MAX_WRITERS: Final = 1000

_NAME: Final = re.compile(r"(\d{4}-\d{2})-writer(\d+)(?:-(\d+))?\.db")
_SCHEMA: Final = """
CREATE TABLE file(format INTEGER NOT NULL, writer INTEGER NOT NULL, seq INTEGER NOT NULL, hash BLOB NOT NULL) STRICT;
CREATE TABLE rows(seq INTEGER PRIMARY KEY, at INTEGER NOT NULL, kind TEXT NOT NULL, request TEXT NOT NULL,
  caller TEXT NOT NULL, server TEXT NOT NULL, name TEXT NOT NULL, verdict TEXT NOT NULL, body BLOB NOT NULL,
  hash BLOB NOT NULL) STRICT;
CREATE TABLE row_values(seq INTEGER PRIMARY KEY, salt BLOB NOT NULL, value BLOB NOT NULL) STRICT;
"""
_FORMAT: Final = 1


class LogFile(NamedTuple):
    """The file of one month and writer. They sort by writer, then by time."""

    writer: int
    month: str
    part: int
    folder: str

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.name)

    @property
    def name(self) -> str:
        part = f"-{self.part}" if self.part > 1 else ""
        return f"{self.month}-writer{self.writer}{part}.db"


def log_files(folder: str, writer: int | None = None) -> list[LogFile]:
    """The files in a folder, those of one writer together and in the order of time."""
    try:
        names = os.listdir(folder)
    except FileNotFoundError:
        return []
    found = [_NAME.fullmatch(name) for name in names]
    files = [LogFile(int(each[2]), each[1], int(each[3] or 1), folder) for each in found if each is not None]
    return sorted(file for file in files if writer is None or file.writer == writer)


def writers(folder: str) -> list[int]:
    """The writers that have files or checkpoints."""
    found = {file.writer for file in log_files(folder)}
    with suppress(FileNotFoundError):
        for name in os.listdir(folder):
            if match := re.fullmatch(r"writer(\d+)\.checkpoints", name):
                found.add(int(match[1]))
    return sorted(found)


# ---------------------------------------------------------------------------------------------------------- databases


def create_database(file: LogFile, head: Head) -> None:
    """Create a file whose first row comes after a head. Under another name first: a crash leaves no half of a file."""
    unfinished = f"{file.path}.new"
    for ending in ("", "-wal", "-shm", "-journal"):
        with suppress(FileNotFoundError):
            os.unlink(unfinished + ending)
    os.close(os.open(unfinished, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))
    with closing(sqlite3.connect(unfinished, isolation_level=None)) as database:
        database.execute("PRAGMA journal_mode = WAL")
        database.executescript(f"BEGIN;{_SCHEMA}")
        database.execute("INSERT INTO file VALUES (?, ?, ?, ?)", (_FORMAT, file.writer, head.seq, head.hash))
        database.execute("COMMIT")
    os.rename(unfinished, file.path)


def open_database(file: LogFile, sync: str = "normal") -> sqlite3.Connection:
    """A connection for writing. It never waits for a lock: that would stop the event loop.

    Raises:
        sqlite3.Error: the file is missing, broken, or not ours to write.
    """
    # `rw`: a file that has been removed must not come back empty. Other threads use it while this one does not.
    database = sqlite3.connect(
        f"{_uri(file.path)}?mode=rw", uri=True, isolation_level=None, timeout=0, check_same_thread=False
    )
    try:
        database.execute(f"PRAGMA synchronous = {'FULL' if sync == 'full' else 'NORMAL'}")
        database.execute("PRAGMA wal_autocheckpoint = 0")
        database.execute("PRAGMA secure_delete = ON")
        read_start(database)
    except BaseException:  # Raised again; the file would stay open.
        database.close()
        raise
    return database


@contextmanager
def reading(file: LogFile) -> Generator[sqlite3.Connection]:
    """A connection for reading; it does not block the writer.

    Raises:
        sqlite3.Error: the file cannot be read.
    """
    with closing(sqlite3.connect(f"{_uri(file.path)}?mode=ro", uri=True, isolation_level=None, timeout=5)) as database:
        yield database


def _uri(path: str) -> str:
    return "file:" + path.replace("%", "%25").replace("?", "%3f").replace("#", "%23")


def read_start(database: sqlite3.Connection) -> Head:
    """The head after which the rows of a file begin.

    Raises:
        sqlite3.Error: the file is none of ours.
    """
    found = database.execute("SELECT format, seq, hash FROM file").fetchone()
    if found is None or found[0] != _FORMAT:
        raise sqlite3.DatabaseError("it is not an audit log of this version")
    return Head(found[1], found[2])


def read_head(database: sqlite3.Connection) -> Head:
    """The last row of a file, or the head before it if it has none."""
    found = database.execute("SELECT seq, hash FROM rows ORDER BY seq DESC LIMIT 1").fetchone()
    return Head(*found) if found is not None else read_start(database)


# --------------------------------------------------------------------------------------------------------------- keys


class Keys(NamedTuple):
    """The secrets of a log: they are in its folder, for its owner only."""

    signer: Signer
    digest: bytes


def load_keys(folder: str) -> Keys:
    """The keys of a folder, created if there are none.

    Raises:
        OSError: they cannot be read or created.
        ValueError: a key is broken.
    """
    signer = Signer(_load_key(os.path.join(folder, "signing.key")))
    public = os.path.join(folder, "signing.pub")
    if not os.path.exists(public):
        _create(public, f"{signer.verifier}\n".encode())
    return Keys(signer, _load_key(os.path.join(folder, "digest.key")))


def load_verifier(folder: str) -> Verifier | None:
    """The public key of a folder; None if there is none.

    Raises:
        ValueError: the key is broken.
    """
    try:
        with open(os.path.join(folder, "signing.pub"), encoding="utf-8") as file:
            return Verifier.parse(file.read())
    except FileNotFoundError:
        return None


def _load_key(path: str) -> bytes:
    if not os.path.exists(path):
        _create(path, os.urandom(32).hex().encode() + b"\n")
    with open(path, "rb") as file:
        key = bytes.fromhex(file.read().decode())
    if len(key) != 32:
        raise ValueError(f"{os.path.basename(path)} should have 32 bytes")
    return key


def _create(path: str, data: bytes) -> None:
    """Create a file with its content in one step; of two that do so at once, the first one counts."""
    temporary = f"{path}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        try:
            os.write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


# -------------------------------------------------------------------------------------------------------- checkpoints


def checkpoints_path(folder: str, writer: int) -> str:
    return os.path.join(folder, f"writer{writer}.checkpoints")


def append_note(path: str, note: str) -> None:
    """Append a note to a file, and wait until it is on the disk."""
    descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        os.write(descriptor, f"\n{note}".encode())  # A crash may have left half a line.
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_notes(path: str, verifier: Verifier, origin: str) -> list[tuple[str, Checkpoint]]:
    """The notes in a file that the key has signed for a chain."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            notes = split_notes(file.read())
    except FileNotFoundError:
        return []
    read = [(note, verifier.read(note)) for note in notes]
    return [(note, checkpoint) for note, checkpoint in read if checkpoint is not None and checkpoint.origin == origin]


# --------------------------------------------------------------------------------------------------------------- rows


class AuditRow(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A row as readers see it."""

    writer: int
    seq: int
    at: int
    """Nanoseconds since 1970."""
    kind: str
    request: str = ""
    caller: str = ""
    server: str = ""
    name: str = ""
    verdict: str = ""
    body: dict[str, object] = {}
    hash: str = ""


class Where(msgspec.Struct, frozen=True, kw_only=True):
    """Which rows to read; texts are compared as SQLite's GLOB does."""

    since: int | None = None
    until: int | None = None
    kind: str | None = None
    request: str | None = None
    caller: str | None = None
    server: str | None = None
    name: str | None = None
    verdict: str | None = None

    def clause(self) -> tuple[str, list[object]]:
        """The condition in SQL, and its parameters."""
        conditions, values = ["1"], list[object]()
        for column, operator, value in (("at", ">=", self.since), ("at", "<", self.until), ("kind", "=", self.kind)):
            if value is not None:
                conditions.append(f"{column} {operator} ?")
                values.append(value)
        for column in ("request", "caller", "server", "name", "verdict"):
            if (value := getattr(self, column)) is None:
                continue
            forms = {column: value}
            if column == "name":  # Also as clients name it, with its server.
                own = value.removeprefix("mcp__")
                forms |= {f"server || '{mark}' || name": own for mark in ("__", ".") if mark in own}
            conditions.append(f"({' OR '.join(f'{form} GLOB ?' for form in forms)})")
            values += forms.values()
        return " AND ".join(conditions), values


_COLUMNS: Final = "seq, at, kind, request, caller, server, name, verdict, body, hash"


def stored_rows(
    database: sqlite3.Connection, condition: str = "1", values: Iterable[object] = ()
) -> Iterator[StoredRow]:
    """Rows of one file in their order."""
    query = f"SELECT {_COLUMNS} FROM rows WHERE {condition} ORDER BY seq"
    return map(StoredRow._make, database.execute(query, tuple(values)))


def heads(folder: str) -> dict[int, int]:
    """The number of the last row of each writer whose files can be read."""
    found: dict[int, int] = {}
    for file in log_files(folder):
        with suppress(sqlite3.Error), reading(file) as database:
            found[file.writer] = read_head(database).seq
    return found


def read_rows(
    folder: str,
    *,
    since: int | None = None,
    kind: str | None = None,
    where: Where | None = None,
    after: Mapping[int, int] | None = None,
    problems: list[str] | None = None,
) -> Iterator[AuditRow]:
    """The rows of all writers, ordered by time.

    Args:
        since: nanoseconds since 1970.
        where: more conditions; `since` and `kind` are short for two of them.
        after: the last row of each writer that is known already.
        problems: gets a sentence for each file that cannot be read. Without it, `sqlite3.Error` is raised.
    """
    where = msgspec.structs.replace(where or Where(), **{k: v for k, v in (("since", since), ("kind", kind)) if v})
    files = log_files(folder)
    streams = [_writer_rows([f for f in files if f.writer == w], where, after or {}, problems) for w in writers(folder)]
    return heapq.merge(*streams, key=lambda row: row.at)


def _writer_rows(
    files: list[LogFile], where: Where, after: Mapping[int, int], problems: list[str] | None
) -> Iterator[AuditRow]:
    condition, values = where.clause()
    for file in files:
        try:
            with reading(file) as database:
                seen = after.get(file.writer, 0)
                for row in stored_rows(database, f"{condition} AND seq > ?", [*values, seen]):
                    yield _audit_row(file.writer, row)
        except sqlite3.Error as problem:
            if problems is None:
                raise
            problems.append(f"{file.name} cannot be read: {problem}.")


def _audit_row(writer: int, row: StoredRow) -> AuditRow:
    body: dict[str, object] = {"unreadable": True}
    with suppress(msgspec.DecodeError, UnicodeDecodeError):
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


_decode_body: Final = msgspec.json.Decoder(dict[str, object]).decode
