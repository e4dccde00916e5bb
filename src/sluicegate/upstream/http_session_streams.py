"""The streams of a session-era server over HTTP: those that answer calls, and the GET stream, which belongs to none.

The one rule: a message on the stream of a call belongs to that call. Only what the stream cannot tell is looked up.
"""

import asyncio
import logging
from collections.abc import Awaitable
from typing import Final, Protocol

from sluicegate.errors import (
    METHOD_NOT_FOUND,
    OVERLOADED,
    ErrorObject,
    Truncated,
    UpstreamError,
    UpstreamTimeout,
    UpstreamUnavailable,
)
from sluicegate.exchange import Exchange, Host
from sluicegate.http1 import Answer, Fields
from sluicegate.protocol.message import Message, Notification, Pending, Reply, Request, RequestId, Response, Result
from sluicegate.protocol.methods import QUESTIONS
from sluicegate.protocol.parse_response import Unreadable
from sluicegate.protocol.sse import SseEvent
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream.http_endpoint import ACCEPT_EVENTS, EVENT_STREAM, UpstreamEndpoint, retry_after
from sluicegate.upstream.http_messages import END_TIMEOUT, AnswerEvents, Messages, decoded, ended_early
from sluicegate.upstream.http_modern import wants_log
from sluicegate.upstream.inbox import Inbox
from sluicegate.upstream.server_messages import BAD_MESSAGES_A_MINUTE, FLOODED, MAX_QUESTIONS, RateCounter
from sluicegate.upstream.session_server import SessionServer

log = logging.getLogger("sluicegate")

MAX_STREAM_RETRY: Final = 30.0
MIN_RETRY: Final = 0.05
MAX_GET_FAILURES: Final = 3
"""Attempts in a row that a server may refuse before we do something else."""


class StreamedSession(Protocol):
    """The part of a session that its streams need."""

    def fields(self, fields: Fields) -> Fields:
        """The fields, with the headers that every request of the session carries."""
        ...

    async def tell(self, message: Message) -> None:
        """Post a message that has no reply."""
        ...

    async def replace(self, *, unless_busy: bool) -> None:
        """Begin another session, because the server has lost this one or refuses its GET stream.

        Raises:
            UpstreamError: the server gives none now.
        """
        ...

    def give_up(self, why: str) -> None:
        """End the connection because of what the server did."""
        ...


class SessionStreams:
    """The streams of one connection, over all its sessions."""

    def __init__(
        self,
        endpoint: UpstreamEndpoint,
        session: StreamedSession,
        host: Host,
        pending: Pending[Inbox],
        server: SessionServer,
        tasks: TaskScope,
    ) -> None:
        self.is_closed = False
        self._endpoint = endpoint
        self._session = session
        self._host = host
        self._pending = pending
        self._server = server
        self._tasks = tasks
        self._settled = asyncio.Event()
        self._bad_messages = RateCounter()
        self._asked: dict[int, list[RequestId]] = {}  # open questions of each call, by the id() of its exchange

    def close(self) -> None:
        """Stop the GET stream. Pending calls may finish, but the server can ask nothing more."""
        self.is_closed = True
        self._tasks.cancel(self)

    # ----------------------------------------------------------------------------------------------- streams of calls

    async def read_reply(self, answer: Answer, request_id: int, exchange: Exchange | None) -> Reply:
        """The reply to a request. A stream that is cut before the reply is resumed by GET."""
        last_id: str | None = None
        over = False
        try:
            if not 200 <= answer.status < 300:
                return await self._endpoint.refusal_of(answer)
            while True:
                messages = Messages(self._endpoint, answer, request_id, last_id)
                cut: UpstreamError = ended_early(self._endpoint.name)
                reply: Reply | None = None
                has_let_go = False
                try:
                    reply = await self._reply_in(messages, exchange)
                    has_let_go = reply is None
                except (Truncated, UpstreamTimeout) as problem:
                    cut = problem
                if reply is not None:
                    over = messages.streams
                    return reply
                answer.close()
                events = messages.events
                if events is None or events.last_id is None:
                    raise cut
                last_id = events.last_id
                answer = await self._resumed(last_id, events.retry)
                if has_let_go and exchange is not None and exchange.end_response_early is not None:
                    # The server ended the stream on purpose, so our client need not hold a connection either. Only now:
                    # a client that comes back at once would wait for the pause that the server asked for.
                    exchange.end_response_early()
        finally:
            if over and not self.is_closed:
                answer.let_end(END_TIMEOUT)
            else:
                answer.close()

    async def _reply_in(self, messages: Messages, exchange: Exchange | None) -> Reply | None:
        while (chunk := await messages.next_chunk()) is not None:
            for message in messages.read(chunk):
                if isinstance(message, Response):
                    if messages.is_reply(message):
                        return message.reply
                    self._count_bad()
                elif (passing_on := self._receive(message, exchange)) is not None:
                    await passing_on
        if not messages.streams:
            raise self._endpoint.protocol_error("answers something else than what was asked")
        return None

    async def _resumed(self, last_id: str, retry: float | None) -> Answer:
        """The rest of a stream after an event.

        Raises:
            Truncated: the server does not resume it, and the request may have run.
        """
        timeouts = self._endpoint.timeouts
        fields = self._session.fields((*ACCEPT_EVENTS, ("Last-Event-ID", last_id)))
        pause = timeouts.retry if retry is None else max(retry, MIN_RETRY)
        for _ in range(MAX_GET_FAILURES):
            await asyncio.sleep(pause)
            try:
                answer = await self._endpoint.ask("GET", fields, first_byte=timeouts.silence)
            except UpstreamError:
                continue
            if answer.status == 200 and answer.head.media_type == EVENT_STREAM:
                return answer
            answer.close()
            if answer.status not in (409, 429) and answer.status < 500:
                break
            # 409: it has not noticed yet that the stream is cut. The others are overloaded.
            pause = min(max(pause, retry_after(answer) or 0), MAX_STREAM_RETRY)
        raise Truncated(f"{self._endpoint.name} cut its event stream before the answer and does not resume it.")

    # ------------------------------------------------------------------------------------------------- the GET stream

    def listen(self) -> None:
        """Open the GET stream of the current session, and close the one of the previous session."""
        self._tasks.cancel(self)
        self._settled.clear()
        self._tasks.start(self._listen(), key=self)

    async def wait_settled(self) -> None:
        """Wait until the GET stream is open, or the server has refused it."""
        await self._settled.wait()

    async def _listen(self) -> None:
        timeouts = self._endpoint.timeouts
        last_id: str | None = None
        pause = timeouts.retry
        was_open = False
        failures = 0
        while True:
            fields = ACCEPT_EVENTS if last_id is None else (*ACCEPT_EVENTS, ("Last-Event-ID", last_id))
            retry: float | None = None
            try:
                answer = await self._endpoint.ask("GET", self._session.fields(fields), first_byte=timeouts.silence)
                self._host.on_unreachable(None)
                try:
                    if answer.status == 200 and answer.head.media_type == EVENT_STREAM:
                        self._settled.set()
                        was_open, failures, pause = True, 0, timeouts.retry
                        events = AnswerEvents(answer, timeouts, last_id)
                        try:
                            await self._read_events(events)
                        finally:
                            last_id, retry = events.last_id, events.retry
                    else:
                        failures += 1
                        pause = min(pause * 2, MAX_STREAM_RETRY)
                        if not await self._retries(answer, was_open, failures):
                            return
                finally:
                    answer.close()
            except UpstreamError as problem:
                log.debug("%s: the GET stream ended: %s", self._endpoint.name, problem.message)
                if isinstance(problem, UpstreamUnavailable):  # A cut stream is nothing unusual.
                    self._host.on_unreachable(problem)
                pause = min(pause * 2, MAX_STREAM_RETRY)
            finally:
                self._settled.set()
            await asyncio.sleep(pause if retry is None else max(retry, MIN_RETRY))

    async def _retries(self, answer: Answer, was_open: bool, failures: int) -> bool:
        """Whether to ask again after a refusal. A session that had its stream before gets another in any case."""
        status = answer.status
        if was_open and status in (400, 404) and await self._lost_session(answer):
            await self._session.replace(unless_busy=False)
        elif status == 409 and was_open and failures > MAX_GET_FAILURES:
            # The server still holds a stream of ours that has long ended, and gives us no other.
            await self._session.replace(unless_busy=True)
        elif status in (409, 429) or status >= 500:
            return was_open or failures < MAX_GET_FAILURES
        else:
            return False  # 405: the server pushes nothing. 404 to the first GET: it does not know the method at all.
        return True

    async def _lost_session(self, answer: Answer) -> bool:
        return (await self._endpoint.read_refusal(answer, within_session=True)).is_lost_session

    async def _read_events(self, events: AnswerEvents) -> None:
        while (chunk := await events.next_chunk()) is not None:
            for event in events.read(chunk):
                # On this stream, a message that is too long or unreadable does not answer a call, so it is skipped.
                if isinstance(event, SseEvent) and event.data and event.event == "message":
                    for message in decoded(event.data, self._endpoint.mended):
                        if isinstance(message, Unreadable | Response):
                            self._count_bad()
                        elif (passing_on := self._receive(message, None)) is not None:
                            await passing_on

    # ------------------------------------------------------------------------------------------------------- messages

    def _receive(self, message: Request | Notification, exchange: Exchange | None) -> Awaitable[None] | None:
        """Work that passes on a message of an exchange's stream or the GET stream; None if nothing is to be done."""
        self._host.on_sign_of_life()
        if isinstance(message, Request):
            return self._receive_request(message, exchange)
        match message.method:
            case "notifications/progress":
                return self._receive_progress(message)
            case "notifications/message":
                if exchange is None:
                    return self._host.sink.emit(message)
                return exchange.emit(message) if wants_log(exchange.profile, message) else None
            case "notifications/cancelled":
                question = message.params.get("requestId")
                if isinstance(question, str | int):
                    self._tasks.cancel((self, question))
                    self._server.forget_question(question)
                return None
            case "notifications/elicitation/complete":
                self._server.hear_visit(message)
                return self._host.sink.emit(message)
            case _:
                for inbox in self._pending:
                    # A change only says that there is something new, so it can be left out of a full inbox.
                    if inbox.wants(message) and not inbox.is_full:
                        inbox.put(message)
                return self._host.sink.emit(message)

    def _receive_progress(self, message: Notification) -> Awaitable[None] | None:
        inbox = self._pending.find(message.params.get("progressToken"))
        exchange = inbox.exchange if inbox is not None else None
        if exchange is None or exchange.profile.progress_token is None:
            return None
        message.params["progressToken"] = exchange.profile.progress_token  # Just decoded, so not shared yet.
        return exchange.emit(message)

    async def _receive_request(self, request: Request, exchange: Exchange | None) -> None:
        if exchange is None and not self._server.has_calls:
            self._count_bad()
        if self.is_closed:
            return
        if len(self._tasks) >= MAX_QUESTIONS:
            # Posted here and not in a task: a server that keeps asking has to wait for our answers.
            await self._session.tell(Response(request.id, ErrorObject(OVERLOADED, "Too many questions are open.")))
        elif request.method == "ping":
            await self._session.tell(Response(request.id, Result({})))
        elif request.method not in QUESTIONS:
            error = ErrorObject(METHOD_NOT_FOUND, f"Method not found: {request.method[:100]}")
            await self._session.tell(Response(request.id, error))
        else:
            if exchange is not None:
                self._asked.setdefault(id(exchange), []).append(request.id)
            asker = self._server.asker_of(request, exchange)
            self._tasks.start(self._server.answer(request, asker), key=(self, request.id))

    def _count_bad(self) -> None:
        """Count a message that belongs to nothing; with too many of them, the connection ends (T24)."""
        if self._bad_messages.count() > BAD_MESSAGES_A_MINUTE and not self.is_closed:
            self._session.give_up(FLOODED)

    def cancel_questions(self, exchange: Exchange) -> None:
        """Cancel the questions of a call that has ended, so that no user is left with an open form."""
        if self._asked:
            for question in self._asked.pop(id(exchange), ()):
                self._tasks.cancel((self, question))
