"""The addresses of a gateway, and whether a server or an address is the gateway itself."""

import ipaddress
import os
from collections.abc import Sequence
from urllib.parse import urlsplit

from sluicegate.config.model import Http, HttpFront, Source, Stdio


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach the address."""
    if host.lower() == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def exposure(http: HttpFront) -> str | None:
    """Why a gateway without authentication must not listen at the address (threats T6); None if it may."""
    if http.anyone_may_connect or is_loopback(http.host):
        return None
    return (
        f'With host = "{http.host}" anyone on the network could call every tool. Listen on 127.0.0.1, '
        "or set anyone_may_connect = true under [http]."
    )


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
    """Whether a command line is `sluicegate serve` for a folder, not for a Python file."""
    program = os.path.basename(words[0]).removesuffix(".exe")
    if "serve" not in words or not (program == "sluicegate" or "sluicegate" in words):
        return False
    # FILE.py, or FILE.py:NAME.
    return not any(
        part.endswith(".py") for word in words[words.index("serve") :] for part in (word, word.split(":")[0])
    )


def leads_to(url: str, http: HttpFront, *, at_any_port: bool = False) -> bool:
    """Whether the URL leads to a gateway that listens as `http` says, perhaps with another port."""
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
