"""Limits rows about refused requests, so that a flood of requests does not become one of rows."""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from sluicegate.store.base import Row

PER_SECOND: Final = 10
"""Rows of one source in one second."""
MAX_SOURCES: Final = 10_000
"""Sources that are counted on their own; all others count as one."""

FLOODED: Final = frozenset({"reject", "auth_fail", "session"})
"""The kinds of rows that anyone can cause."""
_SECOND: Final = 1_000_000_000


class _Window:
    __slots__ = ("began", "row", "seen", "suppressed")

    def __init__(self, began: int, row: Row) -> None:
        self.began = began
        self.row = row
        self.seen = 0
        self.suppressed = 0


class Floods:
    """Counts rows of `FLOODED` kinds. The source of a row is `source` in its body, else its caller."""

    def __init__(self) -> None:
        self._windows: dict[str, _Window] = {}

    def admitted(self, row: Row, now: int) -> Row | None:
        """The row, perhaps with the number of those that were suppressed before it; None to suppress it as well."""
        source = str(row.body.get("source", row.caller))
        if source not in self._windows and len(self._windows) >= MAX_SOURCES:
            source = ""
        window = self._windows.get(source)
        if window is None:
            window = self._windows[source] = _Window(now, row)
        elif not 0 <= now - window.began < _SECOND:
            row = _counted(row, window.suppressed)
            window.began, window.seen, window.suppressed = now, 0, 0
        window.seen += 1
        if window.seen > PER_SECOND:
            window.suppressed += 1
            window.row = row
            return None
        return row

    def ended(self, now: int, *, all_of_them: bool = False) -> Iterator[Row]:
        """The last suppressed row, with the number of those before it, of each source that was quiet for a second."""
        for source, window in list(self._windows.items()):
            if all_of_them or not 0 <= now - window.began < _SECOND:
                del self._windows[source]
                if window.suppressed:
                    yield _counted(replace(window.row, request="", values=None), window.suppressed - 1)


def _counted(row: Row, suppressed: int) -> Row:
    return replace(row, body={**row.body, "suppressed": suppressed}) if suppressed else row
