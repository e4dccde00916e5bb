"""A server of 2026-07-28 over HTTP: every exchange is one POST, and to cancel it is to hang up."""

import itertools
import logging
from typing import Final, cast

import msgspec

from sluicegate.concurrency import TaskScope, forever
from sluicegate.errors import HEADER_MISMATCH, ErrorObject, RemoteProtocolError, Truncated, UpstreamClosed
from sluicegate.exchange import Exchange, Host
from sluicegate.http1 import Answer
from sluicegate.protocol.gathering import MOST_PAGES
from sluicegate.protocol.headers import Marks, headers_of, marks_of
from sluicegate.protocol.message import (
    Notification,
    Params,
    Reply,
    Request,
    Response,
    Result,
    as_array,
    as_object,
    opened,
)
from sluicegate.protocol.methods import LOG_LEVELS, METHODS
from sluicegate.protocol.modern import Discovery, Profile, subscription_of, with_profile
from sluicegate.upstream.messages import Messages, encoded, ended_early, read_to_end
from sluicegate.upstream.site import ACCEPT_BOTH, Site

log = logging.getLogger("sluicegate")

MOST_MARKED: Final = 10_000
_LISTEN: Final = "subscriptions/listen"
_NO_MARKS: Final[Marks] = {}


class ModernHttp:
    """A `Connection` to a server that remembers nothing of us."""

    def __init__(self, site: Site, host: Host, tasks: TaskScope, version: str) -> None:
        self.discovery = Discovery(version)
        self._site = site
        self._host = host
        self._tasks = tasks
        self._ids = itertools.count(1)
        self._marks: dict[str, Marks] = {}
        self._closed = False

    async def __call__(self, exchange: Exchange) -> Reply:
        """The server's reply to an exchange; its notices go to the exchange as they come.

        Raises:
            UpstreamError: it cannot be asked, went away, or sent something that is no answer.
        """
        try:
            reply = await self._ask(exchange)
        except (UpstreamClosed, Truncated):
            if not _may_be_repeated(exchange.method):
                raise
            reply = await self._ask(exchange)  # Nobody took a stream up again in this era; it is asked for anew, once.
        if exchange.method == "tools/list":
            return self._learn(reply)
        if exchange.method == "tools/call" and isinstance(reply, ErrorObject) and reply.code == HEADER_MISMATCH:
            # It was refused before it ran: the tool's headers are others than we knew, or we knew of none.
            await self._learn_anew(exchange)
            return await self._ask(exchange)
        return reply

    async def aclose(self) -> None:
        """Nothing to say goodbye to; calls under way may come to their end, and leave nothing behind."""
        self._closed = True

    async def wait_closed(self) -> None:
        """Never return: a server that is asked anew each time is as good as ever."""
        await forever()

    async def discover(self, version: str) -> Reply:
        """The reply to `server/discover` in this revision.

        Raises:
            UpstreamError: there is none.
        """
        profile = Profile(version, self._host.capabilities, self._host.client_info)
        answer, request_id = await self._post("server/discover", {}, profile, None, _NO_MARKS)
        if answer.status == 429 or answer.status >= 500:
            # An outage, whatever its body says: taken for the answer of an older server it would be remembered.
            answer.close()
            raise self._site.status_error(answer)
        return await self._reply_in(answer, request_id, None)

    async def _ask(self, exchange: Exchange) -> Reply:
        said = exchange.profile
        profile = Profile(self.discovery.version, said.capabilities, self._host.client_info, said.log_level)
        marks = self._marks.get(exchange.name or "", _NO_MARKS) if exchange.method == "tools/call" else _NO_MARKS
        answer, request_id = await self._post(exchange.method, exchange.params, profile, exchange, marks)
        return await self._reply_in(answer, request_id, exchange)

    async def _post(
        self,
        method: str,
        params: Params,
        profile: Profile,
        exchange: Exchange | None,
        marks: Marks,
    ) -> tuple[Answer, int]:
        request_id = next(self._ids)
        token = request_id if exchange is not None and exchange.profile.progress_token is not None else None
        params = with_profile(params, profile, token)
        answer = await self._site.ask(
            "POST",
            (*ACCEPT_BOTH, *headers_of(profile.version, method, params, marks)),
            encoded(Request(request_id, method, params)),
            first_byte=self._site.patience.silence,
            resend=_may_be_repeated(method),
        )
        return answer, request_id

    async def _reply_in(self, answer: Answer, request_id: int, exchange: Exchange | None) -> Reply:
        over = False
        try:
            if not 200 <= answer.status < 300:
                return await self._site.refusal_of(answer)
            # Changes may be days apart. Whoever wants to know sooner that a server is gone asks it something.
            endless = exchange is not None and exchange.method == _LISTEN
            messages = Messages(self._site, answer, request_id, endless=endless)
            while (message := await messages.next()) is not None:
                if isinstance(message, Response) and messages.is_reply(message):
                    over = messages.streams
                    return message.reply
                if isinstance(message, Notification) and exchange is not None:
                    await self._notice(message, request_id, exchange)
            if not messages.streams:
                raise self._site.protocol_error("answers something else than what was asked")
            raise ended_early(self._site.name)
        finally:
            if over and not self._closed:
                self._tasks.start(read_to_end(answer))
            else:
                answer.close()  # To hang up tells the server to stop.

    async def _notice(self, notification: Notification, request_id: int, exchange: Exchange) -> None:
        profile = exchange.profile
        match notification.method:
            case "notifications/progress":
                if profile.progress_token is not None and _is(notification.params.get("progressToken"), request_id):
                    params = {**notification.params, "progressToken": profile.progress_token}
                    await exchange.emit(Notification(notification.method, params))
            case "notifications/message":
                if wants_log(profile, notification):
                    await exchange.emit(notification)
            case "notifications/cancelled":
                pass  # The end of the stream says the same.
            case _:
                _, notice = subscription_of(notification)
                await (exchange if exchange.method == _LISTEN else self._host.sink).emit(notice)

    # ------------------------------------------------------------------------------------------- header marks

    def _learn(self, reply: Reply) -> Reply:
        """The reply without the tools that have invalid marks; the marks of the others are remembered."""
        if not isinstance(reply, Result):
            return reply
        raw = reply.value
        if isinstance(raw, msgspec.Raw):
            data = bytes(raw)
            if b"x-mcp-header" not in data and b"\\u" not in data:
                return reply  # Nearly all lists: nothing to learn, and nothing that must be opened.
        try:
            value = opened(reply)
        except RemoteProtocolError:
            return reply
        kept: list[object] = []
        tools = as_array(value.get("tools")) or []
        for tool in tools:
            members = as_object(tool) or {}
            name, marks = members.get("name"), marks_of(members.get("inputSchema"))
            if marks is None:
                log.warning("%s: the tool %s has invalid header marks and is left out.", self._site.name, ascii(name))
            else:
                kept.append(tool)
                if isinstance(name, str):
                    self._remember(name, marks)
        return reply if len(kept) == len(tools) else Result({**value, "tools": kept})

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
            reply = self._learn(await self._ask(Exchange("tools/list", params, exchange.sink, profile)))
            try:
                following = opened(reply).get("nextCursor") if isinstance(reply, Result) else None
            except RemoteProtocolError:
                return
            if wanted in self._marks or not isinstance(following, str) or following == cursor:
                return
            cursor = following


def _may_be_repeated(method: str) -> bool:
    """Whether it does no harm if the server is asked twice: what only looks, never what may act (threats R0)."""
    row = METHODS.get(method)
    return row is not None and (row.cacheable or method == "completion/complete")


def wants_log(profile: Profile, notification: Notification) -> bool:
    """Whether a request asked for log lines of this level."""
    level, wanted = notification.params.get("level"), profile.log_level
    if wanted is None or level not in LOG_LEVELS:
        return False
    return LOG_LEVELS.index(cast(str, level)) >= LOG_LEVELS.index(wanted)


def _is(token: object, request_id: int) -> bool:
    return type(token) is int and token == request_id or token == str(request_id)
