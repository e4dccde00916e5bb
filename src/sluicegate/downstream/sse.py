"""HTTP+SSE of 2024-11-05: a GET that stays open is all we say, POSTs are all the client says.

Together they are a duplex channel, so everything but the carrying is the pipe's: `DuplexServer` serves it.
"""

import secrets
from typing import Final
from urllib.parse import parse_qs, quote

from sluicegate.concurrency import TaskScope
from sluicegate.downstream.admission import too_many
from sluicegate.downstream.doors import NOT_ACCEPTABLE, Refusal, accepted
from sluicegate.downstream.duplex import DuplexServer, serve_duplex
from sluicegate.downstream.http_streams import EVENT_FIELDS, STOPPED, HttpRequest, refuse
from sluicegate.downstream.keepalive import KeepAlive
from sluicegate.downstream.places import Full, Place, Places
from sluicegate.exchange import Caller, Handler
from sluicegate.protocol.events import encode_comment, encode_event

_UNKNOWN: Final = Refusal(404, "unknown_session", "There is no such session; open the event stream again.")


class SseChannels:
    """The open channels of the oldest transport."""

    def __init__(self, handler: Handler, tasks: TaskScope, streams: Places, hold: float, keepalive: KeepAlive) -> None:
        self._handler = handler
        self._tasks = tasks
        self._places = streams
        self._hold = hold
        self._keepalive = keepalive
        self._channels: dict[str, _Channel] = {}

    def open(self, request: HttpRequest, caller: Caller) -> None:
        """Open a channel: the first event tells where to post."""
        if not accepted(request.headers).events:
            refuse(request, NOT_ACCEPTABLE)
            return
        place = self._places.take(caller)
        if isinstance(place, Full):
            refuse(request, too_many(place, "open streams"))
        else:
            self._tasks.start(self._serve(_Channel(request, caller, self._keepalive), place))

    async def _serve(self, channel: "_Channel", place: Place) -> None:
        token = secrets.token_urlsafe(32)
        self._channels[token] = channel
        try:
            channel.begin(f"/messages?session_id={token}")
            await serve_duplex(self._handler, channel, channel.attach, caller=channel.caller, hold=self._hold)
        finally:
            del self._channels[token]
            place.release()
            channel.end()

    def post(self, request: HttpRequest, caller: Caller) -> None:
        """Take a message for a channel; its answer comes on the stream."""
        tokens = parse_qs(request.query).get("session_id", [])
        channel = self._channels.get(tokens[0]) if len(tokens) == 1 else None
        # Another caller's channel is as unknown as one that never was (T10).
        if channel is None or channel.receiver is None or channel.caller != caller:
            refuse(request, _UNKNOWN)
            return
        request.respond(202)
        # As it is: made one line, a string with a bare line break would be JSON again, and say another thing (T1).
        channel.receiver.received_message(request.body)

    def close_idle(self) -> None:
        """Hang up on those for whom nothing is under way."""
        for channel in self._channels.values():
            if channel.receiver is not None and not channel.receiver.conversation.under_way:
                channel.hang_up()

    def close(self) -> None:
        """Hang up everywhere, because we are about to stop."""
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
        # Without a host, so that it is right behind any proxy; a mount's path may hold what no URL does.
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
        self._keepalive.forget(self)
        self._request.end()

    def write(self, data: bytes) -> None:
        if not self._ended:  # What is said in parting, to withdraw a question, may come after the end.
            self._request.write(encode_event(data.rstrip(b"\n"), event="message"))

    async def drain(self) -> None:
        await self._request.drain()

    def pause_reading(self) -> None:
        """Every POST is a message of its own: there is nothing to pause."""

    def resume_reading(self) -> None:
        """Nor to resume."""

    def stay_alive(self) -> None:
        """Say that the channel is still there."""
        self._request.write(encode_comment())
