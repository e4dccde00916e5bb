"""One endpoint for Streamable HTTP of every revision and HTTP+SSE of 2024-11-05.

2026-07-28 keeps only calls that wait for an answer. The session era has its sessions, the oldest transport a channel
for each client. The era of a request is decided once, from headers and body together.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from functools import cached_property, partial
from time import monotonic
from typing import TYPE_CHECKING, Final

from sluicegate.downstream import browser_page
from sluicegate.downstream.duplex import INPUT_TIMEOUT
from sluicegate.downstream.http_guard import (
    LARGE_BODY,
    LOOPBACK,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    SESSION_HEADER,
    STOPPING,
    Accepted,
    HeadFacts,
    HeadFactsCache,
    HostPolicy,
    HttpLimits,
    check_body,
    too_many,
)
from sluicegate.downstream.http_response import JSON_FIELDS, HttpRequest, KeepAlive, ModernStream, refuse, status_of
from sluicegate.downstream.http_sessions import MISSING, Sessions
from sluicegate.downstream.legacy_sse import SseChannels
from sluicegate.downstream.modern_client import ModernCalls, state_of_retry
from sluicegate.errors import (
    HEADER_MISMATCH,
    UNSUPPORTED_VERSION,
    ConfigError,
    RemoteProtocolError,
    ShuttingDown,
    error_object,
)
from sluicegate.exchange import NETWORK, Caller, Exchange, Handler, chain
from sluicegate.protocol.headers import VERSION
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
from sluicegate.protocol.methods import JUDGED
from sluicegate.protocol.modern_era import complete, is_modern, marked, read_request
from sluicegate.protocol.native import is_native, read_call
from sluicegate.protocol.parse_request import parse_in_steps, parse_strict, read_message
from sluicegate.protocol.server_connection import Asked
from sluicegate.protocol.versions import MODERN_VERSIONS, SUPPORTED_VERSIONS
from sluicegate.runtime.clients import MAX_LENGTH
from sluicegate.runtime.identity import Identify, Identity, IncomingRequest, Refusal
from sluicegate.runtime.quota import Exceeded, Lease, Quota
from sluicegate.runtime.task_scope import OneByOne, TaskScope

if TYPE_CHECKING:
    from sluicegate.downstream.asgi_request import AsgiRequest, Receive, Send
    from sluicegate.downstream.native.tools import NativeTools
    from sluicegate.downstream.native.websocket import Sockets

log: Final = logging.getLogger("sluicegate")

LOCAL_USER: Final = Caller()

_OWN_PATHS: Final = ("/sse", "/messages", "/native", "/healthz", "/readyz")


def caller_by_address(request: IncomingRequest) -> Caller:
    """The local user for clients on this machine, `network` for all others (T38).

    A client that reaches this machine by an address of its network counts as one of the network.
    """
    peer = request.peer
    is_here = peer.startswith("127.") or peer == "::1" or peer.startswith("::ffff:127.")
    return LOCAL_USER if is_here else NETWORK


def _refuse_when_stopping(exchange: Exchange, proceed: Handler) -> Awaitable[Reply]:
    """The step of an endpoint that is about to stop. Others of the same gateway may go on."""
    if exchange.resume is None and not exchange.is_continued:
        raise ShuttingDown(STOPPING.sentence)
    return proceed(exchange)


Route = Callable[[HttpRequest, HeadFacts, Caller], None]


class HttpEndpoint:
    """Answers HTTP requests with a handler. `async with` keeps its sessions and calls; call it for each request."""

    def __init__(
        self,
        handler: Handler,
        *,
        path: str = "/mcp",
        hosts: HostPolicy | None = None,
        hold: float = INPUT_TIMEOUT,
        limits: HttpLimits | None = None,
        streams: Quota | None = None,
        sse: bool = True,
        identify: Identify = caller_by_address,
        is_able: Callable[[], bool] = lambda: True,
        not_found: Callable[[HttpRequest], Refusal | None] = lambda request: None,
    ) -> None:
        """`streams` counts open streams, for endpoints that share one limit; else `limits` says how many there may be.

        `sse` is whether the oldest transport, HTTP+SSE, is served too; `is_able` is asked for `/readyz`. `identify`
        returns the caller of a request. `not_found` may return a refusal of its own for a path that has no use here.

        Raises:
            ConfigError: the path is one that has another use here.
        """
        if path in _OWN_PATHS:
            raise ConfigError(f"{path} cannot be the MCP endpoint: {', '.join(_OWN_PATHS)} have other uses.")
        limits = limits or HttpLimits()
        self._streams = streams or Quota(limits.streams, limits.streams_of_one)
        self._host_policy = hosts or HostPolicy()
        self._is_able = is_able
        self._not_found = not_found
        self._heads = HeadFactsCache(self._host_policy)
        self._path = path
        self._identify = identify
        self._tasks = TaskScope()
        self._keepalive = KeepAlive()
        self._large_bodies = OneByOne()
        self._handler = handler = chain((), handler)
        self._hold = hold
        self._stateless = handler.clients.stateless
        self._modern = ModernCalls(handler, self._tasks, hold)
        self._sessions = Sessions(handler, self._tasks, limits, self._streams, hold, self._keepalive)
        self._channels = SseChannels(handler, self._tasks, self._streams, hold, self._keepalive, self._large_bodies)
        self._listening: dict[ModernStream, Lease] = {}
        self._stopping = False
        # Answered to any client: programs that probe have no credentials, and learn nothing about callers.
        self._probes: dict[tuple[str, str], Callable[[HttpRequest], None]] = {
            ("GET", "/healthz"): lambda request: request.respond(200, JSON_FIELDS, b'{"status":"ok"}'),
            ("GET", "/readyz"): self._ready,
        }
        self._routes: dict[tuple[str, str], Route] = {
            ("POST", path): self._post,
            ("GET", path): self._get,
            ("DELETE", path): self._delete,
            ("GET", "/native"): self._open_socket,
        }
        if sse:
            self._routes["GET", "/sse"] = self._open_channel
            self._routes["POST", "/messages"] = self._post_to_channel

    async def __aenter__(self) -> "HttpEndpoint":
        await self._tasks.__aenter__()
        self._tasks.start(self._sessions.expire_idle(), key="expiry")
        return self

    async def __aexit__(self, *error: object) -> None:
        self.give_up()
        try:
            await self._tasks.__aexit__(None, None, None)
        finally:
            self._keepalive.close()
            if "_sockets" in self.__dict__:
                self._sockets.close()

    def stop_taking(self) -> None:
        """Refuse new requests, because we are about to stop, and end subscriptions; calls in progress go on."""
        if not self._stopping:
            self._stopping = True
            self._handler.prepend(_refuse_when_stopping)
        self._sessions.end_listening()
        self._channels.close_idle()
        if "_sockets" in self.__dict__:
            self._sockets.close_idle()
        for stream in list(self._listening):
            stream.reply(Result(marked(complete({}), stream.id)))
            self._tasks.cancel(stream)
            self._listens_no_more(stream)  # A task that is cancelled before its first step does not do it.

    def give_up(self) -> None:
        """Cancel all requests in progress, and answer that we stop."""
        self._sessions.close()
        self._channels.close()
        # Not at once: a task that is cancelled before its first step would leave its request without an answer.
        asyncio.get_running_loop().call_soon(self._tasks.wind_up)

    # ------------------------------------------------------------------------------------------ identity and routes

    def __call__(self, request: HttpRequest) -> None:
        """Answer a request, now or later."""
        seen = self._heads.known.get(request.headers) or self._heads.look_at(request.headers)
        if seen.refusal is not None:
            refuse(request, seen.refusal)
            return
        arrived = request
        if seen.page is not None and request.path != "/native":  # Browsers let pages read any WebSocket.
            from sluicegate.downstream.cors import for_page  # Imported late: few need it.

            readable = for_page(request, seen.page)
            if readable is None:
                return
            request = readable
        place = request.method, request.path
        if place in self._probes:
            self._probes[place](request)
            return
        identity = self._identify(arrived)  # Of an app, it has the scope, too.
        if isinstance(identity, Caller):
            self._route(request, seen, identity)
        elif isinstance(identity, Refusal):
            self._refuse_caller(request, identity)
        else:
            self._tasks.start(self._attend(request, self._route_later(request, seen, identity)), key=request)
            request.on_disconnect(partial(self._hung_up_early, request))

    async def _route_later(self, request: HttpRequest, seen: HeadFacts, waiting: Awaitable[Identity]) -> None:
        identity = await waiting
        if isinstance(identity, Refusal):
            self._refuse_caller(request, identity)
        else:
            self._route(request, seen, identity)

    def _refuse_caller(self, request: HttpRequest, refusal: Refusal) -> None:
        """Answer that the caller was not accepted. It is recorded as such, not as a message that is wrong."""
        self._handler.clients.note_refused(refusal.reason, request.peer)
        request.respond(refusal.status, (*JSON_FIELDS, *refusal.headers), refusal.body)

    def _hung_up_early(self, request: HttpRequest) -> None:
        """Stop waiting for the caller of a request whose client has gone. Once it is routed, this does nothing."""
        # Not at once: a task that is cancelled before its first step never runs its clean-up.
        asyncio.get_running_loop().call_soon(self._tasks.cancel, request)

    async def _attend(self, request: HttpRequest, work: Awaitable[None]) -> None:
        """Do work before a request is routed or parsed. If the work fails, only this request does."""
        try:
            await work
        except RemoteProtocolError as problem:
            _answer_error(request, problem)
        except asyncio.CancelledError:
            if request.disconnected:
                request.abort()
            else:
                refuse(request, STOPPING)
            raise
        except Exception:  # An edge, as in `http1`: all requests share the scope, which an exception would end (R34).
            log.exception("A request could not be taken.")
            request.abort()

    def _route(self, request: HttpRequest, seen: HeadFacts, caller: Caller) -> None:
        if request.method == "GET" and request.path in ("/", self._path) and self._shows_page_to(request):
            page = browser_page.page(request.headers.get("host") or "localhost", request.root + self._path)
            request.respond(200, browser_page.FIELDS, page)
            return
        answer = self._routes.get((request.method, request.path))
        if answer is not None:
            answer(request, seen, caller)
            return
        methods = sorted(method for method, path in (*self._routes, *self._probes) if path == request.path)
        if methods:
            allow = (("Allow", ", ".join(methods)),)
            refuse(request, Refusal(405, "method_not_allowed", f"Use {' or '.join(methods)}.", allow))
        else:
            refuse(request, self._not_found(request) or self._nothing_at(request))

    def _shows_page_to(self, request: HttpRequest) -> bool:
        is_browser = browser_page.wants_page(request.headers) and request.headers.get(SESSION_HEADER) is None
        return is_browser and self._may_name_path

    @property
    def _may_name_path(self) -> bool:
        # From other machines, the path may be all that keeps strangers out.
        return not self._host_policy.hosts - LOOPBACK

    def _nothing_at(self, request: HttpRequest) -> Refusal:
        """The refusal for an unknown path; clients on this machine also learn the right one."""
        if not self._may_name_path:
            return NOT_FOUND
        return Refusal(404, "not_found", f"There is nothing here; the MCP endpoint is {request.root}{self._path}.")

    def _ready(self, request: HttpRequest) -> None:
        state = b"stopping" if self._stopping else b"ready" if self._is_able() else b"unavailable"
        request.respond(200 if state == b"ready" else 503, JSON_FIELDS, b'{"status":"%b"}' % state)

    # ------------------------------------------------------------------------------------------------- messages

    def _post(self, request: HttpRequest, seen: HeadFacts, caller: Caller) -> None:
        if seen.post_refusal is not None:
            refuse(request, seen.post_refusal)
            return
        if len(request.body) > LARGE_BODY:
            self._tasks.start(self._attend(request, self._read_large(request, seen, caller)))
            return
        try:
            self._take(request, parse_strict(request.body), seen, caller)
        except RemoteProtocolError as problem:
            _answer_error(request, problem)

    async def _read_large(self, request: HttpRequest, seen: HeadFacts, caller: Caller) -> None:
        self._take(request, await self._large_bodies.run(parse_in_steps(request.body)), seen, caller)

    def _take(self, request: HttpRequest, value: object, seen: HeadFacts, caller: Caller) -> None:
        if seen.names_modern or _says_it_is_modern(value):
            self._post_modern(request, value, seen, caller)
        elif seen.session is None and seen.version is None and is_native(value):
            self._post_native(request, value, seen.takes, caller)
        else:
            self._sessions.post(request, value, seen, caller)

    def _post_modern(self, request: HttpRequest, value: object, seen: HeadFacts, caller: Caller) -> None:
        if isinstance(value, list):
            raise RemoteProtocolError("Invalid request: 2026-07-28 has no batches; send one message a request.")
        message = read_message(value)
        if isinstance(message, Notification):
            # HTTP defines none, and a posted `cancelled` could name another caller's request.
            _check_version(request)
            if message.method in JUDGED:
                self._handler.clients.note_without_id(caller.id, message.method, message.params)
            request.respond(202)
            return
        if not isinstance(message, Request):
            raise RemoteProtocolError("Invalid request: 2026-07-28 has no responses of clients.")
        profile, params = read_request(message, seen.claims)
        if message.method == "subscriptions/listen" and not seen.takes.events:
            refuse(request, NOT_ACCEPTABLE)
            return
        info = profile.client_info or _NO_INFO
        name, number = info.get("name"), info.get("version")
        # Cut before it is a key: both may be as long as a message.
        name = name[:MAX_LENGTH] if type(name) is str else ""
        who = caller.id, profile.version, name, number[:MAX_LENGTH] if type(number) is str else ""
        if who in self._stateless:
            self._stateless[who] = monotonic()
        else:
            self._handler.clients.connected_stateless(who)
        asked = Asked(message.id, message.method, params, profile, True)
        stream = ModernStream(asked.id, request, seen.takes, self._keepalive)
        if seen.takes.events:
            self._keepalive.watch(stream)
        on_end = None
        if asked.method == "subscriptions/listen" and state_of_retry(asked) is None:
            lease = self._streams.lease(caller)
            if isinstance(lease, Exceeded):
                stream.reply(too_many(lease, "open streams").error)
                return
            self._listening[stream] = lease
            on_end = partial(self._listens_no_more, stream)
        self._modern.start(asked, stream, caller, request.headers, on_end)
        request.on_disconnect(partial(self._hung_up, stream))

    def _hung_up(self, stream: ModernStream) -> None:
        stream.abandon()
        # Here too: a task that is cancelled before its first step never runs its clean-up.
        self._listens_no_more(stream)
        self._tasks.cancel(stream)

    def _listens_no_more(self, stream: ModernStream) -> None:
        lease = self._listening.pop(stream, None)
        if lease is not None:
            lease.release()

    # ----------------------------------------------------------------------------------------- the native view

    @cached_property
    def _native_tools(self) -> "NativeTools":
        from sluicegate.downstream.native.tools import NativeTools  # Imported late: few need it.

        return NativeTools(self._handler)

    def _post_native(self, request: HttpRequest, value: object, takes: Accepted, caller: Caller) -> None:
        from sluicegate.downstream.native.peer import answer_post

        call = read_call(as_object(value) or {})
        if call is None:
            request.respond(202)
            return
        stream = ModernStream(call.id, request, takes, self._keepalive)
        if takes.events:
            self._keepalive.watch(stream)
        answer = answer_post(self._handler, self._native_tools, call, stream, takes, caller)
        self._tasks.start(answer, key=stream)
        request.on_disconnect(partial(self._hung_up, stream))

    @cached_property
    def _sockets(self) -> "Sockets":
        from sluicegate.downstream.native.websocket import Sockets

        return Sockets(self._handler, self._native_tools, self._hold, self._large_bodies)

    def _admit_socket(self, caller: Caller) -> Refusal | Lease:
        """The place of one more socket."""
        lease = STOPPING if self._stopping else self._streams.lease(caller)
        return too_many(lease, "open streams") if isinstance(lease, Exceeded) else lease

    def _open_socket(self, request: HttpRequest, seen: HeadFacts, caller: Caller) -> None:
        lease = self._admit_socket(caller)
        if isinstance(lease, Refusal):
            refuse(request, lease)
        elif not self._sockets.accept(request, caller, self._tasks, lease.release):
            lease.release()

    async def serve_socket(self, request: "AsgiRequest", receive: "Receive", send: "Send") -> None:
        """Answer a client on a WebSocket of an ASGI server, which has asked to connect."""
        from sluicegate.downstream.native.asgi_socket import AsgiSocket, refuse_socket

        identity = self._heads.look_at(request.headers).refusal
        if identity is None:
            identity = self._identify(request)
            if not isinstance(identity, Caller | Refusal):
                identity = await identity
            if isinstance(identity, Refusal):
                self._handler.clients.note_refused(identity.reason, request.peer)
            elif request.path != "/native":
                identity = self._nothing_at(request)
        if isinstance(identity, Refusal):
            await refuse_socket(request.scope, identity, send)
            return
        lease = self._admit_socket(identity)
        if isinstance(lease, Refusal):
            await refuse_socket(request.scope, lease, send)
            return
        socket = AsgiSocket(send)
        self._sockets.open.add(socket)
        try:
            await send({"type": "websocket.accept"})
            await socket.serve(partial(self._sockets.peer, caller=identity), receive)
        finally:
            self._sockets.open.discard(socket)
            lease.release()

    # ------------------------------------------------------------------------------------------ the session era

    def _get(self, request: HttpRequest, seen: HeadFacts, caller: Caller) -> None:
        if seen.names_modern:
            refuse(request, _POST_ONLY)
        elif self._stopping:
            refuse(request, STOPPING)
        elif seen.session is None:
            refuse(request, _NO_SESSION if seen.version is None else MISSING)
        elif not seen.takes.events:
            refuse(request, NOT_ACCEPTABLE)
        else:
            self._sessions.get(request, seen, caller)

    def _delete(self, request: HttpRequest, seen: HeadFacts, caller: Caller) -> None:
        if seen.names_modern or seen.session is None:
            refuse(request, _POST_ONLY)
        else:
            self._sessions.delete(request, seen, caller)

    def _open_channel(self, request: HttpRequest, seen: HeadFacts, caller: Caller) -> None:
        if self._stopping:
            refuse(request, STOPPING)
        else:
            self._channels.open(request, caller)

    def _post_to_channel(self, request: HttpRequest, seen: HeadFacts, caller: Caller) -> None:
        refusal = check_body(request.headers)
        if refusal is not None:
            refuse(request, refusal)
        else:
            self._channels.post(request, caller)


def _says_it_is_modern(value: object) -> bool:
    """Whether a message itself claims to be of 2026-07-28 or later.

    If its header names an older revision, the newer rules still hold, so that they cannot be escaped (T3).
    """
    message = as_object(value)
    params = None if message is None else as_object(message.get("params"))
    if message is None or params is None or "_meta" not in params:
        return False
    return message.get("method") != "initialize" and is_modern(params)


_NO_INFO: Final[Params] = {}
_ALLOW: Final = (("Allow", "POST"),)
_POST_ONLY: Final = Refusal(405, "method_not_allowed", "2026-07-28 has no sessions; use POST.", _ALLOW)


_NO_SESSION: Final = Refusal(405, "method_not_allowed", "GET needs a session; send initialize first.", _ALLOW)


def _check_version(request: HttpRequest) -> None:
    """Check the revision of a notification: the specification defines no other header for it."""
    found = request.headers.get_all(VERSION)
    if len(found) != 1:
        raise RemoteProtocolError(f"Header mismatch: send {VERSION} exactly once.", code=HEADER_MISMATCH)
    if found[0] not in MODERN_VERSIONS:
        data: Params = {"supported": list(SUPPORTED_VERSIONS), "requested": found[0]}
        raise RemoteProtocolError("Unsupported protocol version", code=UNSUPPORTED_VERSION, data=data)


def _answer_error(request: HttpRequest, problem: RemoteProtocolError) -> None:
    error = error_object(problem)
    request.refused(problem.reason)
    request.respond(status_of(error.code, modern=True), JSON_FIELDS, encode(Response(problem.request_id, error)))
