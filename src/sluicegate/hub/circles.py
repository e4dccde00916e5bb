"""Gateways behind gateways: what one offers says through which it came, so that none is offered its own again.

Pure. Every list of a gateway names the gateway; what it has of another one names all that it came through. Whoever
finds itself among these leaves the entry out, or two that hold each other's address would list each other without end.
"""

from collections.abc import Iterable
from typing import Final

from sluicegate.protocol.message import Params, as_array, as_object

GATEWAY: Final = "dev.sluicegate/gateway"
"""In `_meta` of a list: the gateway that gives it, by a name that means nothing else."""
THROUGH: Final = "dev.sluicegate/through"
"""In `_meta` of an entry: the gateways behind that one which it came through, the nearest first."""

LONGEST_NAME: Final = 64
MOST_GATEWAYS: Final = 16
"""One behind the other."""


def gateway_of(page: Params) -> str:
    """The gateway that gave a page of a list; empty if it is a plain server's."""
    name = (as_object(page.get("_meta")) or {}).get(GATEWAY)
    return name if isinstance(name, str) and len(name) <= LONGEST_NAME else ""


def not_from(ourselves: str, gateway: str, entries: Iterable[Params]) -> tuple[list[Params], bool]:
    """The entries of a gateway that did not come from us, each marked with the way it took; and whether others did."""
    kept: list[Params] = []
    leads_back = False
    for entry in entries:
        meta = as_object(entry.get("_meta")) or {}
        way = [gateway, *(as_array(meta.get(THROUGH)) or [])]
        if ourselves in way:
            leads_back = True
        elif len(way) <= MOST_GATEWAYS:  # Longer than anybody means it to be: a circle of others who do not look.
            kept.append({**entry, "_meta": {**meta, THROUGH: way}})
    return kept, leads_back
