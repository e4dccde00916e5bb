"""A session-era server over Streamable HTTP: a session that many POSTs share, and a GET for what belongs to none.

What such a server remembers is `SessionEra`'s, to whom a message belongs is `Hearing`'s, the GET is `Pushes`'. Here is
how requests travel: how a stream that was cut is taken up again, and what is done when the server has forgotten the
session.
"""

import asyncio
import logging
import re
from collections.abc import Awaitable, Coroutine
from contextlib import suppress
from types import CoroutineType
from typing import Any, Final

from sluicegate.concurrency import TaskScope
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
from sluicegate.protocol.discovery import Discovery
from sluicegate.protocol.handshake import ClientSession
from sluicegate.protocol.headers import VERSION
from sluicegate.protocol.message import (
    Message,
    Notification,
    Params,
    Reply,
    Request,
    RequestId,
    Response,
    as_object,
)
from sluicegate.protocol.methods import METHODS
from sluicegate.protocol.pending import Pending
from sluicegate.protocol.versions import LATEST_SESSION_VERSION
from sluicegate.upstream.http_hearing import Hearing
from sluicegate.upstream.http_pushes import LONGEST_RETRY, MOST_FAILURES, SHORTEST_RETRY, Pushes
from sluicegate.upstream.messages import LINGER, Messages, ended_early, plain_result
from sluicegate.upstream.session_era import SessionEra
from sluicegate.upstream.site import ACCEPT_BOTH, ACCEPT_EVENTS, EVENTS, Refusal, Site, retry_after
from sluicegate.upstream.waiting import Waiter
from sluicegate.upstream.writing import encoded

log = logging.getLogger("sluicegate")

SESSION: Final = "Mcp-Session-Id"

WAIT_FOR_PUSHES: Final = 1.0
"""How long opening waits for the GET stream, so that nothing that is pushed from then on is missed."""

WAIT_FOR_SESSION: Final = 30.0
WAIT_FOR_END: Final = 2.0

_REPEATABLE: Final = frozenset(method for method, row in METHODS.items() if row.cacheable)
"""What only looks, so that it does no harm if it is sent again (threats R0)."""

_MAY_BE_LOST: Final = (404, 400)
"""With what a server refuses a session that it does not know; the second has other reasons too."""

_OF_ANOTHER_ERA: Final = (HEADER_MISMATCH, UNSUPPORTED_VERSION)
"""With what a server that knows no sessions refuses a request of this era."""

DOUBTS_AGAIN: Final = 10.0
"""Seconds after which a server that speaks as one of another era is met anew once more, and after which those who
listen are told once more that it was: one that forgets session after session has no end of either."""

_session_id: Final = re.compile(r"[\x21-\x7e]{1,1024}")


class SessionHttp:
    """A `Connection` to a session-era server, and the `Line` of its `SessionEra`."""

    transport: Final = "http"

    def __init__(self, site: Site, host: Host, tasks: TaskScope, *, opens_results: bool = False) -> None:
        self.host = host
        self.discovery = Discovery(LATEST_SESSION_VERSION)
        self.pending: Pending[Waiter] = Pending()
        self._site = site
        self._tasks = tasks
        self._opens_results = opens_results
        self._session = ClientSession()
        self._memory = SessionEra(self, self._session)
        self._hearing = Hearing(host, self.pending, self._memory, tasks, self._tell)
        self._pushes = Pushes(site, self, tasks, host.noticed)
        self._id: str | None = None
        self._letter = site.letterhead("POST", ACCEPT_BOTH)  # of every message within the session
        self._opened = self._closed = False
        self.says = ""
        """What it answered if it did not want us, in its own words: for whoever runs us, and for nobody else."""
        self._renewal: asyncio.Future[UpstreamError | None] | None = None
        self._end = f"The connection to {site.name} is closed."
        self._over = asyncio.Event()
        self._doubts_from = self._tells_from = 0.0
        self._tells = False

    @property
    def is_remembered(self) -> bool:
        """Whether the server named the session: else nothing that comes later belongs to it."""
        return self._id is not None

    # ----------------------------------------------------------------------------------------- opening and closing

    async def open(self) -> str | None:
        """Make the server's acquaintance; None, or what it did if it does not seem to speak this transport.

        Raises:
            UpstreamError: it does, but there is no session to be had.
        """
        seen = await self._initialize()
        if seen is None:
            self._pushes.listen()
            with suppress(TimeoutError):
                async with asyncio.timeout(WAIT_FOR_PUSHES):
                    await self._pushes.wait_settled()
        return seen

    async def _initialize(self) -> str | None:
        session = ClientSession()
        try:
            answer, reply = await self._welcome(session)
            if session.retry_with(reply):
                answer, reply = await self._welcome(session)
        except Truncated:
            raise  # An outage, which says nothing about what it speaks.
        except UpstreamProtocolError as problem:
            # What answers neither a message nor an error of the protocol may still be an older transport.
            return problem.message.rstrip(".")
        if isinstance(reply, ErrorObject) and answer.status in (400, 404, 405):
            self.says = f" It says: {reply.message[:500]}"
            return f"{self._site.name} answered initialize with status {answer.status} and the error {reply.code}"
        session_id = self._session_id_of(answer)
        try:
            self.discovery = session.accept(reply)
        except UpstreamProtocolError:
            await self._end_session(session_id)
            raise
        self._id = session_id
        self._session, self._opened = session, True
        self._letter = self._site.letterhead("POST", self.fields(ACCEPT_BOTH))
        self._memory.met(session)
        await self._tell(Notification("notifications/initialized", {}))
        return None

    async def _welcome(self, session: ClientSession) -> tuple[Answer, Reply]:
        params = session.begin(self.host.capabilities, self.host.client_info)
        request_id = self.pending.add(Waiter(None))
        try:
            # Without what the last session said: until there is another, everybody else goes on with that one.
            request = Request(request_id, "initialize", params)
            answer = await self._site.ask("POST", ACCEPT_BOTH, encoded(request))
            try:
                return answer, await self._hear_out(answer, request_id, None)
            except BaseException:  # Handed on, a cancellation mostly: but its head may have begun a session.
                await self._end_session(self._session_id_of(answer))
                raise
        finally:
            self.pending.claim(request_id)

    def _session_id_of(self, answer: Answer) -> str | None:
        value = answer.headers.get(SESSION)
        if value is not None and not _session_id.fullmatch(value):
            raise self._site.protocol_error("names a session in a way that cannot be sent back")
        return value

    async def aclose(self) -> None:
        """Take no more exchanges, and tell the server that the session is over."""
        self._leave()
        self._tasks.cancel((self, "renewal"))
        await self._end_session(self._id)

    def _leave(self) -> None:
        self._closed = self._hearing.closed = True
        for waiter in self.pending.drain():
            waiter.post(self._gone())
        self._pushes.stop()
        self._over.set()

    async def wait_closed(self) -> None:
        """Return when the server does not speak this transport any more.

        Not when it forgets the session: another one is begun with the next request.
        """
        await self._over.wait()

    async def _end_session(self, session_id: str | None) -> None:
        if session_id is not None:
            version = ((VERSION, self._session.version),) if self._opened else ()
            with suppress(TimeoutError, SluicegateError):
                async with asyncio.timeout(WAIT_FOR_END):
                    (await self._site.ask("DELETE", (*version, (SESSION, session_id)))).close()

    def _gone(self) -> UpstreamClosed:
        return UpstreamClosed(self._end, delivered="no")

    async def replace(self, *, unless_busy: bool) -> None:
        """Have another session in place of this one; a busy one has calls under way, which would end with it.

        Raises:
            UpstreamError: there is none to be had now.
        """
        lost = self._id
        busy = any(w.exchange is not None and w.exchange.method != "subscriptions/listen" for w in self.pending)
        if lost is None or (unless_busy and busy):
            return
        if unless_busy:
            await self._end_session(lost)
        await self._begin_again(lost)

    async def _begin_again(self, lost: str | None) -> None:
        """Wait for another session in place of one that the server does not know any more.

        Raises:
            UpstreamClosed: there is none to be had.
        """
        if self._closed:
            raise self._gone()  # A session that is begun now would be nobody's, and never ended.
        if self._renewal is None and self._id == lost:
            # In a task, and once for all who notice: whoever noticed first may go away in the middle of it.
            self._renewal = asyncio.get_running_loop().create_future()
            self._tasks.start(self._renew(self._renewal), key=(self, "renewal"))
        if self._renewal is not None:
            problem = await asyncio.shield(self._renewal)
            if problem is not None:
                raise UpstreamClosed(f"{self._site.name} has lost the session: {problem.message}", delivered="no")

    async def _renew(self, renewal: "asyncio.Future[UpstreamError | None]") -> None:
        log.info("%s has forgotten the session; another one is opened.", self._site.name)
        problem: UpstreamError | None = self._gone()
        try:
            async with asyncio.timeout(WAIT_FOR_SESSION):
                seen = await self._initialize()
                if seen is None:
                    self._pushes.listen()
                    await self._memory.restore(self._session, self._request_once)
            if seen is None:
                problem = None
                self._tell_renewed()
            else:
                # Whatever it speaks now, it is found out by whoever connects to it again.
                self._end = f"{self._site.name} is not the server that it was: {seen}."
                self._leave()
                problem = self._gone()
        except TimeoutError:
            problem = UpstreamTimeout("it did not answer in time.")
        except UpstreamError as error:
            problem = error
        finally:
            self._renewal = None
            renewal.set_result(problem)

    def _tell_renewed(self) -> None:
        if not self._tells:
            self._tells = True
            self.attend(self._tell_those_who_listen())

    async def _tell_those_who_listen(self) -> None:
        """Tell all who may have missed something: the server was started again, mostly, and nobody has heard it."""
        now = asyncio.get_running_loop().time
        await asyncio.sleep(max(self._tells_from - now(), 0.0))
        self._tells, self._tells_from = False, now() + DOUBTS_AGAIN
        for waiter in self.pending:
            for uri in waiter.uris:
                if not waiter.is_full:
                    waiter.post(Notification("notifications/resources/updated", {"uri": uri}))
        self.host.renewed()

    # ---------------------------------------------------------------------------------------------------- asking

    def __call__(self, exchange: Exchange) -> "CoroutineType[Any, Any, Reply]":
        """The server's reply to an exchange, in the inner shape; its notices go to the exchange as they come.

        Raises:
            UpstreamError: it cannot be asked, went away, or sent something that is no answer.
        """
        return self._memory.reply_to(exchange)

    async def relay(self, exchange: Exchange, params: Params) -> Reply:
        """The server's reply to an exchange, as the server sent it."""
        if self._closed:
            raise self._gone()
        request_id = self.pending.add(Waiter(exchange))
        if exchange.profile.progress_token is not None:
            params = {**params, "_meta": {**(as_object(params.get("_meta")) or {}), "progressToken": request_id}}
        try:
            # As `_post`, without coroutines in between: this is everybody's way.
            used, letter, request = self._id, self._letter, Request(request_id, exchange.method, params)
            body, silence, resend = encoded(request), self._site.patience.silence, exchange.method in _REPEATABLE
            answer = await self._site.send_once(letter, body, first_byte=silence, resend=resend)
            opens = self._opens_results and exchange.method == "tools/call"
            result = plain_result(answer, request_id, opened=opens)
            if result is not None:
                return result
            answer = await self._site.followed(answer, letter, body, first_byte=silence, resend=resend)
            if answer.head.status in _MAY_BE_LOST:
                return await self._hear_refusal(answer, used, request, request_id, exchange)
            return await self._hear_out(answer, request_id, exchange)
        except (asyncio.CancelledError, UpstreamTimeout):
            # To hang up is not to cancel: the server has to be told.
            cancelled: Params = {"requestId": request_id, "reason": "The caller no longer waits."}
            self.send(Notification("notifications/cancelled", cancelled))
            raise
        finally:
            self.pending.claim(request_id)
            self._hearing.is_over(exchange)

    async def request(self, method: str, params: Params) -> Reply:
        """The reply to a request of our own making."""
        return await self._request(method, params, once=False)

    async def _request_once(self, method: str, params: Params) -> Reply:
        return await self._request(method, params, once=True)

    async def _request(self, method: str, params: Params, *, once: bool) -> Reply:
        waiter = Waiter(None)
        request_id = await self.enter(waiter)
        try:
            used, request = self._id, Request(request_id, method, params)
            answer = await self._post(request)
            if answer.status in _MAY_BE_LOST and not once:
                return await self._hear_refusal(answer, used, request, request_id, None)
            return await self._hear_out(answer, request_id, None)
        finally:
            self.leave(request_id, waiter)

    async def enter(self, waiter: Waiter) -> int:
        """The id of a new request."""
        if self._closed:
            raise self._gone()
        return self.pending.add(waiter)

    async def next_item(self, waiter: Waiter) -> Notification | Reply:
        """The next thing that has come for somebody who listens."""
        item = await waiter.next()
        if isinstance(item, UpstreamError):
            raise item
        return item

    def leave(self, request_id: int, waiter: Waiter) -> bool:
        """Wait no more for a request; whether its answer is still to come."""
        return self.pending.claim(request_id) is not None

    def send(self, message: Message) -> int:
        """Post a message whose answer nobody waits for."""
        body = encoded(message)
        if not self._closed:
            self._tasks.start(self._tell(message))
        return len(body)

    def attend(self, work: Coroutine[object, object, None]) -> None:
        """Do something in the background, while the session lasts."""
        if self._closed:
            work.close()
        else:
            self._tasks.start(work)

    def respond(self, request_id: RequestId, reply: Reply) -> None:
        """Answer a request of the server."""
        try:
            self.send(Response(request_id, reply))
        except LocalProtocolError as problem:
            log.error("%s gets no answer to its question: %s", self._site.name, problem)
            self.send(Response(request_id, ErrorObject(INTERNAL_ERROR, "The answer cannot be written as JSON.")))

    async def _tell(self, message: Message) -> None:
        """Post a message; whatever is said to it is not for us."""
        try:
            answer = await self._post(message, self._site.patience.taken)
        except UpstreamError as problem:
            log.warning("%s was not told something: %s", self._site.name, problem.message)
            return
        if answer.status >= 300:
            log.warning("%s refused a message with status %d.", self._site.name, answer.status)
        answer.let_end(LINGER)

    async def _hear_refusal(
        self, answer: Answer, used: str | None, request: Request, request_id: int, exchange: Exchange | None
    ) -> Reply:
        """The reply that a refusal is; if it was for the session, that to the same request in a new one."""
        refusal = await self._site.read_refusal(answer, within_session=used is not None)
        if not refusal.is_lost_session and not self._casts_doubt(refusal):
            return refusal.reply()
        # It has certainly not run: the server did not know for whom.
        await self._begin_again(used)
        return await self._hear_out(await self._post(request), request_id, exchange)

    def _casts_doubt(self, refusal: Refusal) -> bool:
        """Whether only a server of another era has a reason for a refusal, so that it has to be met anew."""
        if not isinstance(refusal.says, ErrorObject) or refusal.says.code not in _OF_ANOTHER_ERA:
            return False
        if self._renewal is None and not self._closed:
            now = asyncio.get_running_loop().time()
            if now < self._doubts_from:
                return False
            self._doubts_from = now + DOUBTS_AGAIN
        return True

    def _post(self, message: Message, first_byte: float | None = None) -> Awaitable[Answer]:
        return self._site.send(
            self._letter,
            encoded(message),
            first_byte=first_byte or self._site.patience.silence,
            resend=isinstance(message, Request) and message.method in _REPEATABLE,
        )

    def fields(self, fields: Fields) -> Fields:
        """With the headers that every request of the session carries."""
        if self._opened:
            fields = (*fields, (VERSION, self._session.version))
        return fields if self._id is None else (*fields, (SESSION, self._id))

    # --------------------------------------------------------------------------------------------------- hearing

    async def hear_push(self, message: Request | Notification) -> None:
        """Take what belongs to no call."""
        if (told := self._hearing.hear(message, None)) is not None:
            await told

    async def _hear_out(self, answer: Answer, request_id: int, exchange: Exchange | None) -> Reply:
        """The reply to a request, wherever it comes: a stream that is cut before is asked for again by GET."""
        last_id: str | None = None
        over = False
        try:
            if not 200 <= answer.status < 300:
                return await self._site.refusal_of(answer)
            while True:
                messages = Messages(self._site, answer, request_id, last_id)
                cut: UpstreamError = ended_early(self._site.name)
                reply: Reply | None = None
                has_let_go = False
                try:
                    reply = await self._reply_in(messages, exchange)
                    has_let_go = reply is None
                except (Truncated, UpstreamTimeout) as problem:
                    cut = problem
                if reply is not None:
                    over = messages.streams
                    return reply
                answer.close()
                events = messages.events
                if events is None or events.last_id is None:
                    raise cut
                last_id = events.last_id
                answer = await self._resumed(last_id, events.retry)
                if has_let_go and exchange is not None and exchange.let_go is not None:
                    # The server has time, so whoever waits for us need not hold a connection either. Not before we came
                    # back ourselves: a client that does so at once would wait for the pause that the server wants.
                    exchange.let_go()
        finally:
            if over and not self._closed:
                answer.let_end(LINGER)
            else:
                answer.close()

    async def _reply_in(self, messages: Messages, exchange: Exchange | None) -> Reply | None:
        hear = self._hearing.hear
        while (chunk := await messages.next_chunk()) is not None:
            for message in messages.read(chunk):
                if isinstance(message, Response):
                    if messages.is_reply(message):
                        return message.reply
                elif (told := hear(message, exchange)) is not None:
                    await told
        if not messages.streams:
            raise self._site.protocol_error("answers something else than what was asked")
        return None

    async def _resumed(self, last_id: str, retry: float | None) -> Answer:
        """The rest of a stream behind an event.

        Raises:
            Truncated: it is not to be had, and the request may have run.
        """
        patience = self._site.patience
        fields = self.fields((*ACCEPT_EVENTS, ("Last-Event-ID", last_id)))
        pause = patience.retry if retry is None else max(retry, SHORTEST_RETRY)
        for _ in range(MOST_FAILURES):
            await asyncio.sleep(pause)
            try:
                answer = await self._site.ask("GET", fields, first_byte=patience.silence)
            except UpstreamError:
                continue
            if answer.status == 200 and answer.head.media_type == EVENTS:
                return answer
            answer.close()
            if answer.status not in (409, 429) and answer.status < 500:
                break
            # 409: it has not noticed yet that the stream is cut. The others have no time now.
            pause = min(max(pause, retry_after(answer) or 0), LONGEST_RETRY)
        raise Truncated(f"{self._site.name} cut its event stream before the answer and does not go on with it.")
