"""A session-era server, met in its own way: what it remembers of us, what it pushes, what it asks.

Inside we speak 2026-07-28, where a server remembers nothing. The state that an older one needs is kept here.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from types import CoroutineType
from typing import Any, Final, Protocol

from sluicegate.errors import ErrorObject, InputRefused, InvalidParams, MethodNotFound, Truncated, UpstreamError
from sluicegate.exchange import Exchange, Host
from sluicegate.protocol.discovery import Discovery
from sluicegate.protocol.handshake import ClientSession
from sluicegate.protocol.input_required import Answers, Question, Questions, lacking_capability
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
from sluicegate.protocol.modern import ACKNOWLEDGED, SERVER_INFO_KEY, complete
from sluicegate.protocol.pending import Pending
from sluicegate.protocol.translate import params_for_session, reply_from_session
from sluicegate.protocol.translate_questions import answer_for_session, question_from_session
from sluicegate.protocol.versions import SUPPORTED_VERSIONS
from sluicegate.upstream.tickets import Tickets
from sluicegate.upstream.waiting import Waiter

log = logging.getLogger("sluicegate")

_LISTEN: Final = "subscriptions/listen"

LATE_QUESTIONS: Final = 60.0
"""Seconds in which a call that was given up may still ask something: the question was on its way, or the server does
not heed our word. So long most servers wait for an answer."""


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


class _Subscription:
    """One resource, whoever listens to it: the server knows of one subscription at most."""

    def __init__(self) -> None:
        self.listeners = 0
        self.is_held = False
        self.asking = asyncio.Lock()


class SessionEra:
    """The memory of one session with one server."""

    def __init__(self, line: Line, session: ClientSession) -> None:
        self._line = line
        self._session = session
        self._level: str | None = None
        self._curious: dict[str, int] = {}  # how many of those who wait now want to be told of each level
        self._subscriptions: dict[str, _Subscription] = {}
        self._forsaken: dict[str, float] = {}  # who has lately given up a call, and until when that matters
        # The calls whose callers have been asked something and have not answered yet, and what ends the wait for that.
        self._asked: list[tuple[Exchange, asyncio.Timeout]] = []
        self.tickets = Tickets()

    def reply_to(self, exchange: Exchange) -> "CoroutineType[Any, Any, Reply]":
        """The server's reply to an exchange, in the inner shape."""
        level = exchange.profile.log_level
        if level is None or exchange.method == "server/discover" or "logging" not in self._line.discovery.capabilities:
            return self._reply_to(exchange)
        return self._reply_and_log(exchange, level)

    async def _reply_and_log(self, exchange: Exchange, level: str) -> Reply:
        """The reply to an exchange, while the server logs as much as the most curious of those who wait for it."""
        curious = self._curious
        curious[level] = curious.get(level, 0) + 1
        try:
            if exchange.method != _LISTEN and (level != self._level or len(curious) > 1):
                await self._set_level(min(curious, key=LOG_LEVELS.index))
            return await self._reply_to(exchange)
        finally:
            curious[level] -= 1
            if not curious[level]:
                del curious[level]

    def _reply_to(self, exchange: Exchange) -> "CoroutineType[Any, Any, Reply]":
        # No coroutine of its own: this is everybody's way.
        if exchange.method == "server/discover":
            return self._discover()
        if exchange.method == _LISTEN:
            return self._listen(exchange)
        params = params_for_session(exchange.method, exchange.params, self._session.revision)
        if "task" in params or "taskId" in params:
            return self._relay_task(exchange, params)
        return self._relay(exchange, params)

    async def _relay(self, exchange: Exchange, params: Params) -> Reply:
        try:
            reply = await self._line.relay(exchange, params)
        except asyncio.CancelledError:
            if _may_ask(exchange.method):
                self._note_forsaken(exchange)
                self._take_back_questions(exchange)
            raise
        return reply_from_session(exchange.method, exchange.params, reply)

    async def _relay_task(self, exchange: Exchange, params: Params) -> Reply:
        """The reply to a call that becomes a task, or to what is asked about one."""
        if "task" in params:
            ticket = self.tickets.begin(exchange)
            try:
                reply = await self._relay(exchange, params)
            except BaseException:  # Handed on, whatever it is: but there will be no task.
                self.tickets.drop(ticket)
                raise
            self.tickets.name(ticket, reply)
            return reply
        is_over = exchange.method != "tasks/get"
        try:
            return await self._relay(exchange, params)
        except Truncated:
            is_over = False  # It will be asked for again.
            raise
        finally:
            call = self.tickets.end(params["taskId"]) if is_over else None
            if call is not None:
                self._take_back_questions(call)

    def met(self, session: ClientSession) -> None:
        """Go by what was agreed on in this session from now on: it alone says which revision the server speaks."""
        self._session = session

    async def restore(self, session: ClientSession, request: Callable[[str, Params], Awaitable[Reply]]) -> None:
        """Tell another session with the same server what the lost one knew of us.

        Raises:
            UpstreamError: `request`, which asks in the new session, could not.
        """
        self._session = session
        if self._level is not None:
            await request("logging/setLevel", {"level": self._level})
        for uri, subscription in list(self._subscriptions.items()):
            if subscription.is_held:
                reply = await request("resources/subscribe", {"uri": uri})
                subscription.is_held = isinstance(reply, Result)

    def _note_forsaken(self, exchange: Exchange) -> None:
        now = asyncio.get_running_loop().time()
        self._forsaken = {caller: until for caller, until in self._forsaken.items() if until > now}
        self._forsaken[exchange.caller.id] = now + LATE_QUESTIONS

    async def _discover(self) -> Reply:
        discovery = self._line.discovery
        value: Params = {
            "supportedVersions": list(SUPPORTED_VERSIONS),
            "capabilities": discovery.capabilities,
            "_meta": {SERVER_INFO_KEY: discovery.server_info},
        }
        if discovery.instructions is not None:
            value["instructions"] = discovery.instructions
        return Result(complete(value, ttl_ms=0))

    async def _set_level(self, wanted: str) -> None:
        if wanted != self._level:
            # Noted first: who comes meanwhile need not ask for the same. A refusal is an answer, too, and noted.
            self._level = wanted
            try:
                await self._line.request("logging/setLevel", {"level": wanted})
            except BaseException:  # Handed on, a cancellation mostly: but the server may not have heard it.
                self._level = None
                raise

    # ------------------------------------------------------------------------------------------- subscriptions

    async def _listen(self, exchange: Exchange) -> Reply:
        """Serve `subscriptions/listen` out of what the server pushes, unasked or after `resources/subscribe`."""
        wanted = as_object(exchange.params.get("notifications")) or {}
        flags = [flag for flag in LIST_CHANGES if wanted.get(flag) is True and self._announces(flag)]
        waiter = Waiter(exchange)
        waiter.wanted = frozenset(LIST_CHANGES[flag] for flag in flags)
        asked = [uri for uri in as_array(wanted.get("resourceSubscriptions")) or [] if isinstance(uri, str)]
        uris: list[str] = []
        request_id = await self._line.enter(waiter)
        # Counted before anything is awaited: nobody may end a subscription that another is about to share.
        for uri in asked:
            self._subscriptions.setdefault(uri, _Subscription()).listeners += 1
        try:
            for uri in asked:
                if await self._subscribe(uri):
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
            for uri in asked:
                self._unsubscribe(uri)

    def _announces(self, flag: str) -> bool:
        kind = as_object(self._line.discovery.capabilities.get(flag.removesuffix("ListChanged"))) or {}
        return kind.get("listChanged") is True

    async def _subscribe(self, uri: str) -> bool:
        resources = as_object(self._line.discovery.capabilities.get("resources")) or {}
        if resources.get("subscribe") is not True:
            return False
        subscription = self._subscriptions[uri]
        async with subscription.asking:
            if not subscription.is_held:
                reply = await self._line.request("resources/subscribe", {"uri": uri})
                subscription.is_held = isinstance(reply, Result)
        return subscription.is_held

    def _unsubscribe(self, uri: str) -> None:
        subscription = self._subscriptions[uri]
        subscription.listeners -= 1
        if subscription.listeners == 0:
            del self._subscriptions[uri]
            if subscription.is_held:
                waiter = Waiter(None)
                request_id = self._line.pending.add(waiter)
                self._line.send(Request(request_id, "resources/unsubscribe", {"uri": uri}))
                self._line.leave(request_id, waiter)  # Whatever the answer is, and whether one comes or not.

    # ----------------------------------------------------------------------------------------------- questions

    async def answer(self, request: Request, asker: "Asker | MethodNotFound") -> None:
        """Put a question of the server to whoever caused it, as `asker_of` has found out, and send the answer back."""
        question = question_from_session(request.method, request.params)
        reply: Reply
        try:
            if isinstance(asker, MethodNotFound):
                raise asker
            ask, capabilities = asker
            _check_capability(question, capabilities)
            answers = await ask({"question": question})
            reply = Result(answer_for_session(question, answers["question"], self._session.revision))
        except InputRefused as refusal:
            reply = refusal.error or ErrorObject(-1, refusal.message)
            if refusal.error is None and request.method == "elicitation/create":
                reply = Result({"action": "cancel"})
        except (MethodNotFound, InvalidParams) as refusal:
            reply = ErrorObject(refusal.code, refusal.message)
        except UpstreamError:
            return  # the server is gone, and its question with it
        except Exception:  # The edge: this answers an exchange, the server's with us, and the answer is owed.
            log.exception("%s could not be answered", request.method)
            reply = ErrorObject(-1, "The question could not be answered.")
        self._line.respond(request.id, reply)

    def asker_of(self, request: Request, cause: Exchange | None = None) -> "Asker | MethodNotFound":
        """Who is to be asked, and what it can be: the caller whose call caused the question, never another (§3.4).

        To be found out as soon as the question is heard: an answer right behind it ends the call that it is about, and
        then somebody else's would be the only one under way.

        Args:
            cause: the call that caused it, where the transport knows; else it is guessed from what is under way.
        """
        if cause is not None:
            return cause.request_input, cause.profile.capabilities
        owner = self.tickets.owner_of(request.params)
        if owner is not None:
            return partial(self._ask, owner), owner.profile.capabilities
        causes = [w.exchange for w in self._line.pending if w.exchange is not None and _may_ask(w.exchange.method)]
        causes += self.tickets
        if not causes:
            return self._line.host.sink.ask, self._line.host.capabilities
        now = asyncio.get_running_loop().time()
        forsaken = {caller for caller, until in self._forsaken.items() if until > now}
        if len({exchange.caller.id for exchange in causes} | forsaken) > 1:
            return MethodNotFound(f"{request.method} cannot be attributed to one caller and is refused.")
        # Several calls of one caller: the answer goes back under the question's own id and unblocks whichever asked.
        # Rather one that has not been asked yet: the caller of another may never come back with its answer.
        unasked = [exchange for exchange in causes if not any(exchange is asked for asked, _ in self._asked)]
        likely = unasked[0] if unasked else causes[-1]
        return partial(self._ask, likely), likely.profile.capabilities

    async def _ask(self, cause: Exchange, questions: Questions) -> Answers:
        under_way = [*(waiter.exchange for waiter in self._line.pending), *self.tickets]
        if not any(exchange is cause for exchange in under_way):
            raise InputRefused("The call that this was about has ended.")
        try:
            async with asyncio.timeout(None) as patience:
                asked = cause, patience
                self._asked.append(asked)
                try:
                    return await cause.request_input(questions)
                finally:
                    self._asked = [other for other in self._asked if other is not asked]
        except TimeoutError:
            raise InputRefused("The call that this was about has been given up.") from None

    def _take_back_questions(self, cause: Exchange) -> None:
        """Ask no longer on behalf of a call: nobody should be left before a form that is of no use any more."""
        for exchange, patience in self._asked:
            if exchange is cause:
                patience.reschedule(asyncio.get_running_loop().time())


Asker = tuple[Callable[[Questions], Awaitable[Answers]], Mapping[str, object]]
"""Asks somebody, who said that these can be asked."""


def _may_ask(method: str) -> bool:
    row = METHODS.get(method)
    if row is None:
        return method not in ("tasks/get", "tasks/cancel")  # The method of an extension may, for all we know.
    return row.may_ask


def _check_capability(question: Question, capabilities: Mapping[str, object]) -> None:
    """Let a question pass that whoever is asked said it can be asked (threats T24)."""
    lacking = lacking_capability(question, capabilities)
    if lacking is None:
        return
    if any(as_object(capabilities.get(name)) is None for name in lacking):
        raise MethodNotFound(f"The client did not say that it can be asked {question.method}.")
    raise InvalidParams(f"The client did not say that it can be asked {question.method} in this way.")
