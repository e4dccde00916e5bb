"""Stores in memory: for tests, and for gateways that keep nothing."""

import hashlib
import io
import os
import time
from collections.abc import Awaitable, Callable, Iterator
from typing import BinaryIO

import msgspec

from sluicegate.store.audit_index import IndexedReader
from sluicegate.store.base import AuditReader, Row
from sluicegate.store.chain import Head, RecordedValues, StoredRow, beginning, encode_row, read_row
from sluicegate.store.floods import FLOODED, Floods


class MemoryAudit:
    """An `AuditLog` that keeps the lines that one in files would write."""

    problem = ""

    def __init__(self, clock: Callable[[], int] = time.time_ns) -> None:
        self.head = self.beginning = beginning("memory")
        self._lines: list[bytes] = []
        self._values: list[bytes] = []
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
        admitted = self._floods.admitted(row, now) if row.kind in FLOODED else row
        if admitted is not None:
            line, digest, values = encode_row(self.head.seq + 1, self.head.hash, admitted, now)
            self._lines.append(line)
            self.head = Head(self.head.seq + 1, digest)
            if values:
                self._values.append(values)

    def digest(self, data: bytes) -> str:
        """BLAKE2b-128 with a key of this process."""
        keyed = self._digest.copy()
        keyed.update(data)
        return keyed.hexdigest()

    @property
    def rows(self) -> list[StoredRow]:
        """All rows, in their order."""
        return list(map(read_row, self._lines))

    @property
    def recorded_values(self) -> list[RecordedValues]:
        """The values of all rows that have some."""
        return [msgspec.json.decode(line, type=RecordedValues) for line in self._values]

    def reader(self) -> AuditReader:
        """A reader of this log, which sees the rows that are added later."""
        return IndexedReader(_MemorySource(self._lines, self._values))


class _MemorySource:
    """The lines of a log in memory, as one file."""

    def __init__(self, lines: list[bytes], values: list[bytes]) -> None:
        self._lines = lines
        self._values = values

    def files(self) -> list[tuple[str, int]]:
        """One file of one writer."""
        return [("memory", 1)]

    def open(self, name: str) -> BinaryIO:
        """All lines there are now."""
        return io.BytesIO(b"".join(self._lines))

    def values(self, name: str) -> Iterator[RecordedValues]:
        """The recorded values of all rows."""
        return (msgspec.json.decode(line, type=RecordedValues) for line in list(self._values))


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
