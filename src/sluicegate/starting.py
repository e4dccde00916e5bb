"""The first moment of a gateway: its servers are started, so that they load what they need while it does the same.

The one rule: what is imported here is all that it takes to start a process. No event loop is among it.
"""

import socket
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, TypedDict

from sluicegate.config.values import GatewayConfig, HttpFront, Stdio
from sluicegate.errors import UpstreamUnavailable
from sluicegate.upstream.launching import Launched, launch

LONGEST_END: Final = 5.0
"""Seconds for the ends of servers that nobody took: their guardians need less, and go on without us."""


class Command(TypedDict):
    """What a process is started with."""

    command: list[str]
    env: dict[str, str]
    cwd: str


def command_of(source: Stdio) -> Command:
    """What the process of a server is started with, whoever starts it; secrets and all."""
    return Command(command=source.argv(), env=source.environment(), cwd=source.cwd)


def check_address(http: HttpFront) -> None:
    """Raise OSError if the address cannot be had."""
    if http.port:
        family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
        socket.create_server((http.host.strip("[]"), http.port), family=family).close()


class Launches:
    """Servers of a configuration, started before there is anybody to speak to them.

    A gateway takes them when it connects; those that it has not taken are ended with the `with`.
    """

    def __init__(self) -> None:
        self._launched: dict[str, Launched] = {}
        self._dismissed: list[Launched] = []

    def __enter__(self) -> "Launches":
        return self

    def __exit__(self, *error: object) -> None:
        self.dismiss()
        end = time.monotonic() + LONGEST_END
        for launched in self._dismissed:
            with suppress(subprocess.TimeoutExpired):
                launched.process.wait(max(0.0, end - time.monotonic()))

    @property
    def servers(self) -> Mapping[str, Launched]:
        """All of them, by the names of the servers."""
        return self._launched

    def start(self, config: GatewayConfig) -> None:
        """Start every server that is a command and is to run, all at once, as the gateway would."""
        for name, server in config.servers.items():
            if server.enabled and isinstance(server.source, Stdio):
                # One that cannot be started now cannot be in a moment either, when there is somebody to say why.
                with suppress(UpstreamUnavailable):
                    self._launched[name] = launch(**command_of(server.source))

    def dismiss(self) -> None:
        """Have those ended that nobody has taken, without waiting for it."""
        self._dismissed += [launched for launched in self._launched.values() if launched.dismiss()]
        self._launched.clear()
