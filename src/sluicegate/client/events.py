"""The messages that a client receives besides replies: progress, log messages, changes, input requests.

The connection calls `emit` and `ask`, possibly in the task that reads from the server. So nothing here raises except
`InputRefused`, and errors of callbacks are logged.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, Generic, TypeVar

import msgspec

from sluicegate.client.handlers import Answerer
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, as_object
from sluicegate.protocol.modern_era import ACKNOWLEDGED
from sluicegate.protocol.read_types import read_change, read_log, read_progress
from sluicegate.protocol.types import Change, LogEvent, ProgressEvent
from sluicegate.runtime.deadlines import Deadline

log = logging.getLogger("sluicegate")

T = TypeVar("T")

Callback = Callable[[T], Awaitable[None] | None]
OnProgress = Callback[ProgressEvent]
OnLog = Callback[LogEvent]
OnNotification = Callback[Notification]

MAX_CHANGES: Final = 1024
"""Different changes that are buffered. Only updates of resources can be that many."""


class Mailbox(Generic[T]):
    """A bounded queue with one reader, which can be closed."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[T] = deque()
        self._closed = False
        self._overflowed = False
        self._error: Exception | None = None
        self._filled = asyncio.Event()
        self._room = asyncio.Event()

    async def put(self, item: T) -> None:
        """Add an item; waits while the box is full. Ignored after `close`."""
        while len(self._items) >= self._size and not self._closed:
            self._room.clear()
            await self._room.wait()
        if not self._closed:
            self._items.append(item)
            self._filled.set()

    def offer(self, item: T) -> None:
        """Add an item unless an equal one is queued; drops the oldest if the box is full."""
        if self._closed or item in self._items:
            return
        if len(self._items) >= self._size:
            self._items.popleft()
            if not self._overflowed:
                self._overflowed = True
                log.warning("More than %d changes are waiting to be read; the oldest are dropped.", self._size)
        self._items.append(item)
        self._filled.set()

    def close(self, error: Exception | None = None) -> None:
        """End the queue, or raise this error in the reader, after the queued items."""
        if not self._closed:
            self._closed = True
            self._error = error
            self._filled.set()
            self._room.set()

    async def take(self) -> T | None:
        """The next item, or None after the last one. Raises the error given to `close`."""
        while not self._items and not self._closed:
            self._filled.clear()
            await self._filled.wait()
        if self._items:
            self._room.set()
            return self._items.popleft()
        if self._error is not None:
            raise self._error
        return None


async def supply(box: Mailbox[T], work: Callable[[], Awaitable[T | None]]) -> None:
    """Run the work, put its result into the box and close it; an error is raised in the reader."""
    try:
        last = await work()
        if last is not None:
            await box.put(last)
        box.close()
    except Exception as error:  # noqa: BLE001 - Not handled here: the reader raises it.
        box.close(error)


# -------------------------------------------------------------------------------------------------------------- sinks


class EventInbox:
    """The sink for messages that belong to no call: passes them to the callbacks of the program."""

    def __init__(self, answerer: Answerer, on_log: OnLog | None, on_notification: OnNotification | None) -> None:
        self.answerer = answerer
        self.on_log = on_log
        self.on_notification = on_notification

    async def emit(self, notification: Notification) -> None:
        """Pass log messages to `on_log` and all others to `on_notification`."""
        if notification.method == "notifications/message":
            await deliver(self.on_log, _readable(read_log, notification))
        else:
            await deliver(self.on_notification, notification)

    async def ask(self, questions: Questions) -> Answers:
        return await self.answerer.answer(questions)


class ClientCallSink(Deadline, kw_only=True):
    """The sink of one request: handles its progress and log messages, and passes all else to the inbox.

    It is also the deadline of the request, which saves an object per request.
    """

    inbox: EventInbox
    on_progress: OnProgress | None
    on_log: OnLog | None
    paused_at: float = 0.0

    async def emit(self, notification: Notification) -> None:
        is_progress = notification.method == "notifications/progress"
        if is_progress:
            self.is_renewed = True
            if self.on_progress is None:
                return  # It was requested to extend the deadline only.
        self._pause()
        try:
            if is_progress:
                await deliver(self.on_progress, _readable(read_progress, notification))
            elif notification.method == "notifications/message":
                await deliver(self.on_log, _readable(read_log, notification))
            else:
                await self.inbox.emit(notification)
        finally:
            self._resume()

    async def ask(self, questions: Questions) -> Answers:
        """The answers of the callbacks. The timeout is paused meanwhile, and restarted afterwards."""
        self._pause()
        try:
            answers = await self.inbox.ask(questions)
        finally:
            self._resume()
        self.is_renewed = True
        return answers

    def _pause(self) -> None:
        if not self.waits:
            self.paused_at = monotonic()
        self.waits += 1

    def _resume(self) -> None:
        self.waits -= 1
        if not self.waits:
            # The time that callbacks take does not count towards the maximum either.
            passed = monotonic() - self.paused_at
            self.expires += passed
            self.ends += passed


class Acknowledged(msgspec.Struct, frozen=True):
    """The server's acknowledgement: which changes it will report."""

    honoured: Params


class ClientListenSink:
    """The sink of a subscription: receives the acknowledgement, then the changes."""

    def __init__(self, inbox: EventInbox, box: Mailbox[Acknowledged | Change]) -> None:
        self._inbox = inbox
        self._box = box
        self._acknowledged = False

    async def emit(self, notification: Notification) -> None:
        """Put the acknowledgement and the changes after it into the box."""
        if notification.method == ACKNOWLEDGED:
            if not self._acknowledged:
                self._acknowledged = True
                await self._box.put(Acknowledged(as_object(notification.params.get("notifications")) or {}))
            return
        try:
            change = read_change(notification)
        except msgspec.ValidationError:
            return
        if change is None:
            await self._inbox.emit(notification)
        elif self._acknowledged:
            self._box.offer(change)

    async def ask(self, questions: Questions) -> Answers:
        return await self._inbox.ask(questions)


class ChangeStream:
    """The changes of a server, until it ends the subscription: `async for change in changes`.

    Equal changes that were not read yet are reported once.
    """

    def __init__(self, box: Mailbox[Acknowledged | Change], honoured: Params) -> None:
        self._box = box
        self.honoured = honoured

    def __aiter__(self) -> "ChangeStream":
        return self

    async def __anext__(self) -> Change:
        change = await self._box.take()
        if change is None or isinstance(change, Acknowledged):
            raise StopAsyncIteration
        return change


async def deliver(callback: Callback[T] | None, event: T | None) -> None:
    if callback is None or event is None:
        return
    try:
        outcome = callback(event)
        if outcome is not None and isinstance(outcome, Awaitable):  # pyright: ignore[reportUnnecessaryIsInstance]
            await outcome
    except Exception:  # An edge: the code of the user may raise anything, and must not end the connection.
        log.exception("The callback for %s failed.", type(event).__name__)


def _readable(read: Callable[[Params], T], notification: Notification) -> T | None:
    """The content of a notification, or None if it is not valid."""
    try:
        return read(notification.params)
    except msgspec.ValidationError as problem:
        log.warning("Ignored an invalid %s: %s", notification.method, problem)
        return None
