"""The GET stream of a session: what a server pushes that belongs to no call, for as long as the session lasts."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from sluicegate.concurrency import TaskScope
from sluicegate.errors import UpstreamError, UpstreamUnavailable
from sluicegate.http1 import Answer, Fields
from sluicegate.protocol.events import SseEvent
from sluicegate.protocol.message import Notification, Request, Response
from sluicegate.protocol.tolerant import Unreadable
from sluicegate.upstream.messages import Events, decoded
from sluicegate.upstream.site import ACCEPT_EVENTS, EVENTS, Site

log = logging.getLogger("sluicegate")

LONGEST_RETRY: Final = 30.0
SHORTEST_RETRY: Final = 0.05
MOST_FAILURES: Final = 3
"""Attempts in a row that a server may turn down before something else is done."""


class Session(Protocol):
    """The session, as this part needs it."""

    def fields(self, fields: Fields) -> Fields:
        """With the headers that every request of the session carries."""
        ...

    async def hear_push(self, message: Request | Notification) -> None:
        """Take what belongs to no call."""
        ...

    async def replace(self, *, unless_busy: bool) -> None:
        """Have another session in place of this one, which the server has lost, or will not give us a stream of.

        Raises:
            UpstreamError: there is none to be had now.
        """
        ...


class Pushes:
    """The stream of one session after another."""

    def __init__(
        self, site: Site, session: Session, tasks: TaskScope, noticed: Callable[[UpstreamError | None], None]
    ) -> None:
        """`noticed` hears why the server cannot be reached, or None when it can."""
        self._site = site
        self._noticed = noticed
        self._session = session
        self._tasks = tasks
        self._settled = asyncio.Event()

    def listen(self) -> None:
        """Begin to hear, in the session that is open now, and no more in the one before."""
        self.stop()
        self._settled.clear()
        self._tasks.start(self._hear(), key=self)

    def stop(self) -> None:
        """Hear no more."""
        self._tasks.cancel(self)

    async def wait_settled(self) -> None:
        """Wait until nothing that is pushed from now on is missed, or it is clear that nothing will be."""
        await self._settled.wait()

    async def _hear(self) -> None:
        patience = self._site.patience
        last_id: str | None = None
        pause = patience.retry
        was_open = False
        failures = 0
        while True:
            fields = ACCEPT_EVENTS if last_id is None else (*ACCEPT_EVENTS, ("Last-Event-ID", last_id))
            retry: float | None = None
            try:
                answer = await self._site.ask("GET", self._session.fields(fields), first_byte=patience.silence)
                self._noticed(None)
                try:
                    if answer.status == 200 and answer.head.media_type == EVENTS:
                        self._settled.set()
                        was_open, failures, pause = True, 0, patience.retry
                        events = Events(answer, patience, last_id)
                        try:
                            await self._hear_events(events)
                        finally:
                            last_id, retry = events.last_id, events.retry
                    else:
                        failures += 1
                        pause = min(pause * 2, LONGEST_RETRY)
                        if not await self._goes_on(answer, was_open, failures):
                            return
                finally:
                    answer.close()
            except UpstreamError as problem:
                log.debug("%s: the stream of pushes ended: %s", self._site.name, problem.message)
                if isinstance(problem, UpstreamUnavailable):  # To be cut is nothing unusual.
                    self._noticed(problem)
                pause = min(pause * 2, LONGEST_RETRY)
            finally:
                self._settled.set()
            await asyncio.sleep(pause if retry is None else max(retry, SHORTEST_RETRY))

    async def _goes_on(self, answer: Answer, was_open: bool, failures: int) -> bool:
        """Whether to ask again after a refusal; a session that has had its stream gets another one at any price."""
        status = answer.status
        if was_open and status in (400, 404) and await self._is_for_session(answer):
            await self._session.replace(unless_busy=False)
        elif status == 409 and was_open and failures > MOST_FAILURES:
            # It holds on to a stream of ours that is long gone, and gives us no other (protocol §6.39).
            await self._session.replace(unless_busy=True)
        elif status in (409, 429) or status >= 500:
            return was_open or failures < MOST_FAILURES
        else:
            return False  # 405: it pushes nothing. 404 to the first GET: it does not know the method at all.
        return True

    async def _is_for_session(self, answer: Answer) -> bool:
        return (await self._site.read_refusal(answer, within_session=True)).is_lost_session

    async def _hear_events(self, events: Events) -> None:
        while (chunk := await events.next_chunk()) is not None:
            for event in events.read(chunk):
                # What is too long or unreadable here was nobody's answer; the next event is read.
                if isinstance(event, SseEvent) and event.data and event.event == "message":
                    for message in decoded(event.data):
                        if not isinstance(message, Unreadable | Response):
                            await self._session.hear_push(message)
