"""One POST of a session-era client: its requests, and where their answers go."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, Final

from sluicegate.downstream.duplex import MESSAGES_A_TURN
from sluicegate.downstream.http_guard import Accepted
from sluicegate.downstream.http_response import JSON_FIELDS, HttpRequest, fields_for, status_of
from sluicegate.downstream.resumable_stream import ResumableStream
from sluicegate.downstream.session_client import VISITED, SessionSink
from sluicegate.errors import ErrorObject, InputRefused, RemoteProtocolError
from sluicegate.protocol.input_required import Answers, Questions
from sluicegate.protocol.message import Notification, Request, RequestId, as_array, encode_reply
from sluicegate.protocol.modern_era import ClientProfile
from sluicegate.protocol.parse_request import read_message
from sluicegate.runtime.identity import Refusal

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
        self._stream: ResumableStream | None = None
        self._sent = 0
        self.open = 0
        """How many of its requests are in progress."""
        self.done = False

    @property
    def header_values(self) -> Callable[[str], Sequence[str]]:
        """Returns all values of a header of the request."""
        return self._request.headers.get_all

    async def emit(self, notification: Notification) -> None:
        if self.done:
            if notification.method == VISITED and not self._session.is_over:
                await self._session.side.tell_of_visit(notification)
            return
        message = self._session.side.message_of(notification)
        if message is not None:
            await self.send(message)

    def ask(self, questions: Questions) -> Awaitable[Answers]:
        if self._session.is_over:
            raise InputRefused("The session of the client has ended.")
        # A client that accepts JSON only cannot receive a question, whatever capabilities it declared.
        profile = self._session.conversation.session.profile if self.takes.events else _MUTE
        return SessionSink(self._session.side, self, profile).ask(questions)

    async def send(self, message: bytes) -> None:
        """Send a message ahead of the answer; after it, the message is dropped."""
        stream = None if self.done else self._stream or self._begin()
        if stream is not None:
            stream.send_now(message)
            if stream.carrier is not None and stream.carrier.is_behind:
                await stream.carrier.drain()
        # A tool that never waits would otherwise keep us from reading that its call was withdrawn.
        self._sent += 1
        if self._sent % MESSAGES_A_TURN == 0:
            await asyncio.sleep(0)

    def send_now(self, message: bytes) -> None:
        # A question that is withdrawn after its POST has ended: only the GET stream is left for that.
        stream = self._session.pushes if self.done else self._begin()
        if stream is not None:
            stream.send_now(message)

    def end_response_early(self) -> None:
        """End the response, not the call: the client comes back with the id of the last event it saw."""
        stream = None if self.done else self._begin()
        if stream is not None:
            stream.drop_carrier()

    def finish(self, message: bytes | None, error: ErrorObject | None = None) -> None:
        """Answer the POST, with a message or with nothing; `error` is the error in the message, if it has one."""
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
        """End the POST of a request that its client cancelled; no revision defines how."""
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
        # Code that may notify the client about its call later keeps this object; the body need not stay with it.
        del self._request, self._value

    def stay_alive(self) -> None:
        """Turn the answer of a silent call into a stream, so that proxies do not close the connection."""
        self._begin()

    def _begin(self) -> ResumableStream | None:
        """The stream that carries the answer from now on; None for a client that accepts JSON only."""
        if self._stream is None and self.takes.events:
            self._session.shared.keepalive.forget(self)  # The stream keeps itself alive.
            self._stream = self._session.open_stream()
            self._stream.carry(self._request, None)
        return self._stream


def refuse_message(request: HttpRequest, value: object, refusal: Refusal) -> None:
    """Answer a message with a refusal, under the id of the request that it is."""
    body = encode_reply(id_of_request(value), refusal.error)
    request.respond(refusal.status, (*JSON_FIELDS, *refusal.headers), body)


def id_of_request(value: object) -> RequestId | None:
    """The id of a request, as far as it can be read; None for any other message."""
    if as_array(value) is not None:
        return None
    try:
        message = read_message(value)
    except RemoteProtocolError as problem:
        return problem.request_id
    return message.id if isinstance(message, Request) else None


_CANCELLED: Final = ErrorObject(-32800, "Request cancelled")
_MUTE: Final = ClientProfile()  # of a client that cannot be asked anything
