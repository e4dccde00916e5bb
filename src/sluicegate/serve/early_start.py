"""Early start: takes the lock of the control socket and starts the servers before the gateway is loaded.

This module imports only what is needed to start a process, and no event loop: the servers load while the gateway does.
"""

import socket
import subprocess
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from typing import Final

from sluicegate.config.model import GatewayConfig, HttpFront, Stdio
from sluicegate.config.paths import control_socket, control_sockets, note_folders
from sluicegate.errors import ConfigError, UpstreamUnavailable
from sluicegate.runtime.lock import AlreadyServed, locked
from sluicegate.upstream.spawn import Launched, launch

_BESIDE: Final = (
    "This one serves its client without a control socket; `sluicegate status` and other commands use that one."
)
MAX_STOP: Final = 5.0
"""Seconds to wait for the end of unused servers. Their guardians need less, and continue without this process."""


def check_address(http: HttpFront) -> None:
    """Raise OSError if the address cannot be bound."""
    if http.port:
        family = socket.AF_INET6 if ":" in http.host else socket.AF_INET
        socket.create_server((http.host.strip("[]"), http.port), family=family).close()


@contextmanager
def claimed_for_commands(
    config: GatewayConfig, environ: Mapping[str, str], otherwise: Callable[[str], object] | None = None
) -> Generator[bool]:
    """Hold the lock of the control socket. Yields whether it was acquired.

    If it was not, `otherwise` is called with the reason; without `otherwise`, that is an error.

    Raises:
        ConfigError: another gateway holds it, or no socket can be created there.
    """
    note_folders(environ, new=True)
    with ExitStack() as stack:
        try:
            # Gateways that an older version, or a process of another environment, started for the folder count too.
            others = () if config.control.socket else control_sockets(config.root, environ)
            stack.enter_context(locked(control_socket(config, environ), others))
            is_ours = True
        except ConfigError as problem:
            if otherwise is None:
                raise
            # Several clients may each start a gateway for one folder; the first one gets the control socket.
            otherwise(f"{problem.message} {_BESIDE if isinstance(problem, AlreadyServed) else ''}".rstrip())
            is_ours = False
        yield is_ours


class Launches:
    """Server processes that were started before there is a gateway.

    The gateway takes them when it connects; those that it has not taken are stopped when the `with` ends.
    """

    def __init__(self) -> None:
        self._launched: dict[str, Launched] = {}
        self._dismissed: list[Launched] = []

    def __enter__(self) -> "Launches":
        return self

    def __exit__(self, *error: object) -> None:
        self.dismiss()
        end = time.monotonic() + MAX_STOP
        for launched in self._dismissed:
            with suppress(subprocess.TimeoutExpired):
                launched.process.wait(max(0.0, end - time.monotonic()))

    @property
    def servers(self) -> Mapping[str, Launched]:
        return self._launched

    def start(self, config: GatewayConfig) -> None:
        """Start all enabled servers that are commands."""
        for name, server in config.servers.items():
            if server.enabled and isinstance(server.source, Stdio):
                source = server.source
                # The gateway tries again and reports the reason.
                with suppress(UpstreamUnavailable):
                    self._launched[name] = launch(source.argv(), env=source.environment(), cwd=source.cwd)

    def dismiss(self) -> None:
        """Stop the processes that were not taken, without waiting for their end."""
        self._dismissed += [launched for launched in self._launched.values() if launched.dismiss()]
        self._launched.clear()
