"""A server of 2026-07-28 over HTTP: every exchange is one POST, and closing its stream cancels it."""

import asyncio
import itertools
import logging
from collections.abc import Awaitable
from typing import Final, cast

import msgspec

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
from sluicegate.http1.client import RequestTemplate
from sluicegate.protocol.headers import Marks, headers_of, marks_of
from sluicegate.protocol.message import (
    Notification,
    Params,
    Reply,
    Request,
    Response,
    Result,
    as_object,
    encode,
)
from sluicegate.protocol.methods import LOG_LEVELS, METHODS
from sluicegate.protocol.modern_era import (
    ClientProfile,
    Discovery,
    Legacy,
    judge_probe,
    stamped,
    subscription_of,
    with_profile,
)
from sluicegate.protocol.pagination import MAX_PAGES, as_raw, entries_of, is_beyond_limits, own_name, page_of, value_of
from sluicegate.protocol.parse_response import read_result
from sluicegate.protocol.tasks import REQUESTS
from sluicegate.runtime.task_scope import TaskScope, Turns
from sluicegate.upstream.http_endpoint import ACCEPT_BOTH, JSON, UpstreamEndpoint, is_about_session
from sluicegate.upstream.http_messages import END_TIMEOUT, Messages, ended_early

log = logging.getLogger("sluicegate")

MAX_MARKED: Final = 10_000
MAX_MARKED_BYTES: Final = 640 * 1024
"""Bytes of a tool whose header marks are read. The hub offers no larger tools."""
MAX_TEMPLATES: Final = 512
MAX_TEMPLATE: Final = 2048
"""Bytes of a request head that is cached: a URI may be as long as a request."""

_LISTEN: Final = "subscriptions/listen"

_REPEATABLE: Final = frozenset(
    {"completion/complete", "tasks/get", *(method for method, row in METHODS.items() if row.cacheable)}
)
"""Methods that only read, so that they may be sent twice (threats R0)."""

_NO_MARKS: Final[Marks] = {}
_NULL: Final = msgspec.Raw(b"null")

_MAY_BE_OTHER_ERA: Final = (400, 404, 405, 406, 415, 422)
"""Statuses with which a server of another era may refuse a request of this one."""

RECHECK_INTERVAL: Final = 10.0
RECHECK_TIMEOUT: Final = 10.0
"""Seconds between two checks whether the server is still of this era, and for the answer."""


class ModernHttp:
    """A `Connection` without a session."""

    transport: Final = "http"

    def __init__(self, endpoint: UpstreamEndpoint, host: Host, tasks: TaskScope, version: str) -> None:
        self.discovery = Discovery(version)
        self._endpoint = endpoint
        self._host = host
        self._tasks = tasks
        self._ids = itertools.count(1)
        self._client_info = host.client_info
        self._marks: dict[str, Marks] = {}
        self._templates: dict[tuple[str, str | None], RequestTemplate] = {}
        self._closed = False
        self._over = asyncio.Event()
        self._check_lock = asyncio.Lock()
        self._next_check = 0.0

    async def __call__(self, exchange: Exchange) -> Reply:
        """The server's reply to an exchange. Notifications go to the exchange as they come.

        Raises:
            UpstreamError: the server cannot be reached, went away, or sent an invalid answer.
        """
        try:
            reply = await self._ask(exchange)
        except (UpstreamClosed, Truncated):
            if exchange.method not in _REPEATABLE:
                raise
            reply = await self._ask(exchange)  # Streams cannot be resumed in this era: retry once.
        if exchange.method == "tools/list":
            return await self._learn(reply)
        if exchange.method == "tools/call" and isinstance(reply, ErrorObject) and reply.code == HEADER_MISMATCH:
            # It was refused before it ran: the header marks of the tool have changed, or we did not know them.
            await self._relearn(exchange)
            return await self._ask(exchange)
        return reply

    async def aclose(self) -> None:
        """Close connections as soon as their calls end. There is no session to end."""
        self._closed = True

    async def wait_closed(self) -> None:
        """Return when the server is no longer of this era. An outage does not end the connection."""
        await self._over.wait()

    async def discover(self, version: str) -> Reply:
        """The reply to `server/discover` in this revision.

        Raises:
            UpstreamError: the server cannot be reached, or sent no valid answer.
        """
        profile = ClientProfile(version, self._host.capabilities, self._host.client_info)
        request_id = next(self._ids)
        request = Request(request_id, "server/discover", with_profile({}, profile, None))
        template = self._template(version, request.method, request.params, _NO_MARKS)
        answer = await self._endpoint.send(
            template, encode(request), first_byte=self._endpoint.timeouts.silence, resend=True
        )
        if answer.status == 429 or answer.status >= 500:
            # An outage, whatever its body says. It must not be taken for the refusal of an older server.
            answer.close()
            raise self._endpoint.status_error(answer)
        return await self._read_reply(answer, request_id, None)

    async def _ask(self, exchange: Exchange) -> Reply:
        if self._over.is_set():
            raise self._gone()
        request_id = next(self._ids)
        template, body = self._template_of(exchange), self._body_of(exchange, request_id)
        silence, resend = self._endpoint.timeouts.silence, exchange.method in _REPEATABLE
        answer = await self._endpoint.send_once(template, body, first_byte=silence, resend=resend)
        # Nearly all answers are one JSON body, which is here already.
        reply = read_result(answer.success(JSON), request_id)
        if reply is not None:
            return reply
        answer = await self._endpoint.followed(answer, template, body, first_byte=silence, resend=resend)
        return await self._read_reply(answer, request_id, exchange)

    def _body_of(self, exchange: Exchange, request_id: int) -> bytes:
        said = exchange.profile
        token = None if said.progress_token is None else request_id
        params = stamped(exchange.params, said, self.discovery.version, self._client_info, token)
        return encode(Request(request_id, exchange.method, params))

    def _template_of(self, exchange: Exchange) -> RequestTemplate:
        """The head of a request, cached by method and name unless arguments are mirrored in headers."""
        method, name = exchange.method, exchange.name
        marks = self._marks.get(name or "") if method == "tools/call" else None
        if marks:
            return self._template(self.discovery.version, method, exchange.params, marks)
        template = self._templates.get((method, name))
        if template is None:
            template = self._template(self.discovery.version, method, exchange.params, _NO_MARKS)
            # Not of tasks: each has its own name and few requests, and would only evict the others.
            if len(template.head) <= MAX_TEMPLATE and method not in REQUESTS:
                if len(self._templates) >= MAX_TEMPLATES:
                    self._templates.clear()  # Simpler than LRU, and the few in use come back at once.
                self._templates[method, name] = template
        return template

    def _template(self, version: str, method: str, params: Params, marks: Marks) -> RequestTemplate:
        return self._endpoint.request_template("POST", (*ACCEPT_BOTH, *headers_of(version, method, params, marks)))

    async def _read_reply(self, answer: Answer, request_id: int, exchange: Exchange | None) -> Reply:
        over = False
        try:
            if not 200 <= answer.status < 300:
                return await self._read_refusal(answer, exchange)
            # Endless: two changes may be days apart.
            endless = exchange is not None and exchange.method == _LISTEN
            messages = Messages(self._endpoint, answer, request_id, endless=endless)
            while (chunk := await messages.next_chunk()) is not None:
                for message in messages.read(chunk):
                    if isinstance(message, Notification):
                        self._host.on_sign_of_life()
                        passing_on = None if exchange is None else self._pass_on(message, request_id, exchange)
                        if passing_on is not None:
                            await passing_on
                    elif isinstance(message, Response) and messages.is_reply(message):
                        over = messages.streams
                        return message.reply
            if not messages.streams:
                raise self._endpoint.protocol_error("answers something else than what was asked")
            raise ended_early(self._endpoint.name)
        finally:
            if over and not self._closed:
                answer.let_end(END_TIMEOUT)
            else:
                answer.close()  # This tells the server to stop.

    async def _read_refusal(self, answer: Answer, exchange: Exchange | None) -> Reply:
        refusal = await self._endpoint.read_refusal(answer)
        says = refusal.says
        doubtful = answer.status in _MAY_BE_OTHER_ERA and (isinstance(says, UpstreamError) or _speaks_older(says))
        if exchange is not None and doubtful and not await self._is_still_modern():
            # A JSON-RPC error like this means that the call did not begin. A bare status may mean anything.
            delivered = "no" if isinstance(says, ErrorObject) else says.delivered
            raise self._gone(delivered)
        return refusal.reply()

    def _gone(self, delivered: Delivered = "no") -> UpstreamClosed:
        problem = f"{self._endpoint.name} has changed: it no longer knows server/discover."
        return UpstreamClosed(problem, delivered=delivered)

    async def _is_still_modern(self) -> bool:
        """Whether the server still answers `server/discover`; checked at most every `RECHECK_INTERVAL`."""
        async with self._check_lock:
            now = asyncio.get_running_loop().time()
            if self._over.is_set() or now < self._next_check:
                return not self._over.is_set()
            self._next_check = now + RECHECK_INTERVAL
            try:
                async with asyncio.timeout(RECHECK_TIMEOUT):
                    reply = await self.discover(self.discovery.version)
                # Other errors than these are trouble of the server and say nothing about its era.
                is_modern = not isinstance(judge_probe(reply), Legacy)
                if isinstance(reply, ErrorObject):
                    is_modern |= not (reply.code == METHOD_NOT_FOUND or _speaks_older(reply))
            except UpstreamProtocolError as problem:
                is_modern = (
                    problem.data.get("status") not in _MAY_BE_OTHER_ERA
                )  # Such a status means that the method is unknown.
            except (TimeoutError, UpstreamError):
                is_modern = True  # An outage, which says nothing about the era.
            if not is_modern:
                self._over.set()
            return is_modern

    def _pass_on(self, notice: Notification, request_id: int, exchange: Exchange) -> Awaitable[None] | None:
        """Work that passes on a notification; None if there is none."""
        profile = exchange.profile
        match notice.method:
            case "notifications/progress":
                if profile.progress_token is None or not _is(notice.params.get("progressToken"), request_id):
                    return None
                notice.params["progressToken"] = profile.progress_token  # Just decoded, so not shared yet.
                return exchange.emit(notice)
            case "notifications/message":
                return exchange.emit(notice) if wants_log(profile, notice) else None
            case "notifications/cancelled":
                return None  # The end of the stream means the same.
            case _:
                _, notice = subscription_of(notice)
                return (exchange if exchange.method == _LISTEN else self._host.sink).emit(notice)

    # ------------------------------------------------------------------------------------------- header marks

    async def _learn(self, reply: Reply) -> Reply:
        """The reply without tools that have invalid header marks; the marks of the others are remembered."""
        if not isinstance(reply, Result):
            return reply
        reply = Result(as_raw(reply.value))
        if not _may_be_marked(reply.value):
            return reply  # Nearly all lists, which need no parsing.
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
        """Whether a tool's marks are valid; they are remembered. Tools that are too large count as unmarked."""
        if not _may_be_marked(tool) or len(memoryview(tool)) > MAX_MARKED_BYTES:
            if self._marks:
                self._marks.pop(own_name(tool, "name"), None)
            return True
        value = value_of(tool)
        if is_beyond_limits(tool, value):
            return True
        members = as_object(value) or {}
        name, marks = members.get("name"), marks_of(members.get("inputSchema"))
        if marks is None:
            log.warning(
                "%s: the tool %s has an invalid x-mcp-header and is left out.", self._endpoint.name, ascii(name)
            )
        elif isinstance(name, str):
            self._remember(name, marks)
        return marks is not None

    def _remember(self, name: str, marks: Marks) -> None:
        if not marks:
            self._marks.pop(name, None)
        elif len(self._marks) < MAX_MARKED or name in self._marks:
            self._marks[name] = marks

    async def _relearn(self, exchange: Exchange) -> None:
        """Read the list of tools again, up to the called tool."""
        wanted = exchange.name or ""
        self._marks.pop(wanted, None)
        cursor: object = None
        for _ in range(MAX_PAGES):
            params: Params = {} if cursor is None else {"cursor": cursor}
            profile = ClientProfile(exchange.profile.version, exchange.profile.capabilities)
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
    """Whether a definition or a page of definitions may contain header marks, perhaps with JSON escapes."""
    found = bytes(as_raw(data))
    return b"x-mcp-header" in found or b"\\u" in found


def wants_log(profile: ClientProfile, notification: Notification) -> bool:
    """Whether a request asked for log lines of this level."""
    level, wanted = notification.params.get("level"), profile.log_level
    if wanted is None or level not in LOG_LEVELS:
        return False
    return LOG_LEVELS.index(cast(str, level)) >= LOG_LEVELS.index(wanted)


def _speaks_older(error: ErrorObject) -> bool:
    """Whether a server of the session era would refuse a request like this."""
    return error.code in (INVALID_REQUEST, UNSUPPORTED_VERSION) or is_about_session(error)


def _is(token: object, request_id: int) -> bool:
    return type(token) is int and token == request_id or token == str(request_id)
