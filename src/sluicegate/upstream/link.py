"""Many exchanges over one duplex wire, to a server of either era: ids out, answers back to who asked."""

import asyncio
import logging
from collections.abc import Callable, Coroutine
from types import CoroutineType
from typing import Any, Final, Literal

from sluicegate.concurrency import TaskScope
from sluicegate.errors import (
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamUnavailable,
)
from sluicegate.exchange import Exchange, Host
from sluicegate.protocol.discovery import Discovery
from sluicegate.protocol.framing import DEFAULT_CEILING, Frame, TooLong
from sluicegate.protocol.handshake import ClientSession
from sluicegate.protocol.lines import LineDecoder, encode_line
from sluicegate.protocol.message import (
    Message,
    Notification,
    Params,
    Reply,
    Request,
    RequestId,
    Response,
    Result,
    as_object,
)
from sluicegate.protocol.modern import Profile, complete
from sluicegate.protocol.pending import Pending
from sluicegate.protocol.recovery import recover_id
from sluicegate.protocol.tolerant import Unreadable, decode_batch_tolerant, decode_tolerant
from sluicegate.protocol.usual import read_answer, read_progress
from sluicegate.protocol.versions import LATEST_VERSION
from sluicegate.upstream.acquaintance import Era, meet
from sluicegate.upstream.notices import Notices
from sluicegate.upstream.questions import Questions
from sluicegate.upstream.session_era import SessionEra
from sluicegate.upstream.skipped import Minute, SkippedLines
from sluicegate.upstream.stamp import Stamp
from sluicegate.upstream.waiting import Brake, Waiter
from sluicegate.upstream.writing import encoded
from sluicegate.wire import Wire

__all__ = ["Era", "Link"]

log = logging.getLogger("sluicegate")

BAD_LINES_A_MINUTE: Final = 1000
"""Unreadable lines and unasked answers after which a server counts as broken (threats R3, T24)."""


class Link:
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
        """`skipped` hears of lines that are no messages; it may have heard of others before this connection.

        `ceiling` is how many bytes one message of the server may have.
        """
        self.name = name
        self.host = host
        self.discovery = Discovery(LATEST_VERSION)
        self.pending: Pending[Waiter] = Pending()
        self._stamp = Stamp(host.client_info)
        # What the transport knows of the server's end; told with every error that the end causes.
        self.describe_end: Callable[[], str] = lambda: "closed the connection"
        self.last_words: Callable[[], str] = lambda: ""
        self._tasks = tasks
        self._loop = asyncio.get_running_loop()  # Kept, for to ask for it is a system call (getpid).
        self._wire: Wire | None = None
        self._session_era: SessionEra | None = None
        self._lines = LineDecoder(ceiling)
        # Said when it is asked for: a server may be gone before the transport can say anything about it.
        self._closed: Callable[[], str] | None = None
        self._gone = asyncio.Event()
        self._brake = Brake(self.pending)
        self._notices = Notices(self.pending, host, self._brake)
        self._questions = Questions(name, tasks, self._brake, self.send)
        self._flooding = Waiter(None)
        self._said_more = False
        self._forgone = 0
        self._skipped = skipped or SkippedLines(name)
        self._bad_lines = Minute()  # Not those of connections before: it is to be broken once for the same lines.

    # ------------------------------------------------------------------------------------------------ opening

    async def open(self, wire: Wire, era: Era, *, probe_timeout: float, open_timeout: float) -> None:
        """Find out the server's era and make its acquaintance.

        Raises:
            UpstreamUnavailable: it does not answer in time, or speaks no revision that we do.
            UpstreamClosed: it went away.
        """
        self._wire = wire
        self._brake.engage(wire)
        self._tasks.start(self._notices.relay_unattributed(), key=self)
        limit = open_timeout
        try:
            async with asyncio.timeout(limit):
                # Finding out its era leaves time to those who say nothing to what they do not know.
                self.discovery = await meet(self, era, min(probe_timeout, limit / 2))
        except TimeoutError:
            details = self.last_words()
            problem = f"{self.name} did not answer the handshake within {limit:g} s{'' if details else '.'}"
            raise UpstreamUnavailable(problem, details=details) from None

    def begin_session(self, session: ClientSession) -> None:
        """Treat the server as one of the session era."""
        self._session_era = SessionEra(self, session)
        self._notices.one_level_for_all = True
        self._notices.tickets = self._session_era.tickets
        self._notices.hear_visit = self._session_era.hear_visit

    def end_session(self) -> None:
        """Treat it as one of 2026-07-28."""
        self._session_era = None
        self._notices.one_level_for_all = False
        self._notices.tickets = self._notices.hear_visit = None

    async def wait_closed(self) -> None:
        """Return when the server is gone, or our side has closed the connection."""
        await self._gone.wait()

    @property
    def era(self) -> Literal["session", "modern"]:
        """The era the server turned out to be of."""
        return "modern" if self._session_era is None else "session"

    # ------------------------------------------------------------------------------------------------- asking

    def __call__(self, exchange: Exchange) -> "CoroutineType[Any, Any, Reply]":
        """The server's reply to an exchange, in the inner shape; its notices go to the exchange as they come.

        Raises:
            UpstreamError: it cannot be asked, went away, or sent something that is no answer.
        """
        if self._session_era is not None:
            return self._session_era.reply_to(exchange)
        return self.relay(exchange, exchange.params)

    async def relay(self, exchange: Exchange, params: Params) -> Reply:
        """The server's reply to an exchange, as the server sent it."""
        waiter = Waiter(exchange)
        request_id = await self.enter(waiter)
        sent = False
        try:
            token = request_id if exchange.profile.progress_token is not None else None
            self._write(Request(request_id, exchange.method, self._stamped(exchange.profile, params, token)))
            sent = True
            while True:
                item = waiter.take() if waiter.inbox else await waiter.coming(self._loop)
                if waiter.holds_up:
                    self._brake.ease(waiter)
                if isinstance(item, Notification):
                    await exchange.sink.emit(item)
                elif isinstance(item, UpstreamError):
                    raise item
                else:
                    return item  # Its id was claimed when it came.
        except BaseException:  # Handed on, a cancellation mostly: but the server is told that nobody waits.
            if self.leave(request_id, waiter) and sent:
                self._withdraw(request_id)
            raise

    def _stamped(self, profile: Profile, params: Params, token: RequestId | None) -> Params:
        """The params as the server wants them, under our own progress token."""
        if self._session_era is None:
            return self._stamp.on(params, self.discovery.version, profile, token)
        if token is None:
            return params
        return {**params, "_meta": {**(as_object(params.get("_meta")) or {}), "progressToken": token}}

    async def request(self, method: str, params: Params, *, withdraw: bool = True) -> Reply:
        """The reply to a request of our own making."""
        waiter = Waiter(None)
        request_id = await self.enter(waiter)
        try:
            self.send(Request(request_id, method, params))
            while isinstance(item := await self.next_item(waiter), Notification):
                pass
            return item
        finally:
            if self.leave(request_id, waiter) and withdraw:
                self._withdraw(request_id)

    async def enter(self, waiter: Waiter) -> int:
        """The id of a new request, once the server takes one."""
        if self._closed is None and self._wire is not None:
            # Before the request is written, not after: a server that does not read gets no more to read (R12).
            try:
                await self._wire.drain()
            except UpstreamClosed:
                await self._gone.wait()  # In a moment it is certain how it ended.
        if self._wire is None:
            raise UpstreamClosed(f"{self.name} is not connected.", delivered="no")
        if self._closed is not None:
            raise UpstreamClosed(self._closed(), details=self.last_words(), delivered="no")
        return self.pending.add(waiter)

    async def next_item(self, waiter: Waiter) -> Notification | Reply:
        """The next thing that has come for a request.

        Raises:
            UpstreamError: nothing will come any more.
        """
        item = await waiter.next()
        if waiter.holds_up:
            self._brake.ease(waiter)
        if isinstance(item, UpstreamError):
            raise item
        return item

    def leave(self, request_id: int, waiter: Waiter) -> bool:
        """Wait no more for a request; whether its answer is still to come."""
        self._brake.release(waiter)
        is_owed = self.pending.claim(request_id) is not None
        self._said_more |= is_owed
        self._forgone += is_owed
        return is_owed

    def attend(self, work: Coroutine[object, object, None]) -> None:
        """Do something in the background, while the server is there."""
        if self._closed is None:
            self._tasks.start(work)
        else:
            work.close()

    def _withdraw(self, request_id: int) -> None:
        params: Params = {"requestId": request_id, "reason": "The caller no longer waits."}
        self.send(Notification("notifications/cancelled", params))

    def send(self, message: Message) -> int:
        """Write a message; how many bytes it took.

        Raises:
            LocalProtocolError: it holds something that JSON cannot express.
        """
        self._said_more |= not isinstance(message, Request)
        return self._write(message)

    def _write(self, message: Message) -> int:
        data = encode_line(encoded(message))
        if self._wire is not None and self._closed is None:
            self._wire.write(data)
        return len(data)

    def respond(self, request_id: RequestId, reply: Reply) -> None:
        """Answer a request of the server."""
        self._questions.respond(request_id, reply)

    # ------------------------------------------------------------------------------------------------ hearing

    def received(self, data: bytes) -> None:
        """Take the next bytes of the server."""
        if self._closed is not None:
            return
        for frame in self._lines.feed(data):
            if isinstance(frame, bytes):
                params = read_progress(frame)
                if params is not None:
                    self._notices.hear_progress(params, len(frame))
                    continue
                answer = read_answer(frame)
                waiter = self.pending.claim(answer[0]) if answer is not None else None
                if answer is not None and waiter is not None:
                    waiter.post(answer[1])
                    continue
            self._hear_frame(frame)
            if self._closed is not None:  # It was one bad line too many: those behind it are not even looked at.
                return

    def missed(self, message: TooLong) -> None:
        """Learn of a message that was too long to be kept: enough of it is there to see whose answer it was."""
        if self._closed is None:
            self._hear_frame(message)

    def _hear_frame(self, frame: Frame) -> None:
        if isinstance(frame, TooLong):
            self._unreadable(Unreadable("is too long", recover_id(frame.head)), frame.head)
            return
        match frame.lstrip()[:1]:
            case b"{":
                self._hear(decode_tolerant(frame), frame)
            case b"[":
                for message in decode_batch_tolerant(frame):
                    self._hear(message, frame)
            case _:  # A log line, mostly: not worth two attempts to read it.
                self._unreadable(Unreadable("is not a JSON object"), frame)

    def ended(self) -> None:
        """Learn that the server is gone: everybody who waits for it is told so, once."""
        self._close(lambda: f"{self.name} {self.describe_end()}")

    def failed(self, message: bytes, problem: UpstreamError) -> None:
        """Learn that one message of ours did not arrive, or may not have: whoever waits for its answer is told."""
        request = decode_tolerant(message)
        waiter = self.pending.claim(request.id) if isinstance(request, Request) else None
        if waiter is None:
            log.warning("%s was not told something: %s", self.name, problem.message)
            return
        self._said_more = True
        self._forgone += 1
        waiter.post(problem)

    def close(self) -> None:
        """Take no more exchanges: our side is closing the connection."""
        self._close(lambda: f"The connection to {self.name} is closed.")
        if self._wire is not None:
            # What comes now is dropped. But a server that cannot write does not see that its input has ended, either.
            self._wire.resume_reading()

    def _close(self, problem: Callable[[], str]) -> None:
        if self._closed is None:
            self._closed = problem
            self._gone.set()
            self._brake.disengage()
            for waiter in self.pending.drain():
                waiter.post(UpstreamClosed(problem(), details=self.last_words()))
            self._questions.close()

    def _hear(self, message: Message | Unreadable, line: bytes) -> None:
        match message:
            case Response(request_id, reply):
                self._hear_response(request_id, reply)
            case Notification("notifications/cancelled", params):
                self._hear_cancelled(params.get("requestId"))
            case Notification():
                # One of a batch counts as all of it: rather too much than too little.
                self._notices.hear(message, len(line))
            case Request():
                self._questions.hear(message, self._session_era)
            case Unreadable():
                self._unreadable(message, line)

    def _hear_response(self, request_id: RequestId | None, reply: Reply) -> None:
        waiter = self.pending.claim(request_id)
        if waiter is None and request_id is None and len(self.pending) == 1 and not self._said_more:
            # A server that could not read our request answers it under null. It may mean this one only if we have said
            # nothing else that it could mean: no notification, and no request that nobody waits for any more.
            waiter = self.pending.drain()[0]
        if waiter is not None:
            waiter.post(reply)
        elif self._forgone > 0:
            self._forgone -= 1  # Late, most likely: its caller has gone.
        else:
            self._skip_line(f"answers {ascii(str(request_id)[:40])}, which nobody waits for")

    def _hear_cancelled(self, request_id: object) -> None:
        if not isinstance(request_id, str | int):
            return
        # Its own question, taken back; or, from 2026-07-28 on, the end of a subscription of ours.
        if not self._questions.take_back(request_id):
            waiter = self.pending.find(request_id)
            if waiter is not None and waiter.exchange is not None and waiter.exchange.method == "subscriptions/listen":
                self.pending.claim(request_id)
                waiter.post(Result(complete({})))

    def _unreadable(self, problem: Unreadable, line: bytes) -> None:
        waiter = self.pending.claim(problem.id) if problem.id is not None else None
        if waiter is not None:
            waiter.post(UpstreamProtocolError(f"The answer of {self.name} {problem.problem}."))
        self._skip_line(f"{problem.problem}: {ascii(line[:200])}")

    def _skip_line(self, problem: str) -> None:
        self._skipped.tell(problem)
        if self._bad_lines.count() > BAD_LINES_A_MINUTE:
            self._brake.hold(self._flooding)
            lines = f"{BAD_LINES_A_MINUTE} unreadable lines or unasked answers"
            self._close(lambda: f"{self.name} wrote more than {lines} within a minute")
