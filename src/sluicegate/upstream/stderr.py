"""A server's stderr: logged line by line, never taken for an error, and quoted when the server fails."""

import logging
import os
import time
from collections.abc import Callable, Iterable
from typing import Final

from sluicegate.upstream.redact import Redactor

log: Final = logging.getLogger("sluicegate.stderr")

LINES_A_SECOND: Final = 100
MAX_LINE: Final = 1000
MAX_LINES_A_CHUNK: Final = 1000
"""Lines that are passed on of one chunk: as many as the gateway keeps."""

FLOOD: Final = 2000
"""Lines within one second after which only the last lines of each chunk are passed on. To split and redact all of them
would take CPU time from other servers."""

FLOOD_LINES: Final = 20

_LEFT_OUT: Final = f"(more than {FLOOD} lines in one second: some of those that follow are left out)"

PROBE_NOTE: Final = "(this server did not know our version probe, server/discover; lines about that are harmless)"

LAST_LINES: Final = 6
LAST_CHARACTERS: Final = 600
APART: Final = 10.0
"""Seconds of silence after which earlier lines have most likely nothing to do with the failure."""

_MAX_SECRET: Final = 4096
"""Bytes that are read beyond the cut of a long line, so that a secret at the cut is recognised."""

# Terminal escape sequences, and characters that reverse or break a line.
_HIDDEN: Final = {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A), 0x2028, 0x2029}
_VISIBLE: Final = {code: ascii(chr(code))[1:-1] for code in _HIDDEN - {ord("\t"), ord("\n")}}


class StderrLog:
    """Passes the lines of one server to the logger `sluicegate.stderr`, at level INFO and a limited rate."""

    def __init__(
        self,
        name: str,
        secrets: Iterable[str],
        on_lines: Callable[[list[str]], object] | None = None,
    ) -> None:
        """`on_lines` gets the lines, of a flood only some. Secrets are redacted."""
        self._name = name
        self._on_lines = on_lines
        self._redactor = Redactor(secrets)
        longest = max((len(os.fsencode(part)) for part in self._redactor.spellings), default=0)
        self._most_held = MAX_LINE + min(longest, _MAX_SECRET)
        self._held = b""  # the beginning of a line
        self._is_cut = False  # whether the rest of the current line is dropped, because it was too long
        self._second = 0
        self._count = 0  # lines within this second
        self._last_time: float | None = None  # of the last output
        self._together = 0  # lines without a long silence between them
        self._is_begun = False  # whether a line has begun and not ended
        self._silence: float | None = None  # seconds since the last output, when `last_words` was first called

    def received(self, data: bytes) -> None:
        """Take the next bytes of stderr."""
        now = time.monotonic()
        if self._last_time is None or now - self._last_time > APART:
            self._together = 0
        self._last_time, self._silence = now, None
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
            self._pass_on(self._held + data[:end])
            self._held = data[end:]
        else:
            self._held += data
        if len(self._held) > self._most_held:  # The line may never end.
            self._pass_on(self._held[: self._most_held])
            self._held, self._is_cut = b"", True

    def explain_probe(self) -> None:
        """Add a line about the version probe: servers on the Python SDK 1.x log a hundred lines about it."""
        if self._last_time is not None:
            self._pass_on(PROBE_NOTE.encode())

    def ended(self, how: str) -> None:
        """Add the rest of what the server wrote, and a line about its end, such as "exited with status 1"."""
        held, self._held = self._held, b""
        if held:
            self._pass_on(held)
        if self._on_lines is not None:
            self._on_lines([f"({how})"])

    def _pass_on(self, data: bytes) -> None:
        now = int(time.monotonic())
        if now != self._second:
            self._second, self._count = now, 0
        most = MAX_LINES_A_CHUNK if self._count < FLOOD else FLOOD_LINES
        lines = data.rsplit(b"\n", most + 1)[-most - 1 :]
        # Lines are cut first, and redacted together, which takes a tenth of the time. A cut may be inside a secret.
        text = self._redactor(visible(b"\n".join([line[: self._most_held] for line in lines])))
        whole = [line for line in text.split("\n") if line and not line.isspace()]
        if any(len(line) >= self._most_held for line in lines):
            whole = [self._redactor.redact_cut(line) for line in whole]
        shown = [line[:MAX_LINE] for line in whole]
        if self._on_lines is not None:
            begins = self._count < FLOOD <= self._count + len(shown)
            self._on_lines([*shown, _LEFT_OUT] if begins else shown)
        if self._count <= LINES_A_SECOND and log.isEnabledFor(logging.INFO):
            self._log(shown)
        self._count += len(shown)

    def _log(self, lines: list[str]) -> None:
        for line in lines[: LINES_A_SECOND - self._count]:
            log.info("%s: %s", self._name, line)
        if self._count + len(lines) > LINES_A_SECOND:
            log.info("%s: more than %d lines a second; the rest are left out", self._name, LINES_A_SECOND)

    def last_words(self, tail: str) -> str:
        """The last lines without a long silence between them, as the end of an error; empty if there are none.

        If they are old, their age is added.
        """
        if self._last_time is not None:
            together = self._together + self._is_begun
            tail = "\n".join(tail.splitlines()[-together:] if together else [])
        lines = [line.strip() for line in self._redactor(tail).splitlines() if line.strip()][-LAST_LINES:]
        # Whole lines, from the last one back: half a line of a traceback does not help.
        while len(lines) > 1 and sum(map(len, lines)) > LAST_CHARACTERS:
            lines.pop(0)
        text = " | ".join(lines)[-LAST_CHARACTERS:]
        return f"; its last output: {text}{self._long_before()}" if text else ""

    def _long_before(self) -> str:
        if self._silence is None:
            # Measured once, so that all errors about this end say the same.
            self._silence = 0.0 if self._last_time is None else time.monotonic() - self._last_time
        return f" ({_duration(self._silence)} before)" if self._silence > APART else ""


def visible(text: bytes | bytearray) -> str:
    """The text with control characters escaped, safe for a terminal."""
    plain = text.decode("utf-8", "backslashreplace").replace("\r\n", "\n").replace("\x1b", _VISIBLE[0x1B])
    # `translate` takes thirty times as long if a character has to be changed or is not ASCII. So ESC, the most frequent
    # one, is replaced before, and printable text in other scripts is not translated at all.
    return plain if not plain.isascii() and plain.replace("\n", "").isprintable() else plain.translate(_VISIBLE)


def _duration(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} seconds"
    return f"{seconds / 60:.0f} minutes" if seconds < 6000 else f"{seconds / 3600:.0f} hours"
