"""How much clients may have at once, all of them together and each one alone (threats §3). Pure: counts, no clock.

The limits of one caller keep it from taking what is the others' (R25), so they hold for callers who are told apart.
Where nobody is asked who they are, everybody is the one local user: twenty clients of theirs would share what is
meant for one, and there is nobody to protect from them. They are held by the limits of the whole alone.
"""

from enum import Enum
from typing import Final

import msgspec

from sluicegate.exchange import Caller

LOCAL_USER: Final = Caller().id


class HttpLimits(msgspec.Struct, frozen=True, kw_only=True):
    """What the clients of an endpoint may have at once."""

    calls: int = 1000
    """Requests under way. One that waits for its client's answer is: it holds its task and what it has done so far."""
    calls_of_one: int = 100
    streams: int = 10_000
    """Responses that stay open without a call: GET streams, subscriptions, channels of the oldest transport."""
    streams_of_one: int = 50
    sessions: int = 10_000
    sessions_of_one: int = 100
    session_idle: float = 30 * 60.0
    """Seconds after which a session that nobody uses is over."""
    session_lifetime: float = 24 * 3600.0
    """Seconds after which any session is."""
    remembered: int = 256 * 1024 * 1024
    """Bytes of events that are kept for clients of all sessions who may come back for them."""


class Full(Enum):
    """Why there is no place."""

    FOR_ONE = "this caller has as much as one may have"
    FOR_ALL = "all together have as much as there is"


class Place:
    """One thing that counts, until it is released."""

    __slots__ = ("_caller", "_places")

    def __init__(self, places: "Places", caller: str) -> None:
        self._places: Places | None = places
        self._caller = caller

    def release(self) -> None:
        """Count no more. Once is enough, and twice does no harm."""
        places, self._places = self._places, None
        if places is not None:
            places.leave(self._caller)


class Places:
    """So many places for all, and so many of them for one caller."""

    def __init__(self, most: int, most_of_one: int) -> None:
        self.most = most
        self.most_of_one = most_of_one
        self._taken = 0
        self._of: dict[str, int] = {}

    def __len__(self) -> int:
        return self._taken

    def taken_by(self, caller: Caller) -> int:
        """How many places a caller has."""
        return self._of.get(caller.id, 0)

    def take(self, caller: Caller) -> Place | Full:
        """A place, which whoever gets it has to release; or why there is none."""
        full = self.enter(caller.id)
        return Place(self, caller.id) if full is None else full

    def enter(self, name: str) -> Full | None:
        """Count one more of a caller, who has to `leave` exactly once; or say why there is no place."""
        taken = self._of.get(name, 0)
        # One's own limit first: who floods is told that it is them, however full it is (R25).
        if taken >= self.most_of_one and name != LOCAL_USER:
            return Full.FOR_ONE
        if self._taken >= self.most:
            return Full.FOR_ALL
        self._taken += 1
        self._of[name] = taken + 1
        return None

    def leave(self, name: str) -> None:
        """Count one less of a caller."""
        self._taken -= 1
        left = self._of[name] - 1
        if left:
            self._of[name] = left
        else:
            del self._of[name]  # Callers come and go, and the table would keep them all.
