"""The state of a session with a session-era server: its log level, its tasks, its subscriptions, its questions.

Inside we use the shape of 2026-07-28, where servers keep no such state.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import ExitStack, suppress
from functools import partial
from types import CoroutineType
from typing import Any, Final, Protocol, cast

import msgspec

from sluicegate.errors import (
    ErrorObject,
    InputRefused,
    InvalidParams,
    MethodNotFound,
    Truncated,
    UpstreamError,
)
from sluicegate.exchange import Exchange, Host
from sluicegate.protocol.input_required import Answers, Question
from sluicegate.protocol.message import (
    Message,
    Notification,
    Params,
    Reply,
    Request,
    RequestId,
    Result,
)
from sluicegate.protocol.methods import LOG_LEVELS
from sluicegate.protocol.modern_era import SERVER_INFO_KEY, complete
from sluicegate.protocol.session_era import ClientSession
from sluicegate.protocol.translate.questions import (
    answer_for_session,
    asks_for_context,
    is_joined,
    question_from_session,
)
from sluicegate.protocol.translate.results import params_for_session, reply_from_session
from sluicegate.protocol.versions import SUPPORTED_VERSIONS
from sluicegate.upstream.attribution import Attribution, OpenQuestion, Pages
from sluicegate.upstream.session_subscriptions import SessionSubscriptions, SubscriptionTransport

log = logging.getLogger("sluicegate")

_LISTEN: Final = "subscriptions/listen"
_SET_LEVEL: Final = "logging/setLevel"
_QUIETEST: Final = LOG_LEVELS[-1]

CONTEXT: Final = "context that a server wanted its question to have"
JOINED: Final = "blocks of a model's answer joined into one text"

QUIETS_AFTER: Final = 1.0
"""Seconds until the level is lowered after the last listener left: to change its level, a listener comes back."""

RESTORES_WITHIN: Final = 10.0
"""Seconds for repeating our settings in a new session. All calls wait for it."""


class SessionTransport(SubscriptionTransport, Protocol):
    """The part of a connection that this module needs."""

    host: Host

    def send(self, message: Message) -> int: ...
    def respond(self, request_id: RequestId, reply: Reply) -> None: ...
    async def relay(self, exchange: Exchange, params: Params) -> Reply: ...


class SessionServer:
    """One server of the session era, over all its sessions."""

    def __init__(self, line: SessionTransport, session: ClientSession) -> None:
        self._line = line
        self._session = session
        self._level: str | None = None
        self._level_lock = asyncio.Lock()
        self._kept_level: str | None = None
        self._wanted_levels: dict[str, int] = {}  # how many pending exchanges want each level
        self._subscriptions = SessionSubscriptions(line)
        self._attribution = Attribution(line.host, line.pending)
        self.task_calls = self._attribution.task_calls
        self._pages = Pages(line.host)

    @property
    def has_calls(self) -> bool:
        """Whether there is a call during which the server may ask something."""
        return self._attribution.has_calls

    def reply_to(self, exchange: Exchange) -> "CoroutineType[Any, Any, Reply]":
        """The server's reply to an exchange, in the inner shape."""
        level = exchange.profile.log_level
        if exchange.method == _SET_LEVEL:
            return self._keep_level(exchange)
        if level is None or exchange.method == "server/discover" or "logging" not in self._line.discovery.capabilities:
            return self._reply_to(exchange)
        return self._reply_and_log(exchange, level)

    async def _reply_and_log(self, exchange: Exchange, level: str) -> Reply:
        """The reply to an exchange. Meanwhile the server logs at the lowest level that a pending exchange wants."""
        wanted = self._wanted_levels
        wanted[level] = wanted.get(level, 0) + 1
        try:
            if exchange.method != _LISTEN and (level != self._level or len(wanted) > 1):
                await self._set_level(self._lowest_wanted())
            return await self._reply_to(exchange)
        finally:
            wanted[level] -= 1
            if not wanted[level]:
                del wanted[level]

    def _reply_to(self, exchange: Exchange) -> "CoroutineType[Any, Any, Reply]":
        # Not a coroutine itself: this runs for every call.
        if exchange.method == "server/discover":
            return self._discover()
        if exchange.method == _LISTEN:
            return self._subscriptions.listen(exchange)
        params = params_for_session(exchange.method, exchange.params, self._session.revision)
        if "task" in params or "taskId" in params:
            return self._relay_task(exchange, params)
        return self._relay(exchange, params)

    async def _relay(self, exchange: Exchange, params: Params) -> Reply:
        try:
            reply = await self._line.relay(exchange, params)
        except asyncio.CancelledError:
            self._attribution.cancel(exchange)
            raise
        if isinstance(reply, ErrorObject):
            self._pages.add_reply(exchange, reply)
        return reply_from_session(exchange.method, exchange.params, reply)

    async def _relay_task(self, exchange: Exchange, params: Params) -> Reply:
        """The reply to a call that becomes a task, or to a request about a task."""
        if "task" in params:
            call = self.task_calls.begin(exchange)
            with ExitStack() as on_failure:
                on_failure.callback(self.task_calls.drop, call)
                reply = await self._relay(exchange, params)
                on_failure.pop_all()
            self.task_calls.set_reply(call, reply)
            return reply
        is_over = exchange.method != "tasks/get"
        try:
            return await self._relay(exchange, params)
        except Truncated:
            is_over = False  # The result will be requested again.
            raise
        finally:
            call = self.task_calls.end(params["taskId"]) if is_over else None
            if call is not None:
                self._attribution.end(call)

    def begin(self, session: ClientSession) -> None:
        """Use the revision that was agreed on in this session."""
        self._session = session

    async def restore(self, session: ClientSession, request: Callable[[str, Params], Awaitable[Reply]]) -> None:
        """Repeat log level and subscriptions in a new session with the same server, by `request`.

        Listeners whose resource is not accepted in time get an error, and may listen again.
        """
        self._session = session
        deadline = asyncio.get_running_loop().time() + RESTORES_WITHIN
        with suppress(TimeoutError):  # Calls that wait for the session must not wait for the rest.
            async with asyncio.timeout_at(deadline):
                await self._restore_level(request)
        await self._subscriptions.restore(request, deadline)

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
        """Set the level for log lines that belong to no call.

        Without a level, the server logs what pending exchanges want, or at the highest level if there are none. The
        level is not lowered after each call, since calls come and go by the thousand.
        """
        level = exchange.params.get("level")
        self._kept_level = cast(str, level) if level in LOG_LEVELS else None
        if self._kept_level is None:
            await asyncio.sleep(QUIETS_AFTER)
        # One at a time: over HTTP, a later POST may arrive first.
        async with self._level_lock:
            wanted = self._lowest_wanted()
            await self._set_level(wanted)
            if self._level not in (wanted, None):
                # A call has set another level meanwhile, and we cannot know which of the two arrived last.
                self._level = None
                await self._set_level(self._lowest_wanted())
        return Result(complete({}))

    def _lowest_wanted(self) -> str:
        kept = _QUIETEST if self._kept_level is None else self._kept_level
        return min((*self._wanted_levels, kept), key=LOG_LEVELS.index)

    async def _set_level(self, wanted: str) -> None:
        if wanted != self._level:
            # Set before the request, so that calls meanwhile do not repeat it. A refusal counts as set, too.
            self._level = wanted
            is_answered = False
            try:
                await self._line.request("logging/setLevel", {"level": wanted})
                is_answered = True
            finally:
                if not is_answered:  # The server may not have received the request.
                    self._level = None

    # ----------------------------------------------------------------------------------------------- questions

    async def answer(self, request: Request, asker: "Asker") -> None:
        """Ask a question of the server by `asker`, which `asker_of` returned, and send the answer back."""
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
            return  # The server is gone, so the answer is not needed.
        except Exception:  # The edge: the server must get an answer to its request, whatever fails here.
            log.exception("%s could not be answered", request.method)
            reply = ErrorObject(-1, "The question could not be answered.")
        self._line.respond(request.id, reply)

    def asker_of(self, request: Request, cause: Exchange | None = None) -> "Asker":
        """A function that asks the caller whose call caused the question, never another caller (T11).

        Args:
            cause: the call that caused it, if the transport knows; otherwise it is found among the pending calls.
        """
        # Invalid questions are refused later, by `answer`: the reader of the wire must not wait or fail here.
        try:
            question = question_from_session(request.method, request.params)
        except InvalidParams as problem:
            return partial(_refuse, problem)
        if asks_for_context(request.method, request.params):
            self._line.host.on_loss(CONTEXT)
        if cause is not None:
            return partial(self._ask, question, partial(self._put, cause))
        found = self._attribution.find(request, question)
        put = self._put_to_host if found is None else partial(self._put_to_likeliest, found)
        return partial(self._ask, question, put)

    async def _ask(self, question: Question, put: Callable[[Question], Awaitable[Answers]]) -> Params:
        answer = (await put(question))["question"]
        if is_joined(question, answer, self._session.revision):
            self._line.host.on_loss(JOINED)
        return answer_for_session(question, answer, self._session.revision)

    def forget_question(self, request_id: RequestId) -> None:
        """Drop a question that the server has cancelled."""
        self._attribution.forget(request_id)

    def hear_visit(self, notification: Notification) -> None:
        """Tell the caller that was sent to a page that the server saw the visit."""
        telling = self._pages.visited(notification.params.get("elicitationId"))
        if telling is not None:
            self._line.attend(telling)

    async def _put_to_host(self, question: Question) -> Answers:
        return await self._line.host.sink.ask({"question": question})

    async def _put_to_likeliest(self, found: OpenQuestion | MethodNotFound, question: Question) -> Answers:
        if isinstance(found, MethodNotFound):
            raise found
        return await self._attribution.ask(found, self._put)

    async def _put(self, cause: Exchange, question: Question) -> Answers:
        page = question.elicitation
        if page is None:
            return await cause.request_input({"question": question})
        question = msgspec.structs.replace(question, elicitation=self._pages.add_question(page, cause))
        with ExitStack() as on_failure:
            on_failure.callback(self._pages.forget, page)  # The caller has not seen the page.
            answers = await cause.request_input({"question": question})
            on_failure.pop_all()
        return answers


Asker = Callable[[], Awaitable[Params]]
"""Asks the caller and returns the answer in the shape of the server's revision; raises what the server gets instead."""


async def _refuse(problem: InvalidParams) -> Params:
    raise problem
