"""What reaches a client besides answers: progress, log messages, changes, questions. They move the request's deadline.

The server's side of the connection calls `emit` and `ask`, possibly from the very task that reads the wire. So the one
rule: nothing here raises into it but `InputRefused`, and a callback's failure is logged.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable
from time import monotonic
from typing import Final, Generic, TypeVar

import msgspec

from sluicegate.client.answers import Answerer
from sluicegate.deadlines import Deadline
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params, as_object
from sluicegate.protocol.modern import ACKNOWLEDGED
from sluicegate.protocol.read_types import read_change, read_log, read_progress
from sluicegate.protocol.types import Change, LogEvent, ProgressEvent

log = logging.getLogger("sluicegate")

T = TypeVar("T")

Callback = Callable[[T], Awaitable[None] | None]
OnProgress = Callback[ProgressEvent]
OnLog = Callback[LogEvent]
OnNotification = Callback[Notification]

MOST_CHANGES: Final = 1024
"""How many different changes wait for a reader. Only updates of single resources can be that many."""


class Mailbox(Generic[T]):
    """Things on their way to one reader, in order and never more than `size` of them."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._items: deque[T] = deque()
        self._closed = False
        self._overflowed = False
        self._error: Exception | None = None
        self._filled = asyncio.Event()
        self._room = asyncio.Event()

    async def put(self, item: T) -> None:
        """Add an item; waits while the box is full. Nothing is added to a closed box."""
        while len(self._items) >= self._size and not self._closed:
            self._room.clear()
            await self._room.wait()
        if not self._closed:
            self._items.append(item)
            self._filled.set()

    def offer(self, item: T) -> None:
        """Add an item unless its like is waiting already; the oldest gives way when the box is full."""
        if self._closed or item in self._items:
            return
        if len(self._items) >= self._size:
            self._items.popleft()
            if not self._overflowed:
                self._overflowed = True
                log.warning("More than %d changes wait to be read; from now on the oldest are dropped.", self._size)
        self._items.append(item)
        self._filled.set()

    def close(self, error: Exception | None = None) -> None:
        """Let the reader come to an end, or to this error, once it has taken what is there."""
        if not self._closed:
            self._closed = True
            self._error = error
            self._filled.set()
            self._room.set()

    async def take(self) -> T | None:
        """The next item, or None after the last one. Raises the error that the box was closed with."""
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
    """Do the work, put its result into the box and close it; an error is left there too, for the reader."""
    try:
        last = await work()
        if last is not None:
            await box.put(last)
        box.close()
    except Exception as error:  # noqa: BLE001 - handed to the reader, not handled here
        box.close(error)


# -------------------------------------------------------------------------------------------------------------- sinks


class Inbox:
    """The sink for what belongs to no call: the program's callbacks."""

    def __init__(self, answerer: Answerer, on_log: OnLog | None, on_notification: OnNotification | None) -> None:
        self.answerer = answerer
        self.on_log = on_log
        self.on_notification = on_notification

    async def emit(self, notification: Notification) -> None:
        """Hand a log message to `on_log`, and everything else to `on_notification`."""
        if notification.method == "notifications/message":
            await deliver(self.on_log, _readable(read_log, notification))
        else:
            await deliver(self.on_notification, notification)

    async def ask(self, questions: Questions) -> Answers:
        """The callbacks' answers."""
        return await self.answerer.answer(questions)


class CallSink(Deadline, kw_only=True):
    """The sink of one request: its progress and, for a stream, its log messages; all else goes to the inbox.

    It is the request's deadline, too: of each there is one per request.
    """

    inbox: Inbox
    on_progress: OnProgress | None
    on_log: OnLog | None
    waits_since: float = 0.0

    async def emit(self, notification: Notification) -> None:
        """Hand an event on; progress gives the server its full time again."""
        is_progress = notification.method == "notifications/progress"
        if is_progress:
            self.is_renewed = True
            if self.on_progress is None:
                return  # It was asked for because it moves the deadline.
        self._stop_time()
        try:
            if is_progress:
                await deliver(self.on_progress, _readable(read_progress, notification))
            elif notification.method == "notifications/message":
                await deliver(self.on_log, _readable(read_log, notification))
            else:
                await self.inbox.emit(notification)
        finally:
            self._let_time_pass()

    async def ask(self, questions: Questions) -> Answers:
        """The callbacks' answers, for which time stands still; the next round has its full time."""
        self._stop_time()
        try:
            answers = await self.inbox.ask(questions)
        finally:
            self._let_time_pass()
        self.is_renewed = True
        return answers

    def _stop_time(self) -> None:
        if not self.waits:
            self.waits_since = monotonic()
        self.waits += 1

    def _let_time_pass(self) -> None:
        self.waits -= 1
        if not self.waits:
            # The maximum is given back, too: what the callbacks take was decided by whoever set it.
            passed = monotonic() - self.waits_since
            self.expires += passed
            self.ends += passed


class Acknowledged(msgspec.Struct, frozen=True):
    """The server's word on what it will tell of."""

    honoured: Params


class ListenSink:
    """The sink of a subscription: first the acknowledgement, then the changes."""

    def __init__(self, inbox: Inbox, box: Mailbox[Acknowledged | Change]) -> None:
        self._inbox = inbox
        self._box = box
        self._acknowledged = False

    async def emit(self, notification: Notification) -> None:
        """Put the acknowledgement and the changes after it into the box; what came earlier was not subscribed to."""
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
        """The callbacks' answers."""
        return await self._inbox.ask(questions)


class Changes:
    """What changes on a server, one after the other, until it ends the subscription: `async for change in changes`.

    The same change twice before anybody looked is one change.
    """

    def __init__(self, box: Mailbox[Acknowledged | Change], honoured: Params) -> None:
        self._box = box
        self.honoured = honoured

    def __aiter__(self) -> "Changes":
        return self

    async def __anext__(self) -> Change:
        change = await self._box.take()
        if change is None or isinstance(change, Acknowledged):
            raise StopAsyncIteration
        return change


async def deliver(callback: Callback[T] | None, event: T | None) -> None:
    """Call the callback with the event, if there are both; its failure is logged and goes no further."""
    if callback is None or event is None:
        return
    try:
        outcome = callback(event)
        if outcome is not None and isinstance(outcome, Awaitable):  # pyright: ignore[reportUnnecessaryIsInstance]
            await outcome
    except Exception:
        log.exception("The callback for %s failed.", type(event).__name__)


def _readable(read: Callable[[Params], T], notification: Notification) -> T | None:
    """What the notification says, or None if it cannot be read: nobody waits for it, so nothing is lost but itself."""
    try:
        return read(notification.params)
    except msgspec.ValidationError as problem:
        log.warning("Ignored a %s that cannot be read: %s", notification.method, problem)
        return None
