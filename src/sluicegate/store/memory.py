"""Stores in memory: for tests, and for gateways that keep nothing."""

import hashlib
import os
import time
from collections.abc import Awaitable, Callable

from sluicegate.store.audit_writer import encoded
from sluicegate.store.base import Row
from sluicegate.store.chain import Head, StoredRow, beginning
from sluicegate.store.floods import Floods


class MemoryAudit:
    """An `AuditLog` that keeps its rows, chained as those in files are."""

    problem = ""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self.rows: list[StoredRow] = []
        self.values: dict[int, bytes] = {}
        """Recorded values by the number of their row."""
        self.head = self.beginning = beginning("memory")
        self._clock = clock
        self._floods = Floods()
        self._digest = hashlib.blake2b(digest_size=16, key=os.urandom(32))

    def append(self, row: Row) -> Awaitable[None]:
        """Add a row."""
        self.note(row)
        return _done()

    def note(self, row: Row) -> None:
        """Add a row."""
        now = self._clock()
        admitted = self._floods.admitted(row, now)
        if admitted is not None:
            columns, beside = encoded(self.head.seq + 1, self.head.hash, admitted, now)
            stored = StoredRow(*columns)
            self.rows.append(stored)
            self.head = Head(stored.seq, stored.hash)
            if beside is not None:
                self.values[stored.seq] = beside[2]

    def digest(self, data: bytes) -> str:
        """BLAKE2b-128 with a key of this process."""
        keyed = self._digest.copy()
        keyed.update(data)
        return keyed.hexdigest()


class Unrecorded:
    """An `AuditLog` that keeps nothing."""

    problem = ""

    def append(self, row: Row) -> Awaitable[None]:
        """Forget the row."""
        return _done()

    def note(self, row: Row) -> None:
        """Forget the row."""

    def digest(self, data: bytes) -> str:
        """Nothing: no row holds it."""
        return ""


async def _done() -> None:
    pass
