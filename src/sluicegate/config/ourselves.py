"""How a gateway knows itself among the servers of its files, and of those of other programs."""

import os
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from sluicegate.config.exposure import is_loopback
from sluicegate.config.values import Http, HttpFront, Source, Stdio

OURSELVES: Final = "It is this gateway itself, which does not call itself."


def is_ourselves(source: Source | None, http: HttpFront) -> bool:
    """Whether a server is the gateway of this configuration: clients and gateway often share one file."""
    match source:
        case Stdio():
            return starts_a_gateway([source.command, *(word.reveal() for word in source.args)])
        case Http():
            return leads_to(source.url.reveal(), http)
        case _:
            return False


def starts_a_gateway(words: Sequence[str]) -> bool:
    """Whether a command line is `sluicegate serve` for a folder, and not for the one server in a Python file."""
    program = os.path.basename(words[0]).removesuffix(".exe")
    if "serve" not in words or not (program == "sluicegate" or "sluicegate" in words):
        return False
    # FILE.py, or FILE.py:NAME.
    return not any(
        part.endswith(".py") for word in words[words.index("serve") :] for part in (word, word.split(":")[0])
    )


def leads_to(url: str, http: HttpFront, *, at_any_port: bool = False) -> bool:
    """Whether who listens as `http` says is at a URL, or would be with another port."""
    try:
        parts = urlsplit(url)
        port = parts.port or 80
    except ValueError:
        return False
    top, path = http.path.rstrip("/"), parts.path.rstrip("/")
    host = parts.hostname or ""
    is_here = is_loopback(host) or host == http.host.strip("[]")
    return (
        parts.scheme == "http"
        and (at_any_port or port == http.port)
        and is_here
        and (path in (top, "/sse") or path.startswith(f"{top}/"))
    )
