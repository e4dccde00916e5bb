"""Calls from a client to a server in a process of its own. CPU is that of both; each as it is installed: our server
runs on uvloop, both clients and the official server on asyncio.
"""

from contextlib import ExitStack

from bench.measure import Contestant, Effort, Row, race, skipped
from bench.memory import json_turn
from bench.peers.turns import EVENTS
from bench.samples import ANSWER, PROGRESS, REQUEST
from bench.workers import official_missing, official_worker, our_worker

CASES = {
    "modern 1": "a call over stdio, one in flight",
    "modern 32": "a call over stdio, 32 in flight",
    "session 32": "the same in the session era, 32 in flight",
    "modern progress": f"a progress event over stdio, {EVENTS} in a call",
}
OURS, OFFICIAL = "sluicegate", "official SDK"


def run(effort: Effort) -> list[Row]:
    """The rows of this benchmark."""
    missing = official_missing()
    rows: list[Row] = []
    with ExitStack() as stack:
        ours = stack.enter_context(our_worker("stdio"))
        official = None if missing else stack.enter_context(official_worker("stdio"))
        for case, benchmark in CASES.items():
            units, messages = (EVENTS, [PROGRESS]) if "progress" in case else (1, [REQUEST, ANSWER])
            base = Contestant("json", json_turn(*messages), remark="dumps and loads of the messages")
            contestants = [base, Contestant(OURS, ours.turn(case), units)]
            if official is not None:
                contestants.append(Contestant(OFFICIAL, official.turn(case), units))
            rows += race(benchmark, contestants, effort)
            if missing is not None:
                rows.append(skipped(benchmark, OFFICIAL, missing))
    return rows
