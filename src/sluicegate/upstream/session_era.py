"""A session-era server, met in its own way: what it remembers of us, what it pushes, what it asks.

Inside we speak 2026-07-28, where a server remembers nothing. The state that an older one needs is kept here.
"""

import logging
from collections.abc import Awaitable, Callable
from typing import Protocol

from sluicegate.errors import METHOD_NOT_FOUND, ErrorObject, InputRefused, MethodNotFound, UpstreamError
from sluicegate.exchange import Exchange, Host
from sluicegate.protocol.handshake import ClientSession
from sluicegate.protocol.message import (
    Message,
    Notification,
    Params,
    Reply,
    Request,
    RequestId,
    Result,
    as_array,
    as_object,
)
from sluicegate.protocol.methods import LIST_CHANGES, LOG_LEVELS, METHODS
from sluicegate.protocol.modern import ACKNOWLEDGED, SERVER_INFO_KEY, Answers, Discovery, Questions, complete
from sluicegate.protocol.pending import Pending
from sluicegate.protocol.translate import params_for_session, reply_from_session
from sluicegate.protocol.translate_questions import answer_for_session, question_from_session
from sluicegate.protocol.versions import SUPPORTED_VERSIONS
from sluicegate.upstream.waiting import Waiter

log = logging.getLogger("sluicegate")


class Line(Protocol):
    """The link, as this part needs it."""

    host: Host
    pending: Pending[Waiter]

    @property
    def discovery(self) -> Discovery: ...
    def send(self, message: Message) -> int: ...
    def respond(self, request_id: RequestId, reply: Reply) -> None: ...
    async def enter(self, waiter: Waiter) -> int: ...
    def leave(self, request_id: int, waiter: Waiter) -> bool: ...
    async def request(self, method: str, params: Params) -> Reply: ...
    async def relay(self, exchange: Exchange, params: Params) -> Reply: ...
    async def next_item(self, waiter: Waiter) -> Notification | Reply: ...


class SessionEra:
    """The memory of one session with one server."""

    def __init__(self, line: Line, session: ClientSession) -> None:
        self._line = line
        self._session = session
        self._level: str | None = None
        self._subscribers: dict[str, int] = {}

    async def reply_to(self, exchange: Exchange) -> Reply:
        """The server's reply to an exchange, in the inner shape."""
        if exchange.method == "server/discover":
            return self._discover_result()
        if exchange.method == "subscriptions/listen":
            return await self._listen(exchange)
        await self._set_level(exchange.profile.log_level)
        params = params_for_session(exchange.method, exchange.params, self._session.revision)
        return reply_from_session(exchange.method, exchange.params, await self._line.relay(exchange, params))

    def _discover_result(self) -> Reply:
        discovery = self._line.discovery
        value: Params = {
            "supportedVersions": list(SUPPORTED_VERSIONS),
            "capabilities": discovery.capabilities,
            "_meta": {SERVER_INFO_KEY: discovery.server_info},
        }
        if discovery.instructions is not None:
            value["instructions"] = discovery.instructions
        return Result(complete(value, ttl_ms=0))

    async def _set_level(self, level: str | None) -> None:
        """Have the server log as much as the most curious of those who wait for it now."""
        if level is None or "logging" not in self._line.discovery.capabilities:
            return
        levels = [level, *(waiter.exchange.profile.log_level for waiter in self._line.pending if waiter.exchange)]
        wanted = min((known for known in levels if known is not None), key=LOG_LEVELS.index)
        if wanted != self._level:
            self._level = wanted
            await self._line.request("logging/setLevel", {"level": wanted})

    # ------------------------------------------------------------------------------------------- subscriptions

    async def _listen(self, exchange: Exchange) -> Reply:
        """Serve `subscriptions/listen` out of what the server pushes, unasked or after `resources/subscribe`."""
        wanted = as_object(exchange.params.get("notifications")) or {}
        flags = [flag for flag in LIST_CHANGES if wanted.get(flag) is True and self._announces(flag)]
        waiter = Waiter(exchange)
        waiter.wanted = frozenset(LIST_CHANGES[flag] for flag in flags)
        request_id = await self._line.enter(waiter)
        uris: list[str] = []
        try:
            for uri in as_array(wanted.get("resourceSubscriptions")) or []:
                if isinstance(uri, str) and await self._subscribe(uri):
                    uris.append(uri)
                    waiter.uris = frozenset(uris)
            honoured: Params = dict.fromkeys(flags, True)
            if uris:
                honoured["resourceSubscriptions"] = uris
            await exchange.emit(Notification(ACKNOWLEDGED, {"notifications": honoured}))
            while True:
                item = await self._line.next_item(waiter)
                if not isinstance(item, Notification):
                    return item
                await exchange.emit(item)
        finally:
            self._line.leave(request_id, waiter)
            for uri in uris:
                self._unsubscribe(uri)

    def _announces(self, flag: str) -> bool:
        kind = as_object(self._line.discovery.capabilities.get(flag.removesuffix("ListChanged"))) or {}
        return kind.get("listChanged") is True

    async def _subscribe(self, uri: str) -> bool:
        resources = as_object(self._line.discovery.capabilities.get("resources")) or {}
        if resources.get("subscribe") is not True:
            return False
        if self._subscribers.get(uri, 0) == 0:
            reply = await self._line.request("resources/subscribe", {"uri": uri})
            if not isinstance(reply, Result):
                return False
        self._subscribers[uri] = self._subscribers.get(uri, 0) + 1
        return True

    def _unsubscribe(self, uri: str) -> None:
        self._subscribers[uri] -= 1
        if self._subscribers[uri] == 0:
            del self._subscribers[uri]
            # Nobody waits for the answer to this: it goes to an inbox that is never read.
            self._line.send(Request(self._line.pending.add(Waiter(None)), "resources/unsubscribe", {"uri": uri}))

    # ----------------------------------------------------------------------------------------------- questions

    async def answer(self, request: Request) -> None:
        """Put a question of the server to whoever caused it, and send the answer back."""
        question = question_from_session(request.method, request.params)
        reply: Reply
        try:
            answers = await self._asker(request.method)({"question": question})
            reply = Result(answer_for_session(question, answers["question"], self._session.revision))
        except InputRefused as refusal:
            reply = refusal.error or ErrorObject(-1, refusal.message)
            if refusal.error is None and request.method == "elicitation/create":
                reply = Result({"action": "cancel"})
        except MethodNotFound as refusal:
            reply = ErrorObject(METHOD_NOT_FOUND, refusal.message)
        except UpstreamError:
            return  # the server is gone, and its question with it
        except Exception:
            log.exception("%s could not be answered", request.method)
            reply = ErrorObject(-1, "The question could not be answered.")
        self._line.respond(request.id, reply)

    def _asker(self, method: str) -> Callable[[Questions], Awaitable[Answers]]:
        """Who is to be asked: the caller whose call caused the question, never another (protocol §3.4)."""
        causes = [
            waiter.exchange
            for waiter in self._line.pending
            if waiter.exchange is not None and METHODS[waiter.exchange.method].may_ask
        ]
        if not causes:
            return self._line.host.sink.ask
        if len({exchange.caller.id for exchange in causes}) > 1:
            raise MethodNotFound(f"{method} cannot be attributed to one caller and is refused.")
        # Several calls of one caller: the answer goes back under the question's own id and unblocks whichever asked.
        return causes[0].request_input
