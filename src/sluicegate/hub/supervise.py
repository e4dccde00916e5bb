"""The state of a server: retry delays, the circuit breaker, and the sentences that describe them (threats R7, R19)."""

import enum
import re
from collections import deque
from collections.abc import Callable
from time import monotonic
from typing import Final

import msgspec

from sluicegate.errors import UpstreamError, UpstreamTimeout
from sluicegate.protocol.message import as_array

MIN_PAUSE: Final = 0.5
MAX_PAUSE: Final = 30.0
SPREAD: Final = 0.2
MAX_RESTARTS: Final = 5
RESTARTS_WITHIN: Final = 60.0
PROBE_PAUSE: Final = 60.0
REQUESTED_RETRY_PAUSE: Final = 2.0
"""Seconds between two attempts that requests cause."""

FIRST_RETRY: Final = 1.0
MAX_RETRY: Final = 30.0
"""Seconds before a subscription that ended is opened again, or lists that could not be fetched are fetched again."""

CIRCUIT_FAILURES: Final = 5
FAILURES_WITHIN: Final = 10.0
CIRCUIT_PAUSE: Final = 10.0
MAX_RETRY_AFTER: Final = 60.0
"""Seconds of `retryAfter` that are respected; after that, one call tests the server."""


class Pause(msgspec.Struct, frozen=True):
    """The pause before the next attempt; `is_failed` after so many failures that a person should look."""

    seconds: float
    is_failed: bool = False


class Backoff:
    """Computes the pause before the next attempt from the recent ends of connections."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=MAX_RESTARTS)
        self._has_failed = False

    def ended(self, now: float, jitter: float, *, lived: float = 0.0) -> Pause:
        """The pause after an end at `now`, of a connection that was ready for `lived` seconds.

        `jitter`, drawn from 0 to 1, spreads the attempts of many servers.
        """
        if lived >= RESTARTS_WITHIN:
            self.forget()
        self._ends.append(now)
        recent = [end for end in self._ends if now - end <= RESTARTS_WITHIN]
        # Once it has failed there is one attempt a minute until it runs: else the long pause would reset the count.
        if self._has_failed or len(recent) >= MAX_RESTARTS:
            self._has_failed = True
            return Pause(PROBE_PAUSE, is_failed=True)
        pause = min(MIN_PAUSE * 2 ** (len(recent) - 1), MAX_PAUSE)
        return Pause(pause * (1 + SPREAD * (2 * jitter - 1)))

    def forget(self) -> None:
        """Forget earlier failures: a user asked for a restart, or the server ran for long enough."""
        self._ends.clear()
        self._has_failed = False


def is_undelivered(problem: UpstreamError) -> bool:
    """Whether a request did not reach the server, or the server was overloaded, as far as one can tell.

    A server that is slow, sends something unreadable or refuses the request was reached: its other tools may work.
    """
    status = problem.data.get("status")
    if isinstance(status, int):
        return status == 429 or status >= 500
    return not isinstance(problem, UpstreamTimeout) and problem.delivered != "yes"


def is_away(problem: UpstreamError) -> bool:
    """Whether nothing shows that the server is running: there was no answer, or one of a proxy."""
    return "retryAfter" not in problem.data and problem.data.get("status") in (None, 502, 503, 504)


class CircuitBreaker:
    """Refuses calls to a server that failed several times in a row; then one call each ten seconds tests it.

    Also keeps the last problem for the state that is shown, which does not affect calls.
    """

    def __init__(self) -> None:
        self.is_calm = True
        """Whether nothing failed since the last success."""
        self.problem: UpstreamError | None = None
        """Why the server could not be reached; None once it was."""
        self.since = 0.0
        """When the problem began or, if it is over, when it ended."""
        self.pause = CIRCUIT_PAUSE
        """Seconds for which calls are refused."""
        self._failures: deque[float] = deque(maxlen=CIRCUIT_FAILURES)
        self._open_until: float | None = None
        self._is_trying = False

    @property
    def is_open(self) -> bool:
        """Whether calls are refused."""
        return self._open_until is not None

    @property
    def has_failed_often(self) -> bool:
        """Whether call after call failed, without a success in between."""
        return len(self._failures) == CIRCUIT_FAILURES

    def is_pausing(self, now: float) -> bool:
        """Whether a call would be refused now."""
        return self._open_until is not None and (self._is_trying or now < self._open_until)

    def admit(self, now: float) -> bool:
        """Whether a call may be sent; if it tests the server, other calls are refused until its outcome."""
        if self._open_until is None:
            return True
        if self.is_pausing(now):
            return False
        self._is_trying = True
        return True

    def failed(self, problem: UpstreamError, now: float) -> None:
        """A call could not be delivered; `retryAfter` in the problem may say for how long."""
        self.unreachable(problem, now)
        self._is_trying = False
        self._failures.append(now)
        many = len(self._failures) == CIRCUIT_FAILURES and now - self._failures[0] <= FAILURES_WITHIN
        after = problem.data.get("retryAfter")
        asked = min(float(after), MAX_RETRY_AFTER) if isinstance(after, int | float) else 0.0
        if many or self._open_until is not None or asked > 0:
            # `retryAfter` decides, unless the server fails call after call.
            self.pause = asked if asked > 0 and not many else max(CIRCUIT_PAUSE, asked)
            self._open_until = now + self.pause

    def unreachable(self, problem: UpstreamError, now: float) -> None:
        """Something did not reach the server, be it a call or not."""
        if self.problem is None:
            self.since = now
        self.problem = problem
        self.is_calm = False  # The next success is news.

    def succeeded(self, now: float) -> None:
        """The server answered a call."""
        self._failures.clear()
        self._open_until = None
        self._is_trying = False
        self.is_calm = True
        self.reached(now)

    def reached(self, now: float) -> None:
        """Something reached the server; while calls are refused, only a call can change that."""
        if self.problem is not None and not self.is_open:
            self.problem = None
            self.since = now

    def gave_up(self) -> None:
        """The call ended without an outcome."""
        self._is_trying = False


Explain = Callable[[UpstreamError], str]


class MountState(enum.StrEnum):
    """The state of a mount."""

    STARTING = "starting"
    INSTALLING = "installing"
    READY = "ready"
    DEGRADED = "degraded"
    FAILED = "failed"
    DISABLED = "disabled"


class MountCondition(msgspec.Struct, frozen=True):
    """The state of a mount as it is shown."""

    state: MountState
    sentence: str
    since: float
    """When this began, by the monotonic clock."""
    problem: UpstreamError | None = None
    """What went wrong."""
    unfetched: tuple[str, ...] = ()
    """The lists that a server did not return of which everything else works."""


def out_of_reach(name: str, circuit: CircuitBreaker, explain: Explain, now: float) -> MountCondition | None:
    """The state of a connected server that could not be reached recently; None if it could.

    Over HTTP only failed requests show that a server is gone.
    """
    problem = circuit.problem
    if problem is None:
        return None
    cause = told_of(name, explain(problem))
    if circuit.is_open and circuit.has_failed_often:
        cause = f"{name} failed call after call: {_continued(name, cause)}"
    again = f"within {circuit.pause:g} s" if circuit.is_pausing(now) else "with the next call"
    return MountCondition(MountState.DEGRADED, f"{cause} It is tried again {again}.", circuit.since, problem)


class Reachability:
    """Whether a connected server can be reached and its lists can be fetched."""

    def __init__(self, name: str, circuit: CircuitBreaker) -> None:
        self.name = name
        self._circuit = circuit
        self._unfetched: UpstreamError | None = None
        self._lists_since = 0.0

    @property
    def since(self) -> float:
        """When the last trouble ended."""
        return max(self._circuit.since, self._lists_since)

    def trouble(self, explain: Explain) -> MountCondition | None:
        """What is wrong with the server, if anything is."""
        if (trouble := out_of_reach(self.name, self._circuit, explain, monotonic())) is not None:
            return trouble
        if self._unfetched is not None:
            return without_lists(self.name, self._unfetched, explain, self._lists_since)
        return None

    def connected(self) -> None:
        """The server is connected, and its lists are fetched."""
        self._unfetched = None
        self._circuit.succeeded(monotonic())

    def unreachable(self, problem: UpstreamError) -> None:
        """The server cannot be reached: this is shown, and calls are treated as before."""
        self._circuit.unreachable(problem, monotonic())

    def reached(self) -> None:
        """The server can be reached."""
        self._circuit.reached(monotonic())

    def on_unreachable(self, problem: UpstreamError | None) -> None:
        """The connection itself noticed that the server cannot be reached, or can be again."""
        if problem is None:
            self.reached()
        else:
            self.unreachable(problem)

    def unfetched(self, problem: UpstreamError) -> None:
        """The lists could not be fetched again."""
        if is_undelivered(problem):
            self.unreachable(problem)
            return
        # The server may answer everything else, so only its lists show when this is over.
        if self._unfetched is None:
            self._lists_since = monotonic()
        self._unfetched = problem

    def fetched(self) -> None:
        """The lists are up to date."""
        if self._unfetched is not None:
            self._unfetched = None
            self._lists_since = monotonic()
        self.reached()


def fetching(name: str, program: str, seconds: float, limit: float) -> str:
    """The sentence for a server that has been silent for so long, while a program may be fetching it."""
    return (
        f"{name} has not answered for {seconds:.0f} s: {program} is probably fetching it, for which it has {limit:g} s."
        " Run its command once by hand to see how far it gets, or raise install_timeout in sluicegate.toml."
    )


def tried_singly(seconds: float, restarted_by: str, *, is_light: bool) -> str:
    """The sentence for a failed server that is tried once a minute; the last attempt was so many seconds ago."""
    tried = f"It failed {MAX_RESTARTS} times within a minute and is tried once a minute now"
    if is_light:
        return f"{tried}, and when one of its tools is called."
    way_out = f"; `{restarted_by}` tries it at once" if restarted_by else ""
    return f"{tried}, the last time {seconds:.0f} s ago{way_out}."


def without_lists(name: str, problem: UpstreamError, explain: Explain, since: float) -> MountCondition:
    """The state of a server that is reachable but whose lists cannot be fetched."""
    again = f"Its lists stay as they were and are fetched again within {MAX_RETRY:g} s."
    # The rest runs if only some lists are missing: nothing to explain, whatever its words remind of.
    lists = tuple(map(str, as_array(problem.data.get("lists")) or ()))
    cause = problem.message if lists else told_of(name, explain(problem))
    return MountCondition(MountState.DEGRADED, f"{cause} {again}", since, problem, lists)


def told_of(name: str, cause: str) -> str:
    """A cause with the server's name in it, as a sentence."""
    if not re.search(rf"(?<![\w-]){re.escape(name)}(?![\w-])", cause):
        cause = f"{name}: {cause}"
    return cause if cause.endswith((".", "?", "!")) else f"{cause}."


def _continued(name: str, cause: str) -> str:
    """A cause without the name, which the sentence already has."""
    for beginning, instead in ((f"{name}: ", ""), (f"{name} ", "it ")):
        if cause.startswith(beginning):
            return instead + cause.removeprefix(beginning)
    return cause
