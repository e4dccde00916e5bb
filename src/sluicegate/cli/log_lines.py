"""What the rooms log, as lines on the terminal that a gateway was started from."""

import logging
from collections.abc import Collection

from sluicegate.cli.render import one_line


class _Lines(logging.Formatter):
    """A record as one clean line, whatever a server said that is in it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))


class _News(logging.Filter):
    """Passes over the first that is logged of each server of which the same was said before."""

    def __init__(self, told: Collection[str]) -> None:
        super().__init__()
        self._told = set(told)

    def filter(self, record: logging.LogRecord) -> bool:
        if self._told:
            line = record.getMessage()
            name = next((name for name in self._told if line.startswith((f"{name}: ", f"{name} "))), None)
            if name is not None:
                self._told.discard(name)
                return False
        return True


def log_to_stderr(told: Collection[str] = ()) -> None:
    """Write to stderr, from now on, whatever is logged that somebody should know.

    `told` are servers of which it was said already, with file and line, that they have nothing to run.
    """
    handler = logging.StreamHandler()
    handler.addFilter(_News(told))
    handler.setFormatter(_Lines("sluicegate: %(message)s"))
    logging.getLogger("sluicegate").addHandler(handler)
