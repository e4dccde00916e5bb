"""HTTP/1.1 for both roles, and nothing of MCP: keep-alive, chunks, limits, time-outs, backpressure, joined writes.

Heads are parsed by llhttp (httptools), TLS is the standard library's. The one rule: what two readers could understand
in two ways is refused, and the connection closed.
"""

from .answers import Answer
from .client import Pool
from .heads import Fields, Headers, is_plain
from .limits import Limits
from .outgoing import ClientLimits
from .requests import Handler, Request
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
