"""The standard streams of the process: opens closed ones, and writes lines to stderr."""

import os
import sys
from contextlib import suppress


def open_standard_streams() -> None:
    """Open closed standard streams: else the next file would get their descriptor, and libuv aborts in that case."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def say_if_terminal(instead: str) -> None:
    """If stdin is a terminal, print what the server waits for and what to do instead."""
    if sys.stdin is not None and sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison] - started without
        write_line(
            "sluicegate: this is an MCP server on stdin and stdout, for a client that starts it; it waits for messages"
            f" now (Ctrl+D ends it). To serve it at a URL: {instead}"
        )


def write_line(line: str) -> None:
    """Write a line to stderr, if possible."""
    # It may be closed, its disk full or its reader gone; serving goes on (R33).
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        with suppress(OSError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
