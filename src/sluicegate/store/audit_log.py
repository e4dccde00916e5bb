"""The audit log in files of JSON lines: `open_audit_log` opens it, `FileAudit` takes the rows.

Rows of one turn of the event loop are written together at the next turn, with one system call, in the loop itself: a
thread would fight with it for the interpreter on every row. With `sync = "full"` a thread writes and waits for the
disk, and the rows that come meanwhile are the next group. The one rule: a row that was not written is counted, and the
count is written first.
"""

import asyncio
import hashlib
import logging
import os
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from functools import partial
from typing import Final, Literal

from msgspec.structs import replace

from sluicegate.errors import AuditUnavailable
from sluicegate.runtime.task_scope import TaskScope, forever
from sluicegate.store.anchors import Anchors
from sluicegate.store.audit_journal import Journal
from sluicegate.store.audit_writer import Timed
from sluicegate.store.base import Row
from sluicegate.store.floods import FLOODED, Floods

log = logging.getLogger("sluicegate")

Sync = Literal["normal", "full"]
OnFailure = Literal["closed", "open"]

MAX_ROWS: Final = 10_000
"""Rows that wait to be written."""
_ROWS_AT_ONCE: Final = 1000
_RETRY: Final = 1.0
"""Seconds between two attempts to use a log again that has failed."""
_LOOK: Final = 3600.0
"""Seconds between two looks for files that are too old. A clock that is wrong for a moment is noticed by the next."""
_CLOSING: Final = 2.0
"""Seconds for the anchors to take the last checkpoint."""


Waiter = asyncio.Future[None]


class FileAudit:
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
        # Not `in_thread`: rows and checkpoints must not wait while plain functions of tools occupy all of its threads,
        # and `close` waits for these two without the loop.
        self._executor = ThreadPoolExecutor(1, "sluicegate audit")
        self._keeper = ThreadPoolExecutor(1, "sluicegate audit keeper")
        """For checkpoints, which must not keep rows waiting."""
        self._floods = Floods()
        self._digest = hashlib.blake2b(digest_size=16, key=os.urandom(32))
        self._queue: list[Timed] = []
        self._waiters: list[Waiter | None] = []
        self._is_scheduled = False
        self._job: tuple[Future[None], Callable[[BaseException | None], None]] | None = None
        """What the thread does, and what to call with its failure."""
        self._job_done = asyncio.Event()
        self._missed: list[Timed] = []
        """Rows that could not be written in time, and are written when that is possible again."""
        self._missed_count = self._missed_since = 0
        self._refused_count = 0
        """The missed rows that are decisions of refused calls. Only these need no row: nothing has happened."""
        self._has_failed = self._is_closed = False
        self._returned_at = -_RETRY
        self._rows_per_checkpoint = rows_per_checkpoint
        self._rows_since_checkpoint = 0
        self._checkpoint_due = asyncio.Event()
        self._looked_at = -_LOOK
        self.looked = asyncio.Event()
        """Set after the first look for files that are too old."""

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
        if row.kind in FLOODED:
            admitted = self._floods.admitted(row, now)
            if admitted is None:
                _settle(waiter, None)
                return
            row = admitted
        timed = (row, now)
        if self.problem:
            self._miss([timed], [waiter])
        elif len(self._queue) >= MAX_ROWS:
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
        except Exception as problem:  # Whatever it is, callers wait for these rows.
            self._committed(rows, waiters, problem)
        else:
            self._committed(rows, waiters, None)

    def _committed(self, rows: list[Timed], waiters: list[Waiter | None], problem: BaseException | None) -> None:
        if problem is None:
            for waiter in waiters:
                if waiter is not None and not waiter.done():
                    waiter.set_result(None)
            self._rows_since_checkpoint += len(rows)
            if self._rows_since_checkpoint >= self._rows_per_checkpoint:
                self._checkpoint_due.set()
            if self._queue:
                self._schedule()
        else:
            self._fail(_described(problem), rows, waiters)

    def _schedule(self) -> None:
        if self._queue and not self._is_scheduled:
            self._is_scheduled = True
            self._loop.call_soon(self._commit)

    # ------------------------------------------------------------------------------------------- failure and return

    def _fail(self, problem: str, rows: Sequence[Timed], waiters: Sequence[Waiter | None]) -> None:
        """Refuse rows, or count them, until the log can be written again (R26)."""
        rows, waiters = [*rows, *self._queue], [*waiters, *self._waiters]
        self._queue, self._waiters = [], []
        if not self.problem:
            self.problem = problem
            self._has_failed = True
            consequence = "calls go on without it" if self._is_open else "calls are refused"
            log.error("The audit log cannot be written (%s); %s until it can.", problem, consequence)
            # Not at once if it has just returned: a disk that is nearly full takes a row now and then.
            is_first = self._loop.time() - self._returned_at > _RETRY
            self._loop.call_later(0 if is_first else _RETRY, self._try_again)
        self._miss(rows, waiters)

    def _miss(self, rows: Sequence[Timed], waiters: Sequence[Waiter | None]) -> None:
        for timed, waiter in zip(rows, waiters, strict=True):
            self._missed_since = self._missed_since or timed[1]
            self._missed_count += 1
            # A call whose decision is refused does not run. All else has happened.
            has_happened = self._is_open or timed[0].kind != "decision"
            if not has_happened:
                self._refused_count += 1
            elif len(self._missed) < MAX_ROWS:
                self._missed.append(_without_values(timed))
            refusal = "The audit log cannot be written, so nothing may run; try again later."
            _settle(waiter, None if self._is_open else AuditUnavailable(refusal))

    def _try_again(self) -> None:
        """Open the log in the thread, and write what was missed."""
        if self._is_closed:
            return
        if self._job is not None:  # It writes rows that came before the failure was noticed.
            self._loop.call_later(_RETRY, self._try_again)
            return
        missed = list(self._missed)
        rows = [*([self._gap(len(missed))] if self._missed_count or self._has_failed else ()), *missed]
        counts = self._missed_count, self._refused_count
        self._start(lambda: self._journal.open(rows), lambda problem: self._tried(len(missed), counts, problem))

    def _gap(self, late: int) -> Timed:
        body = {
            "rows": self._missed_count,
            "late": late,
            "lost": self._missed_count - self._refused_count - late,
            "since": self._missed_since,
            "reason": self.problem,
        }
        if not self._is_open:
            body["refused"] = self._refused_count
        return Row(kind="audit", verdict="gap", body=body), self._clock()

    def _tried(self, written: int, counts: tuple[int, int], problem: BaseException | None) -> None:
        if problem is not None:
            self.problem = _described(problem)
            self._loop.call_later(_RETRY, self._try_again)
            return
        if self._journal.keys is not None:
            self._digest = hashlib.blake2b(digest_size=16, key=self._journal.keys.digest)
        if self.problem and self._missed_count:
            log.warning("The audit log can be written again; %d rows were not written in time.", self._missed_count)
        # What came while the thread was busy is not in its count.
        late, self._missed = self._missed[written:], []
        self._missed_count -= counts[0]
        self._refused_count -= counts[1]
        if self._missed_count:
            self._queue[:0] = [self._gap(len(late)), *late]
            self._waiters[:0] = [None] * (len(late) + 1)
        self._missed_count = self._missed_since = self._refused_count = 0
        self._has_failed = False
        self._returned_at = self._loop.time()
        self.problem = ""
        self._rows_since_checkpoint += written + 1
        self._schedule()

    # --------------------------------------------------------------------------------------------------- the thread

    def _start(self, work: Callable[[], None], done: Callable[[BaseException | None], None]) -> None:
        job = self._executor.submit(work)
        self._job = (job, done)
        self._job_done.clear()
        job.add_done_callback(self._wake)

    def _wake(self, job: Future[None]) -> None:
        with suppress(RuntimeError):  # The loop may have ended; `close` looks for itself.
            self._loop.call_soon_threadsafe(self._finish_job)

    def _finish_job(self) -> None:
        if self._job is not None and self._job[0].done():
            job, done = self._job
            self._job = None
            self._job_done.set()
            done(job.exception())

    # --------------------------------------------------------------------------------------------------- lifetime

    async def open(self) -> None:
        """Open the log. If that fails, the log is unavailable until it succeeds."""
        self.problem = "it is not open yet"
        self._try_again()
        await self._job_done.wait()
        if self.problem:
            log.error("The audit log cannot be opened: %s.", self.problem)

    async def keep(self, anchors: Anchors, seconds: float) -> None:
        """Write and send checkpoints, until cancelled."""
        failed = ""
        while True:
            self._checkpoint_due.clear()
            try:
                await self._checkpoint(anchors)
                failed = ""
            except OSError as problem:  # The rows are written; a checkpoint can come later.
                if _described(problem) != failed:
                    failed = _described(problem)
                    log.error("The audit log could not be signed: %s.", failed)
            try:
                await self._remove_old()
            except OSError as problem:  # The next look tries again.
                log.error("Old files of the audit log could not be removed: %s.", _described(problem))
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    # After a failure only time counts: each new row would be another attempt.
                    await (forever() if failed else self._checkpoint_due.wait())
            for row in self._floods.ended(self._clock()):
                self.note(row)

    async def _checkpoint(self, anchors: Anchors) -> None:
        writer = self._journal.writer
        if self.problem or writer is None or writer.head is None or not self._rows_since_checkpoint:
            return
        signed = self._rows_since_checkpoint
        in_keeper = partial(self._loop.run_in_executor, self._keeper)
        note = await in_keeper(writer.checkpoint, writer.head)
        self._rows_since_checkpoint -= signed
        if self._job is None and not self.problem and not writer.is_in_place:
            writer.is_spoiled = True
            self._fail("its file has been moved, removed or changed", (), ())
        await anchors.send(note)

    async def _remove_old(self) -> None:
        """Remove files that are too old, once the row about it is signed."""
        writer = self._journal.writer
        if self.problem or writer is None or self._loop.time() - self._looked_at < _LOOK:
            return
        self._looked_at = self._loop.time()
        in_keeper = partial(self._loop.run_in_executor, self._keeper)
        removal = await in_keeper(self._journal.remove_old)
        if removal is not None:
            with suppress(AuditUnavailable):
                await self.append(removal.row)
                if not self.problem and writer.head is not None:
                    await in_keeper(writer.checkpoint, writer.head)
                    await in_keeper(removal.remove)
        self.looked.set()

    def close(self) -> str:
        """Write all that waits; the last checkpoint. It does not return to the loop in between."""
        self._is_closed = True
        self._executor.shutdown(wait=True)
        self._keeper.shutdown(wait=True)
        self._finish_job()
        rows, waiters = [*self._queue, *((row, self._clock()) for row in self._last_rows())], self._waiters
        self._queue, self._waiters = [], []
        try:
            if self.problem:
                rows = [*([self._gap(len(self._missed))] if self._missed_count else ()), *self._missed, *rows]
                self._journal.open()
            note = self._journal.close(rows)
        except Exception as problem:  # Whatever it is, callers wait for these rows.
            log.error("The end of the audit log could not be written: %s.", problem)
            failure, note = AuditUnavailable("The audit log cannot be written."), ""
        else:
            failure = None
        for waiter in waiters:
            _settle(waiter, failure)
        self.problem = "it is closed"
        return note

    def _last_rows(self) -> list[Row]:
        return list(self._floods.ended(self._clock(), all_of_them=True))


def _described(problem: BaseException) -> str:
    return str(problem) or type(problem).__name__


def _without_values(timed: Timed) -> Timed:
    """A row to be held in memory. Values may be large, so they are not kept."""
    row, at = timed
    return timed if row.values is None else (replace(row, values=None, body={**row.body, "values_lost": True}), at)


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
    last_checkpoint: str = "",
    clock: Callable[[], int] = time.time_ns,
    rows_per_checkpoint: int = 1000,
    seconds_per_checkpoint: float = 60.0,
) -> AsyncGenerator[FileAudit]:
    """An audit log in a folder. It opens even if the folder cannot be used: then it is unavailable until it can.

    `last_checkpoint` is a file outside the folder: it shows that there was a log, also when the folder is removed.
    """
    audit = FileAudit(
        folder,
        sync=sync,
        on_failure=on_failure,
        keep=keep,
        clock=clock,
        rows_per_checkpoint=rows_per_checkpoint,
    )
    copies = Anchors(anchors, last_checkpoint)
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
