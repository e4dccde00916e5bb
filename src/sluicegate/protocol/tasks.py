"""Names of tasks: of the extension that 2026-07-28 has for them, and of what 2025-11-25 had in its core.

The two have a word in common and nothing else: a peer of one understands nothing of the other.
"""

from collections.abc import Mapping
from typing import Final, TypeGuard

from sluicegate.protocol.discovery import Discovery
from sluicegate.protocol.message import Params, Reply, Result, as_object
from sluicegate.protocol.modern import Profile
from sluicegate.protocol.versions import MODERN_VERSIONS

RELATED: Final = "io.modelcontextprotocol/related-task"
"""In `_meta`, in 2025-11-25: the task that a message is about."""

EXTENSION: Final = "io.modelcontextprotocol/tasks"

GET: Final = "tasks/get"
REQUESTS: Final = (GET, "tasks/update", "tasks/cancel")
"""All that a client can ask about a task."""

NOTICE: Final = "notifications/tasks"
"""Tells how a task is, to those who listen to it."""

WANTED: Final = "taskIds"
"""In the filter of `subscriptions/listen`: the tasks to listen to."""

RESULT_TYPE: Final = "task"
"""That of a result which says that the call goes on as a task."""

ENDED: Final = frozenset({"completed", "failed", "cancelled"})
"""The states in which a task stays."""

REQUIRED: Final[Params] = {"extensions": {EXTENSION: {}}}
"""What a client has to declare before it is told anything of tasks."""


def declares_tasks(profile: Profile) -> bool:
    """Whether a client said with its request that it knows the extension."""
    return profile.version in MODERN_VERSIONS and _has(profile.capabilities)


def offers_tasks(discovery: Discovery | None) -> bool:
    """Whether a server says that it has the extension."""
    return discovery is not None and discovery.version in MODERN_VERSIONS and _has(discovery.capabilities)


def may_have_tasks(client: Profile, server: Discovery | None) -> bool:
    """Whether a server may answer a client's call with a task: both of them say that they know such."""
    return declares_tasks(client) and offers_tasks(server)


def without_tasks(capabilities: Mapping[str, object]) -> Mapping[str, object]:
    """The capabilities of either side, but for the extension, however it is said; the same object if it is not."""
    if "extensions" not in capabilities:
        return capabilities
    extensions = as_object(capabilities["extensions"])
    if extensions is not None and EXTENSION not in extensions:
        return capabilities
    others: Params = {name: value for name, value in capabilities.items() if name != "extensions"}
    rest = {name: value for name, value in (extensions or {}).items() if name != EXTENSION}
    return {**others, "extensions": rest} if rest else others


def says_task(reply: Reply) -> TypeGuard[Result]:
    """Whether a reply, once it is opened, says that the call goes on as a task."""
    return isinstance(reply, Result) and isinstance(reply.value, dict) and reply.value.get("resultType") == RESULT_TYPE


def _has(capabilities: Mapping[str, object]) -> bool:
    return as_object((as_object(capabilities.get("extensions")) or {}).get(EXTENSION)) is not None
