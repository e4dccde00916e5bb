"""What is in a file, or why that cannot be had."""

import os
import stat
from typing import Final

from sluicegate.config.problems import Problem

LARGEST_FILE: Final = 4 * 1024 * 1024


def read_text(file: str) -> str | None | Problem:
    """What a file holds; None if there is none; a problem if it cannot be had."""
    try:
        # Not a plain open(): a pipe in the place of the file would keep us waiting for somebody to write.
        descriptor = os.open(file, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return _cannot(file, f"The file cannot be read: {error.strerror}.")
    data = b""
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return _cannot(file, "This is not a file.")
        while len(data) <= LARGEST_FILE and (chunk := os.read(descriptor, LARGEST_FILE + 1 - len(data))):
            data += chunk
    except OSError as error:
        return _cannot(file, f"The file cannot be read: {error.strerror}.")
    finally:
        os.close(descriptor)
    if len(data) > LARGEST_FILE:
        return _cannot(file, "The file is larger than 4 MiB.")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        return _cannot(file, "The file is not UTF-8 here.", data.count(b"\n", 0, error.start) + 1)


def _cannot(file: str, sentence: str, line: int | None = None) -> Problem:
    return Problem(severity="warning", file=file, line=line, sentence=sentence)
