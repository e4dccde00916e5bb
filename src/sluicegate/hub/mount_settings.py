"""The settings of a mount, and the figures that are counted for it: plain values."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from sluicegate.errors import UpstreamError
from sluicegate.hub.catalog import OfferLimits, Patterns
from sluicegate.protocol.message import Params
from sluicegate.runtime.quota import CONCURRENCY, QUEUE, QUEUE_WAIT
from sluicegate.text.globs import name_matches

LISTS_DEBOUNCE: Final = 0.25
"""Seconds between the notice that a list changed and fetching it: notices often come in bursts."""


RECENT_CALLS: Final = 1000
"""Calls whose times are kept, for percentiles."""


class MountSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of one server."""

    prefix: str
    key: str = ""
    """Another name that rules of profiles may use, whatever the prefix is."""
    origin: str = ""
    """A digest of the command or URL; see `Target.origin`."""
    tools: Patterns = Patterns()
    concurrency: int = CONCURRENCY
    queue: int = QUEUE
    queue_wait: float = QUEUE_WAIT
    timeout: float = 120.0
    longest_call: float = 3600.0
    hang_after: float = 15.0
    """Seconds of silence during a call after which the server is pinged."""
    ping_timeout: float = 5.0
    tool_timeouts: Sequence[tuple[str, float]] = ()
    fetched_by: str = ""
    """The program that may have to download it first, such as npx."""
    opens_within: float = 30.0
    """Seconds that it has to start, for messages; the upstream enforces it."""
    offers: OfferLimits = OfferLimits()
    offer_timeout: float = 30.0
    """Seconds for fetching its lists."""
    debounce: float = LISTS_DEBOUNCE
    resend: Sequence[str] = ()
    """Globs of tools that may be called again when it is unknown whether the first call ran."""
    roots: Sequence[str] = ()
    """Folders that answer `roots/list`; without any, the capability is not declared."""
    instructions: bool = True
    is_light: bool = False
    """Whether connecting starts no process, so that a request may trigger an attempt."""
    restarted_by: str = ""
    """The command that restarts it, if there is one."""
    explain: Callable[[UpstreamError], str] = lambda problem: problem.message
    """Returns a sentence with the cause and the remedy, safe to show to a client."""

    def timeout_of(self, method: str, params: Params) -> float:
        """Seconds that a call has; its params use the server's own names."""
        if method == "tools/call":
            tool = str(params.get("name"))
            for pattern, seconds in self.tool_timeouts:
                if name_matches(tool, pattern):
                    return seconds
        return self.timeout


class Figures(msgspec.Struct):
    """Counters of a mount."""

    calls: int = 0
    errors: int = 0
    restarts: int = 0
    hangs: int = 0
    """How many of the restarts were because it answered neither calls nor pings."""
    recent: deque[float] = msgspec.field(default_factory=lambda: deque(maxlen=RECENT_CALLS))
    """Seconds that the last answered calls took."""
