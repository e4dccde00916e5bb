"""The ids of tasks as clients know them: `SERVER.SEALED`, which hold all that is needed to find the task (§3.8, T12).

Nothing is kept of a task that passes: an id is opened each time. It is bound to the caller whose task it is, so that
to anybody else it is as unknown as one that was never given; and one task has one id, however often it is told of.
"""

import secrets
from typing import Final

import msgspec

from sluicegate.exchange import Caller
from sluicegate.protocol.seal import Sealer

_PURPOSE: Final = "task"


class Known(msgspec.Struct, frozen=True):
    """Where a task is, what it is called there, and the tool whose call it was, by the server's own name of it."""

    mount: str
    tool: str
    own: str


class TaskIds:
    """Gives ids, and finds by them what they were given for."""

    def __init__(self, key: bytes | None = None) -> None:
        """Under a key of this process, ids end with it; under one that is kept, they outlive it."""
        self._sealer = Sealer(key or secrets.token_bytes(32))

    def give(self, caller: Caller, task: Known) -> str:
        """The id of a task of this caller."""
        content = msgspec.json.encode((task.tool, task.own))
        return f"{task.mount}.{self._sealer.seal(content, (_PURPOSE, caller.id, task.mount))}"

    def find(self, caller: Caller, given: str) -> Known | None:
        """The task that goes by this id for this caller; None for every id that was not given to it."""
        mount, _, sealed = given.rpartition(".")
        content = self._sealer.open(sealed, (_PURPOSE, caller.id, mount))
        if content is None:
            return None
        tool, own = msgspec.json.decode(content, type=tuple[str, str])
        return Known(mount, tool, own)
