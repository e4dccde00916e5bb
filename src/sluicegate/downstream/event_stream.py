"""A stream of events that outlives the requests that carry it: to hang up is not to cancel.

What is said goes into the session's journal and to whoever reads it now. Who comes back with the id of the last event
it saw is told the rest of that very stream.
"""

import logging
from typing import TYPE_CHECKING, Final

from sluicegate.downstream.doors import Fields
from sluicegate.downstream.http_streams import EVENT_FIELDS, HttpRequest
from sluicegate.downstream.places import Place
from sluicegate.protocol.events import encode_comment, encode_event

if TYPE_CHECKING:
    from sluicegate.downstream.http_session import HttpSession

log = logging.getLogger("sluicegate")

SESSION_HEADER: Final = "Mcp-Session-Id"


class EventStream:
    """One stream of events: it goes on while nobody reads it, and another request may take over reading."""

    __slots__ = ("_delivered", "_place", "_sent", "_session", "carrier", "finished", "number")

    def __init__(self, session: "HttpSession", number: int) -> None:
        self.number = number
        self.finished = False
        self.carrier: HttpRequest | None = None
        """Who reads it now."""
        self._session = session
        self._sent = 0
        self._delivered = 0
        self._place: Place | None = None

    def carry(self, request: HttpRequest, after: int | None, place: Place | None = None) -> None:
        """Let this request be the one that the events go out on, beginning behind an event it has seen already.

        The place is released when it is so no longer.
        """
        self.drop_carrier()
        session = self._session
        self._place = place
        fields: Fields = (*EVENT_FIELDS, (SESSION_HEADER, session.id))
        request.start(200, fields)
        self.carrier = request
        session.carried += 1
        if session.conversation.session.revision.elicitation_modes and after is None:
            # Only clients of 2025-11-25 know an event without data; it lets them resume before anything was said.
            request.write(encode_event(b"", id=f"{self.number}-{self._delivered}", retry=session.shared.retry_ms))
        if self._sent:
            self._tell_missed(request, self._delivered if after is None else after)
        if self.finished:
            self.drop_carrier()
        else:
            session.shared.keepalive.watch(self)
            request.on_disconnect(lambda: self._lost(request))

    def ended_with(self, position: int) -> bool:
        """Whether nothing has come after this event, and nothing will."""
        return self.finished and position >= self._sent

    def _tell_missed(self, request: HttpRequest, seen: int) -> None:
        journal = self._session.journal
        remembered = [] if journal is None else journal.of(self.number, seen)
        forgotten = (remembered[0][0] if remembered else self._sent + 1) - seen - 1
        if forgotten > 0:
            # The journal is bounded; what it still has is worth having, and what is missing is owned up to.
            log.warning("A client came back too late: %d events of its stream are forgotten.", forgotten)
            request.write(encode_comment(f"{forgotten} events are forgotten"))
        for position, message in remembered:
            request.write(encode_event(message, id=f"{self.number}-{position}"))
        self._delivered = self._sent

    async def send(self, message: bytes) -> None:
        """Send an event; waits while the client is slow."""
        self.send_now(message)
        if self.carrier is not None and self.carrier.is_behind:
            await self.carrier.drain()

    async def send_in_passing(self, message: bytes) -> None:
        """Send an event that is not remembered: lines of a log would drive out answers that a client comes back for."""
        if self.carrier is not None:
            self.carrier.write(encode_event(message))
            if self.carrier.is_behind:
                await self.carrier.drain()

    def send_now(self, message: bytes) -> None:
        """Send an event without waiting; without a reader it is only remembered."""
        self._sent = position = self._sent + 1
        self._session.remember(self.number, position, message)
        if self.carrier is not None:
            self.carrier.write(encode_event(message, id=f"{self.number}-{position}"))
            self._delivered = position

    def finish(self) -> None:
        """End the stream; what was not read can still be asked for."""
        self.finished = True
        self.drop_carrier()
        self._session.drop_forgotten(self.number)

    def drop_carrier(self) -> None:
        """End the request that carries the events, if one does."""
        carrier, self.carrier = self.carrier, None
        if carrier is None:
            return
        session = self._session
        session.carried -= 1
        session.shared.keepalive.forget(self)
        if self._place is not None:
            self._place.release()
            self._place = None
        carrier.end()
        session.rest()

    def stay_alive(self) -> None:
        """Say that the stream is still there."""
        if self.carrier is not None:
            self.carrier.write(encode_comment())

    def _lost(self, request: HttpRequest) -> None:
        if self.carrier is request:
            # Ended all the same: a client that only hung up keeps its connection half open until we do.
            self.drop_carrier()
