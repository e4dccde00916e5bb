"""Many exchanges over one duplex wire, to a server of either era: ids out, answers back to who asked."""

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Final, Literal, cast

from sluicegate.concurrency import TaskScope
from sluicegate.errors import (
    INTERNAL_ERROR,
    METHOD_NOT_FOUND,
    OVERLOADED,
    UNSUPPORTED_VERSION,
    ErrorObject,
    LocalProtocolError,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamUnavailable,
)
from sluicegate.exchange import Exchange, Host
from sluicegate.protocol.framing import LineDecoder, TooLong, encode_line
from sluicegate.protocol.handshake import ClientSession
from sluicegate.protocol.message import (
    Message,
    Notification,
    Params,
    Reply,
    Request,
    RequestId,
    Response,
    Result,
    Unreadable,
    as_object,
    decode_batch_tolerant,
    decode_tolerant,
    encode,
    recover_id,
)
from sluicegate.protocol.methods import LOG_LEVELS, QUESTIONS
from sluicegate.protocol.modern import (
    Discovery,
    Incompatible,
    Legacy,
    Profile,
    Retry,
    complete,
    judge_probe,
    subscription_of,
    with_profile,
)
from sluicegate.protocol.pending import Pending
from sluicegate.protocol.versions import LATEST_VERSION, SUPPORTED_VERSIONS
from sluicegate.upstream.session_era import SessionEra
from sluicegate.upstream.waiting import Waiter
from sluicegate.wire import Wire

log = logging.getLogger("sluicegate")

Era = Literal["auto", "session", "modern"]

BAD_LINES_A_MINUTE: Final = 1000
"""Unreadable lines and unasked answers after which a server counts as broken (threats R3, T24)."""

_LOGGED_BAD_LINES: Final = 5

MOST_UNHEARD: Final = 64 * 1024
"""Bytes of answers to a server's own requests after which it must have read them before it may ask on."""

MOST_QUESTIONS: Final = 1024
"""Questions of one server that may be open at once."""


class Link:
    """A server at the other end of a wire: a `Receiver` of its bytes and, once open, a `Connection` to it."""

    def __init__(self, name: str, host: Host, tasks: TaskScope) -> None:
        self.host = host
        self.discovery = Discovery(LATEST_VERSION)
        self.pending: Pending[Waiter] = Pending()
        # What the transport knows of the server's end; told with every error that the end causes.
        self.describe_end: Callable[[], str] = lambda: "closed the connection"
        self.last_words: Callable[[], str] = lambda: ""
        self._name = name
        self._tasks = tasks
        self._wire: Wire | None = None
        self._session_era: SessionEra | None = None
        self._lines = LineDecoder()
        # Said when it is asked for: a server may be gone before the transport can say anything about it.
        self._closed: Callable[[], str] | None = None
        self._gone = asyncio.Event()
        self._full: set[Waiter] = set()
        self._unattributed = Waiter(None)
        self._asking = Waiter(None)
        self._unheard = 0
        self._questions: set[RequestId] = set()
        self._said_more = False
        self._forgone = 0
        self._minute = 0.0
        self._bad_lines = 0

    # ------------------------------------------------------------------------------------------------ opening

    async def open(self, wire: Wire, era: Era, *, probe_timeout: float, open_timeout: float) -> None:
        """Find out the server's era and make its acquaintance.

        Raises:
            UpstreamUnavailable: it does not answer in time, or speaks no revision that we do.
            UpstreamClosed: it went away.
        """
        self._wire = wire
        self._tasks.start(self._relay_unattributed(), key=self)
        limit = probe_timeout + open_timeout if era == "auto" else open_timeout
        try:
            async with asyncio.timeout(limit):
                if era == "session" or not await self._probe(era, probe_timeout):
                    await self._initialize(probed=era == "auto")
        except TimeoutError:
            details = self.last_words()
            problem = f"{self._name} did not answer the handshake within {limit:g} s{'' if details else '.'}"
            raise UpstreamUnavailable(problem, details=details) from None

    async def _probe(self, era: Era, probe_timeout: float) -> bool:
        """Whether the server is of 2026-07-28: by its answer to `server/discover`, or by having none."""
        version = LATEST_VERSION
        for _ in range(2):
            profile = Profile(version, self.host.capabilities, self.host.client_info)
            try:
                async with asyncio.timeout(None if era == "modern" else probe_timeout):
                    # Not withdrawn when it takes too long: before the handshake many servers take no other message.
                    reply = await self.request("server/discover", with_profile({}, profile, None), withdraw=False)
            except TimeoutError:
                return False
            verdict = judge_probe(reply)
            match verdict:
                case Discovery():
                    self.discovery = verdict
                    return True
                case Retry(version):
                    continue
                case Incompatible(supported):
                    problem = f"{self._name} speaks {', '.join(supported)}; we speak {', '.join(SUPPORTED_VERSIONS)}."
                    raise UpstreamUnavailable(problem)
                case Legacy() if era == "modern":
                    cause = f" It says: {reply.message[:500]}" if isinstance(reply, ErrorObject) else ""
                    raise UpstreamUnavailable(f"{self._name} does not speak 2026-07-28.", details=cause)
                case Legacy():
                    return False
        raise UpstreamUnavailable(f"{self._name} refused server/discover twice, though it speaks 2026-07-28.")

    async def _initialize(self, *, probed: bool) -> None:
        session = ClientSession()
        capabilities, info = self.host.capabilities, self.host.client_info
        self._session_era = SessionEra(self, session)
        reply = await self.request("initialize", session.begin(capabilities, info), withdraw=False)
        if session.retry_with(reply):
            reply = await self.request("initialize", session.begin(capabilities, info), withdraw=False)
        if probed and isinstance(reply, ErrorObject) and reply.code == UNSUPPORTED_VERSION:
            # Our probe was slow, not refused: the server is of the newer era after all.
            self._session_era = None
            await self._probe("modern", 0)
            return
        self.discovery = session.accept(reply)
        self.send(Notification("notifications/initialized", {}))

    async def wait_closed(self) -> None:
        """Return when the server is gone, or our side has closed the connection."""
        await self._gone.wait()

    @property
    def era(self) -> Literal["session", "modern"]:
        """The era the server turned out to be of."""
        return "modern" if self._session_era is None else "session"

    # ------------------------------------------------------------------------------------------------- asking

    async def __call__(self, exchange: Exchange) -> Reply:
        """The server's reply to an exchange, in the inner shape; its notices go to the exchange as they come.

        Raises:
            UpstreamError: it cannot be asked, went away, or sent something that is no answer.
        """
        if self._session_era is not None:
            return await self._session_era.reply_to(exchange)
        return await self.relay(exchange, exchange.params)

    async def relay(self, exchange: Exchange, params: Params) -> Reply:
        """The server's reply to an exchange, as the server sent it."""
        waiter = Waiter(exchange)
        request_id = await self.enter(waiter)
        sent = False
        try:
            token = request_id if exchange.profile.progress_token is not None else None
            self.send(Request(request_id, exchange.method, self._stamped(exchange.profile, params, token)))
            sent = True
            while True:
                item = await self.next_item(waiter)
                if not isinstance(item, Notification):
                    return item
                await exchange.emit(item)
        finally:
            if self.leave(request_id, waiter) and sent:
                self._withdraw(request_id)

    def _stamped(self, profile: Profile, params: Params, token: RequestId | None) -> Params:
        if self._session_era is None:
            ours = Profile(self.discovery.version, profile.capabilities, self.host.client_info, profile.log_level)
            return with_profile(params, ours, token)
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
            raise UpstreamClosed(f"{self._name} is not connected.", delivered="no")
        if self._closed is not None:
            raise UpstreamClosed(self._closed(), details=self.last_words(), delivered="no")
        return self.pending.add(waiter)

    async def next_item(self, waiter: Waiter) -> Notification | Reply:
        """The next thing that has come for a request.

        Raises:
            UpstreamError: nothing will come any more.
        """
        item = await waiter.next()
        if waiter.is_half_empty:
            self._has_room(waiter)
        if isinstance(item, UpstreamError):
            raise item
        return item

    def leave(self, request_id: int, waiter: Waiter) -> bool:
        """Wait no more for a request; whether its answer is still to come."""
        self._has_room(waiter)
        is_owed = self.pending.claim(request_id) is not None
        self._said_more |= is_owed
        self._forgone += is_owed
        return is_owed

    def _withdraw(self, request_id: int) -> None:
        params: Params = {"requestId": request_id, "reason": "The caller no longer waits."}
        self.send(Notification("notifications/cancelled", params))

    def send(self, message: Message) -> int:
        """Write a message; how many bytes it took.

        Raises:
            LocalProtocolError: it holds something that JSON cannot express.
        """
        self._said_more |= not isinstance(message, Request)
        try:
            data = encode_line(encode(message))
        except (TypeError, ValueError, RecursionError) as problem:
            raise LocalProtocolError(f"The request cannot be written as JSON: {problem}") from None
        if self._wire is not None and self._closed is None:
            self._wire.write(data)
        return len(data)

    def respond(self, request_id: RequestId, reply: Reply) -> None:
        """Answer a request of the server; one that asks and asks without reading the answers has to wait."""
        try:
            self._unheard += self.send(Response(request_id, reply))
        except LocalProtocolError as problem:
            log.error("%s gets no answer to its question: %s", self._name, problem)
            self.respond(request_id, ErrorObject(INTERNAL_ERROR, "The answer cannot be written as JSON."))
        if self._unheard > MOST_UNHEARD and self._asking not in self._full and self._closed is None:
            self._let_wait(self._asking)
            self._tasks.start(self._wait_until_heard())

    async def _wait_until_heard(self) -> None:
        if self._wire is not None:
            with suppress(UpstreamClosed):
                await self._wire.drain()
        self._unheard = 0
        self._has_room(self._asking)

    # ------------------------------------------------------------------------------------------------ hearing

    def received(self, data: bytes) -> None:
        """Take the next bytes of the server."""
        if self._closed is not None:
            return
        for frame in self._lines.feed(data):
            if isinstance(frame, TooLong):
                self._unreadable(Unreadable("is too long", recover_id(frame.head)), frame.head)
            elif frame.lstrip()[:1] == b"[":
                for message in decode_batch_tolerant(frame):
                    self._hear(message, frame)
            else:
                self._hear(decode_tolerant(frame), frame)

    def ended(self) -> None:
        """Learn that the server is gone: everybody who waits for it is told so, once."""
        self._close(lambda: f"{self._name} {self.describe_end()}")

    def failed(self, message: bytes, problem: UpstreamError) -> None:
        """Learn that one message of ours did not arrive, or may not have: whoever waits for its answer is told."""
        request = decode_tolerant(message)
        waiter = self.pending.claim(request.id) if isinstance(request, Request) else None
        if waiter is None:
            log.warning("%s was not told something: %s", self._name, problem.message)
            return
        self._said_more = True
        self._forgone += 1
        waiter.post(problem)

    def close(self) -> None:
        """Take no more exchanges: our side is closing the connection."""
        self._close(lambda: f"The connection to {self._name} is closed.")
        self._full.clear()
        if self._wire is not None:
            # What comes now is dropped. But a server that cannot write does not see that its input has ended, either.
            self._wire.resume_reading()

    def _close(self, problem: Callable[[], str]) -> None:
        if self._closed is None:
            self._closed = problem
            self._gone.set()
            for waiter in self.pending.drain():
                waiter.post(UpstreamClosed(problem(), details=self.last_words()))
            # Nobody waits for these answers any more; who was asked should not be left before an open form.
            for question in self._questions:
                self._tasks.cancel((self, "question", question))
            self._questions.clear()

    def _hear(self, message: Message | Unreadable, line: bytes) -> None:
        match message:
            case Response(request_id, reply):
                self._hear_response(request_id, reply)
            case Notification():
                # One of a batch counts as all of it: rather too much than too little.
                self._hear_notification(message, len(line))
            case Request():
                self._hear_request(message)
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

    def _hear_request(self, request: Request) -> None:
        if request.method == "ping":
            self.respond(request.id, Result({}))
        elif request.method not in QUESTIONS or self._session_era is None:
            self.respond(request.id, ErrorObject(METHOD_NOT_FOUND, f"Method not found: {request.method}"))
        elif len(self._tasks) >= MOST_QUESTIONS:
            self.respond(request.id, ErrorObject(OVERLOADED, "Too many questions are open; wait for their answers."))
        else:
            self._questions.add(request.id)
            self._tasks.start(self._answer(request, self._session_era), key=(self, "question", request.id))

    async def _answer(self, request: Request, session_era: SessionEra) -> None:
        try:
            await session_era.answer(request)
        finally:
            self._questions.discard(request.id)

    def _hear_notification(self, notification: Notification, size: int) -> None:
        match notification.method:
            case "notifications/progress":
                self._hear_progress(notification, size)
            case "notifications/message":
                self._hear_log(notification, size)
            case "notifications/cancelled":
                self._hear_cancelled(notification.params.get("requestId"))
            case _:
                self._hear_change(notification, size)

    def _hear_progress(self, notification: Notification, size: int) -> None:
        token = notification.params.get("progressToken")
        waiter = self.pending.find(token) if isinstance(token, str | int) else None
        if waiter is None or waiter.exchange is None or waiter.exchange.profile.progress_token is None:
            return  # late, or with a token that we never gave
        params = {**notification.params, "progressToken": waiter.exchange.profile.progress_token}
        self._post_notice(waiter, Notification(notification.method, params), size)

    def _hear_log(self, notification: Notification, size: int) -> None:
        under_way = [(waiter, waiter.exchange) for waiter in self.pending if waiter.exchange is not None]
        listeners = [(waiter, exchange) for waiter, exchange in under_way if exchange.profile.log_level is not None]
        # Nothing in a log line says which call it belongs to. With several candidates it is given to none of them. In
        # the session era a level is set for all, so that a call which wants no log is a candidate too (threats T11).
        callers = {exchange.caller.id for _, exchange in (listeners if self._session_era is None else under_way)}
        if len(listeners) != 1 or len(callers) != 1:
            self._post_unattributed(notification, size)
            return
        waiter, exchange = listeners[0]
        level, wanted = notification.params.get("level"), exchange.profile.log_level
        if level in LOG_LEVELS and LOG_LEVELS.index(cast(str, level)) >= LOG_LEVELS.index(cast(str, wanted)):
            self._post_notice(waiter, notification, size)

    def _hear_cancelled(self, request_id: object) -> None:
        if not isinstance(request_id, str | int):
            return
        # Its own question, taken back; or, from 2026-07-28 on, the end of a subscription of ours.
        if self._tasks.cancel((self, "question", request_id)):
            self._questions.discard(request_id)
        else:
            waiter = self.pending.find(request_id)
            if waiter is not None and waiter.exchange is not None and waiter.exchange.method == "subscriptions/listen":
                self.pending.claim(request_id)
                waiter.post(Result(complete({})))

    def _hear_change(self, notification: Notification, size: int) -> None:
        subscription, notice = subscription_of(notification)
        if subscription is not None:
            waiter = self.pending.find(subscription)
            if waiter is not None:
                self._post_notice(waiter, notice, size)
            return
        for waiter in self.pending:
            if waiter.wants(notice):
                self._post_notice(waiter, notice, size)
        self._post_unattributed(notice, size)

    def _post_notice(self, waiter: Waiter, notification: Notification, size: int) -> None:
        waiter.post(notification, size)
        if waiter.is_full and waiter not in self._full:
            self._let_wait(waiter)

    def _let_wait(self, waiter: Waiter) -> None:
        if self._wire is not None and self._closed is None:
            self._full.add(waiter)
            self._wire.pause_reading()

    def _has_room(self, waiter: Waiter) -> None:
        if waiter in self._full:
            self._full.discard(waiter)
            if not self._full and self._wire is not None:
                self._wire.resume_reading()

    def _post_unattributed(self, notification: Notification, size: int) -> None:
        # What belongs to no exchange has nobody who could make the server wait, so here the newest is dropped.
        if not self._unattributed.is_full:
            self._unattributed.post(notification, size)

    async def _relay_unattributed(self) -> None:
        while True:
            item = await self._unattributed.next()
            if isinstance(item, Notification):
                await self.host.sink.emit(item)

    def _unreadable(self, problem: Unreadable, line: bytes) -> None:
        waiter = self.pending.claim(problem.id) if problem.id is not None else None
        if waiter is not None:
            waiter.post(UpstreamProtocolError(f"The answer of {self._name} {problem.problem}."))
        self._skip_line(f"{problem.problem}: {ascii(line[:200])}")

    def _skip_line(self, problem: str) -> None:
        now = asyncio.get_running_loop().time()
        if now - self._minute > 60:
            self._minute, self._bad_lines = now, 0
        self._bad_lines += 1
        if self._bad_lines <= _LOGGED_BAD_LINES:
            log.warning("%s: a line is skipped, for it %s", self._name, problem)
        elif self._bad_lines > BAD_LINES_A_MINUTE:
            self._let_wait(self._unattributed)
            lines = f"{BAD_LINES_A_MINUTE} unreadable lines or unasked answers"
            self._close(lambda: f"{self._name} wrote more than {lines} within a minute")
