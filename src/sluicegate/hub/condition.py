"""How a server is in one word and a sentence, also where it is connected and cannot be reached. Pure."""

import re
from collections.abc import Callable

import msgspec

from sluicegate.errors import UpstreamError
from sluicegate.hub.listening import LONGEST_PAUSE
from sluicegate.hub.plan import MOST_RESTARTS, Circuit
from sluicegate.hub.treatment import State

Explain = Callable[[UpstreamError], str]


class Condition(msgspec.Struct, frozen=True):
    """How a mount is, for those who look at it."""

    state: State
    sentence: str
    since: float
    """When this began, by the monotonic clock."""
    problem: UpstreamError | None = None
    """What went wrong, in all that is known of it."""


def out_of_reach(name: str, circuit: Circuit, explain: Explain, now: float) -> Condition | None:
    """How a server is that is connected and could not be reached of late; None if it could.

    Over HTTP nothing says that a server is gone but what could not be sent to it.
    """
    problem = circuit.problem
    if problem is None:
        return None
    cause = told_of(name, explain(problem))
    if circuit.is_open and circuit.has_failed_often:
        cause = f"{name} failed call after call: {_continued(name, cause)}"
    again = f"within {circuit.pause:g} s" if circuit.is_pausing(now) else "with the next call"
    return Condition(State.DEGRADED, f"{cause} It is tried again {again}.", circuit.since, problem)


def fetching(name: str, program: str, seconds: float, limit: float) -> str:
    """The sentence for a server that has been silent for so long, while a program may be fetching it."""
    return (
        f"{name} has not answered for {seconds:.0f} s: {program} is probably fetching it, for which it has {limit:g} s."
        " Run its command once by hand to see how far it gets, or raise install_timeout in sluicegate.toml."
    )


def tried_singly(seconds: float, restarted_by: str, *, is_light: bool) -> str:
    """What to add of a server that failed so often that it is tried rarely, and that long ago for the last time."""
    tried = f"It failed {MOST_RESTARTS} times within a minute and is tried once a minute now"
    if is_light:
        return f"{tried}, and when one of its tools is called."
    way_out = f"; `{restarted_by}` tries it at once" if restarted_by else ""
    return f"{tried}, the last time {seconds:.0f} s ago{way_out}."


def without_lists(name: str, problem: UpstreamError, explain: Explain, since: float) -> Condition:
    """How a server is that answers, but not what it offers."""
    again = f"Its lists are as they were, and fetched again within {LONGEST_PAUSE:g} s."
    return Condition(State.DEGRADED, f"{told_of(name, explain(problem))} {again}", since, problem)


def told_of(name: str, cause: str) -> str:
    """A cause with the server's name in it, as a sentence."""
    if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", cause):
        cause = f"{name}: {cause}"
    return cause if cause.endswith((".", "?", "!")) else f"{cause}."


def _continued(name: str, cause: str) -> str:
    """A cause in a sentence that has begun with the name."""
    for beginning, instead in ((f"{name}: ", ""), (f"{name} ", "it ")):
        if cause.startswith(beginning):
            return instead + cause.removeprefix(beginning)
    return cause
