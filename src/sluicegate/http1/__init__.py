"""HTTP/1.1 for both roles, independent of MCP: keep-alive, chunks, limits, timeouts, backpressure, joined writes.

Heads are parsed by llhttp (httptools). The one rule: ambiguous messages are refused and the connection is closed.
"""

from .client import Pool
from .client_connection import Answer
from .headers import Fields, Headers, is_plain
from .limits import ClientLimits, Limits
from .request import Handler, Request
from .server import Listener, serve

__all__ = [
    "Answer",
    "ClientLimits",
    "Fields",
    "Handler",
    "Headers",
    "Limits",
    "Listener",
    "Pool",
    "Request",
    "is_plain",
    "serve",
]
