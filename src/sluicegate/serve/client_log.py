"""Our own log records, as log messages to the clients that set a log level."""

import asyncio
import logging
from collections.abc import Generator
from contextlib import contextmanager
from typing import Final

from sluicegate.hub.hub import Hub
from sluicegate.protocol.message import Notification, Params
from sluicegate.text.masking import masked_line

MAX_RECORD: Final = 2000
"""Characters of a record that clients get."""

_LEVELS: Final = ((logging.CRITICAL, "critical"), (logging.ERROR, "error"), (logging.WARNING, "warning"))


@contextmanager
def records_to_clients(hub: Hub) -> Generator[None]:
    """Send the records of this process to the clients of its hub.

    Only for a process that is one gateway: records do not tell which of several hubs they are about.
    """
    logger, lines = logging.getLogger("sluicegate"), logging.getLogger("sluicegate.stderr")
    handler = _ClientLog(hub, asyncio.get_running_loop())
    levels = logger.level, lines.level
    # Clients choose their level; the records below a warning are too few to cost anything when no client wants them.
    # What servers write is no record of ours.
    lines.setLevel(lines.getEffectiveLevel())
    logger.setLevel(logging.DEBUG)
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(levels[0])
        lines.setLevel(levels[1])


class _ClientLog(logging.Handler):
    def __init__(self, hub: Hub, loop: asyncio.AbstractEventLoop) -> None:
        super().__init__()
        self._hub = hub
        self._loop = loop

    def emit(self, record: logging.LogRecord) -> None:
        """Send a record; only its sentence, since a traceback may contain anything."""
        if not self._hub.log.is_wanted or record.name != "sluicegate":  # Others write lines of servers.
            return
        try:
            self._pass_on(record)
        except Exception:  # An edge, as in every handler of `logging`: a record never fails the code that writes it.
            self.handleError(record)

    def _pass_on(self, record: logging.LogRecord) -> None:
        text = masked_line(record.getMessage()[:MAX_RECORD].encode(errors="replace").decode())
        params: Params = {"level": _level(record.levelno), "logger": "sluicegate", "data": text}
        # Some records come from other threads.
        self._loop.call_soon_threadsafe(self._send, Notification("notifications/message", params), record)

    def _send(self, line: Notification, record: logging.LogRecord) -> None:
        server = _server_of(record, self._hub)
        about = [mount for mount in self._hub.mounts if server in ("", mount.name)]
        self._hub.log.forward(server, {caller for mount in about for caller in mount.calls.callers}, line)


def _level(number: int) -> str:
    return next((name for least, name in _LEVELS if number >= least), "info" if number >= logging.INFO else "debug")


def _server_of(record: logging.LogRecord, hub: Hub) -> str:
    """The server that a record is about: it says so, or begins with its name."""
    first = record.args[0] if isinstance(record.args, tuple) and record.args else ""
    name = getattr(record, "server", first)
    return name if isinstance(name, str) and hub.find(name) is not None else ""
