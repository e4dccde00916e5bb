"""What rooms know of the stores: rows of the audit log, and the Protocols that every store implements."""

from collections.abc import Awaitable, Mapping
from typing import Literal, Protocol

import msgspec

RowKind = Literal[
    "reject",
    "auth_fail",
    "decision",
    "approval",
    "outcome",
    "tool_def",
    "backend",
    "session",
    "config",
    "admin",
    "audit",
]


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One event for the audit log; the log adds sequence number, time and hash."""

    kind: RowKind
    request: str = ""
    """The id that the rows of one request share."""
    caller: str = ""
    server: str = ""
    name: str = ""
    verdict: str = ""
    """Of a decision: allow, deny or ask. Of other rows: what happened, in one word."""
    body: Mapping[str, object] = {}
    """All else, as JSON."""
    values: Mapping[str, object] | None = None
    """Redacted arguments. They are kept beside the row, which holds their digest, so that they can be erased."""


class AuditLog(Protocol):
    """Where rows go. A row is never changed."""

    def append(self, row: Row) -> Awaitable[None]:
        """Return once the row is committed.

        Raises:
            AuditUnavailable: it cannot be written, and the log is configured to stop calls then.
        """
        ...

    def note(self, row: Row) -> None:
        """Add a row that nothing waits for; it is committed with the next ones."""
        ...

    def digest(self, data: bytes) -> str:
        """A keyed digest: equal data has the same one, and without the key the data cannot be guessed from it."""
        ...
