"""What a server asks us over a wire, and the answers: a server that asks and asks has to read them, too."""

import logging
from collections.abc import Callable
from typing import Final

from sluicegate.concurrency import TaskScope
from sluicegate.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, OVERLOADED, ErrorObject, LocalProtocolError
from sluicegate.protocol.message import Message, Reply, Request, RequestId, Response, Result
from sluicegate.protocol.methods import QUESTIONS
from sluicegate.upstream.session_era import Asker, SessionEra
from sluicegate.upstream.waiting import Brake, Waiter

log = logging.getLogger("sluicegate")

MOST_UNHEARD: Final = 64 * 1024
"""Bytes of answers to a server's own requests after which it must have read them before it may ask on."""

MOST_QUESTIONS: Final = 1024
"""Questions of one server that may be open at once."""


class Questions:
    """The requests of one server, each in a task until it is answered."""

    def __init__(self, name: str, tasks: TaskScope, brake: Brake, send: Callable[[Message], int]) -> None:
        """`send` writes a message and says how many bytes it took."""
        self._name = name
        self._tasks = tasks
        self._brake = brake
        self._send = send
        self._asking = Waiter(None)
        self._unheard = 0
        self._open: dict[RequestId, SessionEra] = {}

    def hear(self, request: Request, session_era: SessionEra | None) -> None:
        """Answer a request, at once or when whoever is asked has answered."""
        if request.method == "ping":
            self.respond(request.id, Result({}))
        elif request.method not in QUESTIONS or session_era is None:
            self.respond(request.id, ErrorObject(METHOD_NOT_FOUND, f"Method not found: {request.method}"))
        elif len(self._tasks) >= MOST_QUESTIONS:
            self.respond(request.id, ErrorObject(OVERLOADED, "Too many questions are open; wait for their answers."))
        else:
            self._open[request.id] = session_era
            asker = session_era.asker_of(request)
            self._tasks.start(self._answer(request, session_era, asker), key=(self, request.id))

    async def _answer(self, request: Request, session_era: SessionEra, asker: Asker) -> None:
        try:
            await session_era.answer(request, asker)
        finally:
            self._open.pop(request.id, None)

    def respond(self, request_id: RequestId, reply: Reply) -> None:
        """Send an answer; a server that does not read the answers before it has to wait."""
        try:
            self._unheard += self._send(Response(request_id, reply))
        except LocalProtocolError as problem:
            log.error("%s gets no answer to its question: %s", self._name, problem)
            self._unheard += self._send(
                Response(request_id, ErrorObject(INTERNAL_ERROR, "The answer cannot be written as JSON."))
            )
        if self._unheard > MOST_UNHEARD and self._brake.hold(self._asking):
            self._tasks.start(self._wait_until_heard())

    async def _wait_until_heard(self) -> None:
        await self._brake.drained()
        self._unheard = 0
        self._brake.release(self._asking)

    def take_back(self, request_id: RequestId) -> bool:
        """Learn that the server wants no answer any more; whether it had asked."""
        session_era = self._open.pop(request_id, None)
        if session_era is not None:
            session_era.forget_question(request_id)
        return self._tasks.cancel((self, request_id))

    def close(self) -> None:
        """Wait for no answer: who was asked should not be left before an open form."""
        for request_id in self._open:
            self._tasks.cancel((self, request_id))
        self._open.clear()
