"""A connection of a client: bytes in, requests out, answers back in order.

One request of a connection is in progress at a time. What the client sends meanwhile waits in a small buffer, then in
the client. A connection is an asyncio protocol without a task and with one timer. A request that comes in one piece
with a cached head costs a lookup, the handler and one write.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Final, cast

from .body import LAST
from .headers import BadHead, Fields, RequestHead, answer_head
from .limits import set_read_buffer
from .request import Request, RequestReader

if TYPE_CHECKING:
    from .server import Listener

log: Final = logging.getLogger("sluicegate")

PIPELINE_BUFFER: Final = 64 * 1024  # Bytes that are read before the current request is answered.
LINGER: Final = 2.0
SHARE_IN_A_CROWD: Final = 64 * 1024
PLAIN_TEXT: Final[Fields] = (("Content-Type", "text/plain; charset=utf-8"),)

# The phases of a connection: what it waits for.
_IDLE: Final = 0
_HEAD: Final = 1
_BODY: Final = 2
_BUSY: Final = 3
_LINGERING: Final = 4


class HttpConnection(asyncio.Protocol):
    __slots__ = (
        *("listener", "peer", "scheme", "made", "hung_up"),
        *("_loop", "_transport", "_handler", "_known", "_exact", "_limits"),
        *("_request", "_reader", "_phase", "_deadline", "_timer", "_timer_at"),
        *("_advancing", "_joined", "_closing", "_reading_paused", "_idle_time"),
        *("_pending", "_pending_head", "_pending_size", "_flush_due", "_written", "_taken"),
        *("_stall_timer", "_stall_mark", "_counted", "_receive"),
    )

    def __init__(self, listener: "Listener") -> None:
        self.listener = listener
        self.peer = ""
        self.scheme = "http" if listener.tls is None else "https"
        self.made = self.hung_up = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._handler = listener.handler
        self._known = listener.known
        self._exact = listener.known.exact
        self._limits = listener.limits
        self._idle_time = listener.limits.idle_time
        self._request: Request | None = None
        self._reader = RequestReader(listener.known, listener.limits)
        self._phase = _IDLE
        self._deadline = self._timer_at = math.inf
        self._timer: asyncio.TimerHandle | None = None
        self._advancing = self._closing = self._reading_paused = self._flush_due = False
        self._joined: list[bytes] = []
        self._pending: list[bytes] = []
        self._pending_head = b""
        self._pending_size = self._written = self._stall_mark = self._counted = 0
        self._taken: asyncio.Event | None = None
        self._stall_timer: asyncio.TimerHandle | None = None
        self._receive: Callable[[bytes], None] | None = None

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        transport = cast(asyncio.Transport, transport)  # uvloop's transports are not of this class.
        self._transport = transport
        self.made = True
        set_read_buffer(transport)
        # `pause_writing` comes as soon as anything is unsent, so that a client that reads nothing is noticed.
        transport.set_write_buffer_limits(high=1, low=0)
        peer = transport.get_extra_info("peername")
        self.peer = str(cast(tuple[object, ...], peer)[0]) if isinstance(peer, tuple) and peer else ""
        self.listener.connections.add(self)
        # While we drain, all wait for a client that connects now and says nothing.
        self._wait_for(_IDLE, LINGER if self.listener.draining else self._idle_time)

    def data_received(self, data: bytes) -> None:
        if self._phase == _IDLE and not self._closing and self._stall_timer is None:
            end = data.find(b"\r\n\r\n") + 4
            head = self._exact.get(data[:end]) or self._known.find(data[:end])
            if head is not None and head.length == len(data) - end:
                self._begin(head, data[end:])
                return
        if self._closing:
            return  # Lingering: read and dropped, so that the client gets our answer instead of a reset.
        if self._receive is not None:
            self._receive(data)
            if self._has_stalled:
                self._pause_reading()
            return
        buffer = self._reader.buffer
        buffer += data
        if self._request is None:
            self._advance()
        if (self._request is not None or self._has_stalled) and len(buffer) > PIPELINE_BUFFER:
            self._pause_reading()

    def _pause_reading(self) -> None:
        if not self._reading_paused and self._transport is not None:
            self._reading_paused = True
            self._transport.pause_reading()

    def _resume_reading(self) -> None:
        if self._reading_paused and self._transport is not None:
            self._reading_paused = False
            self._transport.resume_reading()

    def eof_received(self) -> bool:
        self.hung_up = True
        request = self._request
        if request is not None:
            request.notify_disconnected()
        elif not (self._has_stalled and self._reader.buffer):
            return False  # Between requests, or within a request that will never be complete.
        # The answer may still be wanted: `nc` and shell scripts close their sending side first. TLS has no half-close.
        return not self._closing and self.listener.tls is None

    def connection_lost(self, exc: Exception | None) -> None:
        self.hung_up = self._closing = True
        self._transport = None
        for timer in (self._timer, self._stall_timer):
            if timer is not None:
                timer.cancel()
        self._timer = self._stall_timer = None
        self._count(0)
        self._reader.clear()
        self._pending.clear()
        self._receive = None
        if self._taken is not None:
            self._taken.set()
        self.listener.connections.discard(self)
        self.listener.release()
        request, self._request = self._request, None
        if request is not None:
            request.notify_disconnected()

    def pause_writing(self) -> None:
        if self._stall_timer is None:
            self._taken = self._taken or asyncio.Event()
            self._taken.clear()
            self._stall_mark = self._count_taken()
            self._stall_timer = self._loop.call_later(self._limits.blocked_time, self._check_taken)
            self.listener.behind[self] = None
            self._count_unsent()

    def resume_writing(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        self._count(0)
        if self._taken is not None:
            self._taken.set()
        if self._request is None and (self._reader.buffer or self._reading_paused):
            self._advance()
        elif self._receive is not None:
            self._resume_reading()

    # Requests in.

    def _advance(self) -> None:
        """Begin the requests in the buffer, as long as they are answered at once, and join their answers."""
        if self._advancing:
            return
        self._advancing = True
        reader = self._reader
        try:
            while self._request is None and not self._closing and reader.buffer and not self._has_stalled:
                found = reader.next()
                if found is None:
                    self._wait_for_more()
                    break
                self._begin(*found)
        except BadHead as problem:
            self._refuse(problem.status, problem.sentence)
        finally:
            self._advancing = False
        if self._joined:
            self._write(b"".join(self._joined))
            self._joined.clear()
        if self._closing or self._request is not None or self._has_stalled:
            return  # After a stall, `resume_writing` goes on.
        self._resume_reading()
        if self.hung_up:
            self._close()  # All complete requests are answered, and no more can come.

    def _wait_for_more(self) -> None:
        """Set the deadline for an incomplete request."""
        reader = self._reader
        if reader.head is not None:
            if self._phase != _BODY:
                self._wait_for(_BODY, self._limits.body_time)
                if reader.is_body_held_back:
                    self._joined.append(b"HTTP/1.1 100 Continue\r\n\r\n")
        elif reader.buffer and self._phase != _HEAD:
            # Only with bytes in the buffer: an empty line after a body must not start the deadline of a head.
            self._wait_for(_HEAD, self._limits.header_time)

    def _begin(self, head: RequestHead, body: bytes) -> None:
        self._phase = _BUSY
        self._deadline = math.inf
        request = Request(self, head, body, head.method, head.path, head.query, head.headers, self.peer)
        self._request = request
        try:
            work = self._handler(request)
        except Exception:  # An edge: an exception of a handler fails its own request, not the connection (R34).
            self._fail(request)
        else:
            if work is not None:
                self.listener.tasks.start(self._run(request, work))

    async def _run(self, request: Request, work: Coroutine[object, object, None]) -> None:
        try:
            await work
        except Exception:  # The same edge; and all connections share one scope, which an exception would end.
            self._fail(request)
        else:
            if not request.answered:
                log.error("A handler returned before its answer was complete.")
                self._fail(request, logged=True)
        finally:
            if not request.answered:
                request.abort()  # Cancelled.

    def _fail(self, request: Request, *, logged: bool = False) -> None:
        if not logged:
            log.exception("A handler failed.")
        if request.answered:
            return
        if request.started:
            request.abort()
        else:
            request.respond(500, PLAIN_TEXT, b"The request could not be completed.\n")

    def _refuse(self, status: int, sentence: str) -> None:
        """Answer with an error and close, because it is unknown where the next request begins."""
        self.listener.on_refused(f"http_{status}", self.peer)
        self._reader.clear()
        body = sentence.encode("ascii") + b"\n"
        head = answer_head(status, PLAIN_TEXT, True)
        self._write(b"".join((*self._joined, b"%bContent-Length: %d\r\n\r\n%b" % (head, len(body), body))))
        self._joined.clear()
        self.linger()

    def linger(self) -> None:
        """Send nothing more, and drop what the client sends until it closes the connection."""
        self._closing, self._request = True, None
        transport = self._transport
        if transport is None:
            return
        # Closing with unread bytes would reset the connection, and the client might not get the answer.
        if transport.can_write_eof():
            transport.write_eof()
        if self._reading_paused:
            transport.resume_reading()
        self._wait_for(_LINGERING, LINGER)

    # Answers out. For Request.

    def finish(self, data: bytes, keep: bool, body: bytes = b"") -> None:
        """Send the last of an answer, and go on to the next request or close. A long body is not copied."""
        self._request = None
        if self._transport is None:
            return
        if self._advancing:
            self._joined += (data, body)
        elif self._stall_timer is not None:
            self._write(data)
            self._write(body)
        elif body:
            self._written += len(data) + len(body)
            self._transport.writelines((data, body))
        elif data:
            self._written += len(data)
            self._transport.write(data)
        if not keep:
            if self._joined:
                self._write(b"".join(self._joined))
                self._joined.clear()
            self._close()
            return
        self._phase = _IDLE
        self._deadline = self._loop.time() + self._idle_time
        if self._timer is None:
            self._set_timer()
        if self._reader.buffer or self._reading_paused or self.hung_up:
            self._advance()
        elif self.listener.draining:
            self._close()

    def begin_stream(self, head: bytes) -> None:
        """Send a head with the next flush."""
        if self._transport is not None:
            self._pending_head = head
            self._flush_soon()

    def upgrade(self, head: bytes, receive: Callable[[bytes], None]) -> None:
        """Switch to another protocol: send this head, and hand all bytes of the client to `receive`."""
        self._receive = receive
        self.begin_stream(head)
        self._loop.call_soon(receive, bytes(self._reader.buffer))
        self._reader.clear()

    def add(self, data: bytes) -> None:
        """Send a part of the body with the next flush."""
        if self._transport is not None:
            self._pending.append(data)
            self._pending_size += len(data)
            if not self._flush_due:
                self._flush_soon()

    def _flush_soon(self) -> None:
        self._flush_due = True
        self._loop.call_soon(self._flush_now)

    def _flush_now(self) -> None:
        self._flush_due = False
        if self._pending_size or self._pending_head:
            self.flush()

    def flush(self, *, last: bool = False) -> None:
        """Write the data that was added since the last flush, as one chunk; with `last`, also the end of the body."""
        size, head, parts = self._pending_size, self._pending_head, self._pending
        if size and (last or (self._request is not None and self._request.chunked)):
            parts = [head, b"%x\r\n" % size, *parts, b"\r\n"]
        else:
            parts = [head, *parts]
        if last:
            parts.append(LAST)
        self._pending.clear()
        self._pending_size = 0
        self._pending_head = b""
        self._write(b"".join((*self._joined, *parts)))
        self._joined.clear()

    @property
    def unsent(self) -> int:
        """Bytes that the client has not read yet."""
        transport = self._transport
        return 0 if transport is None else self._pending_size + transport.get_write_buffer_size()

    @property
    def is_behind(self) -> bool:
        """Whether the client reads more slowly than we write, or that is not known yet."""
        return self._stall_timer is not None or self._pending_size > SHARE_IN_A_CROWD

    @property
    def _has_stalled(self) -> bool:
        """Whether so much is unsent that no further request of the client is begun (R24)."""
        return self._stall_timer is not None and self.unsent > self._limits.unsent

    async def wait_taken(self, most: int | None = None) -> None:
        """Wait while too much is unsent: more than `most` bytes, or than the limits allow."""
        if self._pending_size > SHARE_IN_A_CROWD:
            self.flush()
            # uvloop writes at the end of a turn, so only then it is known whether the client reads.
            await asyncio.sleep(0)
        while self._stall_timer is not None and self._taken is not None and self.unsent > (most or self._most_unsent):
            await self._taken.wait()

    @property
    def _most_unsent(self) -> int:
        limits = self._limits
        crowded = self.listener.unsent > limits.unsent_to_all // 2
        return min(limits.unsent, SHARE_IN_A_CROWD) if crowded else limits.unsent

    def _check_taken(self) -> None:
        """Close the connection if the client has read nothing since the last check."""
        taken = self._count_taken()
        if taken == self._stall_mark and taken < self._written:
            self.abort()
            return
        self._stall_mark = taken
        self._stall_timer = self._loop.call_later(self._limits.blocked_time, self._check_taken)
        self._count_unsent()

    def _count_unsent(self) -> None:
        """Report the unsent bytes of this client to the listener, which may close connections."""
        if self._transport is not None:
            self._count(self._transport.get_write_buffer_size())
            self.listener.relieve()

    def _count(self, size: int) -> None:
        self.listener.unsent += size - self._counted
        self._counted = size
        if not size:
            self.listener.behind.pop(self, None)

    def _count_taken(self) -> int:
        return self._written - (0 if self._transport is None else self._transport.get_write_buffer_size())

    def _write(self, data: bytes) -> None:
        if self._transport is not None and data:
            self._written += len(data)
            self._transport.write(data)
            if self._stall_timer is not None:
                self._count_unsent()

    # Ends.

    def close_if_idle(self) -> None:
        """Close unless a request is in progress or has begun to arrive."""
        if self._phase == _IDLE:
            self._close()

    def abort(self) -> None:
        """Close the connection and drop unsent bytes."""
        self._closing = True
        self._count(0)
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
        if self._transport is not None:
            self._transport.abort()

    def _close(self) -> None:
        self._closing = True
        if self._transport is not None:
            self._transport.close()

    def _wait_for(self, phase: int, seconds: float) -> None:
        self._phase = phase
        self._deadline = self._loop.time() + seconds
        if self._timer is None or self._timer_at > self._deadline:
            self._set_timer()

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer_at = self._deadline
        self._timer = self._loop.call_at(self._deadline, self._on_timer)

    def _on_timer(self) -> None:
        # The timer of the last phase is not cancelled: a look at the clock is cheaper than a timer per request.
        self._timer = None
        if self._loop.time() < self._deadline:
            if self._deadline != math.inf:
                self._set_timer()
        elif self._phase == _HEAD or self._phase == _BODY:
            self._refuse(408, "The request did not arrive in time.")
        elif self._phase == _IDLE:
            self._close()
        else:
            self.abort()
