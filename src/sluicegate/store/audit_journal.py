"""The audit log of one process: takes a free writer, closes calls that dead processes left open, removes old files."""

import os
import time
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress

from sluicegate.runtime.lock import try_lock
from sluicegate.store.audit_files import MAX_WRITERS, Keys, LogFile, load_keys, writers
from sluicegate.store.audit_writer import Timed, Writer
from sluicegate.store.base import Row
from sluicegate.store.retention import Removal, Retention, removal_of, statements


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
        self._retention = Retention(folder, keep)
        self._clock = clock
        self._lock: int | None = None
        self._was_opened = False

    def open(self, also: Iterable[Timed] = ()) -> None:
        """Open the log, for the first time or after a failure, and write rows.

        Raises:
            OSError, ValueError: it cannot be opened or written.
        """
        os.makedirs(self._folder, mode=0o700, exist_ok=True)
        if self.keys is None:
            self.keys = load_keys(self._folder)
        if self.writer is None:
            number, self._lock = self._free_writer()
            self.writer = Writer(self._folder, number, self.keys, self._sync, self._clock)
        writer = self.writer
        writer.open()
        rows: list[Timed] = []
        if not self._was_opened:
            rows += self._timed(writer.find_open_calls())
            opened: dict[str, object] = {"process": os.getpid()}
            if writer.head is not None and not writer.head.seq:
                opened["begins"] = True  # A chain whose beginning is signed.
            rows += [*writer.close_open_calls(), self._note("opened", opened)]
        rows += also
        if rows or writer.notes:
            writer.write(rows)
        if not self._was_opened:
            self._was_opened = True
            self._close_calls_of_the_dead()

    def _free_writer(self) -> tuple[int, int]:
        for number in range(1, MAX_WRITERS):
            lock = try_lock(os.path.join(self._folder, f"writer{number}.lock"))
            if lock is not None:
                return number, lock
        raise OSError(f"More than {MAX_WRITERS} processes write this audit log")

    def _timed(self, rows: Iterable[Row]) -> list[Timed]:
        return [(row, self._clock()) for row in rows]

    def _note(self, verdict: str, body: dict[str, object]) -> Timed:
        return Row(kind="audit", verdict=verdict, body=body), self._clock()

    def _close_calls_of_the_dead(self) -> None:
        """Do for each writer that no process holds what its process would have done at its next start."""
        for number in writers(self._folder):
            with self._dead(number) as dead:
                if dead is None:
                    continue
                lost = dead.find_open_calls()
                if dead.open_calls:
                    dead.open()
                    recovered = self._note("recovered", {"process": os.getpid()})
                    _write_signed(dead, [*self._timed(lost), *dead.close_open_calls(), recovered])

    @contextmanager
    def _dead(self, number: int) -> Generator[Writer | None]:
        """A writer that no process holds, locked; None if one does. What fails is left to its next start."""
        if self.keys is None or self.writer is None or number == self.writer.number:
            yield None
            return
        lock = try_lock(os.path.join(self._folder, f"writer{number}.lock"))
        if lock is None:
            yield None
            return
        dead = Writer(self._folder, number, self.keys, self._sync, self._clock)
        try:
            with suppress(OSError):
                yield dead
        finally:
            dead.close_file()
            os.close(lock)

    def remove_old(self) -> Removal | None:
        """Remove files that are too old of writers that no process holds; what is to be removed of the own one.

        The row of a removal belongs to the chain of its files, and is written and signed before they are removed.
        Processes that live remove their own files.

        Raises:
            OSError: the folder cannot be read or written.
        """
        due = self._retention.due(self._clock())
        if not due or self.writer is None:
            return None
        for number in sorted({file.writer for file in due} - {self.writer.number}):
            with self._dead(number) as dead:
                # Planned with its lock: another gateway may have removed the files a moment ago.
                if dead is not None and (removal := self._removal(number, due)) is not None:
                    dead.open()
                    _write_signed(dead, self._timed([removal.row]))
                    removal.remove()
        return self._removal(self.writer.number, due)

    def _removal(self, number: int, due: Sequence[LogFile]) -> Removal | None:
        files = [file for file in due if file.writer == number and os.path.exists(file.path)]
        return removal_of(files, self._keep, list(statements(self._folder))) if files else None

    def close(self, rows: Sequence[Timed] = ()) -> str:
        """Write the last rows and a checkpoint, which is returned, and let go of the writer.

        Raises:
            OSError: not all of it could be written.
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


def _write_signed(writer: Writer, rows: Sequence[Timed]) -> None:
    writer.write(rows)
    if writer.head is not None:
        writer.checkpoint(writer.head)
