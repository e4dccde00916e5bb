"""When to try again: pure plans for a server that comes and goes (threats R7, R19).

Times are of the monotonic clock and given by the caller; so is the one lot that is drawn.
"""

from collections import deque
from typing import Final

import msgspec

from sluicegate.errors import UpstreamError, UpstreamTimeout

SHORTEST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
SPREAD: Final = 0.2
MOST_RESTARTS: Final = 5
RESTARTS_WITHIN: Final = 60.0
PROBE_PAUSE: Final = 60.0
SOUGHT_PAUSE: Final = 2.0
"""Seconds between two tries that callers cause, of a server of which a try starts nothing."""

MOST_FAILURES: Final = 5
FAILURES_WITHIN: Final = 10.0
CIRCUIT_PAUSE: Final = 10.0
LONGEST_ASKED: Final = 60.0
"""Seconds; a server that wants to be left alone for longer is asked once a minute all the same, by one call."""


class Pause(msgspec.Struct, frozen=True):
    """How long to wait before the next attempt; `is_failed` once there were so many that a person should look."""

    seconds: float
    is_failed: bool = False


class Restarts:
    """The ends of a server's connections, and what follows from them."""

    def __init__(self) -> None:
        self._ends: deque[float] = deque(maxlen=MOST_RESTARTS)
        self._has_failed = False

    def ended(self, now: float, lot: float, *, lived: float = 0.0) -> Pause:
        """The pause after an end at `now`, of a connection that was ready for `lived` seconds.

        `lot`, drawn from 0 to 1, keeps many from coming back at the same moment.
        """
        if lived >= RESTARTS_WITHIN:
            self.forget()
        self._ends.append(now)
        recent = [end for end in self._ends if now - end <= RESTARTS_WITHIN]
        # Once it has failed it is tried singly until it lives: else the minute's pause would let it count anew.
        if self._has_failed or len(recent) >= MOST_RESTARTS:
            self._has_failed = True
            return Pause(PROBE_PAUSE, is_failed=True)
        pause = min(SHORTEST_PAUSE * 2 ** (len(recent) - 1), LONGEST_PAUSE)
        return Pause(pause * (1 + SPREAD * (2 * lot - 1)))

    def forget(self) -> None:
        """Begin anew: a person asked for it, or it has proved itself."""
        self._ends.clear()
        self._has_failed = False


def is_undelivered(problem: UpstreamError) -> bool:
    """Whether a server could not be reached or had no time for anybody, as far as one can tell.

    One that is slow, or answers what nobody can read, was reached: its other tools may be as well as ever. So was one
    that refuses this request for what it asks, or for our credentials.
    """
    status = problem.data.get("status")
    if isinstance(status, int):
        return status == 429 or status >= 500
    return not isinstance(problem, UpstreamTimeout) and problem.delivered != "yes"


def is_away(problem: UpstreamError) -> bool:
    """Whether nothing shows that the server itself is there: nobody answered, or a proxy did in its place."""
    return "retryAfter" not in problem.data and problem.data.get("status") in (None, 502, 503, 504)


class Circuit:
    """Whether a server that fails call after call is asked at all: if not, one call each ten seconds tries it.

    It knows, too, why a server could not be reached of late, from the first time on: that is for those who look at it,
    and changes nothing about who is asked when.
    """

    def __init__(self) -> None:
        self.is_calm = True
        """Whether nothing failed since the last success: then there is nothing to ask it, nor to tell it."""
        self.problem: UpstreamError | None = None
        """Why the server could not be reached the last time, if it was not since."""
        self.since = 0.0
        """When that began or, if it is over, when it was."""
        self.pause = CIRCUIT_PAUSE
        """Seconds that calls are refused for, if they are."""
        self._failures: deque[float] = deque(maxlen=MOST_FAILURES)
        self._open_until: float | None = None
        self._is_trying = False

    @property
    def is_open(self) -> bool:
        """Whether calls are refused."""
        return self._open_until is not None

    @property
    def has_failed_often(self) -> bool:
        """Whether call after call failed, without a success in between."""
        return len(self._failures) == MOST_FAILURES

    def is_pausing(self, now: float) -> bool:
        """Whether a call that came now would be refused."""
        return self._open_until is not None and (self._is_trying or now < self._open_until)

    def admit(self, now: float) -> bool:
        """Whether a call may go ahead; where this is the one that tries, the others wait for its outcome."""
        if self._open_until is None:
            return True
        if self.is_pausing(now):
            return False
        self._is_trying = True
        return True

    def failed(self, problem: UpstreamError, now: float) -> None:
        """Learn that a call could not be delivered; in `retryAfter` it may say for how long that will be so."""
        self.unreachable(problem, now)
        self._is_trying = False
        self._failures.append(now)
        many = len(self._failures) == MOST_FAILURES and now - self._failures[0] <= FAILURES_WITHIN
        after = problem.data.get("retryAfter")
        asked = min(float(after), LONGEST_ASKED) if isinstance(after, int | float) else 0.0
        if many or self._open_until is not None or asked > 0:
            # One that says when to come again is believed, but for one that says it call after call.
            self.pause = asked if asked > 0 and not many else max(CIRCUIT_PAUSE, asked)
            self._open_until = now + self.pause

    def unreachable(self, problem: UpstreamError, now: float) -> None:
        """Learn why something did not reach the server, be it a call or not."""
        if self.problem is None:
            self.since = now
        self.problem = problem
        self.is_calm = False  # The next success is news.

    def succeeded(self, now: float) -> None:
        """Learn that the server answered a call."""
        self._failures.clear()
        self._open_until = None
        self._is_trying = False
        self.is_calm = True
        self.reached(now)

    def reached(self, now: float) -> None:
        """Learn that something reached the server; while calls are refused, only a call can show that it is well."""
        if self.problem is not None and not self.is_open:
            self.problem = None
            self.since = now

    def gave_up(self) -> None:
        """Learn that the caller left before there was an outcome."""
        self._is_trying = False
