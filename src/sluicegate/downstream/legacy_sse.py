"""HTTP+SSE of 2024-11-05: the server sends on one GET that stays open, the client sends POSTs.

Together they are a duplex channel, which `DuplexServer` serves like a pipe.
"""

import secrets
from typing import Final
from urllib.parse import parse_qs, quote

from sluicegate.downstream.duplex import DuplexServer, serve_duplex
from sluicegate.downstream.http_guard import LARGE_BODY, NOT_ACCEPTABLE, accepted, too_many
from sluicegate.downstream.http_response import EVENT_FIELDS, HttpRequest, KeepAlive, refuse
from sluicegate.errors import STOPPED
from sluicegate.exchange import Caller, Handler
from sluicegate.protocol.sse import encode_comment, encode_event
from sluicegate.runtime.identity import LATER, Refusal
from sluicegate.runtime.quota import Exceeded, Lease, Quota
from sluicegate.runtime.task_scope import OneByOne, TaskScope

MAX_UNREAD: Final = 1024 * 1024
"""Bytes of its stream that a client may leave unread before its messages are refused (R24)."""

_UNREAD: Final = Refusal(
    503, "overloaded", "Read the event stream of this session first: too much of it is unread.", LATER
)
_UNKNOWN: Final = Refusal(404, "unknown_session", "There is no such session; open the event stream again.")


class SseChannels:
    """The open channels of the oldest transport."""

    def __init__(
        self,
        handler: Handler,
        tasks: TaskScope,
        streams: Quota,
        hold: float,
        keepalive: KeepAlive,
        large_bodies: OneByOne,
    ) -> None:
        self._handler = handler
        self._tasks = tasks
        self._quota = streams
        self._hold = hold
        self._keepalive = keepalive
        self._large_bodies = large_bodies
        self._channels: dict[str, _Channel] = {}

    def open(self, request: HttpRequest, caller: Caller) -> None:
        """Open a channel: the first event names the URL to post to."""
        if not accepted(request.headers).events:
            refuse(request, NOT_ACCEPTABLE)
            return
        lease = self._quota.lease(caller)
        if isinstance(lease, Exceeded):
            refuse(request, too_many(lease, "open streams"))
        else:
            self._tasks.start(self._serve(_Channel(request, caller, self._keepalive), lease))

    async def _serve(self, channel: "_Channel", lease: Lease) -> None:
        token = secrets.token_urlsafe(32)
        self._channels[token] = channel
        try:
            channel.begin(f"/messages?session_id={token}")
            await serve_duplex(
                self._handler, channel, channel.attach, caller=channel.caller, hold=self._hold, transport="sse"
            )
        finally:
            del self._channels[token]
            lease.release()
            channel.end()

    def post(self, request: HttpRequest, caller: Caller) -> None:
        """Take a message for a channel; its answer comes on the stream."""
        tokens = parse_qs(request.query).get("session_id", [])
        channel = self._channels.get(tokens[0]) if len(tokens) == 1 else None
        # Another caller's channel looks like one that does not exist (T10).
        if channel is None or channel.receiver is None or channel.caller != caller:
            refuse(request, _UNKNOWN)
            return
        if channel.unsent > MAX_UNREAD:
            refuse(request, _UNREAD)
            return
        if len(request.body) > LARGE_BODY:
            self._tasks.start(self._read_large(request, channel.receiver))
            return
        request.respond(202)
        # Unchanged: on one line, a string with a bare line break would become valid JSON with another meaning (T1).
        channel.receiver.received_message(request.body)

    async def _read_large(self, request: HttpRequest, receiver: DuplexServer) -> None:
        try:
            events = await self._large_bodies.run(receiver.conversation.read_in_steps(request.body))
        finally:
            request.respond(202)  # Only now, so that a client that waits for it keeps the order of its messages.
        if not receiver.finished.done():
            receiver.follow_message(request.body, events)

    def close_idle(self) -> None:
        """Close the channels that have no request in progress."""
        for channel in self._channels.values():
            if channel.receiver is not None and not channel.receiver.conversation.in_progress:
                channel.hang_up()

    def close(self) -> None:
        """Close all channels, because we are about to stop."""
        for channel in self._channels.values():
            if channel.receiver is not None:
                channel.receiver.stop(STOPPED)
            channel.hang_up()


class _Channel:
    """An open event stream as a `Wire`."""

    def __init__(self, request: HttpRequest, caller: Caller, keepalive: KeepAlive) -> None:
        self.caller = caller
        self.receiver: DuplexServer | None = None
        self._request = request
        self._keepalive = keepalive
        self._gone = False
        self._ended = False

    def begin(self, endpoint: str) -> None:
        self._request.start(200, EVENT_FIELDS)
        # Without a host, so that it is right behind any proxy. The path of a mount may need quoting.
        place = quote(self._request.root) + endpoint
        self._request.write(encode_event(place.encode(), event="endpoint"))
        self._keepalive.watch(self)

    def attach(self, receiver: DuplexServer) -> None:
        self.receiver = receiver
        self._request.on_disconnect(self.hang_up)

    def hang_up(self) -> None:
        if not self._gone:
            self._gone = True
            if self.receiver is not None:
                self.receiver.ended()

    def end(self) -> None:
        self._ended = True
        self.receiver = None
        self._keepalive.forget(self)
        self._request.end()

    def write(self, data: bytes) -> None:
        if not self._ended:  # The notice that withdraws a question may come after the end.
            self._request.write(encode_event(data.rstrip(b"\n"), event="message"))

    async def drain(self) -> None:
        await self._request.drain()

    @property
    def unsent(self) -> int:
        return self._request.unsent

    def stay_alive(self) -> None:
        self._request.write(encode_comment())
