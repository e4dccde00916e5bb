"""The record of decisions of a folder, for commands that use it without a gateway."""

import os
from typing import Final

from sluicegate.cli.command import Failure
from sluicegate.config.paths import Places, state_file
from sluicegate.errors import StateUnavailable
from sluicegate.store.base import Decisions
from sluicegate.store.memory_decisions import MemoryDecisions
from sluicegate.store.sqlite_decisions import SqliteDecisions

LOCKED_FOR: Final = 5.0
"""Seconds that a command waits for another writer; a person prefers that to trying again."""


def record_of(places: Places, *, is_created: bool) -> Decisions:
    """The record of the folder; if there is none and it is not to be created, an empty one."""
    file = state_file(places.root, places.environ)
    if not is_created and not os.path.exists(file):
        return MemoryDecisions()
    try:
        return SqliteDecisions(file, locked_for=LOCKED_FOR, asks=False)
    except StateUnavailable as problem:
        raise Failure(problem.message) from None
