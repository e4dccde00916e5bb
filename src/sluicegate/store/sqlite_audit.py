"""The audit log in SQLite files: `open_audit_log` opens it, `SqliteAudit` takes the rows.

Rows of one turn of the event loop are committed together at the next turn, in the loop itself: a thread would fight
with it for the interpreter on every row. With `sync = "full"` a thread commits and waits for the disk, and what comes
meanwhile is the next commit. The one rule: a row that was not written is counted, and the count is written first.
"""

import asyncio
import hashlib
import logging
import os
import sqlite3
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from typing import Final, Literal

from sluicegate.errors import AuditUnavailable, SluicegateError
from sluicegate.runtime.task_scope import TaskScope, in_thread
from sluicegate.store.anchors import Anchors
from sluicegate.store.audit_writer import Journal, Timed, is_locked
from sluicegate.store.base import Row
from sluicegate.store.floods import Floods

log = logging.getLogger("sluicegate")

Sync = Literal["normal", "full"]
OnFailure = Literal["closed", "open"]

MOST_ROWS: Final = 10_000
"""Rows that wait to be written."""
_ROWS_AT_ONCE: Final = 1000
_LOCK_RETRY: Final = 0.01
_LONGEST_LOCK: Final = 1.0
"""Seconds that rows wait for another process to release the file."""
_RETRY: Final = 1.0
"""Seconds between two attempts to use a log again that has failed."""
_CLOSING: Final = 2.0
"""Seconds for the anchors to take the last checkpoint."""

_FAILURES: Final = (sqlite3.Error, OSError, ValueError)


Waiter = asyncio.Future[None]


class SqliteAudit:
    """An `AuditLog` in the files of a folder."""

    def __init__(
        self,
        folder: str,
        *,
        sync: Sync = "normal",
        on_failure: OnFailure = "closed",
        keep: int = 12,
        clock: Callable[[], int] = time.time_ns,
        rows_per_checkpoint: int = 1000,
    ) -> None:
        self.problem = ""
        """Why rows cannot be written at the moment; empty if they can."""
        self._journal = Journal(folder, sync=sync, keep=keep, clock=clock)
        self._is_full = sync == "full"
        self._is_open = on_failure == "open"
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._executor = ThreadPoolExecutor(1, "sluicegate audit")
        self._floods = Floods()
        self._digest = hashlib.blake2b(digest_size=16, key=os.urandom(32))
        self._queue: list[Timed] = []
        self._waiters: list[Waiter | None] = []
        self._is_scheduled = False
        self._job: tuple[Future[None], Callable[[BaseException | None], None]] | None = None
        """What the thread does, and what to call with its failure."""
        self._locked_since = 0.0
        self._missed: list[Timed] = []
        """Rows that could not be written in time, and are written when that is possible again."""
        self._missed_count = self._missed_since = 0
        self._has_failed = False
        self._rows_per_checkpoint = rows_per_checkpoint
        self._rows_since_checkpoint = 0
        self.checkpoint_due = asyncio.Event()

    # ------------------------------------------------------------------------------------------------- taking rows

    def append(self, row: Row) -> Awaitable[None]:
        """Return once the row is committed.

        Raises:
            AuditUnavailable: it cannot be written, and the log is configured to stop calls then.
        """
        waiter: Waiter = self._loop.create_future()
        self._take(row, waiter)
        return waiter

    def note(self, row: Row) -> None:
        """Add a row that nothing waits for; it is committed with the next ones."""
        self._take(row, None)

    def digest(self, data: bytes) -> str:
        """BLAKE2b-128 with the key of this log."""
        keyed = self._digest.copy()
        keyed.update(data)
        return keyed.hexdigest()

    def _take(self, row: Row, waiter: Waiter | None) -> None:
        now = self._clock()
        admitted = self._floods.admitted(row, now)
        if admitted is None:
            _settle(waiter, None)
            return
        timed = Timed(admitted, now)
        if self.problem:
            self._miss([timed], [waiter])
        elif len(self._queue) >= MOST_ROWS:
            self._fail("more rows wait than may", [timed], [waiter])
        else:
            self._queue.append(timed)
            self._waiters.append(waiter)
            if not self._is_scheduled:
                self._is_scheduled = True
                self._loop.call_soon(self._commit)

    # --------------------------------------------------------------------------------------------------- committing

    def _commit(self) -> None:
        """Write what has come since the last turn."""
        self._is_scheduled = False
        writer = self._journal.writer
        if not self._queue or self._job is not None or self.problem or writer is None:
            return  # What waits is written when the thread is done.
        rows, waiters = self._queue[:_ROWS_AT_ONCE], self._waiters[:_ROWS_AT_ONCE]
        del self._queue[:_ROWS_AT_ONCE], self._waiters[:_ROWS_AT_ONCE]
        if self._is_full:
            self._start(lambda: writer.write(rows), lambda problem: self._committed(rows, waiters, problem))
            return
        try:
            writer.write(rows)
        except _FAILURES as problem:
            self._committed(rows, waiters, problem)
        else:
            self._committed(rows, waiters, None)

    def _committed(self, rows: list[Timed], waiters: list[Waiter | None], problem: BaseException | None) -> None:
        if problem is None:
            self._locked_since = 0.0
            for waiter in waiters:
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
            self._rows_since_checkpoint += len(rows)
            if self._rows_since_checkpoint >= self._rows_per_checkpoint:
                self.checkpoint_due.set()
            self._schedule()
        elif isinstance(problem, sqlite3.Error) and is_locked(problem) and not self._is_locked_for_long():
            self._queue[:0], self._waiters[:0] = rows, waiters
            self._is_scheduled = True
            self._loop.call_later(_LOCK_RETRY, self._commit)
        else:
            self._fail(str(problem), rows, waiters)

    def _schedule(self) -> None:
        if self._queue and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._commit)

    def _is_locked_for_long(self) -> bool:
        now = self._loop.time()
        self._locked_since = self._locked_since or now
        return now - self._locked_since > _LONGEST_LOCK

    # ------------------------------------------------------------------------------------------- failure and return

    def _fail(self, problem: str, rows: Sequence[Timed], waiters: Sequence[Waiter | None]) -> None:
        """Refuse rows, or count them, until the log can be written again (R26)."""
        self._locked_since = 0.0
        rows, waiters = [*rows, *self._queue], [*waiters, *self._waiters]
        self._queue, self._waiters = [], []
        if not self.problem:
            self.problem = problem
            self._has_failed = True
            consequence = "calls go on without it" if self._is_open else "calls are refused"
            log.error("The audit log cannot be written (%s); %s until it can.", problem, consequence)
            self._loop.call_soon(self._try_again)
        self._miss(rows, waiters)

    def _miss(self, rows: Sequence[Timed], waiters: Sequence[Waiter | None]) -> None:
        for timed, waiter in zip(rows, waiters, strict=True):
            self._missed_since = self._missed_since or timed.at
            self._missed_count += 1
            # A call whose decision is refused does not run. All else has happened.
            has_happened = self._is_open or timed.row.kind != "decision"
            if has_happened and len(self._missed) < MOST_ROWS:
                self._missed.append(timed)
            refusal = "The audit log cannot be written, so nothing may run; try again later."
            _settle(waiter, None if self._is_open else AuditUnavailable(refusal))

    def _try_again(self) -> None:
        """Open the log in the thread, and write what was missed."""
        if self._job is not None:
            return
        missed = list(self._missed)
        rows = [*([self._gap(len(missed))] if self._missed_count or self._has_failed else ()), *missed]
        counted = self._missed_count
        self._start(lambda: self._journal.open(rows), lambda problem: self._tried(len(missed), counted, problem))

    def _gap(self, late: int) -> Timed:
        body = {
            "rows": self._missed_count,
            "late": late,
            "lost": self._missed_count - late if self._is_open else 0,
            "since": self._missed_since,
            "reason": self.problem,
        }
        if not self._is_open:
            body["refused"] = self._missed_count - late
        return Timed(Row(kind="audit", verdict="gap", body=body), self._clock())

    def _tried(self, written: int, counted: int, problem: BaseException | None) -> None:
        if problem is not None:
            self.problem = str(problem) or type(problem).__name__
            self._loop.call_later(_RETRY, self._try_again)
            return
        if self._journal.keys is not None:
            self._digest = hashlib.blake2b(digest_size=16, key=self._journal.keys.digest)
        if self.problem and self._missed_count:
            log.warning("The audit log can be written again; %d rows were not written in time.", self._missed_count)
        # What came while the thread was busy is not in its count.
        late, self._missed = self._missed[written:], []
        self._missed_count -= counted
        if self._missed_count:
            self._queue = [self._gap(len(late)), *late]
            self._waiters = [None] * len(self._queue)
        self._missed_count = self._missed_since = 0
        self._has_failed = False
        self.problem = ""
        self._rows_since_checkpoint += written + 1
        self._schedule()

    # --------------------------------------------------------------------------------------------------- the thread

    def _start(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        job = self._executor.submit(work)
        self._job = (job, done)
        job.add_done_callback(self._wake)

    def _wake(self, job: Future[None]) -> None:
        with suppress(RuntimeError):  # The loop may have ended; `close` looks for itself.
            self._loop.call_soon_threadsafe(self._finish_job)

    def _finish_job(self) -> None:
        if self._job is not None and self._job[0].done():
            job, done = self._job
            self._job = None
            problem = job.exception()
            if problem is not None and not isinstance(problem, _FAILURES):
                log.error("The audit log failed in an unexpected way.", exc_info=problem)
            done(problem)

    # --------------------------------------------------------------------------------------------------- lifetime

    async def open(self) -> None:
        """Open the log. If that fails, the log is unavailable until it succeeds."""
        self.problem = "it is not open yet"
        self._try_again()
        while self._job is not None:
            await asyncio.wait([asyncio.wrap_future(self._job[0])])
            await asyncio.sleep(0)
        if self.problem:
            log.error("The audit log cannot be opened: %s.", self.problem)

    async def keep(self, anchors: Anchors, seconds: float) -> None:
        """Write and send checkpoints, until cancelled."""
        month = ""
        while True:
            self.checkpoint_due.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self.checkpoint_due.wait()
            for row in self._floods.ended(self._clock()):
                self.note(row)
            writer = self._journal.writer
            if self.problem or writer is None or writer.head is None or not self._rows_since_checkpoint:
                continue
            head, self._rows_since_checkpoint = writer.head, 0
            try:
                note = await in_thread(lambda writer=writer, head=head: writer.checkpoint(head))
                await in_thread(writer.fold_wal)
                if writer.month != month:
                    month = writer.month
                    if removed := await in_thread(self._journal.remove_old):
                        self.note(removed)
                if not writer.is_in_place:
                    writer.is_spoiled = True
                    self._fail("its file has been moved or removed", (), ())
            except OSError as problem:
                self._fail(str(problem), (), ())
            except SluicegateError:  # All threads are busy.
                self._rows_since_checkpoint = max(1, self._rows_since_checkpoint)
            else:
                await anchors.send(note)

    def close(self) -> str:
        """Write all that waits; the last checkpoint. It does not return to the loop in between."""
        self._executor.shutdown(wait=True)
        self._finish_job()
        rows, waiters = [*self._queue, *(Timed(row, self._clock()) for row in self._last_rows())], self._waiters
        self._queue, self._waiters = [], []
        try:
            if self.problem:
                rows = [*([self._gap(len(self._missed))] if self._missed_count else ()), *self._missed, *rows]
                self._journal.open()
            note = self._journal.close(rows)
        except _FAILURES as problem:
            log.error("The end of the audit log could not be written: %s.", problem)
            for waiter in waiters:
                _settle(waiter, AuditUnavailable("The audit log cannot be written."))
            return ""
        for waiter in waiters:
            _settle(waiter, None)
        self.problem = "it is closed"
        return note

    def _last_rows(self) -> list[Row]:
        return list(self._floods.ended(self._clock(), all_of_them=True))


def _settle(waiter: Waiter | None, problem: Exception | None) -> None:
    if waiter is None or waiter.done():
        return
    if problem is None:
        waiter.set_result(None)
    else:
        waiter.set_exception(problem)


@asynccontextmanager
async def open_audit_log(
    folder: str,
    *,
    sync: Sync = "normal",
    on_failure: OnFailure = "closed",
    keep: int = 12,
    anchors: tuple[str, ...] = (),
    clock: Callable[[], int] = time.time_ns,
    rows_per_checkpoint: int = 1000,
    seconds_per_checkpoint: float = 60.0,
) -> AsyncGenerator[SqliteAudit]:
    """An audit log in a folder. It opens even if the folder cannot be used: then it is unavailable until it can."""
    audit = SqliteAudit(
        folder,
        sync=sync,
        on_failure=on_failure,
        keep=keep,
        clock=clock,
        rows_per_checkpoint=rows_per_checkpoint,
    )
    copies = Anchors(anchors)
    try:
        await audit.open()
        async with TaskScope() as tasks:
            tasks.start(audit.keep(copies, seconds_per_checkpoint))
            try:
                yield audit
            finally:
                tasks.cancel_all()
    finally:
        note = audit.close()
        try:
            if note:
                with suppress(TimeoutError):
                    async with asyncio.timeout(_CLOSING):
                        await copies.send(note)
        finally:
            await copies.aclose()
