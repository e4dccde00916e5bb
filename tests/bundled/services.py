"""Services of a gateway without servers, for activations that are tested alone."""

from collections.abc import Callable, Mapping
from pathlib import Path

from sluicegate.gateway.caller_access import CallerAccess
from sluicegate.gateway.loading import Services
from sluicegate.hub.hub import Hub


def services_in(folder: Path | str, *, servers: Callable[[], Mapping[str, int]] = dict, since: float = 0.0) -> Services:
    router = Hub().router("")
    return Services(
        "alone",
        servers,
        since,
        str(folder),
        lambda exchange: CallerAccess(exchange.caller, router, router),
        str(folder),
    )
