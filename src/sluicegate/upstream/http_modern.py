"""A server of 2026-07-28 over HTTP: every exchange is one POST, and to cancel it is to hang up."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable
from typing import Final, cast

import msgspec

from sluicegate.concurrency import TaskScope, Turns
from sluicegate.errors import (
    HEADER_MISMATCH,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    UNSUPPORTED_VERSION,
    Delivered,
    ErrorObject,
    RemoteProtocolError,
    Truncated,
    UpstreamClosed,
    UpstreamError,
    UpstreamProtocolError,
)
from sluicegate.exchange import Exchange, Host
from sluicegate.http1 import Answer
from sluicegate.http1.client import Letterhead
from sluicegate.protocol.discovery import Discovery, Legacy, judge_probe
from sluicegate.protocol.gathering import MOST_PAGES
from sluicegate.protocol.headers import Marks, headers_of, marks_of
from sluicegate.protocol.message import (
    Notification,
    Params,
    Reply,
    Request,
    Response,
    Result,
    as_object,
)
from sluicegate.protocol.methods import LOG_LEVELS, METHODS
from sluicegate.protocol.modern import Profile, subscription_of, with_profile
from sluicegate.protocol.pages import as_raw, entries_of, is_beyond_limits, own_name, page_of, value_of
from sluicegate.protocol.tasks import REQUESTS
from sluicegate.upstream.messages import LINGER, Messages, ended_early, plain_result
from sluicegate.upstream.site import ACCEPT_BOTH, Site, is_about_session
from sluicegate.upstream.stamp import Stamp
from sluicegate.upstream.writing import encoded

log = logging.getLogger("sluicegate")

MOST_MARKED: Final = 10_000
LARGEST_MARKED: Final = 640 * 1024
"""How large a tool may be whose marks are looked for: larger ones no gateway offers."""
MOST_LETTERS: Final = 512
LONGEST_LETTER: Final = 2048
"""Of those that are kept: a URI may be as long as a request."""

_LISTEN: Final = "subscriptions/listen"

_REPEATABLE: Final = frozenset(
    {"completion/complete", "tasks/get", *(method for method, row in METHODS.items() if row.cacheable)}
)
"""What does no harm if the server is asked twice: what only looks, never what may act (threats R0)."""

_NO_MARKS: Final[Marks] = {}
_NULL: Final = msgspec.Raw(b"null")

_DOUBTFUL: Final = (400, 404, 405, 406, 415, 422)
"""With what a server of another era refuses a request of this one, among others."""

DOUBTS_AGAIN: Final = 10.0
DOUBTS_WITHIN: Final = 10.0
"""Seconds until a server is asked once more whether it is still of this era, and that it has to say so."""


class ModernHttp:
    """A `Connection` to a server that remembers nothing of us."""

    transport: Final = "http"

    def __init__(self, site: Site, host: Host, tasks: TaskScope, version: str, *, opens_results: bool = False) -> None:
        self.discovery = Discovery(version)
        self._site = site
        self._host = host
        self._tasks = tasks
        self._ids = itertools.count(1)
        self._opens_results = opens_results
        self._stamp = Stamp(host.client_info)
        self._marks: dict[str, Marks] = {}
        self._letters: dict[tuple[str, str | None], Letterhead] = {}
        self._closed = False
        self._over = asyncio.Event()
        self._doubting = asyncio.Lock()
        self._doubts_from = 0.0

    async def __call__(self, exchange: Exchange) -> Reply:
        """The server's reply to an exchange; its notices go to the exchange as they come.

        Raises:
            UpstreamError: it cannot be asked, went away, or sent something that is no answer.
        """
        try:
            reply = await self._ask(exchange)
        except (UpstreamClosed, Truncated):
            if exchange.method not in _REPEATABLE:
                raise
            reply = await self._ask(exchange)  # Nobody took a stream up again in this era; it is asked for anew, once.
        if exchange.method == "tools/list":
            return await self._learn(reply)
        if exchange.method == "tools/call" and isinstance(reply, ErrorObject) and reply.code == HEADER_MISMATCH:
            # It was refused before it ran: the tool's headers are others than we knew, or we knew of none.
            await self._learn_anew(exchange)
            return await self._ask(exchange)
        return reply

    async def aclose(self) -> None:
        """Nothing to say goodbye to; calls under way may come to their end, and leave nothing behind."""
        self._closed = True

    async def wait_closed(self) -> None:
        """Return when the server is not of this era any more; else it is asked anew each time, and as good as ever."""
        await self._over.wait()

    async def discover(self, version: str) -> Reply:
        """The reply to `server/discover` in this revision.

        Raises:
            UpstreamError: there is none.
        """
        profile = Profile(version, self._host.capabilities, self._host.client_info)
        request_id = next(self._ids)
        request = Request(request_id, "server/discover", with_profile({}, profile, None))
        letter = self._letter(version, request.method, request.params, _NO_MARKS)
        answer = await self._site.send(letter, encoded(request), first_byte=self._site.patience.silence, resend=True)
        if answer.status == 429 or answer.status >= 500:
            # An outage, whatever its body says: taken for the answer of an older server it would be remembered.
            answer.close()
            raise self._site.status_error(answer)
        return await self._hear_out(answer, request_id, None)

    async def _ask(self, exchange: Exchange) -> Reply:
        if self._over.is_set():
            raise self._gone()
        request_id = next(self._ids)
        letter, body = self._letter_of(exchange), self._body_of(exchange, request_id)
        silence, resend = self._site.patience.silence, exchange.method in _REPEATABLE
        answer = await self._site.send_once(letter, body, first_byte=silence, resend=resend)
        opens = self._opens_results and exchange.method == "tools/call"
        reply = plain_result(answer, request_id, opened=opens)
        if reply is not None:
            return reply
        answer = await self._site.followed(answer, letter, body, first_byte=silence, resend=resend)
        return await self._hear_out(answer, request_id, exchange)

    def _body_of(self, exchange: Exchange, request_id: int) -> bytes:
        said = exchange.profile
        token = None if said.progress_token is None else request_id
        params = self._stamp.on(exchange.params, self.discovery.version, said, token)
        return encoded(Request(request_id, exchange.method, params))

    def _letter_of(self, exchange: Exchange) -> Letterhead:
        """The head of a request: that of the same method and name is the same, save where arguments are marked."""
        method, name = exchange.method, exchange.name
        marks = self._marks.get(name or "") if method == "tools/call" else None
        if marks:
            return self._letter(self.discovery.version, method, exchange.params, marks)
        letter = self._letters.get((method, name))
        if letter is None:
            letter = self._letter(self.discovery.version, method, exchange.params, _NO_MARKS)
            # Tasks come and go: a head about one is soon of no use, and would take the place of others.
            if len(letter.head) <= LONGEST_LETTER and method not in REQUESTS:
                if len(self._letters) >= MOST_LETTERS:
                    self._letters.clear()  # The few in use are back at once; no order has to be kept for it.
                self._letters[method, name] = letter
        return letter

    def _letter(self, version: str, method: str, params: Params, marks: Marks) -> Letterhead:
        return self._site.letterhead("POST", (*ACCEPT_BOTH, *headers_of(version, method, params, marks)))

    async def _hear_out(self, answer: Answer, request_id: int, exchange: Exchange | None) -> Reply:
        over = False
        try:
            if not 200 <= answer.status < 300:
                return await self._hear_refusal(answer, exchange)
            # Changes may be days apart. Whoever wants to know sooner that a server is gone asks it something.
            endless = exchange is not None and exchange.method == _LISTEN
            messages = Messages(self._site, answer, request_id, endless=endless)
            while (chunk := await messages.next_chunk()) is not None:
                for message in messages.read(chunk):
                    if isinstance(message, Notification):
                        told = None if exchange is None else self._told(message, request_id, exchange)
                        if told is not None:
                            await told
                    elif isinstance(message, Response) and messages.is_reply(message):
                        over = messages.streams
                        return message.reply
            if not messages.streams:
                raise self._site.protocol_error("answers something else than what was asked")
            raise ended_early(self._site.name)
        finally:
            if over and not self._closed:
                answer.let_end(LINGER)
            else:
                answer.close()  # To hang up tells the server to stop.

    async def _hear_refusal(self, answer: Answer, exchange: Exchange | None) -> Reply:
        refusal = await self._site.read_refusal(answer)
        says = refusal.says
        doubtful = answer.status in _DOUBTFUL and (isinstance(says, UpstreamError) or _speaks_older(says))
        if exchange is not None and doubtful and not await self._is_still_modern():
            # Such an error says that it was not begun; of a bare status nobody knows what it says.
            delivered = "no" if isinstance(says, ErrorObject) else says.delivered
            raise self._gone(delivered)
        return refusal.reply()

    def _gone(self, delivered: Delivered = "no") -> UpstreamClosed:
        problem = f"{self._site.name} is not the server that it was: it does not know server/discover any more."
        return UpstreamClosed(problem, delivered=delivered)

    async def _is_still_modern(self) -> bool:
        """Whether the server is of this era, as it says when it is asked; that is asked now and then only."""
        async with self._doubting:
            now = asyncio.get_running_loop().time()
            if self._over.is_set() or now < self._doubts_from:
                return not self._over.is_set()
            self._doubts_from = now + DOUBTS_AGAIN
            try:
                async with asyncio.timeout(DOUBTS_WITHIN):
                    reply = await self.discover(self.discovery.version)
                # Other errors than these say that it has trouble, not what it speaks: it was of this era before.
                is_modern = not isinstance(judge_probe(reply), Legacy)
                if isinstance(reply, ErrorObject):
                    is_modern |= not (reply.code == METHOD_NOT_FOUND or _speaks_older(reply))
            except UpstreamProtocolError as problem:
                is_modern = problem.data.get("status") not in _DOUBTFUL  # Such a one does not know the method.
            except (TimeoutError, UpstreamError):
                is_modern = True  # An outage, which says nothing about what it speaks.
            if not is_modern:
                self._over.set()
            return is_modern

    def _told(self, notice: Notification, request_id: int, exchange: Exchange) -> Awaitable[None] | None:
        """Who is told of a notice; to be awaited if not None."""
        profile = exchange.profile
        match notice.method:
            case "notifications/progress":
                if profile.progress_token is None or not _is(notice.params.get("progressToken"), request_id):
                    return None
                notice.params["progressToken"] = profile.progress_token  # Just decoded: they are nobody else's yet.
                return exchange.emit(notice)
            case "notifications/message":
                return exchange.emit(notice) if wants_log(profile, notice) else None
            case "notifications/cancelled":
                return None  # The end of the stream says the same.
            case _:
                _, notice = subscription_of(notice)
                return (exchange if exchange.method == _LISTEN else self._host.sink).emit(notice)

    # ------------------------------------------------------------------------------------------- header marks

    async def _learn(self, reply: Reply) -> Reply:
        """The reply without the tools that have invalid marks; the marks of the others are remembered."""
        if not isinstance(reply, Result):
            return reply
        reply = Result(as_raw(reply.value))
        if not _may_be_marked(reply.value):
            return reply  # Nearly all lists: nothing to learn, and nothing that must be opened.
        turns = Turns()
        turns.begin()
        try:
            page = page_of(reply)
            await turns.share()
            tools = None if page is None else entries_of(page.get("tools"))
            if page is None or tools is None:
                return reply
            kept: list[msgspec.Raw] = []
            for tool in tools:
                await turns.share()
                if self._learn_of(tool):
                    kept.append(tool)
        except RemoteProtocolError:
            return reply
        return reply if len(kept) == len(tools) else Result(as_raw({**page, "tools": kept}))

    def _learn_of(self, tool: msgspec.Raw) -> bool:
        """Whether a tool's marks are valid; they are remembered. One that is too large to look at has none."""
        if not _may_be_marked(tool) or len(memoryview(tool)) > LARGEST_MARKED:
            if self._marks:
                self._marks.pop(own_name(tool, "name"), None)
            return True
        value = value_of(tool)
        if is_beyond_limits(tool, value):
            return True
        members = as_object(value) or {}
        name, marks = members.get("name"), marks_of(members.get("inputSchema"))
        if marks is None:
            log.warning("%s: the tool %s has invalid header marks and is left out.", self._site.name, ascii(name))
        elif isinstance(name, str):
            self._remember(name, marks)
        return marks is not None

    def _remember(self, name: str, marks: Marks) -> None:
        if not marks:
            self._marks.pop(name, None)
        elif len(self._marks) < MOST_MARKED or name in self._marks:
            self._marks[name] = marks

    async def _learn_anew(self, exchange: Exchange) -> None:
        """Read the list of tools again, up to the tool that is called."""
        wanted = exchange.name or ""
        self._marks.pop(wanted, None)
        cursor: object = None
        for _ in range(MOST_PAGES):
            params: Params = {} if cursor is None else {"cursor": cursor}
            profile = Profile(exchange.profile.version, exchange.profile.capabilities)
            reply = await self._learn(await self._ask(Exchange("tools/list", params, exchange.sink, profile)))
            try:
                page = page_of(reply) if isinstance(reply, Result) else None
                following = value_of((page or {}).get("nextCursor", _NULL))
            except RemoteProtocolError:
                return
            if wanted in self._marks or not isinstance(following, str) or following == cursor:
                return
            cursor = following


def _may_be_marked(data: object) -> bool:
    """Whether header marks stand in it, or what could be some, spelled otherwise."""
    found = bytes(as_raw(data))
    return b"x-mcp-header" in found or b"\\u" in found


def wants_log(profile: Profile, notification: Notification) -> bool:
    """Whether a request asked for log lines of this level."""
    level, wanted = notification.params.get("level"), profile.log_level
    if wanted is None or level not in LOG_LEVELS:
        return False
    return LOG_LEVELS.index(cast(str, level)) >= LOG_LEVELS.index(wanted)


def _speaks_older(error: ErrorObject) -> bool:
    """Whether a request is refused as servers of the session era refuse one without a session, or of this revision."""
    return error.code in (INVALID_REQUEST, UNSUPPORTED_VERSION) or is_about_session(error)


def _is(token: object, request_id: int) -> bool:
    return type(token) is int and token == request_id or token == str(request_id)
