"""From an exchange to its reply, whatever happens on the way: a failed exchange never ends a server (R34)."""

import logging
from collections.abc import Callable
from typing import Final

import msgspec

from sluicegate.asking import settle
from sluicegate.downstream.session_era import OF_THIS_ERA, AskedInRounds, SessionSide
from sluicegate.errors import SluicegateError, error_object
from sluicegate.exchange import Exchange, Handler
from sluicegate.protocol.input_required import read_input_required
from sluicegate.protocol.message import Reply, Result, opened
from sluicegate.protocol.modern import marked
from sluicegate.protocol.translate import reply_for_session
from sluicegate.protocol.versions import Revision

log = logging.getLogger("sluicegate")

_LISTS: Final = frozenset({"tools/list", "prompts/list", "resources/list", "resources/templates/list"})


class Answering:
    """A handler as the edges use it: always a reply, in the client's own revision."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self._lists: dict[tuple[str, str], tuple[object, Reply]] = {}

    async def reply_to(self, exchange: Exchange) -> Reply:
        """The handler's reply, or the error that its exception is."""
        return await _safely(exchange, self._handler)

    async def modern_reply(self, exchange: Exchange, listen_id: str | int) -> Reply:
        """The reply for a client of 2026-07-28; that which ends a subscription is marked as the subscription's."""
        try:
            reply = await self._handler(exchange)
        except Exception as problem:  # As in `_safely`, without a coroutine in between: this is everybody's way.
            reply = failure(exchange, problem)
        return reply if exchange.method != "subscriptions/listen" else end_of_listening(exchange, reply, listen_id)

    async def session_reply(self, exchange: Exchange, side: SessionSide, revision: Revision) -> Reply:
        """The reply for a session-era client: rounds of asking are held with it live, and it knows no newer words."""
        method = exchange.method
        try:
            if method in OF_THIS_ERA:
                reply = await side.reply_to(exchange)
            else:
                reply = await self._handler(exchange)
                if read_input_required(method, reply) is not None:  # Nearly nobody who is asked asks back.
                    exchange.sink = AskedInRounds(exchange.sink)
                    reply = await settle(self._handler, exchange, reply)
        except Exception as problem:  # As in `_safely`, without a coroutine in between: this is everybody's way.
            reply = failure(exchange, problem)
        try:
            if method in _LISTS and isinstance(reply, Result):
                return self._list_for_session(exchange, reply, revision)
            return reply_for_session(method, exchange.params, reply, revision)
        except Exception as problem:  # The handler's own errors are translated, too; so this is another edge.
            return failure(exchange, problem)

    def _list_for_session(self, exchange: Exchange, reply: Result, revision: Revision) -> Reply:
        # A hub gives the same bytes to everybody until something changes; a thousand tools take ten milliseconds.
        place = exchange.method, revision.version
        kept = self._lists.get(place)
        if kept is not None and kept[0] is reply.value:
            return kept[1]
        translated = reply_for_session(exchange.method, exchange.params, reply, revision)
        if isinstance(reply.value, msgspec.Raw) and isinstance(translated, Result):
            translated = Result(msgspec.Raw(msgspec.json.encode(translated.value)))
            self._lists[place] = reply.value, translated
        return translated

    async def listen(self, exchange: Exchange) -> Reply:
        """Hold a subscription that is opened on a client's behalf; raises what the handler raises."""
        return await self._handler(exchange)


def end_of_listening(exchange: Exchange, reply: Reply, listen_id: str | int) -> Reply:
    """The reply that ends a subscription, marked as the subscription's."""
    return _safe(exchange, lambda: Result(marked(opened(reply), listen_id))) if isinstance(reply, Result) else reply


async def _safely(exchange: Exchange, handler: Handler) -> Reply:
    # One of the edges where everything is caught.
    try:
        return await handler(exchange)
    except Exception as problem:
        return failure(exchange, problem)


def _safe(exchange: Exchange, make: Callable[[], Reply]) -> Reply:
    try:
        return make()
    except Exception as problem:
        return failure(exchange, problem)


def failure(exchange: Exchange, problem: Exception) -> Reply:
    """The error that an exception is to the client."""
    if not isinstance(problem, SluicegateError):
        log.error("%s failed", exchange.method, exc_info=problem)
    return error_object(problem)
