"""The lists of one connected server, kept in step with it: listened to first, then fetched, and again when they change.

In this order, or what changes between the two would be told to nobody.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Final, Protocol

from sluicegate.concurrency import TaskScope, Turns
from sluicegate.errors import RemoteProtocolError, UpstreamError, UpstreamProtocolError, UpstreamTimeout
from sluicegate.exchange import Connection
from sluicegate.hub.listening import LONGEST_PAUSE, SHORTEST_PAUSE, ListChanges, Listener, listen
from sluicegate.hub.offers import Offer, changed_lists, fetch_offer
from sluicegate.hub.treatment import MountSettings
from sluicegate.protocol.message import Params, as_object
from sluicegate.protocol.methods import LIST_CHANGES

log = logging.getLogger("sluicegate")

LISTENS_WITHIN: Final = 1.0
"""Seconds that a server has to say that it will tell of changes. If it says so later, its lists are fetched again."""

REST_OF_TIME: Final = 10
"""How many times as long as the last lists took of everybody's time the next ones are not asked for. Those of nearly
all servers take so little that `debounce` is longer; one that tells of changes of long lists without end gets a tenth
of the time, and no more."""


class Owner(Listener, Protocol):
    """The mount, as its lists need it."""

    instance: str
    settings: MountSettings

    def unfetched(self, problem: UpstreamError) -> None:
        """Learn that its lists could not be fetched again."""
        ...

    def fetched(self) -> None:
        """Learn that they were."""
        ...


class Lists:
    """What one server offers, for as long as one connection to it lasts."""

    def __init__(self, owner: Owner, connection: Connection) -> None:
        self._owner = owner
        self._connection = connection
        self._is_fetched = False
        self._is_heard = asyncio.Event()
        self._stale = asyncio.Event()
        self._told: set[str] = set()
        self._took = 0.0

    async def fetch(self, tasks: TaskScope) -> Offer:
        """What the server offers, once its changes are listened to by a task.

        Raises:
            UpstreamError: it went away, or does not tell what it offers.
        """
        wanted = _changes_told_by(self._connection)
        if wanted:
            tasks.start(self._listen(wanted))
            try:
                async with asyncio.timeout(LISTENS_WITHIN):
                    await self._is_heard.wait()
            except TimeoutError:
                pass
        self._is_fetched = True
        self._told.clear()
        return await self._fetch()

    async def _listen(self, wanted: Params) -> None:
        try:
            await listen(self._owner, self._connection, wanted, ListChanges(self._told.add, self._heard))
        finally:
            self._is_heard.set()  # It does not tell, after all: there is nothing to wait for.

    def _heard(self) -> None:
        self._is_heard.set()
        self.outdate()

    def outdate(self) -> None:
        """Learn that what was fetched is not what there is, or what is wanted, any more."""
        if self._is_fetched:  # Else it is in what will be fetched.
            self._stale.set()

    async def follow(
        self, offer: Offer, changed: Callable[[Offer], None], told: Callable[[frozenset[str]], None]
    ) -> None:
        """Fetch the lists whenever they changed; where that fails, until it does not: the server says it only once.

        `changed` learns of another offer than the one we began with, `told` of the notices of lists that the server
        says changed, when we find them as they were.
        """
        pause = SHORTEST_PAUSE
        name, problems = self._owner.name, set[str]()
        while True:
            await self._stale.wait()
            await asyncio.sleep(max(self._owner.settings.debounce, self._took * REST_OF_TIME))
            self._stale.clear()
            notices = frozenset(self._told)
            self._told.clear()
            before = offer
            try:
                offer = await self._fetch()
            except UpstreamError as problem:
                # One that fails in the same way each time is not told each time.
                if str(problem) not in problems:
                    problems.add(str(problem))
                    log.warning("%s: its lists could not be fetched again: %s", name, problem)
                self._owner.unfetched(problem)
                self._told |= notices
                self._stale.set()
                await asyncio.sleep(pause)
                pause = min(pause * 2, LONGEST_PAUSE)
                continue
            pause = SHORTEST_PAUSE
            if problems:
                problems.clear()
                log.warning("%s: its lists can be fetched again, and are up to date.", name)
            self._owner.fetched()
            if offer != before:
                changed(offer)
            if same := notices - changed_lists(before, offer):
                told(same)

    async def _fetch(self) -> Offer:
        name, settings = self._owner.name, self._owner.settings
        seconds = settings.offer_timeout
        turns = Turns()
        try:
            async with asyncio.timeout(seconds):
                return await fetch_offer(name, self._connection, settings.offers, self._owner.instance, turns)
        except TimeoutError:
            raise UpstreamTimeout(f"{name} did not tell what it offers within {seconds:g} s.") from None
        except (UpstreamProtocolError, RemoteProtocolError) as problem:
            # What the server said may hold anything, and our sentence is for everybody.
            details = f" ({problem.message}){problem.details if isinstance(problem, UpstreamError) else ''}"
            raise UpstreamProtocolError(f"{name} does not tell what it offers.", details=details) from None
        finally:
            self._took = turns.seconds


def _changes_told_by(connection: Connection) -> Params:
    """The changes that a server says it tells of, as it is asked for them."""
    wanted: Params = {}
    for flag in LIST_CHANGES:
        kind = as_object(connection.discovery.capabilities.get(flag.removesuffix("ListChanged"))) or {}
        if kind.get("listChanged") is True:
            wanted[flag] = True
    return wanted
