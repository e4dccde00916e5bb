"""The ids of tasks as clients know them: `SERVER.SEALED`, which hold all that is needed to find the task (§3.8, T12).

An id is bound to the caller whose task it is, so that to anybody else it is as unknown as one that was never given; and
one task has one id, however often it is told of. Nothing is kept of a task but whose it is: a server that begins anew
may give the id of a task to another.
"""

import secrets
from hashlib import sha256
from typing import Final

import msgspec

from sluicegate.exchange import Caller
from sluicegate.protocol.seal import Sealer

_PURPOSE: Final = "task"

MOST_OWNED: Final = 10_000
"""How many tasks of one server are known to be somebody's."""


class Known(msgspec.Struct, frozen=True):
    """Where a task is, what it is called there, and the tool whose call it was, by the server's own name of it."""

    mount: str
    tool: str
    own: str


class TaskIds:
    """Gives ids, and finds by them what they were given for; they end with this process, as `Owners` do."""

    def __init__(self) -> None:
        self._sealer = Sealer(secrets.token_bytes(32))

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


class Owners:
    """Whose the tasks of one server are, by its own ids: of those that were begun last. The others are nobody's.

    Its ids are unique only for as long as it lives. Who has one from an earlier life must not reach the task that goes
    by it now, and must not be able to by having so many begun that its owner is forgotten. What remains is the moment
    in which a server has begun a task and has not said so yet.
    """

    def __init__(self) -> None:
        # Of ids as long as a server likes, only as much is kept as tells them apart.
        self._callers: dict[bytes, str] = {}

    def note(self, own: str, caller: Caller, *, is_late: bool = False) -> None:
        """Learn whose a new task is; one of a server that has been replaced is late, and takes nobody's place."""
        key = _key(own)
        if is_late and key in self._callers:
            return
        self._callers.pop(key, None)
        self._callers[key] = caller.id
        if len(self._callers) > MOST_OWNED:
            del self._callers[next(iter(self._callers))]

    def has(self, own: str, caller: Caller) -> bool:
        """Whether a task is this caller's."""
        return self._callers.get(_key(own)) == caller.id


def _key(own: str) -> bytes:
    return sha256(own.encode()).digest()
