"""The standard streams of the process: opens closed ones, reserves stdout, and writes lines to stderr."""

import os
import sys
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from typing import Final, TextIO

NARROWEST: Final = 40
"""Columns; on narrower terminals, lines are not wrapped."""
_CODES: Final = {"bold": "1", "dim": "2", "red": "31", "green": "32", "yellow": "33", "cyan": "36"}
_loading: Final[list[bool]] = []


def open_standard_streams() -> None:
    """Open closed standard streams: else the next file would get their descriptor, and libuv aborts in that case."""
    for descriptor in range(3):
        try:
            os.fstat(descriptor)
        except OSError:
            os.open(os.devnull, os.O_RDWR)


@contextmanager
def reserved_while_loading() -> Generator[None]:
    """Reserve the streams while code of the user is loaded: it prints to stderr, and `run` refuses to serve in it.

    stdout is redirected for child processes too, since it carries the protocol.
    """
    _loading.append(True)
    try:
        with _stdout_to_stderr():
            yield
    finally:
        _loading.pop()


def is_loading() -> bool:
    """Whether code of the user is being loaded; a call of `run` would then wait for a client inside an import."""
    return bool(_loading)


@contextmanager
def _stdout_to_stderr() -> Generator[None]:
    try:
        stdout = os.dup(1)
        os.dup2(2, 1)
    except OSError:  # One of them is closed.
        yield
        return
    try:
        yield
    finally:
        if sys.stdout is not None:  # pyright: ignore[reportUnnecessaryComparison] - may be closed
            sys.stdout.flush()
        os.dup2(stdout, 1)
        os.close(stdout)


def say_if_terminal(instead: str) -> None:
    """If stdin is a terminal, print what the server waits for and what to do instead."""
    if sys.stdin is not None and sys.stdin.isatty():  # pyright: ignore[reportUnnecessaryComparison] - started without
        write_line(
            "sluicegate: this is an MCP server on stdin and stdout, for a client that starts it; it waits for messages"
            f" now (Ctrl+D ends it). To serve it at a URL: {instead}"
        )


def write_line(line: str, *, hang: int = 4, paint: Mapping[str, str] | None = None) -> None:
    """Write a line to stderr, if possible.

    A terminal gets it wrapped between words, with further lines indented by `hang`, more than any first line, and with
    colours: `paint` has the
    style of words, such as "bold red"; no words mean all of them.
    """
    # It may be closed, its disk full or its reader gone; serving goes on (R33).
    if sys.stderr is not None:  # pyright: ignore[reportUnnecessaryComparison]
        with suppress(OSError):
            sys.stderr.write(f"{drawn(line, sys.stderr, hang=hang, paint=paint)}\n")
            sys.stderr.flush()


def drawn(line: str, stream: TextIO, *, hang: int = 4, paint: Mapping[str, str] | None = None) -> str:
    """The line as `write_line` writes it to a stream."""
    if not stream.isatty():
        return line
    line = wrapped(line, columns_of(stream), hang)
    if has_colours(stream):
        for words, style in (paint or {}).items():
            line = line.replace(words, painted(words, style), 1) if words else painted(line, style)
    return line


def wrapped(line: str, columns: int, hang: int = 0) -> str:
    """The line broken between words, so that each part fits into the columns if its words do."""
    if len(line) <= columns or columns < NARROWEST:
        return line
    import textwrap  # Imported here: only long lines on a terminal need it.

    parts = textwrap.wrap(line, columns, subsequent_indent=" " * hang, break_long_words=False, break_on_hyphens=False)
    return "\n".join(parts)


def columns_of(stream: TextIO) -> int:
    """The width of a terminal: what COLUMNS says, or its own; 80 if neither is known."""
    with suppress(OSError, ValueError):
        return int(os.environ.get("COLUMNS") or 0) or os.get_terminal_size(stream.fileno()).columns or 80
    return 80


def has_colours(stream: TextIO) -> bool:
    """Whether a stream is a terminal with colours whose user wants them."""
    return stream.isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def painted(text: str, style: str) -> str:
    """The text in a style such as "bold red", for a terminal."""
    return f"\x1b[{';'.join(_CODES[word] for word in style.split())}m{text}\x1b[0m"
