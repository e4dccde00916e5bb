"""Limits rows about refused requests, so that a flood of requests does not become one of rows.

A denied call of something that exists is counted apart from all other refusals: a flood cannot hide it. Refusals by
rate name what was called, too, but they are the flood itself, so they have no places of their own.
"""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from sluicegate.store.base import Row

PER_SECOND: Final = 10
"""Rows of one source in one second. Denied calls of each server and name are a source of their own."""
MAX_SOURCES: Final = 10_000
"""Sources that are counted on their own; all others count as one. Denied calls have as many places of their own."""

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
        self._noise: dict[tuple[str, ...], _Window] = {}
        self._denials: dict[tuple[str, ...], _Window] = {}
        """Of rows `deny` that name a server, which only those about something that exists do."""

    def admitted(self, row: Row, now: int) -> Row | None:
        """The row, perhaps with the number of those that were suppressed before it; None to suppress it as well."""
        source: tuple[str, ...] = (row.kind, str(row.body.get("source", row.caller)))
        windows = self._noise
        if row.server and row.verdict == "deny":
            # URIs of resources can be made up, so that they could take all places; names of tools cannot.
            windows, source = self._denials, (*source, row.server, "" if ":" in row.name else row.name)
        if source not in windows and len(windows) >= MAX_SOURCES:
            source = ()
        window = windows.get(source)
        if window is None:
            window = windows[source] = _Window(now, row)
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
        for windows in (self._denials, self._noise):
            for source, window in list(windows.items()):
                if all_of_them or not 0 <= now - window.began < _SECOND:
                    del windows[source]
                    if window.suppressed:
                        yield _counted(replace(window.row, request="", values=None), window.suppressed - 1)


def _counted(row: Row, suppressed: int) -> Row:
    return replace(row, body={**row.body, "suppressed": suppressed}) if suppressed else row
