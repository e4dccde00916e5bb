"""Subscriptions that we hold at a server, to its lists and to its resources: taken up again whenever they end."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from sluicegate.errors import METHOD_NOT_FOUND, ErrorObject, InputRefused, UpstreamError, UpstreamUnavailable
from sluicegate.exchange import Connection, Exchange, Sink
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Params
from sluicegate.protocol.modern import ACKNOWLEDGED, Profile

log = logging.getLogger("sluicegate")

LISTEN: Final = "subscriptions/listen"
SHORTEST_PAUSE: Final = 1.0
LONGEST_PAUSE: Final = 30.0
"""Seconds between the end of a subscription and the next try; one that held for so long begins with a short one."""


class Listener(Protocol):
    """The mount, as its subscriptions need it."""

    name: str

    def unreachable(self, problem: UpstreamError) -> None:
        """Learn that the server cannot be reached."""
        ...

    def reached(self) -> None:
        """Learn that it can."""
        ...


class Hearing(Sink, Protocol):
    """Who hears what the server tells in a subscription."""

    def ended(self) -> None:
        """Learn that the server lets go, until it is asked again."""
        ...


class ListChanges:
    """Hears that lists changed, of a server that says so, or may have while it was not listened to."""

    def __init__(self, told: Callable[[str], None], heard: Callable[[], None]) -> None:
        """`told` learns what the server says, `heard` also whenever it begins to tell or ends."""
        self._told = told
        self._heard = heard

    async def emit(self, notification: Notification) -> None:
        """Learn what the server says."""
        if notification.method != ACKNOWLEDGED:
            self._told(notification.method)
        self._heard()  # Before this beginning, too, something may have changed unheard.

    async def ask(self, questions: Questions) -> Answers:
        """Refuse."""
        raise InputRefused("Nobody is there to be asked.")

    def ended(self) -> None:
        """Learn that the server lets go. It may be for long, so what changed until now is looked for already."""
        self._heard()


class _Telling:
    """A sink, whose notices show that the server is there."""

    def __init__(self, owner: Listener, sink: Hearing) -> None:
        self._owner = owner
        self._sink = sink
        self.ask = sink.ask

    async def emit(self, notification: Notification) -> None:
        """Learn what the server says."""
        self._owner.reached()
        await self._sink.emit(notification)


async def listen(owner: Listener, connection: Connection, wanted: Params, sink: Hearing) -> None:
    """Hold a subscription for as long as the connection lasts, however often the server lets go of it."""
    loop = asyncio.get_running_loop()
    pause = SHORTEST_PAUSE
    telling = _Telling(owner, sink)
    while True:
        began = loop.time()
        try:
            reply = await connection(Exchange(LISTEN, {"notifications": wanted}, telling, Profile()))
            if isinstance(reply, ErrorObject) and reply.code == METHOD_NOT_FOUND:
                return
        except UpstreamError as problem:
            log.debug("%s: a subscription ended: %s", owner.name, problem)
            # To be let go of is nothing unusual, nor is a server that gives out no more streams and answers all else.
            if isinstance(problem, UpstreamUnavailable) and "status" not in problem.data:
                owner.unreachable(problem)
        sink.ended()
        if loop.time() - began >= LONGEST_PAUSE:
            pause = SHORTEST_PAUSE
        await asyncio.sleep(pause)
        pause = min(pause * 2, LONGEST_PAUSE)
