"""The seconds that docs/threat-model.md promises, as they can be measured from outside.

killed = time.monotonic()
os.kill(pid, signal.SIGKILL)
...
assert_kept(ORPHANED, killed)
"""

import time
from typing import Final

STALL: Final = 4.0
"""Seconds that a machine with much else to do may add to any of these: it stands still for one or two at times."""
LEFT_OVER: Final = 10.0
"""After these nothing is left of what has ended: no process, no descriptor, no task (R0, R11)."""
ORPHANED: Final = 5.0
"""After these no process is left behind a gateway that ended without a word (R30)."""
STOPPED: Final = 20.0
"""After these a gateway has ended that was told to stop (R29)."""
AT_ONCE: Final = 2.0
"""After these it has ended that was told so twice (R29)."""
GRACE: Final = 2.0
"""So long a server has to end by itself, and as long again after SIGTERM, where nobody set another time (R10)."""
DRAIN: Final = 10.0
"""So long a call under way has when the gateway is told to stop, where nobody set another time (R29)."""


def assert_kept(promise: float, since: float, *, earliest: float = 0.0) -> None:
    """What has just happened did so within the seconds that were promised from a moment of the monotonic clock on."""
    took = time.monotonic() - since
    assert earliest <= took <= promise + STALL, f"it took {took:.2f} s; promised are {earliest} to {promise}"
