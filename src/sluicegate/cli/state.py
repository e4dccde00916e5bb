"""The record of approvals, grants and pins of a folder, for commands. They work with and without a running gateway."""

import os
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from sluicegate.cli.command import Failure
from sluicegate.config.paths import Places, state_file
from sluicegate.errors import StateUnavailable
from sluicegate.store.state import SqliteState

LOCKED_FOR: Final = 5.0
"""Seconds that a command waits for another writer; a person prefers that to trying again."""


@contextmanager
def opened_state(places: Places) -> Generator[SqliteState]:
    """The record of the folder; an empty one if there is none yet.

    Raises:
        Failure: it cannot be opened, or not be read or written inside the `with`.
    """
    file = state_file(places.root, places.environ)
    try:
        state = SqliteState(file if os.path.exists(file) else None, locked_for=LOCKED_FOR, asks=False)
        try:
            yield state
        finally:
            state.close()
    except StateUnavailable as problem:
        raise Failure(problem.message) from None
