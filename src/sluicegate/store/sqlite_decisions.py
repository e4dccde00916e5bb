"""`state.db`: approvals, grants and pins of one folder in SQLite, shared by its gateways and the commands.

Calls come from the event loop, so each is one short transaction that gives up quickly if another process holds the
lock. None of the methods waits: they are awaitable because `Decisions` is.

Several processes may write to the file: the gateways of a folder, and commands while none of them listens for
commands. The first answer wins, since each change is a compare-and-set. A process learns of the changes of others from
events of the file system, which make it look at `PRAGMA data_version`; there is no timer.

A gateway holds the lock of a file of its own beside the database. The system releases it when the process ends for any
reason; questions of a gateway whose lock can be taken are void.
"""

import asyncio
import hashlib
import logging
import os
import secrets
import sqlite3
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, aclosing, closing, contextmanager, suppress
from typing import Final, TypeVar

import msgspec

from sluicegate.errors import StateUnavailable
from sluicegate.runtime.lock import try_lock
from sluicegate.runtime.task_scope import forever
from sluicegate.store.base import EXPIRED_FOR, KEPT, Approval, ApprovalAnswer, Grant, Observers, Pin, Seen, new_grant

log = logging.getLogger("sluicegate")

T = TypeVar("T", bound=msgspec.Struct)

LOCKED_FOR: Final = 0.2
"""Seconds that a gateway waits for another writer."""
QUIET_MS: Final = 50
"""Milliseconds without further events of the file before it is looked at: one commit causes several."""
MAX_WAIT_MS: Final = 200
"""Milliseconds after which a file that keeps changing is looked at."""
_VERSION: Final = 3

_SCHEMA: Final = """
CREATE TABLE approvals (
    id TEXT PRIMARY KEY, run TEXT NOT NULL, binding TEXT NOT NULL, caller TEXT NOT NULL, client TEXT NOT NULL,
    method TEXT NOT NULL, server TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, definition TEXT NOT NULL,
    arguments TEXT NOT NULL, others TEXT NOT NULL, rule TEXT NOT NULL, why TEXT NOT NULL,
    asked INTEGER NOT NULL, deadline INTEGER NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('pending', 'approved', 'declined', 'void')), taken INTEGER NOT NULL,
    scope TEXT, "by" TEXT NOT NULL, way TEXT, reason TEXT NOT NULL, decided INTEGER NOT NULL,
    abandoned INTEGER NOT NULL DEFAULT 0, origin TEXT NOT NULL DEFAULT '', repeated TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;
CREATE INDEX approvals_by_binding ON approvals (run, binding);
CREATE INDEX approvals_by_caller ON approvals (run, caller) WHERE state = 'pending';
CREATE INDEX approvals_by_deadline ON approvals (deadline);
CREATE TABLE grants (
    id TEXT PRIMARY KEY, caller TEXT NOT NULL, server TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL,
    definition TEXT NOT NULL, since INTEGER NOT NULL, until INTEGER, "by" TEXT NOT NULL, way TEXT NOT NULL,
    origin TEXT NOT NULL DEFAULT ''
) STRICT, WITHOUT ROWID;
CREATE INDEX grants_by_name ON grants (server, name);
CREATE TABLE pins (
    server TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, hash TEXT NOT NULL, definition TEXT NOT NULL,
    state TEXT NOT NULL CHECK (state IN ('approved', 'pending')), seen INTEGER NOT NULL,
    PRIMARY KEY (server, kind, name, state)
) STRICT, WITHOUT ROWID;
CREATE TABLE pages (run TEXT PRIMARY KEY, url TEXT NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE logins (digest TEXT PRIMARY KEY, deadline INTEGER NOT NULL) STRICT, WITHOUT ROWID;
"""
_FROM_1: Final = """
ALTER TABLE approvals ADD COLUMN abandoned INTEGER NOT NULL DEFAULT 0;
CREATE INDEX IF NOT EXISTS approvals_by_caller ON approvals (run, caller) WHERE state = 'pending';
CREATE INDEX IF NOT EXISTS approvals_by_deadline ON approvals (deadline);
"""
"""Makes the tables of version 1 those of version 2."""
_FORGET: Final = "arguments = '{}', others = '{}'"
"""Of a question that has ended: what it was about may hold secrets. Its binding still tells equal calls."""
_FROM_2: Final = f"""
ALTER TABLE approvals ADD COLUMN origin TEXT NOT NULL DEFAULT '';
ALTER TABLE approvals ADD COLUMN repeated TEXT NOT NULL DEFAULT '';
ALTER TABLE grants ADD COLUMN origin TEXT NOT NULL DEFAULT '';
UPDATE approvals SET {_FORGET} WHERE state != 'pending';
"""
"""Makes the tables of version 2 those of version 3. Grants of version 2 are shown, and cover nothing."""

_UPGRADES: Final = {0: _SCHEMA, 1: _FROM_1 + _FROM_2, 2: _FROM_2}
"""What makes the tables of each earlier version those of this one; 0 is an empty file."""

# A clock that was set back makes a question or a grant invalid rather than longer.
_IN_TIME: Final = "asked <= :now AND :now < deadline"
_NOT_ENDED: Final = "(state = 'pending' OR (state IN ('approved', 'declined') AND taken = 0))"
_UNUSED: Final = f"{_NOT_ENDED} AND {_IN_TIME}"


def _insert(table: str, kind: type[msgspec.Struct]) -> str:
    names = kind.__struct_fields__
    quoted = ", ".join(f'"{name}"' for name in names)  # `by` is a word of SQL.
    return f"INSERT INTO {table} ({quoted}) VALUES ({', '.join(':' + name for name in names)})"


_ADD_APPROVAL: Final = _insert("approvals", Approval)
_ADD_GRANT: Final = _insert("grants", Grant)
_ADD_PIN: Final = _insert("pins", Pin)


class SqliteDecisions:
    """A `Decisions` in one SQLite file."""

    is_shared = True

    def __init__(
        self,
        path: str,
        *,
        locked_for: float = LOCKED_FOR,
        clock: Callable[[], int] = time.time_ns,
        asks: bool = True,
    ) -> None:
        """`asks` says whether this process opens questions, and needs a lock of its own for that.

        Raises:
            StateUnavailable: the file cannot be opened, or another version of sluicegate wrote it.
        """
        self.run = secrets.token_hex(8)
        self._path = path
        self._clock = clock
        self._observers = Observers()
        self.observe = self._observers.add
        self._runs = f"{path}-runs"
        self._lock: int | None = None
        self._busy_ms = int(locked_for * 1000)
        try:
            _create(path)
            self._db = sqlite3.connect(path, timeout=locked_for, isolation_level=None, check_same_thread=False)
        except (OSError, sqlite3.Error) as problem:
            raise _unavailable(problem) from problem
        with ExitStack() as on_failure:
            on_failure.callback(self._db.close)
            with self._errors():
                self._prepare(locked_for)
            if asks:
                # With the right to write, so that no other process takes the lock of a file that is new.
                with self._writing():
                    os.makedirs(self._runs, mode=0o700, exist_ok=True)
                    self._lock = try_lock(os.path.join(self._runs, self.run))
            self._void_stopped()
            self._void_expired()
            self._version = self._data_version()
            on_failure.pop_all()

    def _prepare(self, locked_for: float) -> None:
        run = self._db.execute
        run(f"PRAGMA busy_timeout = {self._busy_ms}")
        # Arguments of calls may hold secrets: what is deleted is overwritten.
        run("PRAGMA secure_delete = ON")
        self._use_wal(time.monotonic() + locked_for)
        # The death of a process loses nothing. After a power failure the last answers may be missing: the safe side.
        run("PRAGMA synchronous = NORMAL")
        if self._db_version() < _VERSION:
            with self._writing() as db:
                before = self._db_version()  # Of two processes that start together, one is first.
                for statement in _UPGRADES.get(before, "").split(";\n"):
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {_VERSION}")
            self._forget_log()
        if self._db_version() != _VERSION:
            raise StateUnavailable("The record of approvals was written by another version of sluicegate.")

    def _use_wal(self, end: float) -> None:
        """Write a log beside the file. Of processes that start together, one switches; SQLite lets no other wait."""
        while True:
            try:
                self._db.execute("PRAGMA journal_mode = WAL")
            except sqlite3.OperationalError:
                if time.monotonic() > end:
                    raise
                time.sleep(0.005)
            else:
                return

    def _db_version(self) -> int:
        return int(self._db.execute("PRAGMA user_version").fetchone()[0])

    # -------------------------------------------------------------------------------------------------- approvals

    async def ask(self, question: Approval, most: int) -> Approval | None:
        """The open question or unused answer with the same run and binding, else this one; see `Approvals`."""
        self._void_expired()
        now = self._clock()
        bound = {"run": question.run, "binding": question.binding, "caller": question.caller, "now": now}
        with self._writing() as db:
            known = f"SELECT * FROM approvals WHERE run = :run AND binding = :binding AND {_UNUSED}"
            found = _first(db.execute(f"{known} ORDER BY asked DESC", bound), Approval)
            if found is not None:
                if found.abandoned:
                    db.execute("UPDATE approvals SET abandoned = 0 WHERE id = ?", (found.id,))
                return msgspec.structs.replace(found, abandoned=False)
            db.execute("DELETE FROM approvals WHERE deadline < ?", (now - KEPT,))
            db.execute("DELETE FROM grants WHERE until <= ?", (now,))
            same = f"run = :run AND caller = :caller AND state = 'pending' AND {_IN_TIME}"
            if db.execute(f"SELECT COUNT(*) FROM approvals WHERE {same}", bound).fetchone()[0] >= most:
                return None
            db.execute(_ADD_APPROVAL, msgspec.structs.asdict(question))
        self._observers.notify("approvals")
        return question

    async def decide(self, approval_id: str, answer: ApprovalAnswer) -> bool:
        """Answer an open question; whether this was the first answer, and in time. A wider yes also adds a grant."""
        self._void_stopped()
        now = self._clock()
        values = msgspec.structs.asdict(answer) | {"id": approval_id, "now": now}
        values["state"] = "declined" if answer.scope is None else "approved"
        with self._writing() as db:
            changed = db.execute(
                f"""UPDATE approvals SET state = :state, scope = :scope, "by" = :by, way = :way, reason = :reason,
                decided = :now, {_FORGET} WHERE id = :id AND state = 'pending' AND {_IN_TIME}""",
                values,
            ).rowcount
            approval = self._find(approval_id)
            if changed and approval is not None and answer.scope in ("minutes", "always"):
                db.execute(_ADD_GRANT, msgspec.structs.asdict(new_grant(approval, answer, now)))
        if changed:
            self._forget_log()
            self._observers.notify("approvals")
        return changed == 1

    def _void_expired(self) -> None:
        """Void questions that nothing has ended: what they are about is forgotten.

        They must not stay open: with a clock that was set back, a question without its arguments could be answered.
        """
        expired, end = "state = 'pending' AND deadline <= ?", (self._clock() - EXPIRED_FOR,)
        with self._errors():
            found = self._db.execute(f"SELECT 1 FROM approvals WHERE {expired} LIMIT 1", end).fetchone()
        if found is not None:  # Most often there is none, and nothing has to wait for other writers.
            with self._writing() as db:
                db.execute(f"UPDATE approvals SET state = 'void', {_FORGET} WHERE {expired}", end)
            self._forget_log()
            self._observers.notify("approvals")

    def _forget_log(self) -> None:
        """Empty the log beside the file, which has what was overwritten. While another process reads it, it stays."""
        with suppress(sqlite3.Error):
            self._db.execute("PRAGMA busy_timeout = 0")
            self._db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        with self._errors():
            self._db.execute(f"PRAGMA busy_timeout = {self._busy_ms}")

    async def take(self, approval_id: str) -> bool:
        """Use an answer; whether it was unused, and still valid."""
        return self._change_approval(f"SET taken = 1 WHERE id = :id AND state != 'pending' AND {_UNUSED}", approval_id)

    async def void(self, approval_id: str) -> bool:
        """End a question without an answer, or an answer that was not used; whether it was one of these."""
        # Also after its deadline: that is when a call that waited in vain ends its question.
        is_done = self._change_approval(f"SET state = 'void', {_FORGET} WHERE id = :id AND {_NOT_ENDED}", approval_id)
        if is_done:
            self._forget_log()
        return is_done

    async def abandon(self, approval_id: str) -> None:
        """Note that no call waits for a question any more."""
        self._change_approval("SET abandoned = 1 WHERE id = :id AND state = 'pending'", approval_id)

    def _change_approval(self, change: str, approval_id: str) -> bool:
        with self._writing() as db:
            changed = db.execute(f"UPDATE approvals {change}", {"id": approval_id, "now": self._clock()}).rowcount
        if changed:
            self._observers.notify("approvals")
        return changed == 1

    async def find(self, approval_id: str) -> Approval | None:
        """A question in any state. Old ones are removed."""
        with self._errors():
            return self._find(approval_id)

    def _find(self, approval_id: str) -> Approval | None:
        return _first(self._db.execute("SELECT * FROM approvals WHERE id = ?", (approval_id,)), Approval)

    async def open_questions(self) -> list[Approval]:
        """All that can be answered now, the oldest first."""
        self._void_stopped()
        self._void_expired()
        query = f"SELECT * FROM approvals WHERE state = 'pending' AND {_IN_TIME} ORDER BY asked, id"
        with self._errors():
            return list(_rows(self._db.execute(query, {"now": self._clock()}), Approval))

    def _void_stopped(self) -> None:
        """Void the questions of gateways that have stopped without doing so."""
        if not os.path.isdir(self._runs) or os.listdir(self._runs) in ([], [self.run]):
            return
        voided = 0
        with self._writing():
            for name in os.listdir(self._runs):
                file = os.path.join(self._runs, name)
                try:
                    lock = try_lock(file, create=False)
                except FileNotFoundError:
                    continue
                if lock is not None:
                    voided += self._void_run(name)
                    os.unlink(file)
                    os.close(lock)
        if voided:
            self._observers.notify("approvals")

    def _void_run(self, run: str) -> int:
        """Void the questions of a gateway; how many there were."""
        query = f"UPDATE approvals SET state = 'void', {_FORGET} WHERE run = ? AND taken = 0 AND state != 'void'"
        voided = self._db.execute(query, (run,)).rowcount
        self._db.execute("DELETE FROM pages WHERE run = ?", (run,))
        return voided

    # ----------------------------------------------------------------------------------------------------- grants

    async def find_grant(
        self, caller: str, server: str, kind: str, name: str, definition: str, origin: str
    ) -> Grant | None:
        """The grant that covers a call now."""
        now = self._clock()
        query = """SELECT * FROM grants WHERE server = ? AND name = ? AND kind = ? AND caller = ? AND definition = ?
            AND origin = ? AND since <= ? AND (until IS NULL OR ? < until)"""
        with self._errors():
            return _first(self._db.execute(query, (server, name, kind, caller, definition, origin, now, now)), Grant)

    async def add_grant(self, question: Approval, answer: ApprovalAnswer) -> None:
        """Keep a wider yes to a question that is not in the store."""
        with self._writing() as db:
            db.execute(_ADD_GRANT, msgspec.structs.asdict(new_grant(question, answer, self._clock())))

    async def grants(self) -> list[Grant]:
        """All that have not ended, the oldest first."""
        query = "SELECT * FROM grants WHERE until IS NULL OR ? < until ORDER BY since, id"
        with self._errors():
            return list(_rows(self._db.execute(query, (self._clock(),)), Grant))

    async def revoke(self, grant_id: str) -> bool:
        """End a grant; whether there was one."""
        with self._writing() as db:
            return db.execute("DELETE FROM grants WHERE id = ?", (grant_id,)).rowcount == 1

    # ------------------------------------------------------------------------------------------------------- pins

    async def see(self, pins: Sequence[Pin]) -> list[Seen]:
        """Compare definitions with the store, and say for each where it stands; see `Pins`."""
        now = self._clock()
        with self._errors():
            known = {(pin.server, pin.kind, pin.name, pin.state): pin for pin in self._pins()}
        if all(_is_settled(known, pin) for pin in pins):
            return [Seen(_known_as(known, pin)) for pin in pins]
        with self._writing() as db:
            known = {(pin.server, pin.kind, pin.name, pin.state): pin for pin in self._pins()}
            return [_see(db, known, pin, now) for pin in pins]

    async def pins(self, server: str | None = None) -> list[Pin]:
        """All pins, or those of one server."""
        with self._errors():
            return [pin for pin in self._pins() if server in (None, pin.server)]

    def _pins(self) -> Iterator[Pin]:
        return _rows(self._db.execute("SELECT * FROM pins ORDER BY server, kind, name, state"), Pin)

    async def approve_pin(self, server: str, kind: str, name: str, hash: str) -> bool:
        """Approve the definition that waits, if it still has this hash; whether it was so."""
        one = "server = ? AND kind = ? AND name = ?"
        with self._writing() as db:
            waits = db.execute(
                f"SELECT 1 FROM pins WHERE {one} AND state = 'pending' AND hash = ?", (server, kind, name, hash)
            ).fetchone()
            if waits is not None:
                db.execute(f"DELETE FROM pins WHERE {one} AND state = 'approved'", (server, kind, name))
                db.execute(f"UPDATE pins SET state = 'approved' WHERE {one}", (server, kind, name))
        if waits is not None:
            self._observers.notify("pins")
        return waits is not None

    async def renew_pin(self, hash: str, pin: Pin) -> bool:
        """Replace the approved definition with this hash by one that is the same; whether it had this hash."""
        query = """UPDATE pins SET hash = :hash, definition = :definition
            WHERE server = :server AND kind = :kind AND name = :name AND state = 'approved' AND hash = :before"""
        with self._writing() as db:
            return db.execute(query, msgspec.structs.asdict(pin) | {"before": hash}).rowcount == 1

    async def forget_pin(self, server: str, kind: str, name: str) -> bool:
        """Forget what is known of one definition; whether there was anything."""
        with self._writing() as db:
            query = "DELETE FROM pins WHERE server = ? AND kind = ? AND name = ?"
            changed = db.execute(query, (server, kind, name)).rowcount
        if changed:
            self._observers.notify("pins")
        return changed > 0

    # ----------------------------------------------------------------------------------------------------- logins

    async def set_page(self, url: str) -> None:
        """Note where the page of this process is."""
        with self._writing() as db:
            db.execute("INSERT OR REPLACE INTO pages VALUES (?, ?)", (self.run, url))

    async def page(self) -> str | None:
        """Where the page of a running gateway is."""
        self._void_stopped()
        with self._errors():
            found = self._db.execute("SELECT url FROM pages ORDER BY url").fetchone()
        return None if found is None else str(found[0])

    async def add_login(self, key: str, seconds: float) -> None:
        """Accept a key for a login once, within these seconds."""
        now = self._clock()
        with self._writing() as db:
            db.execute("DELETE FROM logins WHERE deadline <= ?", (now,))
            db.execute("INSERT INTO logins VALUES (?, ?)", (_digest(key), now + int(seconds * 10**9)))

    async def use_login(self, key: str) -> bool:
        """Use a key; whether it was accepted."""
        with self._writing() as db:
            query = "DELETE FROM logins WHERE digest = ? AND deadline > ?"
            return db.execute(query, (_digest(key), self._clock())).rowcount == 1

    # -------------------------------------------------------------------------------------------------- the file

    async def follow(self) -> None:
        """Report the changes that other processes make to the observers, until cancelled."""
        # Not imported at the top: commands that wait for nothing should not load it.
        from watchfiles import awatch  # pyright: ignore[reportUnknownVariableType] - one of its arguments is

        folder, name = os.path.split(self._path)
        # Runs when the watch is active: a change before that causes no event.
        asyncio.get_running_loop().call_soon(self._look)
        try:
            events = awatch(
                folder,
                watch_filter=lambda _, path: os.path.basename(path).startswith(name),
                debounce=MAX_WAIT_MS,
                step=QUIET_MS,
                recursive=False,
            )
            async with aclosing(events):
                async for _ in events:
                    self._look()
        except (OSError, RuntimeError) as problem:  # watchfiles raises RuntimeError for errors it does not know.
            log.warning(
                "Decisions that other processes make are not noticed: the system cannot watch it (%s).", problem
            )
            await forever()

    def _look(self) -> None:
        """Notify the observers if another connection has changed the file."""
        try:
            version = self._data_version()
        except StateUnavailable as problem:
            log.warning("%s", problem.message)
            return
        if version != self._version:
            self._version = version
            self._observers.notify("approvals", "pins")

    def _data_version(self) -> int:
        """A number that differs after a commit by another connection."""
        with self._errors():
            return int(self._db.execute("PRAGMA data_version").fetchone()[0])

    async def aclose(self) -> None:
        """Void the open questions of this process, and close the file."""
        with suppress(StateUnavailable):  # The next to open the file does it otherwise.
            with self._writing():
                self._void_run(self.run)
        self._db.close()
        if self._lock is not None:
            with suppress(FileNotFoundError):
                os.unlink(os.path.join(self._runs, self.run))
            os.close(self._lock)
            self._lock = None

    @contextmanager
    def _errors(self) -> Generator[None]:
        try:
            yield
        except (OSError, sqlite3.Error, msgspec.ValidationError) as problem:
            raise _unavailable(problem) from problem

    @contextmanager
    def _writing(self) -> Generator[sqlite3.Connection]:
        """A transaction that has the right to write from its beginning: what it reads stays true until it ends."""
        with self._errors():
            self._db.execute("BEGIN IMMEDIATE")
            try:
                yield self._db
                self._db.execute("COMMIT")
            finally:
                if self._db.in_transaction:  # It was not committed, and must not stay open.
                    with suppress(sqlite3.Error):
                        self._db.execute("ROLLBACK")


def _digest(key: str) -> str:
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest()


_Known = Mapping[tuple[str, str, str, str], Pin]


def _known_as(known: _Known, pin: Pin) -> Pin:
    """The pin of the store with this definition. Raises KeyError if there is none."""
    place = (pin.server, pin.kind, pin.name)
    approved = known.get((*place, "approved"))
    return approved if approved is not None and approved.hash == pin.hash else known[(*place, "pending")]


def _is_settled(known: _Known, pin: Pin) -> bool:
    """Whether the store has the definition, and nothing has to change."""
    place = (pin.server, pin.kind, pin.name)
    approved, pending = known.get((*place, "approved")), known.get((*place, "pending"))
    if approved is not None and approved.hash == pin.hash:
        return pending is None
    return pending is not None and pending.hash == pin.hash


def _see(db: sqlite3.Connection, known: dict[tuple[str, str, str, str], Pin], pin: Pin, now: int) -> Seen:
    key = (pin.server, pin.kind, pin.name)
    approved, pending = known.get((*key, "approved")), known.get((*key, "pending"))
    if approved is not None and approved.hash == pin.hash:
        if pending is not None:
            _drop(db, pending)
        return Seen(approved)
    if pending is not None and pending.hash == pin.hash:
        return Seen(pending)
    if pending is not None:
        _drop(db, pending)
    is_first = approved is None and pending is None
    kept = msgspec.structs.replace(pin, state=pin.state if is_first else "pending", seen=now)
    db.execute(_ADD_PIN, msgspec.structs.asdict(kept))
    known[(*key, kept.state)] = kept
    return Seen(kept, "first" if is_first else "changed")


def _drop(db: sqlite3.Connection, pin: Pin) -> None:
    db.execute(
        "DELETE FROM pins WHERE server = ? AND kind = ? AND name = ? AND state = ?",
        (pin.server, pin.kind, pin.name, pin.state),
    )


def _rows(cursor: sqlite3.Cursor, kind: type[T]) -> Iterator[T]:
    with closing(cursor):
        names = [column[0] for column in cursor.description]
        for row in cursor:
            # Another process may have written it: what does not fit is an error, never a value (B5).
            yield msgspec.convert(dict(zip(names, row, strict=True)), kind, strict=False)


def _first(cursor: sqlite3.Cursor, kind: type[T]) -> T | None:
    return next(_rows(cursor, kind), None)


def _create(path: str) -> None:
    """Make the file accessible to its owner alone, before SQLite writes to it; its other files get the same mode."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600))
    os.chmod(path, 0o600)


def _unavailable(problem: Exception) -> StateUnavailable:
    cause = problem.strerror if isinstance(problem, OSError) else str(problem)  # Neither names a path.
    return StateUnavailable(f"The record of approvals cannot be used ({cause}), so nothing was done; try again later.")
