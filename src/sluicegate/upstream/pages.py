"""Pages that a server of 2025-11-25 wants visited, and of whose call each is: who hears that the server saw the visit.

The one rule: a visit is told to the caller that was sent to the page, and to nobody else; what nobody hears is counted.
"""

import asyncio
from collections.abc import Coroutine
from contextlib import suppress
from typing import Final, NamedTuple

from sluicegate.errors import URL_ELICITATION_REQUIRED, ErrorObject, SluicegateError
from sluicegate.exchange import Exchange, Host, Sink
from sluicegate.protocol.message import Notification, Reply, as_array, as_object
from sluicegate.protocol.versions import REVISIONS, V2025_11_25

VISITED: Final = "notifications/elicitation/complete"

MOST_PAGES: Final = 256
"""Pages of one server that are remembered until it tells of the visit; many a server never does."""

LONGEST_ID: Final = 1024

COMES_LATE: Final = 5.0
"""Seconds that the answer which names a page may come after the word that it was visited: over HTTP each has its own
stream."""

UNTOLD: Final = "visits to pages that the caller cannot be told of"
UNOWNED: Final = "visits to pages that belong to no call"


class Page(NamedTuple):
    """A page, as the caller knows it."""

    sink: Sink | None
    """The way to the caller; None for one whose revision has no word for a visit."""
    shown: str
    is_awaited: bool = False
    """Whether whoever made the call for the caller waits for the visit, and does what is to be done then."""


class Pages:
    """The pages of one server, by the ids that it gave them."""

    def __init__(self, host: Host) -> None:
        self._host = host
        self._pages: dict[str, Page] = {}
        self._early: dict[str, asyncio.Future[Page]] = {}

    def asked(self, elicitation: str, cause: Exchange) -> str:
        """The id by which the caller of a call is to know a page that it is asked to visit."""
        import secrets  # here and not above: it brings OpenSSL, and most servers ask nothing

        # A server's ids are its own only: two servers behind us may have the same.
        shown = secrets.token_urlsafe(12)
        self._note(elicitation, Page(_way_to(cause), shown))
        return shown

    def named(self, cause: Exchange, reply: Reply) -> None:
        """Note the pages that a reply wants visited first, by the server's own ids: so it is passed on (§3.5b)."""
        if not isinstance(reply, ErrorObject) or reply.code != URL_ELICITATION_REQUIRED:
            return
        for entry in as_array((as_object(reply.data) or {}).get("elicitations")) or []:
            elicitation = (as_object(entry) or {}).get("elicitationId")
            if isinstance(elicitation, str):
                revision = REVISIONS.get(cause.profile.version)
                is_awaited = revision is None or revision.modern
                self._note(elicitation, Page(_way_to(cause), elicitation, is_awaited))

    def forget(self, elicitation: str) -> None:
        """Learn that nobody was sent to a page."""
        self._pages.pop(elicitation, None)

    def visited(self, elicitation: object) -> Coroutine[object, object, None] | None:
        """What tells the caller of a visit; None if nobody is told."""
        if not isinstance(elicitation, str):
            return None
        page = self._pages.pop(elicitation, None)
        if page is not None:
            return self._tell(page) if self._has_way(page) else None
        # The answer that names it may be on its way, or read and not looked at yet.
        if elicitation in self._early or len(self._early) >= MOST_PAGES:
            self._host.lost(UNOWNED)
            return None
        self._early[elicitation] = asyncio.get_running_loop().create_future()
        return self._tell_when_named(elicitation)

    def _note(self, elicitation: str, page: Page) -> None:
        early = self._early.get(elicitation)
        if early is not None and not early.done():
            early.set_result(page)
        elif len(elicitation) <= LONGEST_ID:
            self._pages[elicitation] = page
            if len(self._pages) > MOST_PAGES:
                del self._pages[next(iter(self._pages))]

    async def _tell_when_named(self, elicitation: str) -> None:
        try:
            async with asyncio.timeout(COMES_LATE):
                page = await self._early[elicitation]
        except TimeoutError:
            self._host.lost(UNOWNED)
            return
        finally:
            del self._early[elicitation]
        if self._has_way(page):
            await self._tell(page)

    def _has_way(self, page: Page) -> bool:
        if page.sink is None and not page.is_awaited:
            self._host.lost(UNTOLD)
        return page.sink is not None

    async def _tell(self, page: Page) -> None:
        if page.sink is None:
            return
        with suppress(SluicegateError):  # Nobody waits for this: what is wrong with the caller is not the server's.
            await page.sink.emit(Notification(VISITED, {"elicitationId": page.shown}))


def _way_to(cause: Exchange) -> Sink | None:
    return cause.sink if cause.profile.version == V2025_11_25 else None
