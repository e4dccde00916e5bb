"""The first moment of a gateway: its place is claimed, and its servers are started, to load while it does the same.

The one rule: what is imported here is all that it takes to start a process. No event loop is among it.
"""

import socket
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Final, TypedDict

from sluicegate.claims import Taken, claimed
from sluicegate.config.places import control_socket
from sluicegate.config.values import GatewayConfig, HttpFront, Stdio
from sluicegate.errors import ConfigError, UpstreamUnavailable
from sluicegate.upstream.launching import Launched, launch

_BESIDE: Final = "This one serves its client all the same, and `sluicegate status` and the other commands ask that one."
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


@contextmanager
def claimed_for_commands(
    config: GatewayConfig, environ: Mapping[str, str], otherwise: Callable[[str], object] | None = None
) -> Generator[bool]:
    """Have the place of the control socket for as long as the `with` lasts; whether that is so.

    `otherwise` is told why it cannot be had; without it, that is an error.

    Raises:
        ConfigError: another gateway has it, or no socket can be made there.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(claimed(control_socket(config, environ)))
            is_ours = True
        except ConfigError as problem:
            if otherwise is None:
                raise
            # Several clients may each start their own gateway for one folder; the first has the commands.
            otherwise(f"{problem.message} {_BESIDE if isinstance(problem, Taken) else ''}".rstrip())
            is_ours = False
        yield is_ours


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
