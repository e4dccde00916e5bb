"""What servers on the Python SDK 1.x write when asked `server/discover`: a hundred lines that look like a fault.

The one rule: only what is certainly about our own request is left out, and that it was is said.
"""

import re
from typing import Final

_BEGINNING: Final = "Failed to validate request"
_LISTED: Final = re.compile(rf"{_BEGINNING}: (\d+) validation errors? for ClientRequest")

# How pydantic words each error, in three lines: of which kind of request, what it got of ours, where to read on.
_ERROR: Final = (
    re.compile(r"\w+Request[\w.]*"),
    re.compile(r"  .*\[type=\w+, input_value=(?:'server/discover'|\{'_meta': \{'io\.modelc.*), input_type=\w+\]"),
    re.compile(r"    For further information visit https://errors\.pydantic\.dev/\S+"),
)

_REASON: Final = (
    "sluicegate asked this server for its version by server/discover, which older servers do not know. That is no fault"
)


class ProbeWords:
    """Leaves out of the first lines of a server what it says to our probe, and says so in one line."""

    def __init__(self) -> None:
        self._is_over = False
        self._left = 0  # Lines that are still to come of those that were announced.
        self._held: list[str] = []  # What is about the probe only if the next lines say so.

    def end(self) -> None:
        """Know that it is asked other things from now on: only what has begun is about the probe."""
        self._is_over |= not self._left

    def __call__(self, lines: list[str]) -> list[str]:
        """The lines that are to be told."""
        if self._is_over:
            return lines
        told: list[str] = []
        for place, line in enumerate(lines):
            if self._left:
                part = -self._left % 3
                self._held.append(line)
                if _ERROR[part].fullmatch(line) is None:
                    return told + self._give_up() + lines[place + 1 :]  # Something else: all that follows is told.
                if part == 1 and _BEGINNING in self._held[0]:
                    told.append(f"({_REASON}: its lines on it are left out.)")
                if part:
                    self._held.clear()  # Its second line says what it is about.
                self._left -= 1
                self._is_over = not self._left
            elif not self._is_over and _BEGINNING in line:
                self._held.append(line)
                listed = _LISTED.search(line)
                if listed is None or listed.end() < len(line):  # Laid out in some way of its own.
                    said = f"({_REASON}: what follows is its word on it.)"
                    return [*told, said, *self._give_up(), *lines[place + 1 :]]
                self._left = 3 * int(listed[1])
            else:
                told.append(line)
        return told

    def _give_up(self) -> list[str]:
        held, self._held = self._held, []
        self._left, self._is_over = 0, True
        return held
