"""What a server writes to stderr: its log, never an error. Told in ours, and quoted when the server ends badly."""

import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from sluicegate.upstream.mask import Mask
from sluicegate.upstream.probe_words import ProbeWords

log: Final = logging.getLogger("sluicegate.stderr")

LINES_A_SECOND: Final = 100
LONGEST_LINE: Final = 1000
MOST_LINES: Final = 1000
"""Told at once: so many are kept for who wants to read them."""

FLOOD: Final = 2000
"""Lines within one second, after which only the last ones of what comes at once are told. To cut out and look through
each of them would take its time, for which either the server would have to wait or everybody else."""

FLOOD_LINES: Final = 20

_PASSED_OVER: Final = f"(more than {FLOOD} lines in one second: some of those that follow are left out)"

LAST_LINES: Final = 6
LAST_CHARACTERS: Final = 600
APART: Final = 10.0
"""Seconds of silence after which what was said before has most likely nothing to do with what happens now."""

_LONGEST_SECRET: Final = 4096
"""Bytes of one that are read beyond the end of a line that is cut, so as not to show its beginning."""

# Escape sequences that drive a terminal, and characters that turn a line around or break it in two.
_HIDDEN: Final = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029}
_VISIBLE: Final = {code: ascii(chr(code))[1:-1] for code in _HIDDEN - {ord("\t"), ord("\n")}}


class StderrLog:
    """Hands the lines of one server to the logger `sluicegate.stderr`, at level INFO and never more than so many."""

    def __init__(
        self,
        name: str,
        secrets: Iterable[str],
        on_lines: Callable[[list[str]], object] | None = None,
        *,
        is_probed: bool = False,
    ) -> None:
        """`on_lines` hears the lines, of a flood only some; what is secret is masked.

        `is_probed` says that it is asked for its era, of which some servers write much.
        """
        self._name = name
        self._on_lines = on_lines
        self._masked = Mask(secrets)
        self._without_probe = ProbeWords() if is_probed else None
        longest = max((len(os.fsencode(part)) for part in self._masked.secrets), default=0)
        self._most_held = LONGEST_LINE + min(longest, _LONGEST_SECRET)
        self._held = b""  # A line that has not ended yet,
        self._is_cut = False  # or one that was told already, and whose rest is passed over.
        self._second = 0
        self._heard = 0  # Lines within this second.
        self._spoke: float | None = None  # When it last said something,
        self._together = 0  # in how many lines with no long silence between them,
        self._is_begun = False  # besides one that has not ended yet,
        self._silence: float | None = None  # and for how long it had been silent when it was first asked about.

    def received(self, data: bytes) -> None:
        """Take the next bytes of it."""
        now = time.monotonic()
        if self._spoke is None or now - self._spoke > APART:
            self._together = 0
        self._spoke, self._silence = now, None
        self._together += data.count(b"\n")
        self._is_begun = not data.endswith(b"\n")
        if self._on_lines is None and not log.isEnabledFor(logging.INFO):
            return
        if self._is_cut:
            _, newline, data = data.partition(b"\n")
            if not newline:
                return
            self._is_cut = False
        end = data.rfind(b"\n") + 1
        if end:
            self._tell(self._held + data[:end])
            self._held = data[end:]
        else:
            self._held += data
        if len(self._held) > self._most_held:  # It may never end.
            self._tell(self._held[: self._most_held])
            self._held, self._is_cut = b"", True

    def end_probe(self) -> None:
        """Know that the server's era is known."""
        if self._without_probe is not None:
            self._without_probe.end()

    def _tell(self, data: bytes) -> None:
        now = int(time.monotonic())
        if now != self._second:
            self._second, self._heard = now, 0
        most = MOST_LINES if self._heard < FLOOD else FLOOD_LINES
        lines = data.rsplit(b"\n", most + 1)[-most - 1 :]
        # Each cut before it is looked at; all looked at together, which takes a tenth of the time.
        text = self._masked(visible(b"\n".join([line[: self._most_held] for line in lines])))
        told = [line[:LONGEST_LINE] for line in text.split("\n") if line and not line.isspace()]
        if self._without_probe is not None:
            told = self._without_probe(told)
        if self._on_lines is not None:
            begins = self._heard < FLOOD <= self._heard + len(told)
            self._on_lines([*told, _PASSED_OVER] if begins else told)
        if self._heard <= LINES_A_SECOND and log.isEnabledFor(logging.INFO):
            self._log(told)
        self._heard += len(told)

    def _log(self, lines: list[str]) -> None:
        for line in lines[: LINES_A_SECOND - self._heard]:
            log.info("%s: %s", self._name, line)
        if self._heard + len(lines) > LINES_A_SECOND:
            log.info("%s: more than %d lines a second; the rest are not told", self._name, LINES_A_SECOND)

    def last_words(self, tail: str) -> str:
        """The last lines, as the end of a sentence about the server; empty if it said nothing.

        Only those that were said together; and if that was long before, how long.
        """
        if self._spoke is not None:
            together = self._together + self._is_begun
            tail = "\n".join(tail.splitlines()[-together:] if together else [])
        lines = [line.strip() for line in self._masked(tail).splitlines() if line.strip()][-LAST_LINES:]
        # Whole lines, from the last one back: half a line of a traceback helps nobody.
        while len(lines) > 1 and sum(map(len, lines)) > LAST_CHARACTERS:
            lines.pop(0)
        text = " | ".join(lines)[-LAST_CHARACTERS:]
        return f"; its last words: {text}{self._long_before()}" if text else ""

    def _long_before(self) -> str:
        if self._silence is None:
            # Once: whoever comes later than the first to ask is told of the same end.
            self._silence = 0.0 if self._spoke is None else time.monotonic() - self._spoke
        return f" ({_duration(self._silence)} before)" if self._silence > APART else ""


def visible(text: bytes | bytearray) -> str:
    """What a server wrote, safe for a terminal."""
    plain = text.decode("utf-8", "backslashreplace").replace("\r\n", "\n").replace("\x1b", _VISIBLE[0x1B])
    # Where a character has to be changed, or is beyond ASCII, `translate` takes thirty times as long. So those that
    # colour a log, the most frequent, are gone by now, and text in other letters is looked at first.
    return plain if not plain.isascii() and plain.replace("\n", "").isprintable() else plain.translate(_VISIBLE)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.0f} hours"
