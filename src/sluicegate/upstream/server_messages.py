"""The messages of a server on a shared wire that are not answers: notifications, requests, and lines that are skipped.

The one rule: a message that cannot be attributed to one caller goes to the connection's own sink, never to a caller.
"""

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, cast

from sluicegate.errors import INTERNAL_ERROR, METHOD_NOT_FOUND, OVERLOADED, ErrorObject, LocalProtocolError
from sluicegate.exchange import Host
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
)
from sluicegate.protocol.methods import LOG_LEVELS, QUESTIONS
from sluicegate.protocol.modern_era import subscription_of
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream.attribution import TaskCalls, may_ask
from sluicegate.upstream.inbox import Backpressure, Inbox

if TYPE_CHECKING:
    # Not loaded for a server of 2026-07-28, such as the control API that commands talk to.
    from sluicegate.upstream.session_server import Asker, SessionServer

log = logging.getLogger("sluicegate")

SKIPPED_LOGGED_A_MINUTE: Final = 5

MAX_UNREAD: Final = 64 * 1024
"""Bytes of our answers that a server may leave unread before we stop reading its requests."""

MAX_QUESTIONS: Final = 1024
"""Questions of one server that may be open at once."""

BAD_MESSAGES_A_MINUTE: Final = 1000
"""Unreadable messages, unexpected answers and uncaused requests after which the connection is closed (R3, T24)."""

FLOODED: Final = (
    f"sent more than {BAD_MESSAGES_A_MINUTE} unreadable lines, unexpected answers or requests that no call caused"
    " within a minute"
)

UNWANTED: Final = "log messages that belong to no call"
UNTAKEN: Final = "notices that their caller was too slow to take"


class RateCounter:
    """Counts events per minute; a new minute begins with the first event after the last one has ended."""

    def __init__(self) -> None:
        self._end = 0.0
        self._count = 0

    def count(self) -> int:
        """The number of this event within its minute, from 1."""
        now = time.monotonic()
        if not self._count or now > self._end:
            self._end, self._count = now + 60, 0
        self._count += 1
        return self._count


class NotificationRouter:
    """Passes the notifications of one server to the requests that they belong to, or to the connection's own sink."""

    def __init__(self, pending: Pending[Inbox], host: Host, backpressure: Backpressure) -> None:
        self.one_level_for_all = False
        """Whether the log level of one call holds for all calls, as in the session era."""
        self.task_calls: TaskCalls | None = None
        """The calls that go on as tasks."""
        self.on_visit: Callable[[Notification], None] | None = None
        """Called when the server saw a visit to a page that a caller was sent to."""
        self._pending = pending
        self._host = host
        self._backpressure = backpressure
        self._unattributed = Inbox(None)

    def route(self, notification: Notification, size: int) -> None:
        """Pass on a notification that came in `size` bytes."""
        match notification.method:
            case "notifications/progress":
                self.route_progress(notification.params, size)
            case "notifications/message":
                self._route_log(notification, size)
            case "notifications/elicitation/complete":
                if self.on_visit is not None:
                    self.on_visit(notification)
                self._put_unattributed(notification, size)
            case _:
                self._route_change(notification, size)

    def route_progress(self, params: Params, size: int) -> None:
        """Pass on progress under the caller's own token; `params` is changed in place."""
        inbox = self._pending.find(params.get("progressToken"))
        if inbox is None or inbox.exchange is None:
            return  # late
        own = inbox.exchange.profile.progress_token
        if own is not None:  # Otherwise the server made the token up.
            params["progressToken"] = own
            self._put(inbox, Notification("notifications/progress", params), size)

    def _route_log(self, notification: Notification, size: int) -> None:
        calls = [(inbox, inbox.exchange) for inbox in self._pending if inbox.exchange is not None]
        listeners = [(inbox, exchange) for inbox, exchange in calls if exchange.profile.log_level is not None]
        # Nothing in a log line says which call it belongs to. With several candidates it is given to none of them. In
        # the session era a level is set for all, so that a call which wants no log is a candidate too (threats T11).
        callers = {exchange.caller.id for _, exchange in (calls if self.one_level_for_all else listeners)}
        if self.task_calls is not None:
            callers |= self.task_calls.callers
        if len(listeners) != 1 or len(callers) != 1:
            is_anybodys = self._host.is_shared  # Else all calls are the host's own, and it may hear anything.
            quiet = (exchange for _, exchange in calls if exchange.profile.log_level is None)
            if is_anybodys and any(may_ask(exchange.method) for exchange in quiet):
                self._host.on_loss(UNWANTED)  # Most likely of that call, whose caller does not want it.
                return
            self._put_unattributed(notification, size)
            return
        inbox, exchange = listeners[0]
        level, wanted = notification.params.get("level"), exchange.profile.log_level
        if level in LOG_LEVELS and LOG_LEVELS.index(cast(str, level)) >= LOG_LEVELS.index(cast(str, wanted)):
            self._put(inbox, notification, size)

    def _route_change(self, notification: Notification, size: int) -> None:
        subscription, notification = subscription_of(notification)
        if subscription is not None:
            inbox = self._pending.find(subscription)
            if inbox is not None:
                self._put(inbox, notification, size)
            return
        for inbox in self._pending:
            if inbox.wants(notification):
                self._put(inbox, notification, size)
        self._put_unattributed(notification, size)

    def _put(self, inbox: Inbox, notification: Notification, size: int) -> None:
        if inbox.is_dropping:
            if not inbox.is_half_empty:
                self._host.on_loss(UNTAKEN)
                return
            inbox.is_dropping = False
        if inbox.put(notification, size):
            self._backpressure.hold(inbox)

    def _put_unattributed(self, notification: Notification, size: int) -> None:
        # No caller is slow here, so the server is not stopped; the newest notification is dropped instead.
        if not self._unattributed.is_full:
            self._unattributed.put(notification, size)

    async def relay_unattributed(self) -> None:
        """Pass notifications that belong to no exchange to the connection's own sink, until cancelled."""
        while True:
            item = await self._unattributed.get()
            if isinstance(item, Notification):
                await self._host.sink.emit(item)


class ServerRequests:
    """The requests of one server, each in a task until it is answered."""

    def __init__(self, name: str, tasks: TaskScope, backpressure: Backpressure, send: Callable[[Message], int]) -> None:
        """`send` writes a message and returns its size in bytes."""
        self._name = name
        self._tasks = tasks
        self._backpressure = backpressure
        self._send = send
        self._answers = Inbox(None)
        self._unread = 0
        self._open: dict[RequestId, SessionServer] = {}

    def receive(self, request: Request, session: "SessionServer | None") -> None:
        """Answer a request, at once or when the caller has answered."""
        if request.method == "ping":
            self.respond(request.id, Result({}))
        elif request.method not in QUESTIONS or session is None:
            self.respond(request.id, ErrorObject(METHOD_NOT_FOUND, f"Method not found: {request.method}"))
        elif len(self._tasks) >= MAX_QUESTIONS:
            self.respond(request.id, ErrorObject(OVERLOADED, "Too many questions are open; wait for their answers."))
        else:
            self._open[request.id] = session
            asker = session.asker_of(request)
            self._tasks.start(self._answer(request, session, asker), key=(self, request.id))

    async def _answer(self, request: Request, session: "SessionServer", asker: "Asker") -> None:
        try:
            await session.answer(request, asker)
        finally:
            self._open.pop(request.id, None)

    def respond(self, request_id: RequestId, reply: Reply) -> None:
        """Send an answer. A server that does not read earlier answers is stopped."""
        try:
            self._unread += self._send(Response(request_id, reply))
        except LocalProtocolError as problem:
            log.error("%s gets no answer to its question: %s", self._name, problem)
            self._unread += self._send(
                Response(request_id, ErrorObject(INTERNAL_ERROR, "The answer cannot be written as JSON."))
            )
        if self._unread > MAX_UNREAD and self._backpressure.hold(self._answers):
            self._tasks.start(self._wait_until_read())

    async def _wait_until_read(self) -> None:
        await self._backpressure.wait_drained()
        self._unread = 0
        self._backpressure.release(self._answers)

    def cancel(self, request_id: RequestId) -> bool:
        """Drop a question that the server has cancelled; whether it was open."""
        session = self._open.pop(request_id, None)
        if session is not None:
            session.forget_question(request_id)
        return self._tasks.cancel((self, request_id))

    def close(self) -> None:
        """Cancel all questions, so that no user is left with an open form."""
        for request_id in self._open:
            self._tasks.cancel((self, request_id))
        self._open.clear()


class SkippedLines:
    """Logs the first skipped lines of each minute (threats R3). Outlives the connection: servers may restart often."""

    def __init__(
        self,
        name: str,
        on_printed: Callable[[bytes], object] | None = None,
        redact: Callable[[str], str] | None = None,
    ) -> None:
        """`on_printed`, if set, gets lines that are not JSON-RPC at all; all others are logged, masked by `redact`."""
        self._name = name
        self._on_printed = on_printed
        self._redact = redact or str
        self._rate = RateCounter()

    def skip(self, line: bytes, problem: str, *, is_answer: bool) -> None:
        """Report a line that cannot be read; `is_answer` if it seems to answer a request."""
        if self._on_printed is not None and not is_answer and b'"jsonrpc"' not in line:
            self._on_printed(line)
        else:
            self.log(f"{problem}: {ascii(self._redact(line[:200].decode(errors='backslashreplace')))}")

    def log(self, problem: str) -> None:
        if self._rate.count() <= SKIPPED_LOGGED_A_MINUTE:
            log.warning("%s: a line is skipped because it %s", self._name, problem)
