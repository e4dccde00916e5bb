"""One POST of a session-era client: its requests, and the way back of each."""

import asyncio
from collections.abc import Awaitable
from typing import TYPE_CHECKING, Final

from sluicegate.downstream.doors import Accepted, Refusal
from sluicegate.downstream.duplex import MESSAGES_A_TURN
from sluicegate.downstream.event_stream import EventStream
from sluicegate.downstream.http_streams import JSON_FIELDS, HttpRequest, fields_for, status_of
from sluicegate.downstream.session_era import VISITED, SessionSink
from sluicegate.errors import ErrorObject, RemoteProtocolError
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Request, RequestId, as_array, encode_reply
from sluicegate.protocol.modern import Profile
from sluicegate.protocol.strict import read_message

if TYPE_CHECKING:
    from sluicegate.downstream.http_session import HttpSession


class Post:
    """One POST: its requests, their answers, and whether these go out as JSON or as events. The sink of each."""

    __slots__ = ("_request", "_sent", "_session", "_stream", "_value", "done", "open", "takes")

    def __init__(self, session: "HttpSession", request: HttpRequest, value: object, takes: Accepted) -> None:
        self._session = session
        self._request = request
        self._value = value
        self.takes = takes
        self._stream: EventStream | None = None
        self._sent = 0
        self.open = 0
        """How many of its requests are under way."""
        self.done = False

    async def emit(self, notification: Notification) -> None:
        """Send a notification ahead of the reply."""
        if self.done and notification.method == VISITED:
            await self._session.side.tell_of_visit(notification)
            return
        message = self._session.side.message_of(notification)
        if message is not None:
            await self.send(message)

    def ask(self, questions: Questions) -> Awaitable[Answers]:
        """Ask the client live."""
        # A question would have no way to a client that takes JSON only, whatever it said that it can answer.
        profile = self._session.conversation.session.profile if self.takes.events else _MUTE
        return SessionSink(self._session.side, self, profile).ask(questions)

    async def send(self, message: bytes) -> None:
        """Send a message ahead of the answer; behind it there is no place for one."""
        stream = None if self.done else self._stream or self._begin()
        if stream is not None:
            stream.send_now(message)
            if stream.carrier is not None and stream.carrier.is_behind:
                await stream.carrier.drain()
        # A tool that never waits would otherwise never let us hear that its call was withdrawn.
        self._sent += 1
        if self._sent % MESSAGES_A_TURN == 0:
            await asyncio.sleep(0)

    def send_now(self, message: bytes) -> None:
        """Send a message without waiting."""
        # A question that is taken back when its POST has ended: only the GET stream is left to say so.
        stream = self._session.pushes if self.done else self._begin()
        if stream is not None:
            stream.send_now(message)

    def let_go(self) -> None:
        """End the response, not the call: the client comes back with the id of the last event it saw."""
        stream = None if self.done else self._begin()
        if stream is not None:
            stream.drop_carrier()

    def finish(self, message: bytes | None, error: ErrorObject | None = None) -> None:
        """Answer the POST, with a message or with nothing; `error` is what the message says, if it is one."""
        if self.done:
            return
        self.done = True
        status = 200 if error is None else status_of(error.code, modern=False)
        if message is not None and status == 200 and not self.takes.json:
            self._begin()
        if self._stream is not None:
            if message is not None:
                self._stream.send_now(message)
            self._stream.finish()
        else:
            self._session.shared.keepalive.forget(self)
            if message is None:
                self._request.respond(202, self._session.fields)
            else:
                session = self._session
                fields = session.json_fields if error is None else (*fields_for(status, error), *session.fields)
                self._request.respond(status, fields, message)
        self._let_go_of_request()

    def withdraw(self, request_id: RequestId) -> None:
        """End the POST of a request that its client cancelled; no revision says how (protocol §3.7)."""
        self.finish(encode_reply(request_id, _CANCELLED) if self._stream is None else None)

    def refuse(self, refusal: Refusal) -> None:
        """End the POST without an answer."""
        if self.done:
            return
        self.done = True
        if self._stream is not None:
            self._stream.finish()
        else:
            self._session.shared.keepalive.forget(self)
            refuse_message(self._request, self._value, refusal)
        self._let_go_of_request()

    def _let_go_of_request(self) -> None:
        # Whoever may have to tell the client something about its call later keeps this, and need not keep a body.
        del self._request, self._value

    def stay_alive(self) -> None:
        """Let a call that says nothing become a stream, so that nobody takes the connection for dead."""
        self._begin()

    def _begin(self) -> EventStream | None:
        """The stream that the answer is from now on; None for a client that takes JSON only."""
        if self._stream is None and self.takes.events:
            self._session.shared.keepalive.forget(self)  # The stream says itself that it is there.
            self._stream = self._session.open_stream()
            self._stream.carry(self._request, None)
        return self._stream


def refuse_message(request: HttpRequest, value: object, refusal: Refusal) -> None:
    """Answer a message with a refusal, under the id of the request that it is."""
    body = encode_reply(id_of_request(value), refusal.error)
    request.respond(refusal.status, (*JSON_FIELDS, *refusal.headers), body)


def id_of_request(value: object) -> RequestId | None:
    """The id of the request that a message is, as far as it can be read; None for all that is no request."""
    if isinstance(value, Request):
        return value.id
    if as_array(value) is not None:
        return None
    try:
        message = read_message(value)
    except RemoteProtocolError as problem:
        return problem.request_id
    return message.id if isinstance(message, Request) else None


_CANCELLED: Final = ErrorObject(-32800, "Request cancelled")
_MUTE: Final = Profile()  # of one that can be asked nothing
