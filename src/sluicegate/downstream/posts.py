"""One POST of a session-era client: its requests, and the way back of each."""

import asyncio
from typing import TYPE_CHECKING

from sluicegate.downstream.doors import Accepted, Fields, Refusal
from sluicegate.downstream.duplex import MESSAGES_A_TURN
from sluicegate.downstream.event_stream import EventStream
from sluicegate.downstream.http_streams import KEEP_ALIVE, HttpRequest, fields_for, refuse, status_of
from sluicegate.errors import ErrorObject
from sluicegate.protocol.message import Reply, RequestId, Response, encode

if TYPE_CHECKING:
    from sluicegate.downstream.http_session import HttpSession


class Post:
    """One POST: its requests, their answers, and whether these go out as JSON or as events."""

    def __init__(self, session: "HttpSession", request: HttpRequest, takes: Accepted, number: int) -> None:
        self._session = session
        self._request = request
        self._takes = takes
        self._number = number
        self._stream: EventStream | None = None
        self.ids: set[RequestId] = set()
        """The requests in it that nobody else had under way."""
        self.done = False
        self._timer: asyncio.TimerHandle | None = None
        if takes.events:
            self._timer = asyncio.get_running_loop().call_later(KEEP_ALIVE, self._begin)

    @property
    def can_ask(self) -> bool:
        """Whether the client takes anything but the answer."""
        return self._takes.events

    async def send(self, message: bytes) -> None:
        """Send a message ahead of the answer; behind it there is no place for one."""
        stream = self._begin()
        if stream is not None and not self.done:
            await stream.send(message)

    def send_now(self, message: bytes) -> None:
        """Send a message without waiting."""
        stream = self._begin()
        if stream is not None and not self.done:
            stream.send_now(message)

    def let_go(self) -> None:
        """End the response, not the call: the client comes back with the id of the last event it saw."""
        stream = self._begin()
        if stream is not None:
            stream.drop_carrier()

    def finish(self, message: bytes | None, code: int | None = None, fields: Fields = ()) -> None:
        """Answer the POST, with a message or with nothing."""
        if self.done:
            return
        status = status_of(code, modern=False)
        if message is not None and status == 200 and not self._takes.json:
            self._begin()
        self._end()
        if self._stream is not None:
            if message is not None:
                self._stream.send_now(message)
            self._stream.finish()
        elif message is None:
            self._request.respond(202, fields)
        else:
            self._request.respond(status, (*fields_for(status), *fields), message)

    def withdraw(self, request_id: RequestId) -> None:
        """End the POST of a request that its client cancelled; no revision says how (protocol §3.7)."""
        self.finish(_cancelled(request_id) if self._stream is None else None)

    def refuse(self, refusal: Refusal) -> None:
        """End the POST without an answer."""
        if not self.done:
            self._end()
            if self._stream is not None:
                self._stream.finish()
            else:
                refuse(self._request, refusal)

    def _end(self) -> None:
        self.done = True
        if self._timer is not None:
            self._timer.cancel()

    def _begin(self) -> EventStream | None:
        if self._stream is None and self._takes.events and not self.done:
            self._stream = self._session.open_stream(self._number)
            self._stream.carry(self._request, None)
        return self._stream


class PostStream:
    """The way back of one request of a POST."""

    def __init__(self, session: "HttpSession", post: Post, request_id: RequestId) -> None:
        self.id = request_id
        self.post = post
        self._session = session
        self._sent = 0

    async def send(self, message: bytes) -> None:
        await self.post.send(message)
        # A tool that never waits would otherwise never let us hear that its call was withdrawn.
        self._sent += 1
        if self._sent % MESSAGES_A_TURN == 0:
            await asyncio.sleep(0)

    def send_now(self, message: bytes) -> None:
        # A question that is taken back when its POST has ended: only the GET stream is left to say so.
        stream = self._session.pushes if self.post.done else self.post
        stream.send_now(message)

    def let_go(self) -> None:
        """End the response that carries the events; the client comes back for the rest."""
        self.post.let_go()

    async def reply(self, reply: Reply) -> None:
        self._session.respond(self, reply)


def _cancelled(request_id: RequestId) -> bytes:
    return encode(Response(request_id, ErrorObject(-32800, "Request cancelled")))
