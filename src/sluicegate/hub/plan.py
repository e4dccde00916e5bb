"""When to try again: pure plans for a server that comes and goes (threats R7, R19).

Times are of the monotonic clock and given by the caller; so is the one lot that is drawn.
"""

from collections import deque
from typing import Final

import msgspec

SHORTEST_PAUSE: Final = 0.5
LONGEST_PAUSE: Final = 30.0
SPREAD: Final = 0.2
MOST_RESTARTS: Final = 5
RESTARTS_WITHIN: Final = 60.0
PROBE_PAUSE: Final = 60.0

MOST_FAILURES: Final = 5
FAILURES_WITHIN: Final = 10.0
CIRCUIT_PAUSE: Final = 10.0


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


class Circuit:
    """Whether a server that fails call after call is asked at all: if not, one call each ten seconds tries it."""

    def __init__(self) -> None:
        self.is_calm = True
        """Whether nothing failed since the last success: then there is nothing to ask it, nor to tell it."""
        self._failures: deque[float] = deque(maxlen=MOST_FAILURES)
        self._open_until: float | None = None
        self._is_trying = False

    @property
    def is_open(self) -> bool:
        """Whether calls are refused."""
        return self._open_until is not None

    def admit(self, now: float) -> bool:
        """Whether a call may go ahead; where this is the one that tries, the others wait for its outcome."""
        if self._open_until is None:
            return True
        if self._is_trying or now < self._open_until:
            return False
        self._is_trying = True
        return True

    def failed(self, now: float, retry_after: float = 0.0) -> None:
        """Learn that a call could not be delivered; `retry_after` is what the server asked for."""
        self.is_calm = self._is_trying = False
        self._failures.append(now)
        many = len(self._failures) == MOST_FAILURES and now - self._failures[0] <= FAILURES_WITHIN
        if many or self._open_until is not None or retry_after > 0:
            self._open_until = now + max(CIRCUIT_PAUSE, retry_after)

    def succeeded(self) -> None:
        """Learn that the server answered."""
        self._failures.clear()
        self._open_until = None
        self._is_trying = False
        self.is_calm = True

    def gave_up(self) -> None:
        """Learn that the caller left before there was an outcome."""
        self._is_trying = False
