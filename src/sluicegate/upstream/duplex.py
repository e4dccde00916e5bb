"""A server of either era over one duplex wire: many exchanges at once, matched to their answers by id."""

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Coroutine
from contextlib import asynccontextmanager
from types import CoroutineType
from typing import TYPE_CHECKING, Any, Final, Literal

from sluicegate.errors import (
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamUnavailable,
)
from sluicegate.exchange import Exchange, Host
from sluicegate.protocol.framing import DEFAULT_CEILING, Frame, LineDecoder, TooLong, encode_line
from sluicegate.protocol.message import (
    Message,
    Notification,
    Params,
    Pending,
    Reply,
    Request,
    RequestId,
    Response,
    Result,
    as_object,
    encode,
)
from sluicegate.protocol.modern_era import ClientProfile, Discovery, complete, stamped
from sluicegate.protocol.parse_request import recover_id
from sluicegate.protocol.parse_response import (
    Unreadable,
    decode_batch_tolerant,
    decode_tolerant,
    read_answer,
    read_progress,
)
from sluicegate.protocol.session_era import ClientSession
from sluicegate.protocol.versions import LATEST_VERSION
from sluicegate.runtime.byte_channel import Wire
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.runtime.unix_socket import dial
from sluicegate.upstream.inbox import Backpressure, Inbox
from sluicegate.upstream.negotiate import Era, negotiate
from sluicegate.upstream.server_messages import (
    BAD_MESSAGES_A_MINUTE,
    FLOODED,
    NotificationRouter,
    RateCounter,
    ServerRequests,
    SkippedLines,
)

if TYPE_CHECKING:
    from sluicegate.upstream.session_server import SessionServer

__all__ = ["Era", "DuplexConnection"]

log = logging.getLogger("sluicegate")


_ASKING: Final = frozenset({"tools/call", "prompts/get", "resources/read"})


class DuplexConnection:
    """A server at the other end of a wire: a `Receiver` of its bytes and, once open, a `Connection` to it."""

    def __init__(
        self,
        name: str,
        host: Host,
        tasks: TaskScope,
        skipped: SkippedLines | None = None,
        *,
        ceiling: int = DEFAULT_CEILING,
    ) -> None:
        """`skipped` logs lines that are not messages, over all connections to the server.

        `ceiling` is the maximum size of a message of the server, in bytes.
        """
        self.name = name
        self.host = host
        self.discovery = Discovery(LATEST_VERSION)
        self.pending: Pending[Inbox] = Pending()
        self._client_info = host.client_info
        # Set by the transport, which knows how the server ended. Used in errors.
        self.describe_end: Callable[[], str] = lambda: "closed the connection"
        self.last_words: Callable[[], str] = lambda: ""
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()  # Cached: asyncio looks it up with a system call (getpid).
        self._wire: Wire | None = None
        self._session: SessionServer | None = None
        self._lines = LineDecoder(ceiling)
        # A function, because a connection may close before the transport knows how the server ended.
        self._closed: Callable[[], str] | None = None
        self._gone = asyncio.Event()
        self._backpressure = Backpressure(self.pending)
        self._notifications = NotificationRouter(self.pending, host, self._backpressure)
        self._server_requests = ServerRequests(name, tasks, self._backpressure, self.send)
        self._flooding = Inbox(None)
        self._said_more = False  # whether we sent anything besides requests that are pending
        self._is_open = False  # whether the handshake is done
        self._printed_text = False  # whether it sent lines that are no messages
        self._late_answers = 0  # how many answers may still come for requests that were cancelled
        self._skipped = skipped or SkippedLines(name)
        self._bad_messages = RateCounter()  # Per connection, so that the same lines close only one.

    # ------------------------------------------------------------------------------------------------ opening

    async def open(self, wire: Wire, era: Era, *, probe_timeout: float, open_timeout: float) -> None:
        """Detect the server's era and do the handshake.

        Raises:
            UpstreamUnavailable: the server does not answer in time, or supports no revision that we do.
            UpstreamClosed: the server ended.
        """
        self._wire = wire
        self._backpressure.attach(wire)
        self._tasks.start(self._notifications.relay_unattributed(), key=self)
        limit = open_timeout
        try:
            async with asyncio.timeout(limit):
                # Some servers never answer an unknown method: leave time for `initialize`.
                self.discovery = await negotiate(self, era, min(probe_timeout, limit / 2))
        except TimeoutError:
            details = self.last_words()
            problem = f"{self.name} did not answer the handshake within {limit:g} s{'' if details else '.'}"
            if self._printed_text:
                problem = (
                    f"{self.name} is not an MCP server on stdin and stdout: it printed text and did not answer within"
                    f" {limit:g} s. If it serves HTTP, its entry needs a url{'' if details else '.'}"
                )
            raise UpstreamUnavailable(problem, details=details) from None
        self._is_open = True

    def begin_session(self, session: ClientSession) -> None:
        """Treat the server as one of the session era."""
        # Imported here: the commands, which speak 2026-07-28 to a running gateway, start faster without it.
        from sluicegate.upstream.session_server import SessionServer

        self._session = SessionServer(self, session)
        self._notifications.one_level_for_all = True
        self._notifications.task_calls = self._session.task_calls
        self._notifications.on_visit = self._session.hear_visit

    def end_session(self) -> None:
        """Treat the server as one of 2026-07-28."""
        self._session = None
        self._notifications.one_level_for_all = False
        self._notifications.task_calls = self._notifications.on_visit = None

    async def wait_closed(self) -> None:
        """Return when the server is gone or we have closed the connection."""
        await self._gone.wait()

    @property
    def era(self) -> Literal["session", "modern"]:
        """The era that was detected."""
        return "modern" if self._session is None else "session"

    # ------------------------------------------------------------------------------------------------- asking

    def __call__(self, exchange: Exchange) -> "CoroutineType[Any, Any, Reply]":
        """The server's reply to an exchange, in the inner shape. Notifications go to the exchange as they come.

        Raises:
            UpstreamError: the server cannot be reached, went away, or sent an invalid answer.
        """
        if self._session is not None:
            return self._session.reply_to(exchange)
        return self.relay(exchange, exchange.params)

    async def relay(self, exchange: Exchange, params: Params) -> Reply:
        """The server's reply to an exchange, as the server sent it."""
        inbox = Inbox(exchange)
        request_id = await self.enter(inbox)
        sent = is_answered = False
        try:
            token = request_id if exchange.profile.progress_token is not None else None
            self._write(Request(request_id, exchange.method, self._stamped(exchange.profile, params, token)))
            sent = True
            while True:
                item = inbox.get_nowait() if inbox.items else await inbox.next_future(self._loop)
                if inbox.is_pausing:
                    self._backpressure.release_if_room(inbox)
                if isinstance(item, Notification):
                    await exchange.sink.emit(item)
                elif isinstance(item, UpstreamError):
                    raise item
                else:
                    is_answered = True
                    return item
        finally:
            # Mostly a cancellation, which the server must learn of.
            if not is_answered and self.leave(request_id, inbox) and sent:
                self._send_cancelled(request_id)

    def _stamped(self, profile: ClientProfile, params: Params, token: RequestId | None) -> Params:
        """The params with what the server's era needs, and our own progress token."""
        if self._session is None:
            return stamped(params, profile, self.discovery.version, self._client_info, token)
        if token is None:
            return params
        return {**params, "_meta": {**(as_object(params.get("_meta")) or {}), "progressToken": token}}

    async def request(self, method: str, params: Params, *, withdraw: bool = True) -> Reply:
        """The reply to a request of our own."""
        inbox = Inbox(None)
        request_id = await self.enter(inbox)
        try:
            self.send(Request(request_id, method, params))
            while isinstance(item := await self.next_item(inbox), Notification):
                pass
            return item
        finally:
            if self.leave(request_id, inbox) and withdraw:
                self._send_cancelled(request_id)

    async def enter(self, inbox: Inbox) -> int:
        """The id for a new request, once the server can take one."""
        if self._closed is None and self._wire is not None:
            # Before the request is written, so that the buffer of a server that does not read stays bounded (R12).
            try:
                await self._wire.drain()
            except UpstreamClosed:
                await self._gone.wait()  # Until it is known how the server ended.
        if self._wire is None:
            raise UpstreamClosed(f"{self.name} is not connected.", delivered="no")
        if self._closed is not None:
            raise UpstreamClosed(self._closed(), details=self.last_words(), delivered="no")
        return self.pending.add(inbox)

    async def next_item(self, inbox: Inbox) -> Notification | Reply:
        """The next item for a request.

        Raises:
            UpstreamError: nothing more will come.
        """
        item = await inbox.get()
        if inbox.is_pausing:
            self._backpressure.release_if_room(inbox)
        if isinstance(item, UpstreamError):
            raise item
        return item

    def leave(self, request_id: int, inbox: Inbox) -> bool:
        """Stop waiting for a request; whether its answer has not come yet."""
        self._backpressure.release(inbox)
        is_owed = self.pending.claim(request_id) is not None
        self._said_more |= is_owed
        self._late_answers += is_owed
        return is_owed

    def attend(self, work: Coroutine[object, object, None]) -> None:
        """Run work in the background while the connection lasts."""
        if self._closed is None:
            self._tasks.start(work)
        else:
            work.close()

    def _send_cancelled(self, request_id: int) -> None:
        params: Params = {"requestId": request_id, "reason": "The caller no longer waits."}
        self.send(Notification("notifications/cancelled", params))

    def send(self, message: Message) -> int:
        """Write a message; returns its size in bytes.

        Raises:
            LocalProtocolError: it cannot be written as JSON.
        """
        self._said_more |= not isinstance(message, Request)
        return self._write(message)

    def _write(self, message: Message) -> int:
        data = encode_line(encode(message))
        if self._wire is not None and self._closed is None:
            self._wire.write(data)
        return len(data)

    def respond(self, request_id: RequestId, reply: Reply) -> None:
        """Answer a request of the server."""
        self._server_requests.respond(request_id, reply)

    # ---------------------------------------------------------------------------------------------- receiving

    def received(self, data: bytes) -> None:
        """Take the next bytes of the server."""
        if self._closed is not None:
            return
        for frame in self._lines.feed(data):
            if isinstance(frame, bytes):
                params = read_progress(frame)
                if params is not None:
                    self.host.on_sign_of_life()
                    self._notifications.route_progress(params, len(frame))
                    continue
                answer = read_answer(frame)
                inbox = self.pending.claim(answer[0]) if answer is not None else None
                if answer is not None and inbox is not None:
                    inbox.put(answer[1])
                    continue
            self._receive_frame(frame)
            if self._closed is not None:  # It was one bad line too many: the rest is not even parsed.
                return

    def missed(self, message: TooLong) -> None:
        """Take the beginning of a message that was too long: it may show which request it answers."""
        if self._closed is None:
            self._receive_frame(message)

    def _receive_frame(self, frame: Frame) -> None:
        self.host.on_sign_of_life()
        if isinstance(frame, TooLong):
            self._unreadable(Unreadable("is too long", recover_id(frame.head)), frame.head)
            return
        match frame.lstrip()[:1]:
            case b"{":
                self._receive(decode_tolerant(frame, self.host.on_loss), frame)
            case b"[":
                for message in decode_batch_tolerant(frame, self.host.on_loss):
                    self._receive(message, frame)
            case _:  # Mostly a log line.
                self._unreadable(Unreadable("is not a JSON object"), frame)

    def ended(self) -> None:
        """Fail all pending requests: the server is gone."""
        self._close(self._why_it_ended)

    def _why_it_ended(self) -> str:
        how = f"{self.name} {self.describe_end()}"
        # A server that fails at its start says why on stderr, and its status is not 0.
        if not self._is_open and (how.endswith(" status 0") or (self._printed_text and not self.last_words())):
            printed = "printed text and " if self._printed_text else ""
            how = f"{how} before it answered: it {printed}is not an MCP server, or its arguments are wrong"
        return how

    def failed(self, message: bytes, problem: UpstreamError) -> None:
        """Fail the request that `message` is: it did not arrive, or may not have."""
        request = decode_tolerant(message)
        inbox = self.pending.claim(request.id) if isinstance(request, Request) else None
        if inbox is None:
            log.warning("%s did not get a message: %s", self.name, problem.message)
            return
        self._said_more = True
        self._late_answers += 1
        inbox.put(problem)

    def close(self) -> None:
        """Take no more exchanges: we are closing the connection."""
        self._close(lambda: f"The connection to {self.name} is closed.")
        if self._wire is not None:
            # Further output is read and dropped: a server that is blocked in a write does not see its input end.
            self._wire.resume_reading()

    def _close(self, problem: Callable[[], str]) -> None:
        if self._closed is None:
            self._closed = problem
            self._gone.set()
            self._backpressure.detach()
            for inbox in self.pending.drain():
                inbox.put(UpstreamClosed(problem(), details=self.last_words()))
            self._server_requests.close()

    def _receive(self, message: Message | Unreadable, line: bytes) -> None:
        match message:
            case Response(request_id, reply):
                self._receive_response(request_id, reply)
            case Notification("notifications/cancelled", params):
                self._receive_cancelled(params.get("requestId"))
            case Notification():
                # Each message of a batch counts with the size of the whole line.
                self._notifications.route(message, len(line))
            case Request(method="initialize" | "server/discover"):
                self._close(lambda: f"{self.name} is not an MCP server: it sends back what it is sent")
            case Request():
                if not self._has_calls:
                    self._count_bad()
                self._server_requests.receive(message, self._session)
            case Unreadable():
                self._unreadable(message, line)

    @property
    def _has_calls(self) -> bool:
        """Whether there is a call during which the server may ask something, or wrongly thinks that it may."""
        if self._session is not None:
            return self._session.has_calls
        open_exchanges = (inbox.exchange for inbox in self.pending)
        return any(exchange is not None and exchange.method in _ASKING for exchange in open_exchanges)

    def _receive_response(self, request_id: RequestId | None, reply: Reply) -> None:
        inbox = self.pending.claim(request_id)
        if inbox is None and request_id is None and len(self.pending) == 1 and not self._said_more:
            # A server that could not read our request answers with a null id. That can only mean this request if we
            # have sent nothing else: no notification, and no request that was cancelled.
            inbox = self.pending.drain()[0]
        if inbox is not None:
            inbox.put(reply)
        elif self._late_answers > 0:
            self._late_answers -= 1  # Most likely the answer to a cancelled request.
        else:
            self._skipped.log(f"answers {ascii(str(request_id)[:40])}, which is no open request")
            self._count_bad()

    def _receive_cancelled(self, request_id: object) -> None:
        if not isinstance(request_id, str | int):
            return
        # The server cancels its own question; or, from 2026-07-28 on, it ends a subscription of ours.
        if not self._server_requests.cancel(request_id):
            inbox = self.pending.find(request_id)
            if inbox is not None and inbox.exchange is not None and inbox.exchange.method == "subscriptions/listen":
                self.pending.claim(request_id)
                inbox.put(Result(complete({})))

    def _unreadable(self, problem: Unreadable, line: bytes) -> None:
        inbox = self.pending.claim(problem.id) if problem.id is not None else None
        self._printed_text = True
        if inbox is not None:
            inbox.put(UpstreamProtocolError(f"The answer of {self.name} {problem.problem}."))
        self._skipped.skip(line, problem.problem, is_answer=inbox is not None)
        self._count_bad()

    def _count_bad(self) -> None:
        if self._bad_messages.count() > BAD_MESSAGES_A_MINUTE and self._closed is None:
            self._backpressure.hold(self._flooding)
            not_a_server = "is not an MCP server: it prints text without end, and answers nothing"
            self._close(lambda: f"{self.name} {FLOODED if self._is_open else not_a_server}")


class SocketUpstream:
    """A Unix socket whose server speaks 2026-07-28."""

    def __init__(self, path: str, *, name: str = "The gateway", open_timeout: float = 10.0) -> None:
        self._path = path
        self._name = name
        self._open_timeout = open_timeout

    @asynccontextmanager
    async def connect(self, host: Host) -> AsyncGenerator[DuplexConnection]:
        """A connection for as long as the `async with` lasts."""
        wire = await dial(self._path)
        try:
            async with TaskScope() as tasks:
                link = DuplexConnection(self._name, host, tasks)
                wire.attach(link)
                try:
                    await link.open(wire, "modern", probe_timeout=self._open_timeout, open_timeout=self._open_timeout)
                    yield link
                finally:
                    link.close()
                    tasks.cancel_all()
        finally:
            wire.close()
