"""Problems in configuration files: the file, line and key, and a sentence that says how to fix it."""

import os
import stat
from collections.abc import Iterable, Iterator
from typing import Final, Literal

import msgspec

from sluicegate.text.globs import BadGlob, name_glob

Severity = Literal["error", "warning", "note"]
"""An error prevents the start, a warning disables one server or one file, a note has no effect."""

MAX_FILE: Final = 4 * 1024 * 1024


class Problem(msgspec.Struct, frozen=True, kw_only=True):
    """One problem in a file."""

    severity: Severity
    file: str
    sentence: str
    line: int | None = None
    column: int | None = None
    key: str = ""
    """The path of the key, joined with dots."""
    server: str = ""
    """The name of the server concerned, if there is one."""

    def __str__(self) -> str:
        place = ":".join(str(part) for part in (self.file, self.line, self.column) if part is not None)
        return f"{place}: {self.severity}: {self.sentence}"


def glob_faults(globs: Iterable[str]) -> Iterator[str]:
    """A sentence about each glob that cannot be read."""
    for each in globs:
        try:
            name_glob(each)
        except BadGlob as problem:
            yield f'The glob "{each}" {problem}.'


def read_text(file: str) -> str | None | Problem:
    """The text of a file; None if the file does not exist; a problem if it cannot be read."""
    try:
        # O_NONBLOCK: opening a named pipe would otherwise block until something writes to it.
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, NotADirectoryError):
        # Not an absence: the user wants a file to be there, and its rules must not be forgotten (T36).
        link = _dangling_link(file)
        return None if link is None else _unreadable(file, f"{link} is a link to something that does not exist.")
    except OSError as error:
        return _unreadable(file, f"The file cannot be read: {error.strerror}.")
    data = b""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return _unreadable(file, "This is not a file. Remove it, or put a file in its place.")
        while len(data) <= MAX_FILE and (chunk := os.read(descriptor, MAX_FILE + 1 - len(data))):
            data += chunk
    except OSError as error:
        return _unreadable(file, f"The file cannot be read: {error.strerror}.")
    finally:
        os.close(descriptor)
    if len(data) > MAX_FILE:
        return _unreadable(file, "The file is larger than 4 MiB. Is it the right one?")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _unreadable(
            file, "The file is not valid UTF-8. Save it as UTF-8.", data.count(b"\n", 0, error.start) + 1
        )


def _dangling_link(path: str) -> str | None:
    """The link because of which a path does not exist; None if there is none."""
    while not os.path.exists(path) and path != os.path.dirname(path):
        if os.path.islink(path):
            return path
        path = os.path.dirname(path)
    return None


def _unreadable(file: str, sentence: str, line: int | None = None) -> Problem:
    return Problem(severity="warning", file=file, line=line, sentence=sentence)
