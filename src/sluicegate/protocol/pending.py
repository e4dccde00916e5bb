"""Ids out, ids back: what waits for an answer on one connection, and for which request progress comes in."""

from collections.abc import Iterator
from typing import Generic, TypeVar

from sluicegate.protocol.message import RequestId

T = TypeVar("T")


class Pending(Generic[T]):
    """Requests on their way, under integer ids of our own that are never used twice.

    A request's id is also the progress token it carries, so one table finds both answers and progress.
    """

    def __init__(self) -> None:
        self._next = 1
        self._waiting: dict[int, T] = {}

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(list(self._waiting.values()))

    def add(self, waiter: T) -> int:
        """The id for a new request, under which the waiter will be found."""
        request_id = self._next
        self._next += 1
        self._waiting[request_id] = waiter
        return request_id

    def find(self, request_id: object) -> T | None:
        """Who waits under this id or progress token, without ending the wait."""
        return self._waiting.get(request_id if type(request_id) is int else _own(request_id))

    def claim(self, request_id: RequestId | None) -> T | None:
        """Who waited for this answer, or None if nobody does; the id is free of its request from now on."""
        # Late answers are normal: the caller may have cancelled while this one was on its way.
        return self._waiting.pop(request_id if type(request_id) is int else _own(request_id), None)

    def drain(self) -> list[T]:
        """Everybody who still waits, when no answer can come any more."""
        waiting = list(self._waiting.values())
        self._waiting.clear()
        return waiting


def _own(request_id: object) -> int:
    # Some servers answer "7" for our 7. Ids are ours and all integers, so this cannot be mistaken for another request.
    if isinstance(request_id, str) and request_id.isascii() and request_id.isdigit() and len(request_id) < 17:
        return int(request_id) if request_id[0] != "0" else -1
    return -1
