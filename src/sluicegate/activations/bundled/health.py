"""`health`: whether the gateway works."""

import time
from collections.abc import Callable, Mapping
from typing import Literal

import msgspec

from sluicegate import __version__
from sluicegate.protocol.versions import SUPPORTED_VERSIONS


class Check(msgspec.Struct, frozen=True):
    """What `check` returns."""

    status: Literal["ok", "degraded"]
    """"degraded" if a server is not ready."""
    version: str
    uptime_seconds: float
    servers: dict[str, int]
    """How many servers are in each state."""
    revisions: list[str]
    """The supported revisions of MCP."""


class Health:
    """The condition of the gateway."""

    def __init__(
        self, servers: Callable[[], Mapping[str, int]], since: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        """`servers` returns how many servers are in each state; `since` is when the gateway was made."""
        self._servers = servers
        self._clock = clock
        self._since = since

    async def check(self) -> Check:
        """Whether the gateway works, since when, and how many of its servers are ready."""
        servers = dict(self._servers())
        is_ok = not (servers.keys() - {"ready", "disabled"})
        return Check(
            "ok" if is_ok else "degraded",
            __version__,
            round(self._clock() - self._since, 3),
            servers,
            list(SUPPORTED_VERSIONS),
        )
