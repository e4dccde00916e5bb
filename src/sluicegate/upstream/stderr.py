"""What a server writes to stderr: its log, never an error. Told in ours, and quoted when the server ends badly."""

import logging
import time
from collections.abc import Callable, Iterable
from typing import Final

from sluicegate.protocol.framing import LineDecoder, TooLong

log: Final = logging.getLogger("sluicegate.stderr")

LINES_A_SECOND: Final = 100
LONGEST_LINE: Final = 1000
LAST_LINES: Final = 6
LAST_CHARACTERS: Final = 600

_SHORTEST_SECRET: Final = 6
"""Shorter values of variables are words like "debug", which would be blotted out everywhere."""

# Escape sequences that drive a terminal, and characters that turn a line around or break it in two.
_HIDDEN: Final = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029}
_VISIBLE: Final = {code: ascii(chr(code))[1:-1] for code in _HIDDEN - {ord("\t"), ord("\n")}}


class StderrLog:
    """Hands the lines of one server to the logger `sluicegate.stderr`, at level INFO and never more than so many."""

    def __init__(
        self,
        name: str,
        secrets: Iterable[str],
        on_line: Callable[[str], object] | None = None,
    ) -> None:
        """`on_line` hears every line, however many; what is secret is masked."""
        self._name = name
        self._on_line = on_line
        # A key of many lines comes line by line.
        parts = {part for value in secrets for part in (value, *value.splitlines())}
        self._secrets = sorted((part for part in parts if len(part) >= _SHORTEST_SECRET), key=len, reverse=True)
        self._lines = LineDecoder(LONGEST_LINE)
        self._second = 0
        self._told = 0

    def received(self, data: bytes) -> None:
        """Take the next bytes of it."""
        if self._on_line is None and not log.isEnabledFor(logging.INFO):
            return
        for line in self._lines.feed(data):
            text = self._masked(visible(line.head[:LONGEST_LINE] if isinstance(line, TooLong) else line))
            if self._on_line is not None:
                self._on_line(text)
            now = int(time.monotonic())
            if now != self._second:
                self._second, self._told = now, 0
            self._told += 1
            if self._told <= LINES_A_SECOND:
                log.info("%s: %s", self._name, text)
            elif self._told == LINES_A_SECOND + 1:
                log.info("%s: more than %d lines a second; the rest are not told", self._name, LINES_A_SECOND)

    def last_words(self, tail: str) -> str:
        """The last lines, as the end of a sentence about the server; empty if it said nothing."""
        lines = [line.strip() for line in self._masked(tail).splitlines() if line.strip()][-LAST_LINES:]
        # Whole lines, from the last one back: half a line of a traceback helps nobody.
        while len(lines) > 1 and sum(map(len, lines)) > LAST_CHARACTERS:
            lines.pop(0)
        text = " | ".join(lines)[-LAST_CHARACTERS:]
        return f"; its last words: {text}" if text else ""

    def _masked(self, text: str) -> str:
        # Servers like to complain of a key by printing it.
        for value in self._secrets:
            text = text.replace(value, "***")
        return text


def visible(text: bytes | bytearray) -> str:
    """What a server wrote, safe for a terminal."""
    plain = text.decode("utf-8", "backslashreplace").replace("\r\n", "\n")
    return plain if plain.isprintable() else plain.translate(_VISIBLE)  # The first is thirty times as fast.
