"""Lines of a server that are passed over, since they are no messages: counted, and the first ones of a minute told."""

import logging
import time
from typing import Final

log = logging.getLogger("sluicegate")

TOLD_A_MINUTE: Final = 5
"""Of one server, however often it is started anew meanwhile (threats R3)."""


class Minute:
    """How often something has happened, from its first time on and for a minute; then it is counted anew."""

    def __init__(self) -> None:
        self._end = 0.0
        self._times = 0

    def count(self) -> int:
        """The number of this time: 1 for the first one of a minute."""
        now = time.monotonic()
        if not self._times or now > self._end:
            self._end, self._times = now + 60, 0
        self._times += 1
        return self._times


class SkippedLines:
    """Tells the first ones of each minute in the log. Kept with the server, since a connection may not last for one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._minute = Minute()

    def tell(self, problem: str) -> None:
        """Learn of one more; `problem` says what it is or does."""
        if self._minute.count() <= TOLD_A_MINUTE:
            log.warning("%s: a line is skipped, for it %s", self._name, problem)
