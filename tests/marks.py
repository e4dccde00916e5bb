"""Finds the processes that a test has started, by a mark in their environment; Linux only."""

import uuid
from contextlib import suppress
from pathlib import Path


def new_mark() -> str:
    """A unique mark, to be put into the environment of a server."""
    return f"sluicegate-test-{uuid.uuid4().hex}"


def processes_with(mark: str) -> set[int]:
    """The ids of all live processes that carry a mark: servers, their guardians, whatever they started."""
    found: set[int] = set()
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if mark.encode() in (path / "environ").read_bytes():
                found.add(int(path.name))
    return found
