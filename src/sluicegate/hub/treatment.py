"""How a mount is, how it is treated, and what is counted of it: values, without any of its life."""

import enum
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from typing import Final

import msgspec

from sluicegate.errors import UpstreamError
from sluicegate.hub.catalog import Patterns
from sluicegate.hub.offers import OfferLimits
from sluicegate.hub.places import CONCURRENCY, QUEUE, QUEUE_WAIT
from sluicegate.protocol.message import Params

DEBOUNCE: Final = 0.25
"""Seconds between a server's word that a list changed and our asking for it: changes come in swarms."""


class State(enum.StrEnum):
    """How a mount is."""

    STARTING = "starting"
    INSTALLING = "installing"
    READY = "ready"
    DEGRADED = "degraded"
    FAILED = "failed"
    DISABLED = "disabled"


class MountSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How one server is treated."""

    prefix: str
    key: str = ""
    """Another name by which rules of profiles know it, whatever its prefix is."""
    tools: Patterns = Patterns()
    concurrency: int = CONCURRENCY
    queue: int = QUEUE
    queue_wait: float = QUEUE_WAIT
    timeout: float = 120.0
    longest_call: float = 3600.0
    tool_timeouts: Sequence[tuple[str, float]] = ()
    fetched_by: str = ""
    """The program that may have to fetch it before it runs it, if that is so."""
    opens_within: float = 30.0
    """Seconds that it has to come, for those who are told of it: its upstream ends what takes longer."""
    offers: OfferLimits = OfferLimits()
    offer_timeout: float = 30.0
    """Seconds that it has to tell all that it offers."""
    debounce: float = DEBOUNCE
    resend: Sequence[str] = ()
    """Tools that may be called again when it is not known whether the first call ran: globs, the operator's word."""
    roots: Sequence[str] = ()
    """Folders that it is told of when it asks; without any, it is not told that it may ask."""
    instructions: bool = True
    is_light: bool = False
    """Whether a try starts nothing on this machine, so that whoever asks for it while it is away may cause one."""
    restarted_by: str = ""
    """The command that tries it at once, if there is one."""
    explain: Callable[[UpstreamError], str] = lambda problem: problem.message
    """A sentence that names the cause and the way out; it must be safe to show to a client."""

    def timeout_of(self, method: str, params: Params) -> float:
        """Seconds that a call has, in which the tool goes by the server's own name of it."""
        if method == "tools/call":
            tool = str(params.get("name"))
            for pattern, seconds in self.tool_timeouts:
                if fnmatchcase(tool, pattern):
                    return seconds
        return self.timeout


class Figures(msgspec.Struct):
    """What is counted of a mount's calls."""

    calls: int = 0
    errors: int = 0
    seconds: float = 0.0
    restarts: int = 0
