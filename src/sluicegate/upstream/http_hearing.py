"""What a session-era server says over HTTP besides its replies: each message to whom it belongs.

The one rule: a message on the stream of a call belongs to that call. Only what the stream cannot tell is looked up.
"""

from collections.abc import Awaitable, Callable
from typing import Final

from sluicegate.concurrency import TaskScope
from sluicegate.errors import METHOD_NOT_FOUND, OVERLOADED, ErrorObject
from sluicegate.exchange import Exchange, Host
from sluicegate.protocol.message import Message, Notification, Request, RequestId, Response, Result
from sluicegate.protocol.methods import QUESTIONS
from sluicegate.protocol.pending import Pending
from sluicegate.upstream.http_modern import wants_log
from sluicegate.upstream.session_era import SessionEra
from sluicegate.upstream.waiting import Waiter

MOST_QUESTIONS: Final = 1024
"""What may be under way at once besides the calls: answers to the server, and questions it waits for."""


class Hearing:
    """The ear of one connection."""

    def __init__(
        self,
        host: Host,
        pending: Pending[Waiter],
        memory: SessionEra,
        tasks: TaskScope,
        tell: Callable[[Message], Awaitable[None]],
    ) -> None:
        self._host = host
        self._pending = pending
        self._memory = memory
        self._tasks = tasks
        self._tell = tell
        self.closed = False
        self._asked: dict[int, list[RequestId]] = {}  # what each call that is under way has asked, by its exchange

    def hear(self, message: Request | Notification, exchange: Exchange | None) -> Awaitable[None] | None:
        """Who is told of what comes ahead of the reply to an exchange, or belongs to none; None if nobody is."""
        if isinstance(message, Request):
            return self._hear_request(message, exchange)
        match message.method:
            case "notifications/progress":
                return self._hear_progress(message)
            case "notifications/message":
                if exchange is None:
                    return self._host.sink.emit(message)
                return exchange.emit(message) if wants_log(exchange.profile, message) else None
            case "notifications/cancelled":
                question = message.params.get("requestId")
                if isinstance(question, str | int):
                    self._tasks.cancel((self, question))
                    self._memory.forget_question(question)
                return None
            case "notifications/elicitation/complete":
                self._memory.hear_visit(message)
                return self._host.sink.emit(message)
            case _:
                for waiter in self._pending:
                    # Changes say only that there is something new: what is too much can be left out.
                    if waiter.wants(message) and not waiter.is_full:
                        waiter.post(message)
                return self._host.sink.emit(message)

    def is_over(self, exchange: Exchange) -> None:
        """Know that nobody waits for an exchange any more: who was asked should not be left before an open form."""
        if self._asked:
            for question in self._asked.pop(id(exchange), ()):
                self._tasks.cancel((self, question))

    def _hear_progress(self, message: Notification) -> Awaitable[None] | None:
        token = message.params.get("progressToken")
        waiter = self._pending.find(token)
        exchange = waiter.exchange if waiter is not None else None
        if exchange is None or exchange.profile.progress_token is None:
            return None
        message.params["progressToken"] = exchange.profile.progress_token  # Just decoded: they are nobody else's yet.
        return exchange.emit(message)

    async def _hear_request(self, request: Request, exchange: Exchange | None) -> None:
        if self.closed:
            return  # Calls under way may come to their end, but nobody is asked anything more.
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
            asker = self._memory.asker_of(request, exchange)
            self._tasks.start(self._memory.answer(request, asker), key=(self, request.id))
