"""When a gateway stops: by a signal, without clients, and by force if stopping takes too long."""

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from typing import Final

from sluicegate.config.model import GatewayConfig

log = logging.getLogger("sluicegate")

STOP_MARGIN: Final = 5.0
"""Seconds to stop in addition to those for calls and servers; with the default settings, 20 seconds in total."""
FIRST_CLIENT: Final = 30.0
"""Seconds that a gateway which was started for stdio clients waits for the first one."""
LINGER: Final = 1.0
"""Seconds that it goes on after the last one has left: scripts start a client for each call."""


class Signals:
    """Handles SIGTERM, SIGINT and SIGHUP: the first signal sets `stop`, the second ends the process.

    SIGHUP means that the terminal was closed; it stays ignored under `nohup`. It does not reload the files, since they
    are watched.
    """

    def __init__(self) -> None:
        self.stop = asyncio.Event()
        """Set when the gateway is to stop, also for reasons other than a signal."""
        self.were_given = False
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                loop.add_signal_handler(number, self._given)

    def _given(self) -> None:
        if self.were_given:
            os._exit(1)  # The guardians end the child processes.
        self.were_given = True
        self.stop.set()


class UntilIdle:
    """Stops a gateway that has no clients for some time."""

    def __init__(self, stop: Callable[[], None]) -> None:
        self._stop = stop
        self._timer = asyncio.get_running_loop().call_later(FIRST_CLIENT, stop)

    def changed(self, clients: int) -> None:
        """Called with the number of clients."""
        self._timer.cancel()
        if not clients:
            self._timer = asyncio.get_running_loop().call_later(LINGER, self._stop)


class ExitTimer:
    """Ends the process if stopping takes too long: a tool may not react to its cancellation."""

    def __init__(self) -> None:
        self._timer: asyncio.TimerHandle | None = None

    def start(self, config: GatewayConfig) -> None:
        # A server has its grace to end by itself, and again after SIGTERM.
        graces = [2 * server.settings.stop_grace for server in config.servers.values()]
        seconds = config.limits.drain + max(graces, default=0.0) + STOP_MARGIN
        self._timer = asyncio.get_running_loop().call_later(seconds, _leave)

    def cancel(self) -> None:
        """Stop the timer: everything has stopped."""
        if self._timer is not None:
            self._timer.cancel()


def _leave() -> None:
    log.warning("A call did not stop when it was cancelled; the gateway exits without waiting for it.")
    os._exit(0)  # The guardians end the child processes.
