"""A gateway that runs and does not answer, told from none at all by its socket: the system takes connections for it."""

import socket
import struct
from typing import Final

from sluicegate.cli.failure import Failure

_CREDENTIALS: Final = struct.Struct("iII")
"""Process, user and group at the other end, as Linux has them."""


class NoAnswer(Failure):
    """Ends a command whose gateway hangs. To start its servers a second time beside it would help nobody."""

    def __init__(self, process: int) -> None:
        who = f" (process {process})" if process else ""
        self.sentence = f"runs for this folder{who} and does not answer"
        self.remedy = f"See its terminal, or end it{f': kill -KILL {process}' if process else ''}."
        super().__init__(f"a gateway {self.sentence}. {self.remedy}")


def listener(path: str) -> int | None:
    """The process that listens at a path, 0 if that cannot be known, None if nobody does."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except BlockingIOError:  # So many wait for it already that no more can.
            return 0
        except OSError:
            return None
        if not hasattr(socket, "SO_PEERCRED"):
            return 0
        found = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
        return _CREDENTIALS.unpack(found)[0]
