"""One table of all MCP methods: which side sends them, in which revisions, and which params field is the target."""

import re
from collections.abc import Mapping
from typing import Final, Literal

import msgspec

Sender = Literal["client", "server", "both"]
Judged = Literal["tool", "prompt", "resource", "reference", "filter", "task"]


class Method(msgspec.Struct, frozen=True):
    """One method. `since` and `until` are inclusive; `target` is the params field that policy judges."""

    name: str
    sender: Sender
    notification: bool = False
    since: str = "2024-11-05"
    until: str = "9999"
    target: str | None = None
    capability: str | None = None
    cacheable: bool = False
    may_ask: bool = False

    def exists_in(self, version: str) -> bool:
        """Whether the revision has this method. Revisions are dates, so they compare as strings."""
        return self.since <= version <= self.until


_SESSION_ERA: Final = "2025-11-25"
_ROWS: Final = (
    # Requests a client sends.
    Method("initialize", "client", until=_SESSION_ERA),
    Method("ping", "both", until=_SESSION_ERA),
    Method("server/discover", "client", since="2026-07-28", cacheable=True),
    Method("tools/list", "client", capability="tools", cacheable=True),
    Method("tools/call", "client", capability="tools", target="name", may_ask=True),
    Method("prompts/list", "client", capability="prompts", cacheable=True),
    Method("prompts/get", "client", capability="prompts", target="name", may_ask=True),
    Method("resources/list", "client", capability="resources", cacheable=True),
    Method("resources/templates/list", "client", capability="resources", cacheable=True),
    Method("resources/read", "client", capability="resources", target="uri", cacheable=True, may_ask=True),
    Method("resources/subscribe", "client", capability="resources", target="uri", until=_SESSION_ERA),
    Method("resources/unsubscribe", "client", capability="resources", target="uri", until=_SESSION_ERA),
    Method("subscriptions/listen", "client", since="2026-07-28"),
    Method("logging/setLevel", "client", capability="logging", until=_SESSION_ERA),
    Method("completion/complete", "client", capability="completions", target="ref"),
    # Requests of the tasks extension, which only peers that declare it may send. 2025-11-25 has two methods of the same
    # names with another meaning, which we do not offer to its clients.
    Method("tasks/get", "client", since="2026-07-28", target="taskId"),
    Method("tasks/update", "client", since="2026-07-28", target="taskId"),
    Method("tasks/cancel", "client", since="2026-07-28", target="taskId"),
    # Requests a server sends. From 2026-07-28 they are values inside `inputRequests`, never JSON-RPC requests.
    Method("sampling/createMessage", "server", capability="sampling"),
    Method("roots/list", "server", capability="roots"),
    Method("elicitation/create", "server", capability="elicitation", since="2025-06-18"),
    # Notifications.
    Method("notifications/initialized", "client", notification=True, until=_SESSION_ERA),
    Method("notifications/cancelled", "both", notification=True),
    Method("notifications/progress", "both", notification=True),
    Method("notifications/message", "server", notification=True),
    Method("notifications/tools/list_changed", "server", notification=True),
    Method("notifications/prompts/list_changed", "server", notification=True),
    Method("notifications/resources/list_changed", "server", notification=True),
    Method("notifications/resources/updated", "server", notification=True, target="uri"),
    Method("notifications/roots/list_changed", "client", notification=True, until=_SESSION_ERA),
    Method("notifications/elicitation/complete", "server", notification=True, since="2025-11-25", until=_SESSION_ERA),
    Method("notifications/subscriptions/acknowledged", "server", notification=True, since="2026-07-28"),
    Method("notifications/tasks", "server", notification=True, since="2026-07-28", target="taskId"),
)

METHODS: Final = {row.name: row for row in _ROWS}

JUDGED: Final[Mapping[str, Judged]] = {
    "tools/call": "tool",
    "prompts/get": "prompt",
    "resources/read": "resource",
    "resources/subscribe": "resource",
    "resources/unsubscribe": "resource",
    "subscriptions/listen": "filter",
    "completion/complete": "reference",
    "tasks/get": "task",
    "tasks/update": "task",
    "tasks/cancel": "task",
}
"""What access rules judge a request by (T16): a task by the tool whose call it is, a reference by the prompt or the
resource that it refers to, a filter by each resource in it."""

UNJUDGED: Final = frozenset(
    {
        "initialize",
        "ping",
        "server/discover",
        "tools/list",
        "prompts/list",
        "resources/list",
        "resources/templates/list",
        "logging/setLevel",
    }
)
"""Requests that name nothing. The gateway answers them itself; lists contain only what the rules do not hide."""

QUESTIONS: Final = frozenset({"sampling/createMessage", "roots/list", "elicitation/create"})
"""Requests that a server may send to a client in the middle of a call."""

LIST_CHANGES: Final = {
    "toolsListChanged": "notifications/tools/list_changed",
    "promptsListChanged": "notifications/prompts/list_changed",
    "resourcesListChanged": "notifications/resources/list_changed",
}
"""The flags of a `subscriptions/listen` filter and the notification each asks for."""

LOG_LEVELS: Final = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
"""From the lowest to the highest."""


def requestable(method: str, version: str) -> bool:
    """Whether a client may send this request in that revision."""
    row = METHODS.get(method)
    return row is not None and not row.notification and row.sender != "server" and row.exists_in(version)


_method: Final = re.compile(r"(?!notifications/)[A-Za-z0-9_.-]+(?:/[A-Za-z0-9_.-]+)+")
MAX_METHOD: Final = 128


def may_be_of_extension(method: str) -> bool:
    """Whether a request may be one of an extension that we do not know. Whether it is, only a handler knows."""
    return method not in METHODS and len(method) <= MAX_METHOD and _method.fullmatch(method) is not None
