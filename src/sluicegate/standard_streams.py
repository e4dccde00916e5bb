"""Our own stdin, stdout and stderr, before there is anything else: all of them open, a word to whoever reads them."""

import os
import sys
from contextlib import suppress


def open_standard_streams() -> None:
    """Let none of them be closed: the next file opened would be it, and libuv ends the program at the sight of that."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


def say_if_terminal(instead: str) -> None:
    """Tell a person who started a server for stdin and stdout on a terminal what it waits for, and what to do."""
    if sys.stdin is not None and sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison] - started without
        write_line(
            "sluicegate: this is an MCP server for the client that starts it, over stdin and stdout; it waits for one"
            f" now (Ctrl+D ends it). To have it at a URL: {instead}"
        )


def write_line(line: str) -> None:
    """Write a line to stderr, if that can be."""
    # Python has none if the program was started without. Where its disk is full or its reader gone, we serve all the
    # same (R33).
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        with suppress(OSError):
            sys.stderr.write(f"{line}\n")
            sys.stderr.flush()
