"""The resources of one server that somebody listens to: each is subscribed to once, and again on every connection.

They outlive the connection, and the mount itself where a reload puts another in its place: who listens need not know.
"""

import asyncio
from collections.abc import Callable, Coroutine

from sluicegate.concurrency import TaskScope

Hold = Callable[[str, "asyncio.Future[bool]"], Coroutine[object, object, None]]
"""Subscribes to a URI until it is cancelled; the future learns whether the server lets us."""


class _Watch:
    def __init__(self) -> None:
        self.listeners = 0
        self.accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()


class Watches:
    """Who listens to which resource of one server."""

    def __init__(self) -> None:
        self._watches: dict[str, _Watch] = {}
        self._tasks: TaskScope | None = None
        self._hold: Hold | None = None

    def __len__(self) -> int:
        return len(self._watches)

    def watch(self, uri: str) -> "asyncio.Future[bool]":
        """Listen to a resource until `unwatch`; the future says whether the server lets us, once that is known."""
        watch = self._watches.get(uri)
        if watch is None:
            watch = self._watches[uri] = _Watch()
            self._start(uri, watch)
        watch.listeners += 1
        return watch.accepted

    def unwatch(self, uri: str) -> None:
        """Listen no more, if nobody else does."""
        watch = self._watches.get(uri)
        if watch is None:
            return
        watch.listeners -= 1
        if watch.listeners == 0:
            del self._watches[uri]
            watch.accepted.cancel()
            if self._tasks is not None:
                self._tasks.cancel(uri)

    def begin(self, tasks: TaskScope, hold: Hold) -> None:
        """Subscribe to all of them on a new connection, by tasks that end with it; an older one's are ended."""
        if self._tasks is not None:
            for uri in self._watches:
                self._tasks.cancel(uri)
        self._tasks, self._hold = tasks, hold
        for uri, watch in self._watches.items():
            self._start(uri, watch)

    def end(self, tasks: TaskScope) -> None:
        """Learn that these tasks end, and that there may be no others for a while."""
        if self._tasks is tasks:
            self._tasks = self._hold = None

    def _start(self, uri: str, watch: _Watch) -> None:
        if self._tasks is not None and self._hold is not None:
            self._tasks.start(self._hold(uri, watch.accepted), key=uri)
