"""A session-era server over Streamable HTTP: a session that many POSTs share, and a GET for what belongs to none.

What such a server remembers is `SessionEra`'s. Here is how its messages travel: on which stream each comes, how a
stream that was cut is taken up again, and what is done when the server has forgotten the session.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from contextvars import ContextVar
from typing import Final

from sluicegate.concurrency import TaskScope
from sluicegate.errors import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    OVERLOADED,
    ErrorObject,
    LocalProtocolError,
    SluicegateError,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
)
from sluicegate.exchange import Exchange, Host
from sluicegate.http1 import Answer, Fields
from sluicegate.protocol.framing import SseEvent
from sluicegate.protocol.handshake import ClientSession
from sluicegate.protocol.headers import VERSION
from sluicegate.protocol.message import (
    Message,
    Notification,
    Params,
    Reply,
    Request,
    RequestId,
    Response,
    Result,
    Unreadable,
    as_object,
)
from sluicegate.protocol.methods import METHODS, QUESTIONS
from sluicegate.protocol.modern import Answers, Discovery, Questions
from sluicegate.protocol.pending import Pending
from sluicegate.protocol.versions import LATEST_SESSION_VERSION
from sluicegate.upstream.http_modern import wants_log
from sluicegate.upstream.session_era import SessionEra
from sluicegate.upstream.site import (
    ACCEPT_BOTH,
    ACCEPT_EVENTS,
    EVENTS,
    LONGEST_SILENCE,
    Events,
    Messages,
    Site,
    decoded,
    encoded,
    ended_early,
    media_type,
    read_to_end,
)
from sluicegate.upstream.waiting import Waiter

log = logging.getLogger("sluicegate")

SESSION: Final = "Mcp-Session-Id"
MOST_QUESTIONS: Final = 1024
"""What may be under way at once besides the calls: answers to the server, and questions it waits for."""

WAIT_FOR_PUSHES: Final = 1.0
"""How long opening waits for the GET stream, so that nothing that is pushed from then on is missed."""

WAIT_FOR_SESSION: Final = 30.0
WAIT_FOR_END: Final = 2.0
DEFAULT_RETRY: Final = 1.0
LONGEST_RETRY: Final = 30.0
SHORTEST_RETRY: Final = 0.05
MOST_FAILURES: Final = 3
"""Attempts in a row to take up a stream again that did not even reach the server."""

_session_id: Final = re.compile(r"[\x21-\x7e]{1,1024}")
_cause: ContextVar[Exchange | None] = ContextVar("cause", default=None)


class _Memory(SessionEra):
    """What the server remembers; here a question comes with the call that caused it, and memory can be restored."""

    def _asker(self, method: str) -> tuple[Callable[[Questions], Awaitable[Answers]], Mapping[str, object]]:
        exchange = _cause.get()
        return super()._asker(method) if exchange is None else (exchange.request_input, exchange.profile.capabilities)

    async def restore(self, session: ClientSession, request: Callable[[str, Params], Awaitable[Reply]]) -> None:
        """Tell a new session what the lost one knew."""
        self._session = session
        if self._level is not None:
            await request("logging/setLevel", {"level": self._level})
        for uri, subscription in list(self._subscriptions.items()):
            if subscription.is_held:
                reply = await request("resources/subscribe", {"uri": uri})
                subscription.is_held = isinstance(reply, Result)


class SessionHttp:
    """A `Connection` to a session-era server, and the `Line` of its `SessionEra`."""

    def __init__(self, site: Site, host: Host, tasks: TaskScope) -> None:
        self.host = host
        self.discovery = Discovery(LATEST_SESSION_VERSION)
        self.pending: Pending[Waiter] = Pending()
        self._site = site
        self._tasks = tasks
        self._session = ClientSession()
        self._memory = _Memory(self, self._session)
        self._id: str | None = None
        self._opened = self._closed = False
        self._asked: dict[int, list[RequestId]] = {}  # what each call that is under way has asked, by its exchange
        self._renewal: asyncio.Future[UpstreamError | None] | None = None
        self._listening = asyncio.Event()

    # ----------------------------------------------------------------------------------------- opening and closing

    async def open(self) -> str | None:
        """Make the server's acquaintance; None, or what it did if it does not seem to speak this transport.

        Raises:
            UpstreamError: it does, but there is no session to be had.
        """
        seen = await self._initialize()
        if seen is None:
            self._listen()
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_FOR_PUSHES):
                    await self._listening.wait()
        return seen

    async def _initialize(self) -> str | None:
        session = ClientSession()
        try:
            answer, reply = await self._welcome(session)
            if session.retry_with(reply):
                answer, reply = await self._welcome(session)
        except UpstreamProtocolError as problem:
            # What answers neither a message nor an error of the protocol may still be an older transport.
            return problem.message.rstrip(".")
        if isinstance(reply, ErrorObject) and answer.status in (400, 404, 405):
            return f"{self._site.name} answered initialize with status {answer.status} ({reply.message[:100]})"
        self.discovery = session.accept(reply)
        self._id = self._session_id_of(answer)
        self._session, self._opened = session, True
        await self._tell(Notification("notifications/initialized", {}))
        return None

    async def _welcome(self, session: ClientSession) -> tuple[Answer, Reply]:
        params = session.begin(self.host.capabilities, self.host.client_info)
        request_id = self.pending.add(Waiter(None))
        try:
            # Without what the last session said: until there is another, everybody else goes on with that one.
            request = Request(request_id, "initialize", params)
            answer = await self._site.ask("POST", ACCEPT_BOTH, encoded(request), idle=LONGEST_SILENCE)
            return answer, await self._hear_out(answer, request_id, None)
        finally:
            self.pending.claim(request_id)

    def _session_id_of(self, answer: Answer) -> str | None:
        value = answer.headers.get(SESSION)
        if value is not None and not _session_id.fullmatch(value):
            raise self._site.protocol_error("names a session in a way that cannot be sent back")
        return value

    async def aclose(self) -> None:
        """Take no more exchanges, and tell the server that the session is over."""
        self._closed = True
        for waiter in self.pending.drain():
            waiter.post(self._gone())
        if self._id is not None:
            self._tasks.cancel((self, "pushes"))
            with suppress(TimeoutError, SluicegateError):
                async with asyncio.timeout(WAIT_FOR_END):
                    (await self._site.ask("DELETE", self._fields(()), first_byte=WAIT_FOR_END)).close()

    def _gone(self) -> UpstreamClosed:
        return UpstreamClosed(f"The connection to {self._site.name} is closed.", delivered="no")

    async def _begin_again(self, lost: str) -> None:
        """Wait for another session in place of one that the server does not know any more.

        Raises:
            UpstreamClosed: there is none to be had.
        """
        if self._renewal is None and self._id == lost:
            # In a task, and once for all who notice: whoever noticed first may go away in the middle of it.
            self._renewal = asyncio.get_running_loop().create_future()
            self._tasks.start(self._renew(self._renewal))
        if self._renewal is not None:
            problem = await asyncio.shield(self._renewal)
            if problem is not None:
                raise UpstreamClosed(f"{self._site.name} has lost the session: {problem.message}", delivered="no")

    async def _renew(self, renewal: "asyncio.Future[UpstreamError | None]") -> None:
        log.info("%s has forgotten the session; another one is opened.", self._site.name)
        problem: UpstreamError | None = self._gone()
        try:
            async with asyncio.timeout(WAIT_FOR_SESSION):
                seen = await self._initialize()
                if seen is None:
                    self._listen()
                    await self._memory.restore(self._session, self._request_once)
            problem = None if seen is None else UpstreamClosed(f"{seen}.")
        except TimeoutError:
            problem = UpstreamTimeout("it did not answer in time.")
        except UpstreamError as error:
            problem = error
        finally:
            self._renewal = None
            renewal.set_result(problem)

    # ---------------------------------------------------------------------------------------------------- asking

    async def __call__(self, exchange: Exchange) -> Reply:
        """The server's reply to an exchange, in the inner shape; its notices go to the exchange as they come.

        Raises:
            UpstreamError: it cannot be asked, went away, or sent something that is no answer.
        """
        return await self._memory.reply_to(exchange)

    async def relay(self, exchange: Exchange, params: Params) -> Reply:
        """The server's reply to an exchange, as the server sent it."""
        waiter = Waiter(exchange)
        request_id = await self.enter(waiter)
        if exchange.profile.progress_token is not None:
            params = {**params, "_meta": {**(as_object(params.get("_meta")) or {}), "progressToken": request_id}}
        try:
            answer = await self._post_within_session(Request(request_id, exchange.method, params))
            return await self._hear_out(answer, request_id, exchange)
        except asyncio.CancelledError:
            # To hang up is not to cancel: the server has to be told.
            cancelled: Params = {"requestId": request_id, "reason": "The caller no longer waits."}
            self.send(Notification("notifications/cancelled", cancelled))
            raise
        finally:
            self.leave(request_id, waiter)
            for question in self._asked.pop(id(exchange), ()):
                # Nobody waits for these answers any more; who was asked should not be left before an open form.
                self._tasks.cancel((self, "question", question))

    async def request(self, method: str, params: Params) -> Reply:
        """The reply to a request of our own making."""
        return await self._request_by(self._post_within_session, method, params)

    async def _request_once(self, method: str, params: Params) -> Reply:
        return await self._request_by(self._post, method, params)

    async def _request_by(self, post: Callable[[Request], Awaitable[Answer]], method: str, params: Params) -> Reply:
        waiter = Waiter(None)
        request_id = await self.enter(waiter)
        try:
            return await self._hear_out(await post(Request(request_id, method, params)), request_id, None)
        finally:
            self.leave(request_id, waiter)

    async def enter(self, waiter: Waiter) -> int:
        """The id of a new request."""
        if self._closed:
            raise self._gone()
        return self.pending.add(waiter)

    async def next_item(self, waiter: Waiter) -> Notification | Reply:
        """The next thing that has come for somebody who listens."""
        item = await waiter.next()
        if isinstance(item, UpstreamError):
            raise item
        return item

    def leave(self, request_id: int, waiter: Waiter) -> bool:
        """Wait no more for a request; whether its answer is still to come."""
        return self.pending.claim(request_id) is not None

    def send(self, message: Message) -> int:
        """Post a message whose answer nobody waits for."""
        body = encoded(message)
        if not self._closed:
            self._tasks.start(self._tell(message))
        return len(body)

    def respond(self, request_id: RequestId, reply: Reply) -> None:
        """Answer a request of the server."""
        try:
            self.send(Response(request_id, reply))
        except LocalProtocolError as problem:
            log.error("%s gets no answer to its question: %s", self._site.name, problem)
            self.send(Response(request_id, ErrorObject(INTERNAL_ERROR, "The answer cannot be written as JSON.")))

    async def _tell(self, message: Message) -> None:
        """Post a message; whatever is said to it is not for us."""
        try:
            answer = await self._post(message, silence=None)
        except UpstreamError as problem:
            log.warning("%s was not told something: %s", self._site.name, problem.message)
            return
        if answer.status >= 300:
            log.warning("%s refused a message with status %d.", self._site.name, answer.status)
        await read_to_end(answer)

    async def _post_within_session(self, request: Request) -> Answer:
        """The answer to a request; if the server has forgotten the session, that of a new one, once."""
        used = self._id
        answer = await self._post(request)
        if answer.status != 404 or used is None:
            return answer
        # It has certainly not run: the server did not know for whom.
        answer.close()
        await self._begin_again(used)
        return await self._post(request)

    async def _post(self, message: Message, *, silence: float | None = LONGEST_SILENCE) -> Answer:
        row = METHODS.get(message.method) if isinstance(message, Request) else None
        return await self._site.ask(
            "POST",
            self._fields(ACCEPT_BOTH),
            encoded(message),
            first_byte=silence,
            idle=silence,
            resend=row is not None and row.cacheable,
        )

    def _fields(self, fields: Fields) -> Fields:
        if self._opened:
            fields = (*fields, (VERSION, self._session.version))
        return fields if self._id is None else (*fields, (SESSION, self._id))

    # --------------------------------------------------------------------------------------------------- hearing

    async def _hear_out(self, answer: Answer, request_id: int, exchange: Exchange | None) -> Reply:
        """The reply to a request, wherever it comes: a stream that is cut before is asked for again by GET."""
        last_id: str | None = None
        over = False
        try:
            if not 200 <= answer.status < 300:
                return await self._site.refusal_of(answer)
            while True:
                messages = Messages(self._site, answer, request_id, last_id)
                try:
                    reply = await self._reply_in(messages, exchange)
                except UpstreamError:
                    if messages.events.last_id is None:
                        raise
                    reply = None
                if reply is not None:
                    over = messages.streams
                    return reply
                answer.close()
                if not messages.streams:
                    raise self._site.protocol_error("answers something else than what was asked")
                last_id = messages.events.last_id
                if last_id is None:
                    raise ended_early(self._site.name)
                answer = await self._resumed(last_id, messages.events.retry)
        finally:
            if over:
                self._tasks.start(read_to_end(answer))
            else:
                answer.close()

    async def _reply_in(self, messages: Messages, exchange: Exchange | None) -> Reply | None:
        while (message := await messages.next()) is not None:
            if isinstance(message, Response):
                if messages.is_reply(message):
                    return message.reply
            else:
                await self._hear(message, exchange)
        return None

    async def _resumed(self, last_id: str, retry: float | None) -> Answer:
        """The rest of a stream behind an event.

        Raises:
            UpstreamClosed: it is not to be had, and the request may have run.
        """
        fields = self._fields((*ACCEPT_EVENTS, ("Last-Event-ID", last_id)))
        for _ in range(MOST_FAILURES):
            await asyncio.sleep(DEFAULT_RETRY if retry is None else max(retry, SHORTEST_RETRY))
            try:
                answer = await self._site.ask("GET", fields, first_byte=LONGEST_SILENCE, idle=LONGEST_SILENCE)
            except UpstreamError:
                continue
            if answer.status == 200 and media_type(answer) == EVENTS:
                return answer
            answer.close()
            break
        raise UpstreamClosed(f"{self._site.name} cut its event stream before the answer and does not go on with it.")

    async def _hear(self, message: Request | Notification, exchange: Exchange | None) -> None:
        """Take what comes ahead of a reply, or belongs to no call."""
        if isinstance(message, Request):
            await self._hear_request(message, exchange)
            return
        match message.method:
            case "notifications/progress":
                await self._hear_progress(message)
            case "notifications/message":
                if exchange is None:
                    await self.host.sink.emit(message)
                elif wants_log(exchange.profile, message):
                    await exchange.emit(message)
            case "notifications/cancelled":
                question = message.params.get("requestId")
                if isinstance(question, str | int):
                    self._tasks.cancel((self, "question", question))
            case _:
                for waiter in self.pending:
                    # Changes say only that there is something new: what is too much can be left out.
                    if waiter.wants(message) and not waiter.is_full:
                        waiter.post(message)
                await self.host.sink.emit(message)

    async def _hear_progress(self, message: Notification) -> None:
        token = message.params.get("progressToken")
        waiter = self.pending.find(token) if isinstance(token, str | int) else None
        exchange = waiter.exchange if waiter is not None else None
        if exchange is not None and exchange.profile.progress_token is not None:
            params = {**message.params, "progressToken": exchange.profile.progress_token}
            await exchange.emit(Notification(message.method, params))

    async def _hear_request(self, request: Request, exchange: Exchange | None) -> None:
        if len(self._tasks) >= MOST_QUESTIONS:
            # Told here and now, not in a task: a server that asks and asks has to wait for our answers.
            await self._tell(Response(request.id, ErrorObject(OVERLOADED, "Too many questions are open.")))
        elif request.method == "ping":
            await self._tell(Response(request.id, Result({})))
        elif request.method not in QUESTIONS:
            error = ErrorObject(METHOD_NOT_FOUND, f"Method not found: {request.method[:100]}")
            await self._tell(Response(request.id, error))
        else:
            if exchange is not None:
                self._asked.setdefault(id(exchange), []).append(request.id)
            self._tasks.start(self._answer(request, exchange), key=(self, "question", request.id))

    async def _answer(self, request: Request, exchange: Exchange | None) -> None:
        _cause.set(exchange)  # In a task of its own, hence for this question only.
        await self._memory.answer(request)

    # ---------------------------------------------------------------------------------------------------- pushes

    def _listen(self) -> None:
        """Begin to hear what belongs to no call, in the session that is open now."""
        self._tasks.cancel((self, "pushes"))
        self._listening.clear()
        self._tasks.start(self._hear_pushes(), key=(self, "pushes"))

    async def _hear_pushes(self) -> None:
        last_id: str | None = None
        pause = DEFAULT_RETRY
        while True:
            fields = self._fields(ACCEPT_EVENTS if last_id is None else (*ACCEPT_EVENTS, ("Last-Event-ID", last_id)))
            retry: float | None = None
            try:
                answer = await self._site.ask("GET", fields, first_byte=LONGEST_SILENCE, idle=LONGEST_SILENCE)
                if answer.status != 200 or media_type(answer) != EVENTS:
                    # 405: it pushes nothing. 404: the session is over, which the next request will find out.
                    answer.close()
                    return
                pause = DEFAULT_RETRY
                events = Events(answer, last_id)
                try:
                    self._listening.set()
                    await self._hear_events(events)
                finally:
                    answer.close()
                    last_id, retry = events.last_id, events.retry
            except UpstreamError as problem:
                log.debug("%s: the stream of pushes ended: %s", self._site.name, problem.message)
                pause = min(pause * 2, LONGEST_RETRY)
            finally:
                self._listening.set()
            await asyncio.sleep(pause if retry is None else max(retry, SHORTEST_RETRY))

    async def _hear_events(self, events: Events) -> None:
        while (event := await events.next()) is not None:
            # What is too long or unreadable here was nobody's answer; the next event is read.
            if isinstance(event, SseEvent) and event.data and event.event == "message":
                for message in decoded(event.data):
                    if not isinstance(message, Unreadable | Response):
                        await self._hear(message, None)
