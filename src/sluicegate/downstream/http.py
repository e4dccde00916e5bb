"""Streamable HTTP for every revision, and HTTP+SSE of 2024-11-05, on one endpoint; told apart for each request.

2026-07-28 needs no memory but that of calls that wait for an answer. The session era has its sessions, the oldest
transport a channel for each client. Which is meant is decided once, from headers and body together (protocol §2.3).
"""

import asyncio
from collections.abc import Callable
from functools import lru_cache, partial
from typing import Final

import msgspec

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.admission import STOPPING, Admission, too_many
from sluicegate.downstream.answering import Answering, end_of_listening, failure
from sluicegate.downstream.doors import (
    LOOPBACK,
    NOT_ACCEPTABLE,
    NOT_FOUND,
    Accepted,
    Doors,
    Headers,
    Refusal,
    accepted,
    check_body,
)
from sluicegate.downstream.http_streams import JSON_FIELDS, STOPPED, HttpRequest, ModernStream, refuse, status_of
from sluicegate.downstream.keepalive import KeepAlive
from sluicegate.downstream.modern_era import ModernSink
from sluicegate.downstream.parked import PREFIX, Comeback, Parked, binding_of
from sluicegate.downstream.places import Full, HttpLimits, Place, Places
from sluicegate.downstream.sessions import MISSING, Sessions
from sluicegate.downstream.sse import SseChannels
from sluicegate.errors import (
    HEADER_MISMATCH,
    UNSUPPORTED_VERSION,
    ConfigError,
    InvalidParams,
    RemoteProtocolError,
    error_object,
)
from sluicegate.exchange import NOBODY, Caller, Exchange, Handler
from sluicegate.protocol.conversation import Asked
from sluicegate.protocol.glance import Repeats, plain_request
from sluicegate.protocol.headers import VERSION, Claims
from sluicegate.protocol.message import Notification, Params, Request, Response, Result, as_array, as_object, encode
from sluicegate.protocol.modern import complete, is_modern, marked, read_request
from sluicegate.protocol.strict import check_limits, parse_json, read_message
from sluicegate.protocol.versions import MODERN_VERSIONS, SESSION_VERSIONS, SUPPORTED_VERSIONS

SESSION: Final = "mcp-session-id"
LONGEST_HOLD: Final = 300.0
_LOCAL_USER: Final = Caller()
_OWN_PATHS: Final = ("/sse", "/messages", "/healthz", "/readyz")


class Seen(msgspec.Struct, frozen=True):
    """What the headers of a request say by themselves."""

    refusal: Refusal | None
    """Why it may not come in."""
    post_refusal: Refusal | None
    """Why its body is not read."""
    takes: Accepted
    names_modern: bool
    claims: Claims
    """What they say of a message of 2026-07-28."""
    repeats: Repeats
    """The last request that came with them."""


def _look_at(doors: Doors, headers: Headers) -> Seen:
    takes = accepted(headers)
    refusal = check_body(headers)
    if refusal is None and not (takes.json or takes.events):
        refusal = NOT_ACCEPTABLE
    names_modern = any(version not in SESSION_VERSIONS for version in headers.get_all(VERSION))
    return Seen(doors.check(headers), refusal, takes, names_modern, Claims(headers.get_all), Repeats())


class HttpEndpoint:
    """Answers HTTP requests with a handler. `async with` keeps its sessions and calls; call it for each request."""

    def __init__(
        self,
        handler: Handler,
        *,
        path: str = "/mcp",
        doors: Doors | None = None,
        hold: float = LONGEST_HOLD,
        limits: HttpLimits | None = None,
        beside: "HttpEndpoint | None" = None,
        sse: bool = True,
        caller: Callable[[HttpRequest], Caller] = lambda request: _LOCAL_USER,
    ) -> None:
        """`beside` is an endpoint of the same gateway: both together have the places of one.

        `sse` is whether the oldest transport, HTTP+SSE, is served too.

        Raises:
            ConfigError: the path is one that has another use here.
        """
        if path in _OWN_PATHS:
            raise ConfigError(f"{path} has another use here: {', '.join(_OWN_PATHS)} are taken.")
        limits = limits or HttpLimits()
        self._calls = Places(limits.calls, limits.calls_of_one) if beside is None else beside._calls
        self._streams = Places(limits.streams, limits.streams_of_one) if beside is None else beside._streams
        self._admission = Admission(handler, self._calls)
        self._answering = Answering(self._admission)
        self._doors = doors or Doors()
        # A client sends few different heads, and `http1` gives the same object for the same bytes: looked at once each.
        self._look_at = lru_cache(maxsize=512)(partial(_look_at, self._doors))
        self._path = path
        self._hold = hold
        self._caller = caller
        self._tasks = TaskScope()
        self._parked = Parked()
        self._keepalive = KeepAlive()
        self._sessions = Sessions(self._answering, self._tasks, limits, self._streams, hold, self._keepalive)
        self._channels = SseChannels(self._admission, self._tasks, self._streams, hold, self._keepalive)
        self._listening: dict[ModernStream, Place] = {}
        self._stopping = False
        self._routes: dict[tuple[str, str], Callable[[HttpRequest, Seen], None]] = {
            ("POST", path): self._post,
            ("GET", path): self._get,
            ("DELETE", path): self._delete,
            ("GET", "/healthz"): lambda request, seen: request.respond(200, JSON_FIELDS, b'{"status":"ok"}'),
            ("GET", "/readyz"): self._ready,
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

    def stop_taking(self) -> None:
        """Begin nothing from now on, and say that we are about to stop; what is under way goes on, listening ends."""
        self._stopping = True
        self._admission.close()
        self._sessions.end_listening()
        self._channels.close_idle()
        for stream in list(self._listening):
            stream.reply_now(Result(marked(complete({}), stream.id)))
            self._tasks.cancel(stream)

    def give_up(self) -> None:
        """Cancel all that is under way, and tell those who wait for it."""
        self._sessions.close()
        self._channels.close()
        self._tasks.wind_up()

    def __call__(self, request: HttpRequest) -> None:
        """Answer a request, at once or later."""
        seen = self._look_at(request.headers)
        if seen.refusal is not None:
            refuse(request, seen.refusal)
            return
        answer = self._routes.get((request.method, request.path))
        if answer is not None:
            answer(request, seen)
            return
        methods = sorted(method for method, path in self._routes if path == request.path)
        if methods:
            allow = (("Allow", ", ".join(methods)),)
            refuse(request, Refusal(405, "method_not_allowed", f"Use {' or '.join(methods)}.", allow))
        else:
            refuse(request, self._nothing_at(request))

    def _nothing_at(self, request: HttpRequest) -> Refusal:
        """The refusal for a path at which nothing is: to whoever is on this machine it says where we are."""
        # From elsewhere the path may be all that keeps strangers out.
        if self._doors.hosts - LOOPBACK:
            return NOT_FOUND
        return Refusal(404, "not_found", f"There is nothing here; MCP is spoken at {request.root}{self._path}.")

    def _ready(self, request: HttpRequest, seen: Seen) -> None:
        status = 503 if self._stopping else 200
        request.respond(status, JSON_FIELDS, b'{"status":"stopping"}' if self._stopping else b'{"status":"ready"}')

    # ------------------------------------------------------------------------------------------------- messages

    def _post(self, request: HttpRequest, seen: Seen) -> None:
        if seen.post_refusal is not None:
            refuse(request, seen.post_refusal)
            return
        # The last request again is nearly every POST.
        if seen.names_modern:
            if (asked := seen.repeats.read(request.body)) is not None:
                self._start(request, asked, seen.takes)
                return
        elif (again := seen.repeats.read_plain(request.body)) is not None:
            self._sessions.post(request, again, seen.takes, self._caller(request))
            return
        try:
            value = parse_json(request.body)
            if not seen.names_modern and (plain := plain_request(request.body, value)) is not None:
                seen.repeats.learn_plain(request.body, plain)
                self._sessions.post(request, plain, seen.takes, self._caller(request))
                return
            check_limits(request.body, value)
            if seen.names_modern or _says_it_is_modern(value):
                self._post_modern(request, value, seen)
            else:
                self._sessions.post(request, value, seen.takes, self._caller(request))
        except RemoteProtocolError as problem:
            _answer_error(request, problem)

    def _post_modern(self, request: HttpRequest, value: object, seen: Seen) -> None:
        if as_array(value) is not None:
            raise RemoteProtocolError("Invalid request: 2026-07-28 has no batches; send one message a request.")
        message = read_message(value)
        if isinstance(message, Notification):
            # None is defined over HTTP, and a posted `cancelled` could name another caller's request.
            _check_version(request)
            request.respond(202)
            return
        if not isinstance(message, Request):
            raise RemoteProtocolError("Invalid request: 2026-07-28 has no responses of clients.")
        profile, params = read_request(message, seen.claims)
        if message.method == "subscriptions/listen" and not seen.takes.events:
            refuse(request, NOT_ACCEPTABLE)
            return
        if seen.names_modern:
            seen.repeats.learn(request.body, message, profile)
        self._start(request, Asked(message.id, message.method, params, profile, True), seen.takes)

    def _start(self, request: HttpRequest, asked: Asked, takes: Accepted) -> None:
        caller = self._caller(request)  # First: it is somebody else's code, and a stream is kept alive.
        stream = ModernStream(asked.id, request, takes, self._keepalive)
        if takes.events:
            self._keepalive.watch(stream)
        state = asked.params.get("requestState")
        if isinstance(state, str) and state.startswith(PREFIX):
            comeback = Comeback(stream, asked.profile, as_object(asked.params.get("inputResponses")) or {})
            binding = binding_of(caller, asked.method, asked.params, request.headers)
            try:
                self._parked.resume(state, binding, comeback, self._tasks)
            except InvalidParams as problem:
                stream.reply_now(error_object(problem))
                return
        else:
            if asked.method == "subscriptions/listen":
                place = self._streams.take(caller)
                if isinstance(place, Full):
                    stream.reply_now(too_many(place, "open streams").error)
                    return
                self._listening[stream] = place
            headers = request.headers
            exchange = Exchange(asked.method, asked.params, NOBODY, asked.profile, caller, headers.get_all)
            exchange.sink = sink = ModernSink(exchange, stream, self._tasks, self._parked, self._hold, headers)
            self._tasks.start(self._answer(sink, stream), key=stream)
        request.on_disconnect(partial(self._hung_up, stream))

    async def _answer(self, sink: ModernSink, first: ModernStream) -> None:
        exchange = sink.exchange
        try:
            try:
                reply = await self._admission(exchange)
            except Exception as problem:  # An edge: a failed exchange never ends a server (R34).
                reply = failure(exchange, problem)
            if sink.stream is None:
                await sink.wait_for_client(reply)
        except asyncio.CancelledError:
            # Either its client hung up, and nothing is said to it any more, or we are about to stop (R29).
            if sink.stream is not None:
                await sink.stream.reply(STOPPED)
            raise
        finally:
            sink.close()
            if self._listening:
                self._listens_no_more(first)
        if exchange.method == "subscriptions/listen":
            reply = end_of_listening(exchange, reply, first.id)
        if sink.stream is first:
            first.reply_now(reply)
        elif sink.stream is not None:  # Else nobody came back for it in time.
            await sink.stream.reply(reply)

    def _hung_up(self, stream: ModernStream) -> None:
        stream.abandon()
        # Here too: a task that is cancelled before its first step ends without having begun.
        self._listens_no_more(stream)
        self._tasks.cancel(stream)

    def _listens_no_more(self, stream: ModernStream) -> None:
        place = self._listening.pop(stream, None)
        if place is not None:
            place.release()

    # ------------------------------------------------------------------------------------------ the session era

    def _get(self, request: HttpRequest, seen: Seen) -> None:
        if seen.names_modern:
            refuse(request, _POST_ONLY)
        elif self._stopping:
            refuse(request, STOPPING)
        elif request.headers.get(SESSION) is None:
            refuse(request, _NO_SESSION if request.headers.get(VERSION) is None else MISSING)
        elif not seen.takes.events:
            refuse(request, NOT_ACCEPTABLE)
        else:
            self._sessions.get(request, self._caller(request))

    def _delete(self, request: HttpRequest, seen: Seen) -> None:
        if seen.names_modern or request.headers.get(SESSION) is None:
            refuse(request, _POST_ONLY)
        else:
            self._sessions.delete(request, self._caller(request))

    def _open_channel(self, request: HttpRequest, seen: Seen) -> None:
        if self._stopping:
            refuse(request, STOPPING)
        else:
            self._channels.open(request, self._caller(request))

    def _post_to_channel(self, request: HttpRequest, seen: Seen) -> None:
        refusal = check_body(request.headers)
        if refusal is not None:
            refuse(request, refusal)
        else:
            self._channels.post(request, self._caller(request))


def _says_it_is_modern(value: object) -> bool:
    """Whether a message is of 2026-07-28 or later by its own words.

    One that says so while its header names an older one is held to the rules that it would escape (T3).
    """
    message = as_object(value)
    params = None if message is None else as_object(message.get("params"))
    if message is None or params is None or "_meta" not in params:
        return False
    return message.get("method") != "initialize" and is_modern(params)


_ALLOW: Final = (("Allow", "POST"),)
_POST_ONLY: Final = Refusal(405, "method_not_allowed", "2026-07-28 has no sessions; use POST.", _ALLOW)


_NO_SESSION: Final = Refusal(405, "method_not_allowed", "GET needs a session; send initialize first.", _ALLOW)


def _check_version(request: HttpRequest) -> None:
    """Let a notification pass whose revision we speak: of its headers nothing else is defined (protocol §7)."""
    found = request.headers.get_all(VERSION)
    if len(found) != 1:
        raise RemoteProtocolError(f"Header mismatch: {VERSION} is not there once.", code=HEADER_MISMATCH)
    if found[0] not in MODERN_VERSIONS:
        data: Params = {"supported": list(SUPPORTED_VERSIONS), "requested": found[0]}
        raise RemoteProtocolError("Unsupported protocol version", code=UNSUPPORTED_VERSION, data=data)


def _answer_error(request: HttpRequest, problem: RemoteProtocolError) -> None:
    error = error_object(problem)
    request.respond(status_of(error.code, modern=True), JSON_FIELDS, encode(Response(problem.request_id, error)))
