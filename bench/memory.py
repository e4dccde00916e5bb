"""One call of an echo within one process, beside the JSON work that it cannot do without: two messages, each written
and read once.
"""

import json
from contextlib import ExitStack

from bench.measure import Contestant, Effort, Row, Turn, loop, race, skipped
from bench.samples import ANSWER, REQUEST
from bench.workers import official_missing, official_worker, our_worker

NAME = "a call in memory"
OURS = {
    "sluicegate, 2026-07-28": ("modern", "client, bytes, server, tool, and back"),
    "sluicegate, 2026-07-28, 32 in flight": ("modern 32", "the same, many at a time"),
    "sluicegate, 2025-11-25": ("session", "the same in the session era"),
    "sluicegate, direct": ("direct", "no bytes in between"),
}
OFFICIAL = {
    "official SDK, 2026-07-28": ("modern", "no bytes in between"),
    "official SDK, 2026-07-28, 32 in flight": ("modern 32", "the same, many at a time"),
    "official SDK, 2025-11-25": ("session", "models over streams, no bytes"),
}


def run(effort: Effort) -> list[Row]:
    """The rows of this benchmark."""
    with ExitStack() as stack:
        contestants = [Contestant("json", json_turn(REQUEST, ANSWER), remark="dumps and loads of request and answer")]
        ours = stack.enter_context(our_worker("memory"))
        contestants += [Contestant(name, ours.turn(case), 1, remark) for name, (case, remark) in OURS.items()]
        missing = official_missing()
        if missing is None:
            official = stack.enter_context(official_worker("memory"))
            contestants += [
                Contestant(name, official.turn(case), 1, remark) for name, (case, remark) in OFFICIAL.items()
            ]
        rows = race(NAME, contestants, effort)
    return rows if missing is None else [*rows, *(skipped(NAME, name, missing) for name in OFFICIAL)]


def json_turn(*messages: object) -> Turn:
    """What `json` alone takes for these messages."""

    def write_and_read() -> None:
        for message in messages:
            json.loads(json.dumps(message).encode())

    return loop(write_and_read)
