"""Names of the tasks extension of 2026-07-28, and of the incompatible tasks in the core of 2025-11-25."""

from collections.abc import Mapping
from typing import Final, TypeGuard

from sluicegate.protocol.message import Params, Reply, Result, as_object
from sluicegate.protocol.modern_era import ClientProfile, Discovery
from sluicegate.protocol.versions import MODERN_VERSIONS

RELATED: Final = "io.modelcontextprotocol/related-task"
"""In `_meta`, in 2025-11-25: the task that a message belongs to."""

EXTENSION: Final = "io.modelcontextprotocol/tasks"

GET: Final = "tasks/get"
REQUESTS: Final = (GET, "tasks/update", "tasks/cancel")
"""All requests about a task."""

NOTICE: Final = "notifications/tasks"

WANTED: Final = "taskIds"
"""In the filter of `subscriptions/listen`: the tasks to listen to."""

RESULT_TYPE: Final = "task"
"""The type of a result that says that the call continues as a task."""

ENDED: Final = frozenset({"completed", "failed", "cancelled"})

REQUIRED: Final[Params] = {"extensions": {EXTENSION: {}}}
"""The capabilities that a client must declare to get tasks."""


def declares_tasks(profile: ClientProfile) -> bool:
    """Whether a client declares the extension with its request."""
    return profile.version in MODERN_VERSIONS and _has(profile.capabilities)


def offers_tasks(discovery: Discovery | None) -> bool:
    """Whether a server offers the extension."""
    return discovery is not None and discovery.version in MODERN_VERSIONS and _has(discovery.capabilities)


def may_have_tasks(client: ClientProfile, server: Discovery | None) -> bool:
    """Whether a server may answer a client's call with a task: both declare the extension."""
    return declares_tasks(client) and offers_tasks(server)


def without_tasks(capabilities: Mapping[str, object]) -> Mapping[str, object]:
    """The capabilities without the extension; the same object if it is not there."""
    if "extensions" not in capabilities:
        return capabilities
    extensions = as_object(capabilities["extensions"])
    if extensions is not None and EXTENSION not in extensions:
        return capabilities
    others: Params = {name: value for name, value in capabilities.items() if name != "extensions"}
    rest = {name: value for name, value in (extensions or {}).items() if name != EXTENSION}
    return {**others, "extensions": rest} if rest else others


def says_task(reply: Reply) -> TypeGuard[Result]:
    """Whether a decoded reply says that the call continues as a task."""
    return isinstance(reply, Result) and isinstance(reply.value, dict) and reply.value.get("resultType") == RESULT_TYPE


def _has(capabilities: Mapping[str, object]) -> bool:
    return as_object((as_object(capabilities.get("extensions")) or {}).get(EXTENSION)) is not None
