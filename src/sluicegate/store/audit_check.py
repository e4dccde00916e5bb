"""What can be done with an audit log besides writing and searching it: verify it, prove a row, erase recorded values.

All of it reads the files of the log alone, never the index.
"""

import os
import re
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from sluicegate.store.anchor_check import Copies
from sluicegate.store.audit_files import (
    LogFile,
    checkpoints_path,
    earlier_files,
    last_line,
    load_verifier,
    log_files,
    read_notes,
    read_rows,
    read_values,
    writers,
)
from sluicegate.store.audit_journal import Journal
from sluicegate.store.audit_report import Fault, Report
from sluicegate.store.base import Row
from sluicegate.store.chain import (
    Checkpoint,
    Head,
    Proof,
    ProvenRow,
    RecordedValues,
    StoredRow,
    Verifier,
    beginning,
    check_rows,
    format_time,
    prove_row,
    read_row,
)
from sluicegate.store.retention import is_named, statements

MAX_UNSIGNED: Final = 10_000
"""Rows after the last checkpoint. One is signed every 1,000 rows; under load some more are written meanwhile."""
_MAX_UNSIGNED_TIME: Final = 600 * 1_000_000_000
"""Nanoseconds between the first and the last row after the last checkpoint. One is signed every minute."""


def verify(
    folder: str, *, key: Verifier | None = None, anchors: Sequence[str] = (), last_checkpoint: str = ""
) -> Report:
    """Check every chain, checkpoint and recorded value, and that nothing is missing.

    `anchors` are files elsewhere with copies of checkpoints, `last_checkpoint` is one that the gateway keeps by itself.

    Raises:
        ValueError: the folder has no public key, none was given, and nothing is known about a log that was here.
    """
    own = load_verifier(folder)
    verifier = key or own
    copies = Copies(folder, verifier)
    copies.compare(anchors)
    if last_checkpoint:
        copies.compare_last(last_checkpoint)
    faults = copies.faults
    if verifier is None:
        if faults:
            return Report(faults=faults)
        raise ValueError("There is no signing.pub in the folder, so its checkpoints cannot be verified.")
    if own is not None and str(own) != str(verifier):
        problem = "is another key than the given one, so this is not the log that was signed with it"
        faults.insert(0, Fault(writer=0, file="signing.pub", row=0, problem=problem))
    events = _Events(folder)
    numbers = sorted({*writers(folder), *copies.by_writer})
    reports = [_Check(folder, writer, verifier, copies.by_writer[writer], events).run() for writer in numbers]
    found = [fault for each in reports for fault in each.faults]
    return Report(
        rows=sum(each.rows for each in reports),
        files=sum(each.files for each in reports),
        checkpoints=sum(each.checkpoints for each in reports),
        signed=sum(each.signed for each in reports),
        faults=[*faults, *sorted(found, key=lambda fault: not fault.problem.startswith("missing"))],
        notes=[
            *copies.notes,
            *events.notes,
            *(note for each in reports for note in each.notes),
            *map(_not_read, earlier_files(folder)),
        ],
    )


def _not_read(name: str) -> str:
    return f"{name} is a log of an earlier development version, which this version does not read."


class _Check:
    """The check of one writer's chain."""

    def __init__(
        self, folder: str, writer: int, verifier: Verifier, copies: Sequence[Checkpoint], events: "_Events"
    ) -> None:
        self._files = log_files(folder, writer)
        self._writer = writer
        self._origin = f"{verifier.name}/writer{writer}"
        self._own = [each for _, each in read_notes(checkpoints_path(folder, writer), verifier, self._origin)]
        self._copies = copies
        self._checkpoints = {checkpoint.head for checkpoint in (*self._own, *copies)}
        self._by_seq: dict[int, set[bytes]] = defaultdict(set)
        for head in self._checkpoints:
            self._by_seq[head.seq].add(head.hash)
        self._signed = max(self._by_seq, default=0)
        self._events = events
        self._digests: dict[str, dict[int, str]] = defaultdict(dict)
        """The digests of values that rows have, by the name of the file and the number of the row."""
        self._rows = 0
        self._last = 0
        """The number of the last row that is as it was written."""
        self._unsigned: tuple[int, int] | None = None
        """When the first and the last row after the last checkpoint were written."""
        self._begins_signed = False
        self._notes: list[str] = []
        self._file = f"writer{writer}"

    def run(self) -> Report:
        faults: list[Fault] = []
        try:
            faults += [*self._missing_beginning(), *self._missing_end()]
            fault = self._chain() or self._two_histories()
            if fault is None and not faults:
                fault = self._signatures() or self._values()
        except _Differs as differs:
            fault = self._fault(differs.seq, "differs from the signed checkpoint; it or a row before it was changed")
        except OSError as problem:
            fault = self._fault(0, f"cannot be read: {problem}")
        except ValueError as problem:
            fault = self._fault(self._last + 1, f"cannot be read: {problem}")
        return Report(
            rows=self._rows,
            files=len(self._files),
            checkpoints=len(self._checkpoints),
            signed=self._signed,
            faults=[*faults, *([fault] if fault is not None else ())],
            notes=self._notes,
        )

    def _fault(self, row: int, problem: str, until: int = 0) -> Fault:
        return Fault(writer=self._writer, file=self._file, row=row, until=until, problem=problem)

    def _missing_beginning(self) -> list[Fault]:
        """The rows before the first file that are missing, unless a signed row says that retention removed them."""
        file = next((file for file in self._files if os.path.getsize(file.path)), None)
        if file is None:
            return []
        self._file = file.name
        first = next(read_rows(file), None)
        if first is None or first.seq == 1:
            return []
        known = [each for each in self._events.removed if each.writer == self._writer and each.removed.until]
        signed = [each for each in known if each.seq <= self._signed]
        if not signed:
            if is_named(self._writer, self._events.removed):
                self._notes.append(
                    f"writer{self._writer}: the log begins with row {first.seq}. An earlier version recorded which "
                    "files retention removed, but not which rows: that no others were removed cannot be proven."
                )
                return []
            return [self._fault(1, "missing: no row says that retention removed them", first.seq - 1)]
        *_, (_, seq, at, removed) = signed
        missing = list(removed.missing)
        if removed.until < first.seq - 1:
            missing.append((removed.until + 1, first.seq - 1))
        when = f"row {seq} says what retention removed on {format_time(at)[:10]}"
        self._notes.append(f"writer{self._writer}: retention removed the rows up to {removed.until}; {when}.")
        if removed.unproven:
            self._notes.append(
                f"writer{self._writer}: an earlier version removed the rows up to {removed.unproven} and did not "
                "record which ones: that retention removed all of them cannot be proven."
            )
        return [self._fault(row, f"missing: {when}, and it was not these", until) for row, until in missing]

    def _missing_end(self) -> list[Fault]:
        """The rows after the last one that were signed."""
        last = 0
        for file in self._files:
            self._file = file.name
            if (end := last_line(file)) is not None:
                try:
                    last = max(last, read_row(end).seq)
                except ValueError:
                    return []  # The check of the chain names the line; how many rows there were is not known.
        if self._signed <= last:
            return []
        reason = f"missing: a checkpoint says that there are {self._signed} rows"
        return [self._fault(last + 1, reason, self._signed)]

    def _chain(self) -> Fault | None:
        head: Head | None = None
        for file in self._files:
            self._file = file.name
            rows = read_rows(file)
            first = next(rows, None)
            if first is not None:
                start = self._start(head, first)
                if isinstance(start, Fault):
                    return start
                self._last = start.seq
                head, bad = check_rows(start, self._watched(first, rows))
                if bad is not None:
                    return self._fault(*bad)
            fault = self._unfinished(file)
            if fault is not None:
                return fault
        return None

    def _start(self, before: Head | None, first: StoredRow) -> Head | Fault:
        """The head before the first row of a file: that of the file before it, or a checkpoint of a removed one."""
        if before is not None:
            return before
        if first.seq == 1:
            return beginning(self._origin)
        signed = self._by_seq.get(first.seq - 1)
        if signed is None:
            return self._fault(first.seq, "is the first one, but no checkpoint vouches for the rows before it")
        return Head(first.seq - 1, min(signed))

    def _two_histories(self) -> Fault | None:
        """A row that was signed twice, differently; it may have been removed since."""
        seq = min((seq for seq, hashes in self._by_seq.items() if len(hashes) > 1), default=None)
        return None if seq is None else self._fault(seq, "differs between the checkpoints of the log and their copies")

    def _signatures(self) -> Fault | None:
        """Whether enough is signed, and the copies elsewhere are as new as the log."""
        self._file = f"writer{self._writer}.checkpoints"
        if self._begins_signed and not any(each.head.seq == 0 for each in self._own):
            return self._fault(0, "lacks the checkpoint of the beginning: checkpoints were removed")
        if not self._own:
            problem = "signs nothing: checkpoints were removed, or the gateway was killed in its first minute"
            return self._fault(0, f"{problem}. The next start of the gateway signs the rows that are there")
        if not self._begins_signed and self._last and self._files:
            self._note_unsigned_beginning()
        if self._unsigned is not None:
            since, until = self._unsigned
            if self._last - self._signed > MAX_UNSIGNED or until - since > _MAX_UNSIGNED_TIME:
                problem = (
                    "not signed: checkpoints were removed, or could not be written. A running gateway signs its rows"
                )
                return self._fault(self._signed + 1, f"{problem} within a minute", self._last)
        self._note_old_copies()
        return None

    def _note_unsigned_beginning(self) -> None:
        if next(read_rows(self._files[0]), None) is not None and self._rows == self._last:
            self._notes.append(
                f"writer{self._writer}: an earlier version began the log, without a signed beginning. That checkpoints "
                "were not removed and signed again can be proven only with a copy of them."
            )

    def _note_old_copies(self) -> None:
        newest = max((each.head.seq, each.at) for each in self._own)
        if self._copies and newest > (copied := max((each.head.seq, each.at) for each in self._copies)):
            if newest[1] - copied[1] > _MAX_UNSIGNED_TIME:
                self._notes.append(
                    f"writer{self._writer}: the copies of the checkpoints end with row {copied[0]}. Only the key in "
                    f"the folder vouches for the rows {copied[0] + 1} to {newest[0]}."
                )

    def _unfinished(self, file: LogFile) -> Fault | None:
        """What is wrong with a last line that is not finished: nothing, if the writer can still set it aside."""
        with open(file.path, "rb") as lines:
            lines.seek(max(0, os.fstat(lines.fileno()).st_size - 1))
            if lines.read(1) in (b"", b"\n"):
                return None
        if file != self._files[-1]:
            return self._fault(0, "ends with an unfinished line")
        self._notes.append(
            f"{file.name} ends with an unfinished line: it is being written now, or the power was lost. "
            "The next gateway that uses the file sets the line aside."
        )
        return None

    def _watched(self, first: StoredRow, others: Iterable[StoredRow]) -> Iterator[StoredRow]:
        """The rows, compared with the checkpoints on their way."""
        row: StoredRow | None = first
        rows = iter(others)
        while row is not None:
            yield row
            # Resumed only if the row fits into the chain.
            self._rows += 1
            self._last = row.seq
            if row.seq > self._signed:
                self._unsigned = (self._unsigned[0] if self._unsigned is not None else row.at, row.at)
            if row.kind == "audit" and b'"begins":true' in row.body:
                self._begins_signed = True
            if any(row.hash != signed for signed in self._by_seq.get(row.seq, ())):
                raise _Differs(row.seq)
            if digest := _digest_of_values(row):
                self._digests[self._file][row.seq] = digest
            row = next(rows, None)

    def _values(self) -> Fault | None:
        """What is wrong with the recorded values: changed ones, and ones that were removed without a row about it."""
        for file in self._files:
            self._file = file.name
            fault = self._values_of(file)
            if fault is not None:
                return fault
        return None

    def _values_of(self, file: LogFile) -> Fault | None:
        explained = self._events.without_values[file.name]
        left = self._digests[file.name]
        for _, _, recorded in read_values(file):
            if recorded is None or not recorded.salt:
                continue  # The row is without its values then.
            digest = left.pop(recorded.seq, None)
            if digest is None:
                return self._fault(recorded.seq, "has recorded values that it does not know of")
            if not _has_digest(recorded, digest):
                return self._fault(recorded.seq, "has other recorded values than were written")
        lost = sorted(left.keys() - explained)
        if lost:
            return self._fault(lost[0], "has lost its recorded values, and no row says that they were erased")
        return None


def _digest_of_values(row: StoredRow) -> str:
    if b'"values":"' not in row.body:
        return ""
    digest = msgspec.json.decode(row.body, type=dict[str, object]).get("values")
    return digest if isinstance(digest, str) else ""


def _has_digest(recorded: RecordedValues, digest: str) -> bool:
    try:
        return recorded.digest == digest
    except ValueError:  # The salt is not hexadecimal.
        return False


class _Differs(Exception):
    def __init__(self, seq: int) -> None:
        super().__init__(seq)
        self.seq = seq


# ------------------------------------------------------------------------------------------------------------- proofs


def prove(folder: str, request: str) -> Proof:
    """The proof that the rows of a request are in the log, up to the first checkpoint after each.

    Raises:
        LookupError: there is no such request, or no checkpoint after one of its rows yet.
        ValueError: the folder has no public key, or a file cannot be read.
        OSError: a file cannot be read.
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
        proven += _proven(log_files(folder, writer), request, notes, beginning(origin))
    if not proven:
        raise LookupError(f"The log has no request {request}.")
    rows = [each for _, each in sorted(proven, key=lambda each: each[0])]
    return Proof(request=request, key=str(verifier), rows=rows)


class _Started:
    """A proof that lacks rows up to the next checkpoint."""

    def __init__(self, file: LogFile, previous: bytes, row: StoredRow, note: str, last: int) -> None:
        self.file = file
        self.previous = previous
        self.row = row
        self.note = note
        self.last = last
        self.following: list[bytes] = []


def _proven(
    files: Sequence[LogFile], request: str, notes: Sequence[tuple[str, Checkpoint]], start: Head
) -> Iterator[tuple[int, ProvenRow]]:
    """The proofs of the rows that one writer has of a request, with their times."""
    started: list[_Started] = []
    # The first file may begin after rows that were removed; a checkpoint has the hash of the last one.
    hashes = {checkpoint.head.seq: checkpoint.head.hash for _, checkpoint in notes} | {start.seq: start.hash}
    before = start
    wanted = request.encode()
    for file in files:
        for row in read_rows(file):
            for each in started:
                if each.row.seq < row.seq <= each.last:
                    each.following.append(row.content)
            if wanted in row.content and row.request == request:
                found = next(((note, each.head.seq) for note, each in notes if each.head.seq >= row.seq), None)
                if found is None:
                    raise LookupError("No checkpoint covers the request yet; one is written every 60 seconds.")
                previous = before.hash if before.seq == row.seq - 1 else hashes.get(row.seq - 1, b"")
                started.append(_Started(file, previous, row, *found))
            before = Head(row.seq, row.hash)
    for each in started:
        yield each.row.at, _with_values(each, prove_row(each.previous, each.row, each.following, each.note))


def _with_values(started: _Started, proven: ProvenRow) -> ProvenRow:
    for _, _, recorded in read_values(started.file):
        if recorded is not None and recorded.seq == started.row.seq and recorded.salt:
            return msgspec.structs.replace(proven, salt=recorded.salt, values=bytes(recorded.values).decode())
    return proven


# ------------------------------------------------------------------------------------------------------------- values


def erase(folder: str, numbers: Iterable[tuple[int, int]], *, by: str = "") -> int:
    """Erase the recorded values of rows, each given by its writer and number. A row says which, and who did it.

    Returns how many there were.

    Raises:
        OSError, ValueError: not all could be erased. Erasing again is safe.
    """
    wanted = set(numbers)
    chosen: list[tuple[LogFile, list[tuple[int, int, bytes]]]] = []
    for file in log_files(folder):
        lines = [each for each in _lines_with_values(file) if (file.writer, each[0]) in wanted]
        if lines:
            chosen.append((file, lines))
    if not chosen:
        return 0
    journal = Journal(folder, sync="full", keep=0)
    now = time.time_ns()
    rows = [
        (
            Row(
                kind="audit",
                caller=by,
                verdict="erased",
                body={"file": file.name, "rows": [seq for seq, _, _ in lines]},
            ),
            now,
        )
        for file, lines in chosen
    ]
    try:
        # The row comes first: a crash in between leaves values that can be erased again, and nothing unexplained.
        journal.open(rows)
        for file, lines in chosen:
            _overwrite(file, lines)
    finally:
        journal.close()
    return sum(len(lines) for _, lines in chosen)


_HAS_VALUES: Final = re.compile(rb'\{"seq":(\d+),').match
"""Matches also a line that a crash has left half erased."""


def _lines_with_values(file: LogFile) -> Iterator[tuple[int, int, bytes]]:
    """The row, the offset and the text of each line that has values."""
    for offset, line, _ in read_values(file):
        if match := _HAS_VALUES(line):
            yield int(match[1]), offset, line


def _overwrite(file: LogFile, lines: Iterable[tuple[int, int, bytes]]) -> None:
    """Overwrite lines in their place: the gateway may append to the file meanwhile."""
    descriptor = os.open(file.values_path, os.O_WRONLY | os.O_NOFOLLOW)
    try:
        for seq, offset, line in lines:
            rest = (b'{"seq":%d}' % seq).ljust(len(line) - 1)
            while rest:
                written = os.pwrite(descriptor, rest, offset)
                rest, offset = rest[written:], offset + written
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


class _Events:
    """What rows of the log say about its files."""

    def __init__(self, folder: str) -> None:
        self.without_values: dict[str, set[int]] = defaultdict(set)
        """The rows of each file whose values were erased or lost, on record."""
        self.notes: list[str] = []
        self.removed = list(statements(folder))
        for file in log_files(folder):
            try:
                for row in read_rows(file, b'"kind":"audit"'):
                    if row.kind == "audit" and row.verdict in ("erased", "values_lost", "torn", "gap"):
                        self._add(row, msgspec.json.decode(row.body, type=_Event))
            except (OSError, ValueError):
                continue  # The check of its chain reports it.

    def _add(self, row: StoredRow, event: "_Event") -> None:
        name = os.path.basename(event.file)
        if row.verdict == "gap":
            if name:  # Otherwise rows could not be written for a while, and nothing is wrong with a file.
                self.notes.append(f"{event.reason} (row {row.seq}).")
            return
        if row.verdict == "torn":
            self.notes.append(
                f"{name}: a power loss left an unfinished line of {event.bytes} bytes before row {row.seq}; "
                f"it is kept in {os.path.basename(event.kept)}."
            )
            return
        numbers = event.rows if isinstance(event.rows, list) else []
        self.without_values[name].update(numbers)
        if row.verdict == "values_lost":
            rows = f"row{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"
            self.notes.append(f"{name}: a power loss took the recorded values of {rows}.")


class _Event(msgspec.Struct):
    file: str = ""
    rows: list[int] | int = []
    """The rows that an event is about; in a gap, how many there were."""
    bytes: int = 0
    kept: str = ""
    reason: str = ""
