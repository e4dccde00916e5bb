"""What can be read of the audit log of a folder, with and without a running gateway.

It imports nothing that runs a gateway, so that a command loads quickly.
"""

from collections.abc import Awaitable, Callable
from typing import Final, TypeVar

from sluicegate.errors import AuditUnavailable, InvalidParams
from sluicegate.store.base import AuditFilter, AuditPage, AuditReader, AuditRequest, AuditStats

T = TypeVar("T")

MAX_ROWS: Final = 1000
"""Rows of the audit log that one page holds at most."""


class AuditOperations:
    """Operations on the audit log. All of them raise `AuditUnavailable` if there is no log, or it cannot be read."""

    def __init__(self, open_reader: Callable[[], AuditReader] | None) -> None:
        """`open_reader` is called before the first read; None if there is no log."""
        self._open_reader = open_reader
        self._reader: AuditReader | None = None

    async def audit_rows(self, where: AuditFilter, *, after: str = "", limit: int = MAX_ROWS) -> AuditPage:
        """The first rows that match, after a position of an earlier page: a list, a search, or the rest of a tail.

        Raises:
            InvalidParams: the position is not one of this log, or the limit is below 1.
        """
        rows = _page_size(limit)
        try:
            return await self._read(lambda reader: reader.rows(where, after=after, limit=rows))
        except ValueError as problem:
            raise InvalidParams(f"{problem}.") from None

    async def audit_last(self, where: AuditFilter, *, limit: int = 20) -> AuditPage:
        """The newest rows that match. The position is the end of the log.

        Raises:
            InvalidParams: the limit is below 1.
        """
        rows = _page_size(limit)
        return await self._read(lambda reader: reader.last(where, limit=rows))

    async def audit_stats(self, where: AuditFilter) -> AuditStats:
        """Counts and times of the calls that match, by server and name."""
        return await self._read(lambda reader: reader.stats(where))

    async def audit_request(self, request: str) -> AuditRequest:
        """The rows of one request; none if the log does not have it."""
        return await self._read(lambda reader: reader.request(request))

    async def _read(self, read: Callable[[AuditReader], Awaitable[T]]) -> T:
        if self._reader is None:
            if self._open_reader is None:
                raise AuditUnavailable(
                    "This gateway keeps no audit log; `sluicegate audit list --audit-folder FOLDER` reads an older one."
                )
            self._reader = self._open_reader()
        try:
            return await read(self._reader)
        except OSError as problem:
            raise AuditUnavailable(f"The audit log cannot be read ({problem.strerror or problem}).") from None


def _page_size(limit: int) -> int:
    """The rows of a page that may have as many as `limit`; raises InvalidParams if that is below 1."""
    if limit < 1:
        raise InvalidParams(f"The limit must be at least 1, not {limit}.")
    return min(limit, MAX_ROWS)
