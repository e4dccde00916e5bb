"""Writes the chain of one writer of an audit log. Used by one thread at a time; knows nothing of an event loop."""

import calendar
import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, closing, suppress
from typing import BinaryIO, Final, NamedTuple

from msgspec.structs import replace

from sluicegate.store.audit_files import (
    Keys,
    LogFile,
    append_note,
    checkpoints_path,
    end_of_lines,
    last_checkpoint,
    lines_backwards,
    log_files,
    log_label,
    read_values,
)
from sluicegate.store.base import Row
from sluicegate.store.chain import Checkpoint, Head, StoredRow, beginning, encode_row, read_row

_BOUNDARIES: Final = ("opened", "closed", "recovered")
"""Verdicts of rows about the log itself before which no call is left open."""
_UNREADABLE: Final = Row(kind="audit", verdict="unreadable", body={"reason": "The row cannot be written as JSON."})
_DAY: Final = 86_400 * 1_000_000_000
MAX_VALUES_A_DAY: Final = 64 << 20
"""Bytes of values that one writer records in a day. Restarts count too: its file has at most that for each day."""
_FLAGS: Final = os.O_RDWR | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC


Timed = tuple[Row, int]
"""A row and when it happened, in nanoseconds since 1970."""


class AppendFile:
    """A file that grows by whole groups of lines: a group that cannot be written is cut off again."""

    def __init__(self, path: str, *, is_new: bool = False) -> None:
        """Open a file.

        Raises:
            OSError: it cannot be opened or, with `is_new`, it exists.
        """
        self.path = path
        self._descriptor = os.open(path, _FLAGS | (os.O_CREAT | os.O_EXCL if is_new else 0), 0o600)
        status = os.fstat(self._descriptor)
        self.size = status.st_size
        self._identity = status.st_dev, status.st_ino

    def append(self, data: bytes) -> None:
        """Write data at the end, all or nothing.

        Raises:
            OSError: nothing was written.
        """
        written = os.write(self._descriptor, data)
        if written < len(data):  # The disk is full, mostly. The next attempt finds out why.
            try:
                while written < len(data):
                    written += os.write(self._descriptor, data[written:])
            except OSError:
                self.cut(self.size)
                raise
        self.size += len(data)

    def cut(self, size: int) -> None:
        """Shorten the file; raises OSError if that fails."""
        self.size = size
        os.ftruncate(self._descriptor, size)

    def sync(self) -> None:
        """Wait until the data is on the disk; raises OSError if that fails."""
        os.fdatasync(self._descriptor)

    @property
    def is_in_place(self) -> bool:
        """Whether the file at the path is still this one, and nothing else has changed its size."""
        try:
            status = os.stat(self.path)
        except OSError:
            return False
        return (status.st_dev, status.st_ino, status.st_size) == (*self._identity, self.size)

    def close(self) -> None:
        """Close the file."""
        with suppress(OSError):
            os.close(self._descriptor)


class Writer:
    """The chain of one writer, open for writing. The caller holds its lock."""

    def __init__(self, folder: str, number: int, keys: Keys, sync: str, clock: Callable[[], int]) -> None:
        self.number = number
        self.head: Head | None = None
        self.open_calls: dict[str, tuple[str, str, str]] = {}
        """Caller, server and name of each request with a decision and without an outcome."""
        self.is_spoiled = False
        """Whether the file must not be used any more."""
        self.notes: list[Row] = []
        """What was wrong with the files. The next group of rows begins with it; it stays here until that is written."""
        self._folder = folder
        self._keys = keys
        self._origin = keys.signer.origin(f"writer{number}")
        self._label = log_label(folder)
        self._is_full = sync == "full"
        self._clock = clock
        self._rows: AppendFile | None = None
        self._values: AppendFile | None = None
        """The file of recorded values; None until there is one."""
        self._file: LogFile | None = None
        self._month_end = 0
        self._day = 0
        """The day whose recorded values are counted, in days since 1970."""
        self._values_today = 0

    # ----------------------------------------------------------------------------------------------------- opening

    def open(self) -> None:
        """Open the newest file, or a new one that continues the chain; `notes` has what was wrong.

        Raises:
            OSError: neither can be opened.
        """
        written = self._rows.size if self._rows is not None else None
        self.close_file()
        files = log_files(self._folder, self.number)
        newest = files[-1] if files else None
        problem = ""
        if newest is not None:
            try:
                self._open_newest(newest, written)
            except _Unusable as unusable:
                problem = str(unusable)
            else:
                return
        month = month_of(self._clock())
        if newest is not None and newest.month >= month:
            file = newest._replace(part=newest.part + 1)
        else:
            file = LogFile(self.number, month, 1, self._folder)
        head = self.head or self._highest_head(files)
        if not files and not head.seq and self._last_checkpoint() is None:
            self.checkpoint(head)  # The signed beginning comes before the first file, so no log is without one.
        self._use(file, _created(file.path))
        if newest is not None:
            self._note_gap(newest, problem, head)
        elif head.seq and self.head is None:
            reason = f"All files with rows up to {head.seq} are missing; the chain continues after row {head.seq}"
            self.notes.append(Row(kind="audit", verdict="gap", body={"reason": reason, "file": file.name}))
        self.head = head

    def _open_newest(self, newest: LogFile, written: int | None) -> None:
        """Open a file at whose end the chain goes on. `written` is its size if this writer has written it."""
        if self.is_spoiled:
            raise _Unusable("cannot be written any more")
        with ExitStack() as opened:  # Closes the files if they cannot be used.
            rows, values = opened.enter_context(closing(AppendFile(newest.path))), None
            if written is not None and rows.size > written:
                rows.cut(written)  # A group that could not be cut off when it failed.
            with open(newest.path, "rb") as file:
                last = _last_row(file, rows, newest, self.notes)
            if last is not None:
                head = Head(last.seq, last.hash)
                self._check_end(head)
            else:
                # Nothing was written to it: in this process, where `head` is known then, or before a crash.
                head = self.head or self._head_before(newest)
            if os.path.exists(newest.values_path):
                values = opened.enter_context(closing(AppendFile(newest.values_path)))
                _cut_values(newest, values, head.seq)
            self.head = head
            self._use(newest, rows, values)
            opened.pop_all()

    def _check_end(self, end: Head) -> None:
        """Check that the last row of the newest file is the last one of the chain.

        Raises:
            _Unusable: rows after it, which this process has written or a checkpoint has signed, are missing.
        """
        if self.head is not None:
            if end != self.head:
                raise _Unusable(f"ends with row {end.seq}, but the last one written is {self.head.seq}")
            return
        signed = None
        with suppress(OSError):  # `verify` names checkpoints that cannot be read; rows can be written without them.
            signed = self._last_checkpoint()
        if signed is not None and signed.seq > end.seq:
            raise _Unusable(f"ends with row {end.seq}, but row {signed.seq} was signed")

    def _head_before(self, file: LogFile) -> Head:
        """The head after which the first row of a file without rows comes."""
        earlier = [each for each in log_files(self._folder, self.number) if each < file]
        head = self._highest_head(earlier)
        if not earlier or not os.path.getsize(earlier[-1].path):
            return head
        end = _end_of_file(earlier[-1])
        if end is None or end.damaged or end.head != head:
            # The process that created the file ended before it wrote what was wrong with the one before.
            self._note_gap(earlier[-1], "cannot be read to its end", head)
        return head

    def _highest_head(self, files: Iterable[LogFile]) -> Head:
        """The highest number of the chain that is known: of a row that can be read, or of a signed checkpoint.

        The chain never goes back to a number that it has used: readers continue after the number that they read last.
        So each damaged line at the end of a file counts as a row.
        """
        signed = self._last_checkpoint()
        heads = [beginning(self._origin)] if signed is None else [signed]
        for file in files:
            if (end := _end_of_file(file)) is not None:
                heads.append(Head(end.head.seq + end.damaged, end.head.hash))
        return max(heads)

    def _note_gap(self, file: LogFile, problem: str, head: Head) -> None:
        reason = f"{file.name} {problem}; the chain continues after row {head.seq}"
        self.notes.append(Row(kind="audit", verdict="gap", body={"reason": reason, "file": file.name}))

    def _use(self, file: LogFile, rows: AppendFile, values: AppendFile | None = None) -> None:
        self._file, self._rows, self._values = file, rows, values
        self._month_end = _end_of(file.month)
        self.is_spoiled = False

    def _last_checkpoint(self) -> Head | None:
        checkpoint = last_checkpoint(
            checkpoints_path(self._folder, self.number), self._keys.signer.verifier, self._origin
        )
        return checkpoint.head if checkpoint is not None else None

    def close_file(self) -> None:
        """Close the files."""
        for file in (self._rows, self._values):
            if file is not None:
                file.close()
        self._rows = self._values = None

    @property
    def is_in_place(self) -> bool:
        """Whether the file that is written is still the one at its path, as it was written."""
        return self._rows is None or self._rows.is_in_place

    @property
    def month(self) -> str:
        """The month of the file that is written."""
        return self._file.month if self._file is not None else ""

    # ----------------------------------------------------------------------------------------------------- writing

    def write(self, rows: Sequence[Timed]) -> None:
        """Write the notes and rows, all or none, with one system call.

        With `sync = "full"` they are on the disk when this returns.

        Raises:
            OSError: nothing was written.
        """
        if self.notes:
            now = self._clock()
            rows = [*((note, now) for note in self.notes), *rows]
        if not rows:
            return
        last = rows[-1][1]
        if last >= self._month_end:
            self._begin_month(last)
        file = self._rows
        if file is None or self.head is None:
            raise OSError("the file is not open")
        seq, digest = self.head
        lines: list[bytes] = []
        values: list[bytes] = []
        for row, at in rows:
            seq += 1
            previous = digest
            try:
                line, digest, beside = encode_row(seq, digest, row, at)
            except (TypeError, ValueError, RecursionError):  # It must not keep the others out.
                line, digest, beside = encode_row(seq, digest, _UNREADABLE, at)
            if beside:
                if self._has_room(len(beside), at):
                    values.append(beside)
                else:
                    omitted = replace(row, values=None, body={**row.body, "values_omitted": "too many today"})
                    line, digest, _ = encode_row(seq, previous, omitted, at)
            lines.append(line)
        if values:
            self._write_with_values(file, b"".join(lines), b"".join(values))
        else:
            self._write(file, b"".join(lines))
        self.head = Head(seq, digest)
        self.notes.clear()
        open_calls = self.open_calls
        for row, _ in rows:
            if row.kind == "decision":
                open_calls[row.request] = (row.caller, row.server, row.name)
            elif row.kind == "outcome":
                open_calls.pop(row.request, None)

    def _has_room(self, size: int, at: int) -> bool:
        """Whether values of this size may be recorded today; then they count."""
        day = at // _DAY
        if day != self._day:
            self._day, self._values_today = day, 0
        self._values_today += size
        written = self._values.size if self._values is not None else 0
        days = time.gmtime(at // 1_000_000_000).tm_mday
        return self._values_today <= MAX_VALUES_A_DAY and written + size <= MAX_VALUES_A_DAY * days

    def _write(self, file: AppendFile, data: bytes) -> None:
        before = file.size
        file.append(data)
        if self._is_full:
            try:
                file.sync()
            except OSError:
                # What the system has of the file in memory is not what is on the disk: it must not be used any more.
                self.is_spoiled = True
                with suppress(OSError):
                    file.cut(before)
                raise

    def _write_with_values(self, file: AppendFile, data: bytes, values: bytes) -> None:
        """Write values and then their rows: opening the log cuts off values that have no row, but not the reverse."""
        if self._values is None and self._file is not None:
            self._values = _created(self._file.values_path)
        if self._values is None:
            raise OSError("the file is not open")
        before = self._values.size
        self._write(self._values, values)
        try:
            self._write(file, data)
        except OSError:
            self._values.cut(before)
            raise

    def _begin_month(self, now: int) -> None:
        """Go on in a new file. The old one ends with a checkpoint, which stays when the file is removed one day."""
        if self.head is None or self._file is None:
            return
        self.checkpoint(self.head)
        file = LogFile(self.number, month_of(now), 1, self._folder)
        rows = _created(file.path)
        self.close_file()
        self._use(file, rows)

    # ------------------------------------------------------------------------------------------- calls left open

    def find_open_calls(self) -> list[Row]:
        """Find the calls that a process left open which died; returns rows about values that it lost.

        Raises:
            OSError: a file cannot be read.
        """
        ended: set[str] = set()
        notes: list[Row] = []
        for file in reversed(log_files(self._folder, self.number)):
            with_values: set[int] = set()
            is_complete = False
            with open(file.path, "rb") as lines:
                for line in lines_backwards(lines, end_of_lines(lines)):
                    try:
                        row = read_row(line)
                    except ValueError:
                        continue  # `verify` names it.
                    if row.kind == "outcome":
                        ended.add(row.request)
                    elif row.kind == "decision" and row.request not in ended:
                        self.open_calls[row.request] = (row.caller, row.server, row.name)
                    if b'"values":"' in row.body:
                        with_values.add(row.seq)
                    if row.kind == "audit" and row.verdict in _BOUNDARIES:
                        is_complete = True
                        break
            if with_values and (lost := sorted(with_values - _numbers_of_values(file))):
                notes.append(Row(kind="audit", verdict="values_lost", body={"file": file.name, "rows": lost}))
            if is_complete:
                break
        return notes

    def close_open_calls(self) -> list[Timed]:
        """Rows that say of each open call that its outcome is unknown."""
        now = self._clock()
        unknown = Row(kind="outcome", verdict="unknown", body={"recovered": now})
        return [
            (replace(unknown, request=request, caller=caller, server=server, name=name), now)
            for request, (caller, server, name) in sorted(self.open_calls.items())
        ]

    # ------------------------------------------------------------------------------------------------ maintenance

    def checkpoint(self, head: Head) -> str:
        """Sign a row that is written; the note is on the disk when this returns, and so are all rows up to it.

        Another thread may write meanwhile.

        Raises:
            OSError: the note cannot be written.
        """
        note = self._keys.signer.sign(Checkpoint(self._origin, head, self._clock(), self._label))
        if self._file is not None:
            # Otherwise rows could be lost with the power that the note vouches for. The descriptors of the writer are
            # not used: it may close them meanwhile.
            for path in (self._file.values_path, self._file.path):
                with suppress(FileNotFoundError):
                    _sync(path)
        append_note(checkpoints_path(self._folder, self.number), note)
        return note


class _Unusable(Exception):
    """A file at whose end the chain cannot go on, and why."""


def _created(path: str) -> AppendFile:
    """A new file, whose name is on the disk."""
    file = AppendFile(path, is_new=True)
    _sync(os.path.dirname(path))
    return file


def _sync(path: str) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _last_row(file: BinaryIO, rows: AppendFile, log_file: LogFile, notes: list[Row]) -> StoredRow | None:
    """The last row of a file. An unfinished line after it, as a power loss leaves it, is set aside, with a note."""
    end = end_of_lines(file)
    line = next(lines_backwards(file, end), None)
    try:
        last = read_row(line) if line is not None else None
    except ValueError as problem:
        raise _Unusable(f"is broken: {problem}") from None
    if end == rows.size:
        return last
    file.seek(end)
    torn = file.read()
    if last is None and not torn.startswith(b'{"seq":') and torn.strip(b"\0"):
        raise _Unusable("is broken: it has no rows of an audit log")
    descriptor = os.open(log_file.torn_path, os.O_CREAT | os.O_APPEND | os.O_WRONLY | os.O_NOFOLLOW, 0o600)
    with open(descriptor, "wb") as aside:
        aside.write(torn + b"\n")
        aside.flush()
        os.fsync(descriptor)
    rows.cut(end)
    body = {"file": log_file.name, "bytes": len(torn), "kept": os.path.basename(log_file.torn_path)}
    notes.append(Row(kind="audit", verdict="torn", body=body))
    return last


class _FileEnd(NamedTuple):
    """The last row of a file that can be read, and the number of damaged lines after it."""

    head: Head
    damaged: int


def _end_of_file(file: LogFile) -> _FileEnd | None:
    """The end of a file; None if no line of it is a row."""
    with open(file.path, "rb") as lines:
        for damaged, line in enumerate(lines_backwards(lines, end_of_lines(lines))):
            try:
                row = read_row(line)
            except ValueError:
                continue
            return _FileEnd(Head(row.seq, row.hash), damaged)
    return None


def _cut_values(file: LogFile, values: AppendFile, last: int) -> None:
    """Cut off values whose rows were never written, and an unfinished line."""
    end = 0
    for offset, line, recorded in read_values(file):
        if recorded is not None and recorded.seq > last:
            break
        end = offset + len(line)
    if end < values.size:
        values.cut(end)


def _numbers_of_values(file: LogFile) -> set[int]:
    """The rows of a file whose values were recorded, also if they have been erased."""
    return {recorded.seq for _, _, recorded in read_values(file) if recorded is not None}


def month_of(now: int) -> str:
    """The month of a time, such as 2026-11."""
    return time.strftime("%Y-%m", time.gmtime(now // 1_000_000_000))


def _end_of(month: str) -> int:
    year, number = int(month[:4]), int(month[5:])
    return calendar.timegm((year + number // 12, number % 12 + 1, 1, 0, 0, 0)) * 1_000_000_000
