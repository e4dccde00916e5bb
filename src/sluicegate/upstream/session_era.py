"""A session-era server, met in its own way: what it remembers of us, what it pushes, what it asks.

Inside we speak 2026-07-28, where a server remembers nothing. The state that an older one needs is kept here.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping
from contextlib import suppress
from functools import partial
from types import CoroutineType
from typing import Any, Final, Protocol, cast

import msgspec

from sluicegate.concurrency import TaskScope
from sluicegate.errors import (
    ErrorObject,
    InputRefused,
    InvalidParams,
    MethodNotFound,
    Truncated,
    UpstreamClosed,
    UpstreamError,
)
from sluicegate.exchange import Exchange, Host
from sluicegate.protocol.discovery import Discovery
from sluicegate.protocol.handshake import ClientSession
from sluicegate.protocol.input_required import Answers, Question, lacking_capability
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
from sluicegate.protocol.methods import LIST_CHANGES, LOG_LEVELS
from sluicegate.protocol.modern import ACKNOWLEDGED, PENDING, SERVER_INFO_KEY, complete
from sluicegate.protocol.pending import Pending
from sluicegate.protocol.spelling import Spellings, plain
from sluicegate.protocol.translate import params_for_session, reply_from_session
from sluicegate.protocol.translate_questions import (
    answer_for_session,
    asks_for_context,
    is_joined,
    question_from_session,
)
from sluicegate.protocol.versions import SUPPORTED_VERSIONS
from sluicegate.upstream.attribution import Asking, Attribution
from sluicegate.upstream.pages import Pages
from sluicegate.upstream.tickets import Tickets
from sluicegate.upstream.waiting import Waiter

log = logging.getLogger("sluicegate")

_LISTEN: Final = "subscriptions/listen"
_SET_LEVEL: Final = "logging/setLevel"
_QUIETEST: Final = LOG_LEVELS[-1]

CONTEXT: Final = "context that a server wanted its question to have"
JOINED: Final = "blocks of a model's answer joined into one text"

QUIETS_AFTER: Final = 1.0
"""Seconds until a server is told that nobody listens to its log: who wants another level leaves and comes back."""

RESTORES_WITHIN: Final = 10.0
"""Seconds in which another session is told what the lost one knew: until then, everybody waits for it."""

UNSUBSCRIBES_WITHIN: Final = 4.0
"""Seconds that a server has to answer that it tells of a resource no more: who wants to hear of it again waits."""

MOST_SPELLINGS: Final = 8
"""Spellings of one resource that a server is asked for; who has yet another shares what these tell."""

MOST_ASKED: Final = 64
"""Resources that one who listens to many subscribes to at a time."""

ACKNOWLEDGES_AFTER: Final = 1.5
"""Seconds until who listens is told what is held so far, and between one such word and the next."""

SUBSCRIBES_WITHIN: Final = 8.0
"""Seconds that a server has to answer for all that one listens to; what it has not answered for then is left out."""


class Line(Protocol):
    """The link, as this part needs it."""

    host: Host
    pending: Pending[Waiter]

    @property
    def discovery(self) -> Discovery: ...
    def send(self, message: Message) -> int: ...
    def respond(self, request_id: RequestId, reply: Reply) -> None: ...
    def attend(self, work: Coroutine[object, object, None]) -> None: ...
    async def enter(self, waiter: Waiter) -> int: ...
    def leave(self, request_id: int, waiter: Waiter) -> bool: ...
    async def request(self, method: str, params: Params) -> Reply: ...
    async def relay(self, exchange: Exchange, params: Params) -> Reply: ...
    async def next_item(self, waiter: Waiter) -> Notification | Reply: ...


class _Subscription:
    """One resource, whoever listens to it and however they spell it.

    The server is asked for each spelling, for it may know one only; and all end together, for to another server they
    are the same: it would tell nobody any more when one is ended.
    """

    def __init__(self) -> None:
        self.listeners = 0
        self.held: set[str] = set()
        """The spellings that the server has accepted."""
        self.is_ending = False
        self.asking = asyncio.Lock()


class _Asking:
    """What one who listens asks for, and how far the server has answered."""

    def __init__(self, uris: list[str], flags: list[str]) -> None:
        self.uris = uris
        self.accepted: set[str] = set()
        self.pending = set(uris)
        self.problems: list[UpstreamError] = []
        self.first = asyncio.Event()
        """Set once there is something to say: all is answered, or who listens has waited for long enough."""
        self._flags = flags

    @property
    def problem(self) -> UpstreamError | None:
        """Why the server will tell of none, if it could not be asked."""
        return self.problems[0] if self.problems and not self.accepted and not self.pending else None

    def word(self) -> Notification:
        """The acknowledgement of what is held so far; it says what may follow."""
        honoured: Params = dict.fromkeys(self._flags, True)
        if self.accepted:
            honoured["resourceSubscriptions"] = [uri for uri in self.uris if uri in self.accepted]
        params: Params = {"notifications": honoured}
        if self.pending:
            params["_meta"] = {PENDING: [uri for uri in self.uris if uri in self.pending]}
        return Notification(ACKNOWLEDGED, params)


class SessionEra:
    """The memory of one session with one server."""

    def __init__(self, line: Line, session: ClientSession) -> None:
        self._line = line
        self._session = session
        self._level: str | None = None
        self._keeping = asyncio.Lock()
        self._least: str | None = None
        self._curious: dict[str, int] = {}  # how many of those who wait now want to be told of each level
        self._subscriptions: dict[str, _Subscription] = {}
        self.tickets = Tickets()
        self._attribution = Attribution(line.host, line.pending, self.tickets)
        self._pages = Pages(line.host)

    def reply_to(self, exchange: Exchange) -> "CoroutineType[Any, Any, Reply]":
        """The server's reply to an exchange, in the inner shape."""
        level = exchange.profile.log_level
        if exchange.method == _SET_LEVEL:
            return self._keep_level(exchange)
        if level is None or exchange.method == "server/discover" or "logging" not in self._line.discovery.capabilities:
            return self._reply_to(exchange)
        return self._reply_and_log(exchange, level)

    async def _reply_and_log(self, exchange: Exchange, level: str) -> Reply:
        """The reply to an exchange, while the server logs as much as the most curious of those who wait for it."""
        curious = self._curious
        curious[level] = curious.get(level, 0) + 1
        try:
            if exchange.method != _LISTEN and (level != self._level or len(curious) > 1):
                await self._set_level(self._most_curious())
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
            self._attribution.give_up(exchange)
            raise
        if isinstance(reply, ErrorObject):
            self._pages.named(exchange, reply)
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
                self._attribution.end(call)

    def met(self, session: ClientSession) -> None:
        """Go by what was agreed on in this session from now on: it alone says which revision the server speaks."""
        self._session = session

    async def restore(self, session: ClientSession, request: Callable[[str, Params], Awaitable[Reply]]) -> None:
        """Tell another session with the same server, by `request`, what the lost one knew of us.

        Who listens to what it does not take, now or in time, is told so, and may listen again.
        """
        self._session = session
        held = {uri: subscription for subscription in self._subscriptions.values() for uri in subscription.held}
        for subscription in held.values():
            subscription.held.clear()
        try:
            async with asyncio.timeout(RESTORES_WITHIN):
                await self._restore_level(request)
                for uri, subscription in held.items():
                    # Not under its lock: whoever has that may wait for this session.
                    with suppress(UpstreamError):
                        if isinstance(await request("resources/subscribe", {"uri": uri}), Result):
                            subscription.held.add(uri)
        except TimeoutError:
            pass  # Whoever waits for the session need not wait for the rest.
        finally:
            lost = {uri for uri, subscription in held.items() if uri not in subscription.held}
            for waiter in self._line.pending:
                if not lost.isdisjoint(waiter.uris):
                    waiter.post(UpstreamClosed("The server lost the session, and does not tell of all as before."))

    async def _restore_level(self, request: Callable[[str, Params], Awaitable[Reply]]) -> None:
        level, self._level = self._level, None
        if level is not None:
            with suppress(UpstreamError):
                await request("logging/setLevel", {"level": level})
                self._level = level

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

    async def _keep_level(self, exchange: Exchange) -> Reply:
        """Let the server log at least so much, whoever calls it: somebody wants its lines that belong to no call.

        Without a level, nobody does any more: then it logs what those want who wait now, and if there are none, as
        little as there is a level for. After a call it is left as it is: they come and go by the thousand.
        """
        level = exchange.params.get("level")
        self._least = cast(str, level) if level in LOG_LEVELS else None
        if self._least is None:
            await asyncio.sleep(QUIETS_AFTER)
        # In turn: over HTTP, what is posted later may arrive first. Whoever has come meanwhile counts.
        async with self._keeping:
            wanted = self._most_curious()
            await self._set_level(wanted)
            if self._level not in (wanted, None):
                # A call has set another meanwhile, and nobody knows which of the two the server heard last.
                self._level = None
                await self._set_level(self._most_curious())
        return Result(complete({}))

    def _most_curious(self) -> str:
        least = _QUIETEST if self._least is None else self._least
        return min((*self._curious, least), key=LOG_LEVELS.index)

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
        request_id = await self._line.enter(waiter)
        # Counted before anything is awaited: nobody may end a subscription that another is about to share.
        for uri in asked:
            self._subscriptions.setdefault(plain(uri), _Subscription()).listeners += 1
        try:
            async with TaskScope() as tasks:
                asking = _Asking(asked, flags)
                waiter.uris = Spellings(asked)  # From now on: what is held may change while others are asked for.
                tasks.start(self._subscribe_all(asking, waiter))
                await asking.first.wait()
                if asking.problem is not None:
                    raise asking.problem
                # What came meanwhile is in the inbox, and is told after this.
                await exchange.emit(asking.word())
                while isinstance(item := await self._line.next_item(waiter), Notification):
                    await exchange.emit(item)
                tasks.cancel_all()
                return item
        finally:
            self._line.leave(request_id, waiter)
            for uri in asked:
                self._unsubscribe(uri)

    def _announces(self, flag: str) -> bool:
        kind = as_object(self._line.discovery.capabilities.get(flag.removesuffix("ListChanged"))) or {}
        return kind.get("listChanged") is True

    async def _subscribe_all(self, asking: "_Asking", waiter: Waiter) -> None:
        """Ask the server to tell of resources; one that it is slow with, or silent on, holds up no other."""
        left = iter(asking.uris)

        async def work(left: Iterator[str]) -> None:
            for uri in left:
                try:
                    if await self._subscribe(uri):
                        asking.accepted.add(uri)
                except UpstreamError as problem:  # It may well tell of the others.
                    asking.problems.append(problem)
                asking.pending.discard(uri)

        async def say_so_far() -> None:
            said = -1
            while True:
                await asyncio.sleep(ACKNOWLEDGES_AFTER)
                if not asking.first.is_set():
                    asking.first.set()
                elif said != len(asking.accepted):
                    waiter.post(asking.word())
                said = len(asking.accepted)

        with suppress(TimeoutError):
            async with asyncio.timeout(SUBSCRIBES_WITHIN), TaskScope() as words:
                words.start(say_so_far())
                async with TaskScope() as tasks:
                    for _ in range(min(MOST_ASKED, len(asking.uris))):
                        tasks.start(work(left))
                words.cancel_all()
        asking.pending.clear()
        waiter.uris = Spellings(asking.accepted)
        if asking.first.is_set():
            waiter.post(asking.problem or asking.word())
        asking.first.set()

    async def _subscribe(self, uri: str) -> bool:
        resources = as_object(self._line.discovery.capabilities.get("resources")) or {}
        if resources.get("subscribe") is not True:
            return False
        subscription = self._subscriptions[plain(uri)]
        async with subscription.asking:
            held = subscription.held
            if uri in held or len(held) >= MOST_SPELLINGS:
                return True
            if isinstance(await self._line.request("resources/subscribe", {"uri": uri}), Result):
                held.add(uri)
            return uri in held

    def _unsubscribe(self, uri: str) -> None:
        name = plain(uri)
        subscription = self._subscriptions[name]
        subscription.listeners -= 1
        if subscription.listeners == 0 and not subscription.is_ending:
            subscription.is_ending = True
            self._line.attend(self._end(name, subscription))

    async def _end(self, name: str, subscription: _Subscription) -> None:
        """Let the server tell of a resource no more, unless somebody listens to it again."""
        # In turn with those who subscribe: over HTTP, what is posted later may arrive first.
        async with subscription.asking:
            subscription.is_ending = False
            # Who comes while one is ended is asked for again after the others: to the server they may be the same.
            held = [] if subscription.listeners else sorted(subscription.held)
            subscription.held.difference_update(held)  # Whatever the answers are, and whether they come or not.
            with suppress(TimeoutError):
                async with asyncio.timeout(UNSUBSCRIBES_WITHIN):
                    for uri in held:
                        with suppress(UpstreamError):
                            await self._line.request("resources/unsubscribe", {"uri": uri})
        if not subscription.listeners and self._subscriptions.get(name) is subscription:
            del self._subscriptions[name]

    # ----------------------------------------------------------------------------------------------- questions

    async def answer(self, request: Request, asker: "Asker") -> None:
        """Put a question of the server to whoever caused it, as `asker_of` has found out, and send the answer back."""
        reply: Reply
        try:
            reply = Result(await asker())
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

    def asker_of(self, request: Request, cause: Exchange | None = None) -> "Asker":
        """Who is to be asked: the caller whose call caused the question, never another (§3.4).

        Args:
            cause: the call that caused it, where the transport knows; else it is found among those under way.
        """
        # Whatever is wrong with it is for `answer` to say: who reads the wire has others' messages to hand on.
        try:
            question = question_from_session(request.method, request.params)
        except InvalidParams as problem:
            return partial(_refuse, problem)
        if asks_for_context(request.method, request.params):
            self._line.host.lost(CONTEXT)
        if cause is not None:
            return partial(self._ask, question, partial(self._put, cause))
        found = self._attribution.find(request, question)
        put = self._put_to_host if found is None else partial(self._put_to_likeliest, found)
        return partial(self._ask, question, put)

    async def _ask(self, question: Question, put: Callable[[Question], Awaitable[Answers]]) -> Params:
        answer = (await put(question))["question"]
        if is_joined(question, answer, self._session.revision):
            self._line.host.lost(JOINED)
        return answer_for_session(question, answer, self._session.revision)

    def forget_question(self, request_id: RequestId) -> None:
        """Know that the server has taken a question back."""
        self._attribution.forget(request_id)

    def hear_visit(self, notification: Notification) -> None:
        """Tell whoever was sent to a page that the server saw the visit."""
        telling = self._pages.visited(notification.params.get("elicitationId"))
        if telling is not None:
            self._line.attend(telling)

    async def _put_to_host(self, question: Question) -> Answers:
        host = self._line.host
        if not host.sinks_refuse:
            _check_capability(question, host.capabilities)
        return await host.sink.ask({"question": question})

    async def _put_to_likeliest(self, found: Asking | MethodNotFound, question: Question) -> Answers:
        if isinstance(found, MethodNotFound):
            raise found
        return await self._attribution.ask(found, self._put)

    async def _put(self, cause: Exchange, question: Question) -> Answers:
        # What the caller at hand can be asked counts, not what the server was told once, for all callers.
        if not self._line.host.sinks_refuse:
            _check_capability(question, cause.profile.capabilities)
        page = question.elicitation
        if page is None:
            return await cause.request_input({"question": question})
        question = msgspec.structs.replace(question, elicitation=self._pages.asked(page, cause))
        try:
            return await cause.request_input({"question": question})
        except BaseException:  # Handed on, whatever it is: but nobody has seen the page.
            self._pages.forget(page)
            raise


Asker = Callable[[], Awaitable[Params]]
"""Asks somebody, and gives the answer in the server's words; raises what it is to be told if that cannot be asked."""


async def _refuse(problem: InvalidParams) -> Params:
    raise problem


def _check_capability(question: Question, capabilities: Mapping[str, object]) -> None:
    """Let a question pass that whoever is asked said it can be asked (threats T24)."""
    lacking = lacking_capability(question, capabilities)
    if lacking is None:
        return
    if any(as_object(capabilities.get(name)) is None for name in lacking):
        raise MethodNotFound(f"The client did not say that it can be asked {question.method}.")
    raise InvalidParams(f"The client did not say that it can be asked {question.method} in this way.")
