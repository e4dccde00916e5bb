"""Whether a request is begun now, or told to come back later: in front of the handler, whatever way it came by.

A place is taken where the exchange is answered and released where that ends, so that no way out, a withdrawal or a
cut connection included, keeps one. A retry that brings answers to a call that waits for them begins nothing: the call
has its place already, and an answer that a person gave is not lost to a full house.
"""

from typing import Final

from sluicegate.downstream.doors import LATER, Refusal
from sluicegate.downstream.places import Full, Places
from sluicegate.errors import OVERLOADED, RATE_LIMITED, SHUTTING_DOWN
from sluicegate.exchange import Exchange, Handler
from sluicegate.protocol.message import Reply

STOPPING: Final = Refusal(503, "shutting_down", "The server is about to stop.", LATER, SHUTTING_DOWN)


def too_many(why: Full, what: str) -> Refusal:
    """The refusal of one more of something."""
    if why is Full.FOR_ONE:
        return Refusal(429, "rate_limited", f"You have too many {what}; try again later.", LATER, RATE_LIMITED)
    return Refusal(503, "overloaded", f"There are too many {what}; try again later.", LATER, OVERLOADED)


class Admission:
    """A handler that takes no more at once than there is place for, and nothing new once it is closed."""

    def __init__(self, handler: Handler, places: Places) -> None:
        self._handler = handler
        self._places = places
        self._closed = False

    def close(self) -> None:
        """Begin nothing from now on; what is under way goes on."""
        self._closed = True

    async def __call__(self, exchange: Exchange) -> Reply:
        """The handler's reply, or why the request was not begun."""
        if self._closed:
            return STOPPING.error
        if exchange.method == "subscriptions/listen":
            # No call: it is counted with the stream that it goes out on, or with the session that it is held for.
            return await self._handler(exchange)
        places, caller = self._places, exchange.caller.id
        full = places.enter(caller)
        if full is not None:
            return too_many(full, "requests under way").error
        try:
            return await self._handler(exchange)
        finally:
            places.leave(caller)
