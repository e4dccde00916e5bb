"""The record of approvals, grants and pins of a folder, for commands. They work with and without a running gateway."""

import os
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from sluicegate.cli.command import Failure
from sluicegate.config.paths import Places, state_file
from sluicegate.errors import StateUnavailable
from sluicegate.store.sqlite_decisions import SqliteDecisions

_POLL: Final = 0.5
LOCKED_FOR: Final = 5.0
"""Seconds that a command waits for another writer; a person prefers that to trying again."""


@contextmanager
def opened_state(places: Places) -> Generator[SqliteDecisions]:
    """The record of the folder; an empty one if there is none yet.

    Raises:
        Failure: it cannot be opened, or not be read or written inside the `with`.
    """
    file = state_file(places.root, places.environ)
    try:
        state = SqliteDecisions(file if os.path.exists(file) else None, locked_for=LOCKED_FOR, asks=False)
        try:
            yield state
        finally:
            state.close()
    except StateUnavailable as problem:
        raise Failure(problem.message) from None


def wait_decided(places: Places, question: str, is_over: threading.Event) -> None:
    """Wait, in a thread of its own, until a question has been answered or withdrawn, or `is_over` is set.

    A record that cannot be read is opened again: the question can still be answered by its asker.
    """
    while not is_over.is_set():
        try:
            with opened_state(places) as state:
                while (found := state.find(question)) is None or found.state == "pending":
                    if is_over.wait(_POLL):  # The record is a file, which other processes change.
                        return
            return
        except (Failure, OSError):
            is_over.wait(_POLL)
