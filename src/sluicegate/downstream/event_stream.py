"""A stream of events that outlives the requests that carry it: to hang up is not to cancel.

What is said goes into the session's journal and to whoever reads it now. Who comes back with the id of the last event
it saw is told the rest of that very stream.
"""

import asyncio
import logging
from typing import TYPE_CHECKING, Final

from sluicegate.downstream.doors import Fields
from sluicegate.downstream.http_streams import EVENT_FIELDS, KEEP_ALIVE, HttpRequest
from sluicegate.downstream.places import Place
from sluicegate.protocol.framing import encode_comment, encode_event

if TYPE_CHECKING:
    from sluicegate.downstream.http_session import HttpSession

log = logging.getLogger("sluicegate")

SESSION_HEADER: Final = "Mcp-Session-Id"


class EventStream:
    """One stream of events: it goes on while nobody reads it, and another request may take over reading."""

    def __init__(self, session: "HttpSession", number: int) -> None:
        self.number = number
        self.finished = False
        self._session = session
        self._sent = 0
        self._delivered = 0
        self._carrier: HttpRequest | None = None
        self._place: Place | None = None
        self._timer: asyncio.TimerHandle | None = None

    def carry(self, request: HttpRequest, after: int | None, place: Place | None = None) -> None:
        """Let this request be the one that the events go out on, beginning behind an event it has seen already.

        The place is released when it is so no longer.
        """
        self.drop_carrier()
        self._place = place
        fields: Fields = (*EVENT_FIELDS, (SESSION_HEADER, self._session.id))
        request.start(200, fields)
        self._carrier = request
        if self._session.conversation.session.revision.elicitation_modes and after is None:
            # Only clients of 2025-11-25 know an event without data; it lets them resume before anything was said.
            request.write(encode_event(b"", id=f"{self.number}-{self._delivered}", retry=self._session.retry_ms))
        seen = self._delivered if after is None else after
        remembered = self._session.journal.of(self.number, seen)
        self._own_up(request, (remembered[0][0] if remembered else self._sent + 1) - seen - 1)
        for position, message in remembered:
            request.write(encode_event(message, id=f"{self.number}-{position}"))
        self._delivered = self._sent
        self._stay_alive()
        if self.finished:
            self.drop_carrier()
        else:
            request.on_disconnect(lambda: self._lost(request))

    def _own_up(self, request: HttpRequest, forgotten: int) -> None:
        """Say that events are missing, if some are: the journal is bounded, and what it still has is worth having."""
        if forgotten > 0:
            log.warning("A client came back too late: %d events of its stream are forgotten.", forgotten)
            request.write(encode_comment(f"{forgotten} events are forgotten"))

    async def send(self, message: bytes) -> None:
        """Send an event; waits while the client is slow."""
        self.send_now(message)
        if self._carrier is not None:
            await self._carrier.drain()

    def send_now(self, message: bytes) -> None:
        """Send an event without waiting; without a reader it is only remembered."""
        self._sent += 1
        self._session.remember(self.number, self._sent, message)
        if self._carrier is not None:
            self._carrier.write(encode_event(message, id=f"{self.number}-{self._sent}"))
            self._delivered = self._sent

    @property
    def carried(self) -> bool:
        """Whether somebody reads it now."""
        return self._carrier is not None

    def finish(self) -> None:
        """End the stream; what was not read can still be asked for."""
        self.finished = True
        self.drop_carrier()
        self._session.drop_forgotten(self.number)

    def drop_carrier(self) -> None:
        """End the request that carries the events, if one does."""
        carrier, self._carrier = self._carrier, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._place is not None:
            self._place.release()
            self._place = None
        if carrier is not None:
            carrier.end()

    def _lost(self, request: HttpRequest) -> None:
        if self._carrier is request:
            # Ended all the same: a client that only hung up keeps its connection half open until we do.
            self.drop_carrier()
            self._session.touch()

    def _stay_alive(self) -> None:
        if self._carrier is not None:
            if self._timer is not None:
                self._carrier.write(encode_comment())
            self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE, self._stay_alive)
