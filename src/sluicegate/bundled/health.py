"""`health`: whether the gateway works."""

import time
from collections.abc import Callable
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from sluicegate import __version__
from sluicegate.gateway.loading import Services
from sluicegate.protocol.versions import SUPPORTED_VERSIONS
from sluicegate.server import activation


class Check(msgspec.Struct, frozen=True):
    """What `check` returns."""

    status: Annotated[Literal["ok", "degraded"], Meta(description="Degraded if a server is not ready.")]
    version: Annotated[str, Meta(description="The version of the gateway.")]
    uptime_seconds: Annotated[float, Meta(description="Seconds since it was started.")]
    servers: Annotated[dict[str, int], Meta(description="How many servers are in each state.")]
    revisions: Annotated[list[str], Meta(description="The supported revisions of MCP.")]


@activation("health")
class Health:
    """The condition of the gateway."""

    def __init__(self, services: Services, clock: Callable[[], float] = time.monotonic) -> None:
        self._services = services
        self._clock = clock

    async def check(self) -> Check:
        """Whether the gateway works, since when, and how many of its servers are ready."""
        servers = dict(self._services.servers())
        is_ok = not (servers.keys() - {"ready", "disabled"})
        return Check(
            "ok" if is_ok else "degraded",
            __version__,
            round(self._clock() - self._services.since, 3),
            servers,
            list(SUPPORTED_VERSIONS),
        )
