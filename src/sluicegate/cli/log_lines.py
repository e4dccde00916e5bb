"""What the rooms log, as lines on the terminal that a gateway was started from."""

import logging
from collections.abc import Callable, Collection

from sluicegate.cli.render import one_line


class _Lines(logging.Formatter):
    """A record as one clean line, whatever a server said that is in it."""

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))


class _News(logging.Filter):
    """Passes over the first record about each server of which the same was said before, until they settled.

    Such a record has the server's name as its `server`.
    """

    def __init__(self, told: Collection[str]) -> None:
        super().__init__()
        self._told = set(told)

    def filter(self, record: logging.LogRecord) -> bool:
        name: object = getattr(record, "server", None)
        if name not in self._told:
            return True
        self._told.discard(str(name))
        return False

    def settle(self) -> None:
        """Pass over nothing from now on: what is logged now is of something else."""
        self._told.clear()


def log_to_stderr(told: Collection[str] = ()) -> Callable[[], None]:
    """Write to stderr, from now on, whatever is logged that somebody should know.

    `told` are servers of which it was said already, with file and line, that they have nothing to run. They need not
    say so themselves, until what is returned is called.
    """
    handler = logging.StreamHandler()
    news = _News(told)
    handler.addFilter(news)
    handler.setFormatter(_Lines("sluicegate: %(message)s"))
    logging.getLogger("sluicegate").addHandler(handler)
    return news.settle
