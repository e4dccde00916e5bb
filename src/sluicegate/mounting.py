"""Servers elsewhere, as something to mount in a hub or to connect to: `stdio` is a command, `http` a URL."""

import os
import sys
from collections.abc import Mapping
from typing import Literal

from sluicegate.exchange import Upstream

Era = Literal["auto", "session", "modern"]


def stdio(
    program: str | os.PathLike[str],
    *arguments: str | os.PathLike[str],
    env: Mapping[str, str] | None = None,
    cwd: str | os.PathLike[str] | None = None,
    era: Era = "auto",
    open_timeout: float = 30.0,
) -> Upstream:
    """A command that is a server, started by whoever connects to it: `stdio("mcp-server-filesystem", "/srv/share")`.

    Args:
        program: run without a shell; a bare `python` is this very interpreter.
        env: variables besides those that every program needs. None of ours that could be a secret is passed on.
        open_timeout: seconds for the handshake, in which its era is found out, too.
    """
    from sluicegate.upstream.stdio import StdioUpstream

    words = [os.fspath(word) for word in (program, *arguments)]
    if words[0] == "python":
        words[0] = sys.executable
    return StdioUpstream(words, env=env, cwd=cwd, era=era, open_timeout=open_timeout)


def http(
    url: str, *, headers: Mapping[str, str] | None = None, era: Era = "auto", open_timeout: float = 30.0
) -> Upstream:
    """A URL that is a server, of any revision and either transport: `http("https://search.example/mcp")`.

    Args:
        headers: go along with every request, such as `{"Authorization": "Bearer …"}`.
        open_timeout: seconds for the handshake, in which its era is found out, too.

    Raises:
        ConfigError: the URL or a header cannot be sent.
    """
    from sluicegate.upstream.http import HttpUpstream

    return HttpUpstream(url, headers=headers, era=era, open_timeout=open_timeout)
