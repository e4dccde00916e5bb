"""How a gateway knows itself among the servers of its files."""

import os
from typing import Final
from urllib.parse import urlsplit

from sluicegate.config.exposure import is_loopback
from sluicegate.config.values import Http, HttpFront, Source, Stdio

OURSELVES: Final = "It is this gateway itself, which does not call itself."


def is_ourselves(source: Source | None, http: HttpFront) -> bool:
    """Whether a server is the gateway of this configuration: clients and gateway often share one file."""
    match source:
        case Stdio():
            words = [word.reveal() for word in source.args]
            program = os.path.basename(source.command).removesuffix(".exe")
            return "serve" in words and (program == "sluicegate" or "sluicegate" in words)
        case Http():
            try:
                parts = urlsplit(source.url.reveal())
                port = parts.port or 80
            except ValueError:
                return False
            path = parts.path.rstrip("/")
            ours = path in (http.path.rstrip("/"), "/sse") or path.startswith(f"{http.path.rstrip('/')}/")
            return parts.scheme == "http" and port == http.port and is_loopback(parts.hostname or "") and ours
        case _:
            return False
