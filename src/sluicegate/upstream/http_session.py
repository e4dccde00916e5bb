"""A session-era server over Streamable HTTP: how a session begins, carries requests, is renewed and ends.

`SessionServer` keeps the state of the session; `SessionStreams` reads what the server sends.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from types import CoroutineType
from typing import Any, Final

from sluicegate.errors import (
    HEADER_MISMATCH,
    INTERNAL_ERROR,
    UNSUPPORTED_VERSION,
    ErrorObject,
    LocalProtocolError,
    SluicegateError,
    Truncated,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
    UpstreamTimeout,
)
from sluicegate.exchange import Exchange, Host
from sluicegate.http1 import Answer, Fields
from sluicegate.http1.client import RequestTemplate
from sluicegate.protocol.headers import METHOD, VERSION
from sluicegate.protocol.message import (
    Message,
    Notification,
    Params,
    Pending,
    Reply,
    Request,
    RequestId,
    Response,
    as_object,
    encode,
)
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.modern_era import Discovery
from sluicegate.protocol.parse_response import read_result
from sluicegate.protocol.session_era import ClientSession
from sluicegate.protocol.versions import LATEST_SESSION_VERSION
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream.http_endpoint import ACCEPT_BOTH, JSON, ErrorAnswer, UpstreamEndpoint
from sluicegate.upstream.http_messages import END_TIMEOUT
from sluicegate.upstream.http_session_streams import SessionStreams
from sluicegate.upstream.inbox import Inbox
from sluicegate.upstream.session_server import SessionServer

log = logging.getLogger("sluicegate")

SESSION_HEADER: Final = "Mcp-Session-Id"

WAIT_FOR_PUSHES: Final = 1.0
"""Seconds that opening waits for the GET stream, so that no later push is missed."""

WAIT_FOR_SESSION: Final = 30.0
WAIT_FOR_END: Final = 2.0

_REPEATABLE: Final = frozenset(method for method, row in METHODS.items() if row.cacheable)
"""Methods that only read, so that they may be sent twice (threats R0)."""

_MAY_BE_LOST: Final = (404, 400)
"""Statuses with which a server refuses an unknown session; 400 has other reasons, too."""

_ERRORS_OF_ANOTHER_ERA: Final = (HEADER_MISMATCH, UNSUPPORTED_VERSION)
"""Errors with which a server without sessions refuses a request of this era."""

NEW_SESSION_INTERVAL: Final = 10.0
"""Seconds between two new sessions because the server seems to be of another era, and between two reports of new
sessions to listeners: a server that forgets every session would cause both without end."""

_session_id: Final = re.compile(r"[\x21-\x7e]{1,1024}")


class SessionHttp:
    """A `Connection` to a session-era server, and the `SessionTransport` of its `SessionServer`."""

    transport: Final = "http"

    def __init__(self, endpoint: UpstreamEndpoint, host: Host, tasks: TaskScope) -> None:
        self.host = host
        self.discovery = Discovery(LATEST_SESSION_VERSION)
        self.pending: Pending[Inbox] = Pending()
        self._endpoint = endpoint
        self._tasks = tasks
        self._session = ClientSession()
        self._server = SessionServer(self, self._session)
        self._streams = SessionStreams(endpoint, self, host, self.pending, self._server, tasks)
        self._id: str | None = None
        self._template = endpoint.request_template("POST", ACCEPT_BOTH)  # of every message within the session
        self._opened = self._closed = False
        self.says = ""
        """The server's own words if it refused `initialize`. For the operator only."""
        self._renewal: asyncio.Future[UpstreamError | None] | None = None
        self._end = f"The connection to {endpoint.name} is closed."
        self._over = asyncio.Event()
        self._doubts_from = self._reports_from = 0.0
        self._is_reporting = False

    @property
    def is_remembered(self) -> bool:
        """Whether the server gave the session an id."""
        return self._id is not None

    # ----------------------------------------------------------------------------------------- opening and closing

    async def open(self) -> str | None:
        """Begin a session. Returns None, or what the server did instead if it does not speak this transport.

        Raises:
            UpstreamError: it speaks this transport, but gives no session.
        """
        seen = await self._initialize()
        if seen is None:
            self._streams.listen()
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_FOR_PUSHES):
                    await self._streams.wait_settled()
        return seen

    async def _initialize(self) -> str | None:
        session = ClientSession()
        try:
            answer, reply = await self._welcome(session)
            if session.retry_with(reply):
                answer, reply = await self._welcome(session)
        except Truncated:
            raise  # An outage, which says nothing about the transport.
        except UpstreamProtocolError as problem:
            # The answer was not a message: this may be a server of the older transport.
            return problem.message.rstrip(".")
        if isinstance(reply, ErrorObject) and answer.status in (400, 404, 405):
            self.says = f" It says: {reply.message[:500]}"
            return f"{self._endpoint.name} answered initialize with status {answer.status} and the error {reply.code}"
        session_id = self._session_id_of(answer)
        try:
            self.discovery = session.accept(reply)
        except UpstreamProtocolError:
            await self._end_session(session_id)
            raise
        self._id = session_id
        self._session, self._opened = session, True
        self._template = self._endpoint.request_template("POST", self.fields(ACCEPT_BOTH))
        self._server.begin(session)
        initialized = Notification("notifications/initialized", {})
        fields = self.fields(_opening_fields(initialized.method))
        await self.tell(initialized, self._endpoint.request_template("POST", fields))
        return None

    async def _welcome(self, session: ClientSession) -> tuple[Answer, Reply]:
        params = session.begin(self.host.capabilities, self.host.client_info)
        request_id = self.pending.add(Inbox(None))
        try:
            # Without the headers of the last session, which all other requests use until there is a new one.
            request = Request(request_id, "initialize", params)
            answer = await self._endpoint.ask("POST", _opening_fields(request.method), encode(request))
            reply: Reply | None = None
            try:
                reply = await self._streams.read_reply(answer, request_id, None)
                return answer, reply
            finally:
                if reply is None:  # The answer may have begun a session.
                    await self._end_session(self._session_id_of(answer))
        finally:
            self.pending.claim(request_id)

    def _session_id_of(self, answer: Answer) -> str | None:
        value = answer.headers.get(SESSION_HEADER)
        if value is not None and not _session_id.fullmatch(value):
            raise self._endpoint.protocol_error("has a session id that cannot be sent back")
        return value

    async def aclose(self) -> None:
        """Take no more exchanges and end the session."""
        self._leave()
        self._tasks.cancel((self, "renewal"))
        await self._end_session(self._id)

    def _leave(self) -> None:
        self._closed = True
        for inbox in self.pending.drain():
            inbox.put(self._gone())
        self._streams.close()
        self._over.set()

    def give_up(self, why: str) -> None:
        """End the connection because of what the server did."""
        self._end = f"{self._endpoint.name} {why}."
        self._leave()

    async def wait_closed(self) -> None:
        """Return when the server no longer speaks this transport.

        Not when it forgets the session: the next request begins another.
        """
        await self._over.wait()

    async def _end_session(self, session_id: str | None) -> None:
        if session_id is not None:
            version = ((VERSION, self._session.version),) if self._opened else ()
            with suppress(TimeoutError, SluicegateError):
                async with asyncio.timeout(WAIT_FOR_END):
                    (await self._endpoint.ask("DELETE", (*version, (SESSION_HEADER, session_id)))).close()

    def _gone(self) -> UpstreamClosed:
        return UpstreamClosed(self._end, delivered="no")

    async def replace(self, *, unless_busy: bool) -> None:
        """Begin another session; with `unless_busy`, only if no calls are pending, which would end with this one.

        Raises:
            UpstreamError: the server gives none now.
        """
        lost = self._id
        busy = any(w.exchange is not None and w.exchange.method != "subscriptions/listen" for w in self.pending)
        if lost is None or (unless_busy and busy):
            return
        if unless_busy:
            await self._end_session(lost)
        await self._begin_again(lost)

    async def _begin_again(self, lost: str | None) -> None:
        """Wait for a new session in place of a session that the server has lost.

        Raises:
            UpstreamClosed: the server gives none.
        """
        if self._closed:
            raise self._gone()  # A session that begins now would never be ended.
        if self._renewal is None and self._id == lost:
            # In a task, once for all calls that notice: the first of them may be cancelled meanwhile.
            self._renewal = asyncio.get_running_loop().create_future()
            self._tasks.start(self._renew(self._renewal), key=(self, "renewal"))
        if self._renewal is not None:
            problem = await asyncio.shield(self._renewal)
            if problem is not None:
                raise UpstreamClosed(f"{self._endpoint.name} has lost the session: {problem.message}", delivered="no")

    async def _renew(self, renewal: "asyncio.Future[UpstreamError | None]") -> None:
        log.info("%s has lost the session; opening a new one.", self._endpoint.name)
        problem: UpstreamError | None = self._gone()
        try:
            async with asyncio.timeout(WAIT_FOR_SESSION):
                seen = await self._initialize()
                if seen is None:
                    self._streams.listen()
                    await self._server.restore(self._session, self._request_once)
            if seen is None:
                problem = None
                self._report_renewal()
            else:
                # The era and transport that the server speaks now are detected when the hub connects again.
                self._end = f"{self._endpoint.name} no longer speaks Streamable HTTP with sessions: {seen}."
                self._leave()
                problem = self._gone()
        except TimeoutError:
            problem = UpstreamTimeout("it did not answer in time.")
        except UpstreamError as error:
            problem = error
        finally:
            self._renewal = None
            renewal.set_result(problem)

    def _report_renewal(self) -> None:
        if not self._is_reporting:
            self._is_reporting = True
            self.attend(self._report_changes())

    async def _report_changes(self) -> None:
        """Report all subscribed resources as changed: mostly the server was restarted, and changes were missed."""
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(self._reports_from - now(), 0.0))
        self._is_reporting, self._reports_from = False, now() + NEW_SESSION_INTERVAL
        for inbox in self.pending:
            for uri in inbox.uris:
                if not inbox.is_full:
                    inbox.put(Notification("notifications/resources/updated", {"uri": uri}))
        self.host.on_session_lost()

    # ---------------------------------------------------------------------------------------------------- asking

    def __call__(self, exchange: Exchange) -> "CoroutineType[Any, Any, Reply]":
        """The server's reply to an exchange, in the inner shape. Notifications go to the exchange as they come.

        Raises:
            UpstreamError: the server cannot be reached, went away, or sent an invalid answer.
        """
        return self._server.reply_to(exchange)

    async def relay(self, exchange: Exchange, params: Params) -> Reply:
        """The server's reply to an exchange, as the server sent it."""
        if self._closed:
            raise self._gone()
        request_id = self.pending.add(Inbox(exchange))
        if exchange.profile.progress_token is not None:
            params = {**params, "_meta": {**(as_object(params.get("_meta")) or {}), "progressToken": request_id}}
        try:
            # As `_post`, without its coroutines: this runs for every call.
            used, template, request = self._id, self._template, Request(request_id, exchange.method, params)
            body, silence, resend = encode(request), self._endpoint.timeouts.silence, exchange.method in _REPEATABLE
            answer = await self._endpoint.send_once(template, body, first_byte=silence, resend=resend)
            # Nearly all answers are one JSON body, which is here already.
            result = read_result(answer.success(JSON), request_id)
            if result is not None:
                return result
            answer = await self._endpoint.followed(answer, template, body, first_byte=silence, resend=resend)
            if answer.head.status in _MAY_BE_LOST:
                return await self._read_refusal(answer, used, request, request_id, exchange)
            return await self._streams.read_reply(answer, request_id, exchange)
        except (asyncio.CancelledError, UpstreamTimeout):
            # Closing the stream does not cancel the call in this era.
            cancelled: Params = {"requestId": request_id, "reason": "The caller no longer waits."}
            self.send(Notification("notifications/cancelled", cancelled))
            raise
        finally:
            self.pending.claim(request_id)
            self._streams.cancel_questions(exchange)

    async def request(self, method: str, params: Params) -> Reply:
        """The reply to a request of our own making."""
        return await self._request(method, params, once=False)

    async def _request_once(self, method: str, params: Params) -> Reply:
        return await self._request(method, params, once=True)

    async def _request(self, method: str, params: Params, *, once: bool) -> Reply:
        inbox = Inbox(None)
        request_id = await self.enter(inbox)
        try:
            used, request = self._id, Request(request_id, method, params)
            answer = await self._post(request)
            if answer.status in _MAY_BE_LOST and not once:
                return await self._read_refusal(answer, used, request, request_id, None)
            return await self._streams.read_reply(answer, request_id, None)
        finally:
            self.leave(request_id, inbox)

    async def enter(self, inbox: Inbox) -> int:
        """The id of a new request."""
        if self._closed:
            raise self._gone()
        return self.pending.add(inbox)

    async def next_item(self, inbox: Inbox) -> Notification | Reply:
        """The next item in an inbox.

        Raises:
            UpstreamError: nothing more will come.
        """
        item = await inbox.get()
        if isinstance(item, UpstreamError):
            raise item
        return item

    def leave(self, request_id: int, inbox: Inbox) -> bool:
        """Stop waiting for a request; whether its answer has not come yet."""
        return self.pending.claim(request_id) is not None

    def send(self, message: Message) -> int:
        """Post a message in the background; returns its size in bytes."""
        body = encode(message)
        if not self._closed:
            self._tasks.start(self.tell(message))
        return len(body)

    def attend(self, work: Coroutine[object, object, None]) -> None:
        """Run work in the background while the connection lasts."""
        if self._closed:
            work.close()
        else:
            self._tasks.start(work)

    def respond(self, request_id: RequestId, reply: Reply) -> None:
        """Answer a request of the server."""
        try:
            self.send(Response(request_id, reply))
        except LocalProtocolError as problem:
            log.error("%s gets no answer to its question: %s", self._endpoint.name, problem)
            self.send(Response(request_id, ErrorObject(INTERNAL_ERROR, "The answer cannot be written as JSON.")))

    async def tell(self, message: Message, template: RequestTemplate | None = None) -> None:
        """Post a message that has no reply. Failures are only logged."""
        try:
            answer = await self._post(message, self._endpoint.timeouts.taken, template)
        except UpstreamError as problem:
            log.warning("%s did not get a message: %s", self._endpoint.name, problem.message)
            return
        if answer.status >= 300:
            log.warning("%s refused a message with status %d.", self._endpoint.name, answer.status)
        answer.let_end(END_TIMEOUT)

    async def _read_refusal(
        self, answer: Answer, used: str | None, request: Request, request_id: int, exchange: Exchange | None
    ) -> Reply:
        """The error reply of a refusal; if the session was lost, the reply to the same request in a new one."""
        refusal = await self._endpoint.read_refusal(answer, within_session=used is not None)
        if not refusal.is_lost_session and not self._seems_of_another_era(refusal):
            return refusal.reply()
        # It has certainly not run: the server did not know the session.
        await self._begin_again(used)
        return await self._streams.read_reply(await self._post(request), request_id, exchange)

    def _seems_of_another_era(self, refusal: ErrorAnswer) -> bool:
        """Whether only a server of another era would refuse like this, so that a new session must be tried."""
        if not isinstance(refusal.says, ErrorObject) or refusal.says.code not in _ERRORS_OF_ANOTHER_ERA:
            return False
        if self._renewal is None and not self._closed:
            now = asyncio.get_running_loop().time()
            if now < self._doubts_from:
                return False
            self._doubts_from = now + NEW_SESSION_INTERVAL
        return True

    def _post(
        self, message: Message, first_byte: float | None = None, template: RequestTemplate | None = None
    ) -> Awaitable[Answer]:
        return self._endpoint.send(
            template or self._template,
            encode(message),
            first_byte=first_byte or self._endpoint.timeouts.silence,
            resend=isinstance(message, Request) and message.method in _REPEATABLE,
        )

    def fields(self, fields: Fields) -> Fields:
        """The fields, with the headers that every request of the session carries."""
        if self._opened:
            fields = (*fields, (VERSION, self._session.version))
        return fields if self._id is None else (*fields, (SESSION_HEADER, self._id))


def _opening_fields(method: str) -> Fields:
    """The headers of a message of the handshake.

    The session era does not have `Mcp-Method`, but until the handshake is over the server may be of both eras, and
    2026-07-28 wants the header on every POST.
    """
    return (*ACCEPT_BOTH, (METHOD, method))
