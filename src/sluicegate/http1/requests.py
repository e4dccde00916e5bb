"""A request and the way to answer it: all that a handler sees of this package."""

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Final

import msgspec

from sluicegate.errors import LocalProtocolError

from .heads import Fields, Headers, RequestHead, answer_head

if TYPE_CHECKING:
    from .incoming import Connection

log: Final = logging.getLogger("sluicegate")

# How far the answer is. From _MUTE on it is a stream; the lowest bit then says whether the connection is kept.
_UNANSWERED: Final = 0
_ANSWERED: Final = 1
_MUTE: Final = 2  # To HEAD: a head and no more.
_CHUNKED: Final = 4
_BARE: Final = 6  # To HTTP/1.0: the end of the connection is the end of the answer.


# A Struct, though nothing of it is ever on a wire: one is made for every request, in a fraction of the time.
class Request(msgspec.Struct, eq=False):
    """One request with all of its body, and the way to answer it: `respond`, or `start`, `write` … `end`."""

    _connection: "Connection"
    head: RequestHead
    body: bytes
    method: str
    path: str
    """As sent: nothing is decoded or made shorter, so only an exact comparison is safe."""
    query: str
    headers: Headers
    _stage: int = _UNANSWERED
    _listeners: "list[Callable[[], object]] | None" = None

    @property
    def root(self) -> str:
        """What stands before the path for the client: nothing, for nobody has taken a part of it before us."""
        return ""

    @property
    def peer(self) -> str:
        """The address the connection comes from."""
        return self._connection.peer

    @property
    def scheme(self) -> str:
        """http or https."""
        return self._connection.scheme

    @property
    def disconnected(self) -> bool:
        """Whether the client has hung up: nobody will read the answer, and it may be written all the same."""
        return self._connection.hung_up

    @property
    def answered(self) -> bool:
        """Whether the answer is complete."""
        return self._stage == _ANSWERED

    @property
    def started(self) -> bool:
        """Whether an answer was begun, so that its status cannot be changed any more."""
        return self._stage != _UNANSWERED

    @property
    def unsent(self) -> int:
        """How many bytes the client has yet to take."""
        return self._connection.unsent

    def on_disconnect(self, callback: Callable[[], object]) -> None:
        """Call this when the client hangs up before it has its answer; at once if it has already.

        Whether that cancels the work is for the caller to say: `request.on_disconnect(task.cancel)`. A client that
        only closes its sending side looks the same, and still gets what is answered.
        """
        if self._connection.hung_up:
            callback()
        elif self._listeners is None:
            self._listeners = [callback]
        else:
            self._listeners.append(callback)

    def respond(self, status: int, headers: Fields = (), body: bytes = b"") -> None:
        """Answer in one piece, with one write.

        Raises:
            LocalProtocolError: it is answered already, or a header cannot be sent.
        """
        if self._stage != _UNANSWERED:
            raise LocalProtocolError("The request is answered already.")
        connection = self._connection
        keep = self.head.keep_alive and not connection.listener.draining
        prefix = answer_head(status, headers, not keep)
        self._stage = _ANSWERED
        self._listeners = None  # They know the request, and would keep each other alive.
        if status == 204 or status == 304:
            connection.finish(b"%b\r\n" % prefix, keep)
        elif self.method == "HEAD":
            connection.finish(b"%bContent-Length: %d\r\n\r\n" % (prefix, len(body)), keep)
        else:
            connection.finish(b"%bContent-Length: %d\r\n\r\n%b" % (prefix, len(body), body), keep)

    def start(self, status: int, headers: Fields = ()) -> None:
        """Begin an answer whose end is not known yet. The head leaves with what is written in this turn of the loop.

        Raises:
            LocalProtocolError: it is answered already, or a header cannot be sent.
        """
        if self._stage != _UNANSWERED:
            raise LocalProtocolError("The request is answered already.")
        if status == 204 or status == 304:
            raise LocalProtocolError(f"An answer of status {status} has no body to stream.")
        chunked = self.head.minor == 1
        keep = chunked and self.head.keep_alive and not self._connection.listener.draining
        prefix = answer_head(status, headers, not keep)
        self._stage = (_MUTE if self.method == "HEAD" else _CHUNKED if chunked else _BARE) + keep
        self._connection.begin_stream(prefix + (b"Transfer-Encoding: chunked\r\n\r\n" if chunked else b"\r\n"))

    def write(self, data: bytes) -> None:
        """Send more of the answer; what is written in one turn of the loop leaves together. Dropped if nobody listens.

        Raises:
            LocalProtocolError: no answer is begun.
        """
        stage = self._stage
        if stage < _MUTE:
            raise LocalProtocolError("Only between start and end can more be written.")
        if data and stage >= _CHUNKED:
            self._connection.add(data)

    @property
    def is_behind(self) -> bool:
        """Whether `drain` may have to wait; so who sends much need not ask it each time."""
        return self._connection.is_behind

    async def drain(self) -> None:
        """Wait, if more than `Limits.unsent` bytes are on their way, until the client has taken them or is gone."""
        await self._connection.wait_taken()

    def end(self) -> None:
        """Complete the answer that was started.

        Raises:
            LocalProtocolError: none was, or it has ended.
        """
        stage = self._stage
        if stage < _MUTE:
            raise LocalProtocolError("There is no answer to end.")
        self._stage = _ANSWERED
        self._listeners = None
        self._connection.flush(last=stage & ~1 == _CHUNKED)
        self._connection.finish(b"", bool(stage & 1))

    def abort(self) -> None:
        """Cut the connection: the client sees that its answer is not complete."""
        self._stage = _ANSWERED
        self._listeners = None  # It is not the client who hangs up.
        self._connection.abort()

    @property
    def chunked(self) -> bool:
        """Whether what is written needs the chunked coding."""
        return self._stage & ~1 == _CHUNKED

    def tell_disconnected(self) -> None:
        """Call everybody who wanted to know. For the connection."""
        listeners, self._listeners = self._listeners, None
        for callback in listeners or ():
            try:
                callback()
            except Exception:  # One listener must not keep the others from knowing.
                log.exception("A disconnect callback failed.")


Handler = Callable[[Request], Coroutine[object, object, None] | None]
"""Answers requests. A coroutine is run in a task, and its end must be that of the answer; for None no task is made:
the request is answered already, or will be by whoever kept it."""
