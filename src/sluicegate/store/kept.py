"""Results that are too long for one message: files that their callers read in pages, for a day."""

import hashlib
import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import BinaryIO, Final

from sluicegate.store.base import KeptText

LIFETIME: Final = 86_400.0
"""Seconds that a file is kept."""
PAGE: Final = 256 * 1024
"""Bytes of one page, but for the rest of its last character."""
MAX_FILE: Final = 64 * 1024 * 1024
"""Bytes of one file; what comes after them is dropped."""
MAX_FOLDER: Final = 1024 * 1024 * 1024
"""Bytes of all files; the oldest are deleted first."""

_ID: Final = re.compile(r"[0-9a-f]{32}")


def default_folder() -> str:
    """The folder of this user."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.join(os.path.expanduser("~"), ".local", "state")
    return os.path.join(state, "sluicegate", "kept")


class KeptFiles:
    """A `Keeper` with a file for each text, which only this user can open and only its caller can read through us."""

    def __init__(self, folder: str | None = None, clock: Callable[[], float] = time.time, *, server: str = "") -> None:
        """`server` has the texts: no other one reads them, so rules about it hold for them."""
        self._server = server
        self._folder = folder
        self._clock = clock

    @property
    def folder(self) -> str:
        # Looked up late: most servers never keep anything.
        return self._folder or default_folder()

    def begin(self, caller: str) -> "KeptFile":
        """A new file of a caller; raises OSError if it cannot be written."""
        os.makedirs(self.folder, mode=0o700, exist_ok=True)
        self._clean_up()
        id = os.urandom(16).hex()
        path = self._path(caller, id)
        # "x" refuses what exists, also a link.
        file = open(path, "xb", opener=lambda path, flags: os.open(path, flags, 0o600))  # noqa: SIM115 - closed by `end`
        return KeptFile(id, path, file, self._clock)

    def read(self, caller: str, id: str, page: int) -> str | None:
        """A page of a text, counted from 1; None if there is none, or it belongs to another caller."""
        path = self._path(caller, id)
        if not _ID.fullmatch(id) or page < 1:
            return None
        with suppress(OSError):
            if os.stat(path).st_mtime + LIFETIME <= self._clock():
                os.unlink(path)
                return None
            with open(path, "rb") as file:
                file.seek((page - 1) * PAGE)
                data = file.read(PAGE + 3)
            return _whole_characters(data, is_first=page == 1).decode("utf-8", "replace") if data else None
        return None

    def _path(self, caller: str, id: str) -> str:
        names = f"{self._server}\0{caller}".encode("utf-8", "surrogatepass")
        owner = hashlib.blake2b(names, digest_size=8).hexdigest()
        return os.path.join(self.folder, f"{owner}-{id}")

    def _clean_up(self) -> None:
        """Delete what is too old, and the oldest if there is too much."""
        files = sorted(self._files())
        total = sum(size for _, size, _ in files)
        for modified, size, path in files:
            if modified + LIFETIME > self._clock() and total <= MAX_FOLDER:
                return
            total -= size
            with suppress(OSError):
                os.unlink(path)

    def _files(self) -> Iterator[tuple[float, int, str]]:
        with os.scandir(self.folder) as entries:
            for entry in entries:
                with suppress(OSError):  # Another process may have deleted it.
                    status = entry.stat(follow_symlinks=False)
                    yield status.st_mtime, status.st_size, entry.path


class KeptFile:
    """A `KeptWriter`: a file that is being written."""

    def __init__(self, id: str, path: str, file: BinaryIO, clock: Callable[[], float]) -> None:
        self._id = id
        self._path = path
        self._file = file
        self._clock = clock
        self._size = 0
        self._is_cut = False

    def write(self, text: str) -> None:
        """Add a text. What does not fit, or cannot be written, is dropped."""
        data = text.encode("utf-8", "replace")
        if self._is_cut or self._size + len(data) > MAX_FILE:
            self._is_cut = True
            return
        try:
            self._file.write(data)
        except OSError:
            self._is_cut = True
        else:
            self._size += len(data)

    def end(self) -> KeptText:
        """Close the file; what is in it."""
        try:
            self._file.close()
            now = self._clock()
            os.utime(self._path, (now, now))
        except OSError:
            self._is_cut = True
        return KeptText(self._id, self._size, -(-self._size // PAGE), self._is_cut)

    def discard(self) -> None:
        """Delete the file."""
        with suppress(OSError):
            self._file.close()
        with suppress(OSError):
            os.unlink(self._path)


def _whole_characters(data: bytes, *, is_first: bool) -> bytes:
    """A page without the end of a character that began on the page before, and with the end of its own last one."""
    start, end = 0, min(PAGE, len(data))
    while not is_first and start < end and _continues(data[start]):
        start += 1
    while end < len(data) and _continues(data[end]):
        end += 1
    return data[start:end]


def _continues(byte: int) -> bool:
    return byte & 0b1100_0000 == 0b1000_0000
