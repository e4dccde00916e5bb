"""A gateway as a whole program: its HTTP endpoints, its pipe, its commands' socket, and its files, until it is told
to stop.

The one rule: servers are started first. What a front needs is imported where it is opened, while they start.
"""

from sluicegate.fronts.beginning import Beginning, settled_catalog
from sluicegate.fronts.program import serve_gateway
from sluicegate.fronts.running import Adjust, Running, Say, as_loaded, hub_socket

__all__ = [
    "Adjust",
    "Beginning",
    "Running",
    "Say",
    "as_loaded",
    "hub_socket",
    "serve_gateway",
    "settled_catalog",
]
