"""Which files of an audit log are too old to be kept, and the row that says so before they are removed.

A file is removed after 24 looks in a row, over at least a day by the clock, have found it too old. A gateway looks at
its start and then every hour by the monotonic clock, so a clock that is wrong for some hours, or jumps by days
meanwhile, removes nothing. Looks are counted, also those of several gateways together, because a gateway that is
restarted daily would never see 24 hours by itself. The time of the newest row proves nothing: a gateway with a wrong
clock begins with a row of that time.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from sluicegate.store.audit_files import LogFile, last_line, log_files, read_rows
from sluicegate.store.audit_writer import month_of
from sluicegate.store.base import Row
from sluicegate.store.chain import StoredRow, read_row

MIN_LOOKS: Final = 24
"""Looks that must have found a file too old."""
_MIN_TIME: Final = 86_400 * 1_000_000_000
"""Nanoseconds between the first and the last of them."""
_REMOVED: Final = b'"verdict":"removed"'


class _Observation(msgspec.Struct, kw_only=True):
    at: int
    """When the first look was."""
    before: str
    """The month before which files were too old at all looks."""
    last: int = 0
    """When the last look was."""
    looks: int = 1
    released: str = ""
    """The month before which files can be removed, after an earlier observation was complete."""


class Retention:
    """Looks for files that are too old. What it saw is in the folder, so that a restart does not forget it."""

    def __init__(self, folder: str, keep: int) -> None:
        """`keep` is the number of months that are kept; 0 keeps all."""
        self._folder = folder
        self._keep = keep
        self._path = os.path.join(folder, "retention.json")

    def due(self, now: int) -> list[LogFile]:
        """The files that can be removed now. Call it at least daily.

        Raises:
            OSError: what was seen cannot be kept.
        """
        if not self._keep:
            return []
        year, month = map(int, month_of(now).split("-"))
        year, month = divmod(year * 12 + month - self._keep, 12)
        before = f"{year:04}-{month + 1:02}"
        earlier = self._earlier()
        if not _older(self._folder, before):
            if earlier is not None:  # It was made with a clock that was wrong, or its files were removed.
                with suppress(FileNotFoundError):  # Another gateway was first.
                    os.unlink(self._path)
            return []
        if earlier is None or now < max(earlier.at, earlier.last):  # A clock that was set back: one of both is wrong.
            seen = _Observation(at=now, last=now, before=before)
        else:
            seen = replace(earlier, last=now, before=min(before, earlier.before), looks=earlier.looks + 1)
        if seen.looks >= MIN_LOOKS and now - seen.at >= _MIN_TIME:
            # What is released stays so, since each of several gateways has to remove its own files.
            seen = _Observation(at=now, last=now, before=before, released=seen.before)
        temporary = f"{self._path}.{os.getpid()}"
        with open(temporary, "wb", opener=_private) as file:
            file.write(msgspec.json.encode(seen))
        os.replace(temporary, self._path)
        return _older(self._folder, min(before, seen.released))

    def _earlier(self) -> _Observation | None:
        try:
            with open(self._path, "rb") as file:
                return msgspec.json.decode(file.read(), type=_Observation)
        except (FileNotFoundError, msgspec.DecodeError):
            return None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NOFOLLOW, 0o600)


def _older(folder: str, month: str) -> list[LogFile]:
    files = log_files(folder)
    # The newest one of a writer stays, however old it is: the chain continues in it.
    return [
        file
        for file, next_one in zip(files, files[1:], strict=False)
        if file.month < month and next_one.writer == file.writer
    ]


# ------------------------------------------------------------------------------------------------------- statements


class Removed(msgspec.Struct, kw_only=True):
    """What a row `removed` states. It is cumulative: the row of the next removal replaces it."""

    files: list[str] = []
    keep: int = 0
    until: int = 0
    """All rows of the chain up to this one are gone; 0 in rows of earlier versions, which name only the files."""
    missing: list[tuple[int, int]] = []
    """The first and the last of rows that were missing already."""
    unproven: int = 0
    """Rows up to this one were removed by an earlier version, which did not record which ones."""


class Statement(NamedTuple):
    """A row `removed`."""

    writer: int
    seq: int
    at: int
    removed: Removed


def statements(folder: str) -> Iterator[Statement]:
    """The rows of a log about what retention has removed, by writers and in the order of each chain.

    Files that cannot be read are left out: the check of their chain reports them.
    """
    for file in log_files(folder):
        with suppress(OSError, ValueError):
            for row in read_rows(file, _REMOVED):
                if row.kind == "audit" and row.verdict == "removed":
                    yield Statement(file.writer, row.seq, row.at, msgspec.json.decode(row.body, type=Removed))


def is_named(writer: int, known: Sequence[Statement]) -> bool:
    """Whether a row of an earlier version says that files of a writer were removed."""
    return any(
        f"-writer{writer}." in name or f"-writer{writer}-" in name
        for each in known
        if not each.removed.until
        for name in each.removed.files
    )


class Removal(NamedTuple):
    """Files of one writer to be removed, once the row is written and signed."""

    row: Row
    files: list[LogFile]

    def remove(self) -> None:
        """Remove the files, the oldest first; raises OSError if that fails."""
        for file in self.files:
            for path in (file.values_path, file.torn_path, file.path):
                with suppress(FileNotFoundError):
                    os.unlink(path)


def removal_of(files: Sequence[LogFile], keep: int, known: Sequence[Statement]) -> Removal | None:
    """The removal of the oldest files of one writer; None if the first of them cannot be read: `verify` names it.

    It states what was missing before, so that retention does not hide that rows were removed by others.
    """
    writer = files[0].writer
    earlier = [each.removed for each in known if each.writer == writer and each.removed.until]
    stated = earlier[-1] if earlier else Removed()
    until, missing, unproven = stated.until, list(stated.missing), stated.unproven
    chosen: list[LogFile] = []
    for file in files:
        try:
            ends = _ends(file)
        except (OSError, ValueError):
            break
        chosen.append(file)
        if ends is None:
            continue
        first, last = ends
        if first.seq > until + 1:
            if not until and is_named(writer, known):
                unproven = first.seq - 1
            else:
                missing.append((until + 1, first.seq - 1))
        until = max(until, last.seq)
    if not chosen or not until:
        return None
    body: dict[str, object] = {"files": [file.name for file in chosen], "until": until, "keep": keep}
    if missing:
        body["missing"] = missing
    if unproven:
        body["unproven"] = unproven
    return Removal(Row(kind="audit", verdict="removed", body=body), chosen)


def _ends(file: LogFile) -> tuple[StoredRow, StoredRow] | None:
    """The first and the last row of a file; None if it has none."""
    first, last = next(read_rows(file), None), last_line(file)
    return (first, read_row(last)) if first is not None and last is not None else None
