"""The folder of an audit log: its files, its keys, and reading lines.

    2026-11-writer1.jsonl    the rows of one writer in one month, one line each; -2 and so on after a file that could
                             not be used any more
    2026-11-writer1.values   the recorded values of these rows, which can be erased
    2026-11-writer1.torn     ends of the file that a power loss left unfinished
    writer1.checkpoints      the signed checkpoints of that writer's chain, over all months
    writer1.lock             locked while the writer lives
    retention.json           when files were last found to be too old
    index.db                 a cache of readers; it can be deleted at any time
    signing.key, digest.key, signing.pub

Several gateways may serve one folder. Each takes the first writer that is free, so there are as many as ran at once.
"""

import hashlib
import os
import re
import socket
from collections.abc import Iterator
from contextlib import suppress
from typing import BinaryIO, Final, NamedTuple

import msgspec

from sluicegate.store.chain import Checkpoint, RecordedValues, Signer, StoredRow, Verifier, read_row, split_notes

MAX_WRITERS: Final = 1000
MAX_LINE: Final = 256 << 20
"""Bytes of a line; a longer one is not ours. Recorded values can be as large as a request."""

_NAME: Final = re.compile(r"(\d{4}-\d{2})-writer(\d+)(?:-(\d+))?\.jsonl")
_EARLIER_NAME: Final = re.compile(r"\d{4}-\d{2}-writer\d+(-\d+)?\.db")
_CHUNK: Final = 1 << 16


class LogFile(NamedTuple):
    """The file of one month and writer. They sort by writer, then by time."""

    writer: int
    month: str
    part: int
    folder: str

    @property
    def name(self) -> str:
        return f"{self._stem}.jsonl"

    @property
    def path(self) -> str:
        return os.path.join(self.folder, self.name)

    @property
    def values_path(self) -> str:
        """Where the values of its rows are; there is no such file if none were recorded."""
        return os.path.join(self.folder, f"{self._stem}.values")

    @property
    def torn_path(self) -> str:
        """Where unfinished ends of it are kept; there is no such file if there were none."""
        return os.path.join(self.folder, f"{self._stem}.torn")

    @property
    def _stem(self) -> str:
        return f"{self.month}-writer{self.writer}" + (f"-{self.part}" if self.part > 1 else "")


def log_files(folder: str, writer: int | None = None) -> list[LogFile]:
    """The files in a folder, those of one writer together and in the order of time."""
    matches = [match for name in _names(folder) if (match := _NAME.fullmatch(name)) is not None]
    files = [LogFile(int(match[2]), match[1], int(match[3] or 1), folder) for match in matches]
    return sorted(file for file in files if writer is None or file.writer == writer)


def writers(folder: str) -> list[int]:
    """The writers that have files or checkpoints."""
    numbers = {file.writer for file in log_files(folder)}
    for name in _names(folder):
        if match := re.fullmatch(r"writer(\d+)\.checkpoints", name):
            numbers.add(int(match[1]))
    return sorted(numbers)


def log_label(folder: str) -> str:
    """What names the place of a log in its checkpoints. A log that is begun again in this place has the same label.

    It is a digest: copies of checkpoints need not tell the names of machines and folders.
    """
    return hashlib.sha256(f"{socket.gethostname()}:{os.path.realpath(folder)}".encode()).hexdigest()[:16]


def earlier_files(folder: str) -> list[str]:
    """The names of SQLite files that development versions wrote; they are not read."""
    return sorted(name for name in _names(folder) if _EARLIER_NAME.fullmatch(name))


def _names(folder: str) -> list[str]:
    try:
        return os.listdir(folder)
    except FileNotFoundError:
        return []


# -------------------------------------------------------------------------------------------------------------- lines


def read_lines(file: BinaryIO, offset: int = 0) -> Iterator[tuple[int, bytes]]:
    """The lines of a file from an offset on, and where each begins. A last line that is not finished is left out.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is too long.
    """
    file.seek(offset)
    while line := file.readline(MAX_LINE):
        if not line.endswith(b"\n"):
            if len(line) == MAX_LINE:
                raise ValueError("a line is too long")
            return
        yield offset, line
        offset += len(line)


def read_rows(file: LogFile, containing: bytes = b"") -> Iterator[StoredRow]:
    """The rows of a file, in their order; only those whose line contains some bytes.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is not a row.
    """
    with open(file.path, "rb", buffering=_CHUNK) as lines:
        for _, line in read_lines(lines):
            if containing in line:
                yield read_row(line)


def end_of_lines(file: BinaryIO) -> int:
    """The offset after the last finished line of a file."""
    position = file.seek(0, os.SEEK_END)
    while position:
        begin = max(0, position - _CHUNK)
        file.seek(begin)
        newline = file.read(position - begin).rfind(b"\n")
        if newline >= 0:
            return begin + newline + 1
        position = begin
    return 0


def lines_backwards(file: BinaryIO, end: int) -> Iterator[bytes]:
    """The lines of a file before an offset at which a line begins, the last one first."""
    rest, position = b"", end
    while position:
        begin = max(0, position - _CHUNK)
        file.seek(begin)
        first, *others = (file.read(position - begin) + rest)[:-1].split(b"\n")
        for line in reversed(others):
            yield line + b"\n"
        rest, position = first + b"\n", begin
    if rest:
        yield rest


def last_line(file: LogFile) -> bytes | None:
    """The last finished line of a file; None if it has none."""
    with open(file.path, "rb") as lines:
        return next(lines_backwards(lines, end_of_lines(lines)), None)


def read_values(file: LogFile) -> Iterator[tuple[int, bytes, RecordedValues | None]]:
    """The lines of recorded values of a file's rows: the offset, the line, and what is in it if it can be read.

    Raises:
        OSError: the file cannot be read.
        ValueError: a line is too long.
    """
    with suppress(FileNotFoundError), open(file.values_path, "rb", buffering=_CHUNK) as lines:
        for offset, line in read_lines(lines):
            try:
                yield offset, line, _decode_values(line)
            except msgspec.DecodeError:
                yield offset, line, None


_decode_values: Final = msgspec.json.Decoder(RecordedValues).decode


# --------------------------------------------------------------------------------------------------------------- keys


class Keys(NamedTuple):
    """The secrets of a log: they are in its folder, for its owner only."""

    signer: Signer
    digest: bytes


def load_keys(folder: str) -> Keys:
    """The keys of a folder, created if there are none.

    Raises:
        OSError: they cannot be read or created.
        ValueError: a key is broken.
    """
    signer = Signer(_load_key(os.path.join(folder, "signing.key")))
    public = os.path.join(folder, "signing.pub")
    if not os.path.exists(public):
        _create(public, f"{signer.verifier}\n".encode())
    return Keys(signer, _load_key(os.path.join(folder, "digest.key")))


def load_verifier(folder: str) -> Verifier | None:
    """The public key of a folder; None if there is none.

    Raises:
        ValueError: the key is broken.
    """
    try:
        with open(os.path.join(folder, "signing.pub"), encoding="utf-8") as file:
            return Verifier.parse(file.read())
    except FileNotFoundError:
        return None


def _load_key(path: str) -> bytes:
    if not os.path.exists(path):
        _create(path, os.urandom(32).hex().encode() + b"\n")
    with open(path, "rb") as file:
        key = bytes.fromhex(file.read().decode())
    if len(key) != 32:
        raise ValueError(f"{os.path.basename(path)} should have 32 bytes")
    return key


def _create(path: str, data: bytes) -> None:
    """Create a file with its content in one step; of two that do so at once, the first one counts."""
    temporary = f"{path}.{os.getpid()}"
    descriptor = os.open(temporary, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
    try:
        try:
            os.write(descriptor, data)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        with suppress(FileExistsError):
            os.link(temporary, path)
    finally:
        os.unlink(temporary)


# -------------------------------------------------------------------------------------------------------- checkpoints


def checkpoints_path(folder: str, writer: int) -> str:
    return os.path.join(folder, f"writer{writer}.checkpoints")


def append_note(path: str, note: str) -> None:
    """Append a note to a file, and wait until it is on the disk."""
    descriptor = os.open(path, os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    try:
        os.write(descriptor, f"\n{note}".encode())  # A crash may have left half a line.
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_notes(path: str, verifier: Verifier, origin: str) -> list[tuple[str, Checkpoint]]:
    """The notes in a file that the key has signed for a chain."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            notes = split_notes(file.read())
    except FileNotFoundError:
        return []
    read = [(note, verifier.read(note)) for note in notes]
    return [(note, checkpoint) for note, checkpoint in read if checkpoint is not None and checkpoint.origin == origin]


def last_checkpoint(path: str, verifier: Verifier, origin: str) -> Checkpoint | None:
    """The last checkpoint in a file that the key has signed for a chain; None if there is none."""
    try:
        with open(path, "rb") as file:
            end = file.seek(0, os.SEEK_END)
            # A file has one note for each minute, and a signature takes long to check: the last one is enough.
            for begin in (max(0, end - _CHUNK), 0):
                file.seek(begin)
                for note in reversed(split_notes(file.read().decode(errors="replace"))):
                    checkpoint = verifier.read(note)
                    if checkpoint is not None and checkpoint.origin == origin:
                        return checkpoint
    except FileNotFoundError:
        pass
    return None
