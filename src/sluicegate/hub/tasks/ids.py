"""Ids of tasks as clients see them, `SERVER.SEALED`, and the owner of each task (T12)."""

from hashlib import sha256
from typing import Final

import msgspec

from sluicegate.exchange import Caller
from sluicegate.protocol.sealed_tokens import Sealer
from sluicegate.runtime.process_key import process_key

MAX_OWNED: Final = 10_000
"""Tasks of one server whose owner is remembered; an older task has no owner any more."""


class TaskId(msgspec.Struct, frozen=True):
    """The server of a task, its tool there, and the server's own id of the task."""

    mount: str
    tool: str
    own: str


class TaskIds:
    """Seals ids for a caller. For all other callers, and after a restart, they are unknown."""

    def __init__(self) -> None:
        self._sealer = Sealer(process_key(), "task id")

    def seal(self, caller: Caller, task: TaskId) -> str:
        """The id that the caller gets."""
        content = msgspec.json.encode((task.tool, task.own))
        return f"{task.mount}.{self._sealer.seal(content, (caller.id, task.mount))}"

    def open(self, caller: Caller, sealed_id: str) -> TaskId | None:
        """The task of an id; None if this caller never got it."""
        mount, _, sealed = sealed_id.rpartition(".")
        content = self._sealer.open(sealed, (caller.id, mount))
        if content is None:
            return None
        return TaskId(mount, *msgspec.json.decode(content, type=tuple[str, str]))


class TaskOwners:
    """The callers that own the tasks of one server, by the server's own ids.

    A server that was restarted may use an id again. The caller that has the id from before must not reach the new task.
    """

    def __init__(self) -> None:
        self._callers: dict[bytes, str] = {}  # By digest: a server's ids may be long.

    def add(self, own: str, caller: Caller, *, is_replaced: bool = False) -> None:
        """Remember the owner of a new task; a task of a replaced server does not take the id of another one."""
        key = sha256(own.encode()).digest()
        if is_replaced and key in self._callers:
            return
        self._callers.pop(key, None)
        self._callers[key] = caller.id
        if len(self._callers) > MAX_OWNED:
            del self._callers[next(iter(self._callers))]

    def owns(self, caller: Caller, own: str) -> bool:
        """Whether a task is this caller's."""
        return self._callers.get(sha256(own.encode()).digest()) == caller.id
