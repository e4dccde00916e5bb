"""Native clients on a WebSocket, by the sans-IO core of `websockets` on a connection of our own HTTP module.

Host and Origin are checked as those of every other request; a socket counts as an open stream of its caller.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Final, Protocol, runtime_checkable

from websockets.datastructures import Headers as WireHeaders
from websockets.exceptions import InvalidState
from websockets.frames import Frame, Opcode
from websockets.http11 import Request as WireRequest
from websockets.protocol import SERVER, State
from websockets.protocol import Protocol as Frames
from websockets.server import ServerProtocol

from sluicegate.downstream.http_guard import LARGE_BODY
from sluicegate.downstream.http_response import HttpRequest, KeepAlive, refuse
from sluicegate.downstream.native.peer import NativePeer
from sluicegate.downstream.native.tools import NativeTools
from sluicegate.exchange import Caller, Handler
from sluicegate.runtime.byte_channel import ClientWire
from sluicegate.runtime.identity import Fields, Refusal
from sluicegate.runtime.task_scope import OneByOne, TaskScope

MAX_SIZE: Final = 4 * 1024 * 1024
"""Bytes of one message."""
PING: Final = 20.0
"""Seconds between two pings; a client that answered none of two is gone."""

GOING_AWAY: Final = 1001
UNSUPPORTED: Final = 1003

_NEEDED: Final = Refusal(426, "upgrade_required", "Connect with a WebSocket.", (("Sec-WebSocket-Version", "13"),))
_BAD: Final = Refusal(400, "bad_handshake", "This is not a valid WebSocket handshake.")

log: Final = logging.getLogger("sluicegate.websocket")
log.setLevel(logging.WARNING)  # The core reports each connection.


@runtime_checkable
class Upgradable(HttpRequest, Protocol):
    """A request whose connection can change to another protocol."""

    def upgrade(self, headers: Fields, receive: Callable[[bytes], None]) -> None: ...
    async def drain_all(self) -> None: ...


class OpenSocket(Protocol):
    """A WebSocket of this endpoint, whatever server it came by."""

    def close_when_idle(self) -> None: ...
    def close(self) -> None: ...


class Sockets:
    """The WebSockets of one endpoint."""

    def __init__(self, handler: Handler, tools: NativeTools, hold: float, large: OneByOne) -> None:
        self.handler = handler
        self.tools = tools
        self.hold = hold
        self.large = large
        self.keepalive = KeepAlive(PING)
        self.open: set[OpenSocket] = set()

    def peer(self, wire: ClientWire, tasks: TaskScope, on_idle: Callable[[], None], caller: Caller) -> NativePeer:
        """The native client on a wire."""
        peer = NativePeer(self.handler, wire, tasks, caller=caller, hold=self.hold, tools=self.tools, on_idle=on_idle)
        peer.transport = "websocket"
        return peer

    def accept(self, request: HttpRequest, caller: Caller, tasks: TaskScope, on_end: Callable[[], None]) -> bool:
        """Open a WebSocket, which is served in a task of its own; if the handshake is wrong, refuse it.

        `on_end` is called once an accepted socket is closed. Returns whether it was accepted.
        """
        if not isinstance(request, Upgradable) or request.headers.get("upgrade") is None:
            refuse(request, _NEEDED)
            return False
        answer = ServerProtocol(logger=log).accept(
            WireRequest(request.path, WireHeaders(list(request.headers)), request.method)
        )
        if answer.status_code != 101:
            refuse(request, _NEEDED if answer.status_code == 426 else _BAD)
            return False
        socket = WebSocket(request, self)
        self.open.add(socket)
        # Before its task begins: the client may hang up in this turn.
        request.on_disconnect(socket.hung_up)
        request.upgrade(tuple(answer.headers.raw_items()), socket.received)
        tasks.start(self._serve(socket, caller, on_end))
        return True

    async def _serve(self, socket: "WebSocket", caller: Caller, on_end: Callable[[], None]) -> None:
        self.keepalive.watch(socket)
        try:
            await socket.serve(caller)
        except Exception:  # An edge: it ends its own socket, not all that share the scope (R34).
            log.exception("A WebSocket failed.")
        finally:
            self.keepalive.forget(socket)
            self.open.discard(socket)
            on_end()

    def close_idle(self) -> None:
        """Close the sockets without streams; the others when theirs have ended."""
        for socket in list(self.open):
            socket.close_when_idle()

    def close(self) -> None:
        """Close all sockets."""
        for socket in list(self.open):
            socket.close()
        self.keepalive.close()


class WebSocket:
    """One WebSocket: a `ClientWire` whose lines are text messages."""

    def __init__(self, request: Upgradable, sockets: Sockets) -> None:
        self._request = request
        self._sockets = sockets
        self._frames = Frames(SERVER, state=State.OPEN, max_size=MAX_SIZE, logger=log)
        self._message = bytearray()
        self._peer: NativePeer | None = None
        self._early: list[bytes] = []
        self._unanswered_pings = 0
        self._is_over = self._is_leaving = False
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    async def serve(self, caller: Caller) -> None:
        """Answer the client until one of us closes the socket."""
        sockets = self._sockets
        try:
            async with TaskScope() as tasks:
                self._peer = peer = sockets.peer(self, tasks, self._idle, caller)
                early, self._early = self._early, []
                for message in early:
                    self._take(message)
                if self._is_over:
                    peer.ended()
                try:
                    await asyncio.wait([peer.finished, self._ended], return_when=asyncio.FIRST_COMPLETED)
                finally:
                    tasks.wind_up()
            peer.close()
        finally:
            self.close()

    # --------------------------------------------------------------------------------------------------------- reading

    def received(self, data: bytes) -> None:
        """Take bytes of the client."""
        if self._is_over:
            return
        self._unanswered_pings = 0
        frames = self._frames
        frames.receive_data(data)
        for frame in frames.events_received():
            if isinstance(frame, Frame):
                self._take_frame(frame)
        self._flush()

    def _take_frame(self, frame: Frame) -> None:
        match frame.opcode:
            case Opcode.TEXT | Opcode.CONT if not self._is_leaving:
                self._message += frame.data
                if frame.fin:
                    message, self._message = bytes(self._message), bytearray()
                    self._take(message)
            case Opcode.BINARY:
                self._fail(UNSUPPORTED, "Send text messages.")
            case _:
                pass

    def _take(self, message: bytes) -> None:
        peer = self._peer
        if peer is None:
            self._early.append(message)
        elif len(message) > LARGE_BODY:
            peer.tasks.start(self._take_large(peer, message))
        else:
            peer.received_message(message)

    async def _take_large(self, peer: NativePeer, message: bytes) -> None:
        events = await self._sockets.large.run(peer.conversation.read_in_steps(message))
        peer.follow_message(message, events)

    # --------------------------------------------------------------------------------------------------------- writing

    def write(self, data: bytes) -> None:
        """Send one line as one message."""
        if not self._is_over:
            try:
                self._frames.send_text(data[:-1])
            except InvalidState:
                return  # The client has closed.
            self._flush()

    def drain(self) -> Awaitable[None]:
        """Wait until the client has read what was sent."""
        return self._request.drain_all() if self._request.is_behind else _at_once()

    @property
    def unsent(self) -> int:
        return self._request.unsent

    def stay_alive(self) -> None:
        """Send a ping; close the socket if the last two were not answered."""
        self._unanswered_pings += 1
        if self._unanswered_pings > 2:
            self.hung_up()
        elif not self._is_over and self._frames.state is State.OPEN:
            self._frames.send_ping(b"")
            self._flush()

    def _flush(self) -> None:
        for data in self._frames.data_to_send():
            if data:
                self._request.write(data)
            else:  # The core sends nothing more.
                self._finish()
                return

    # --------------------------------------------------------------------------------------------------------- closing

    def close_when_idle(self) -> None:
        """Take no more requests, and close once no stream is open."""
        self._is_leaving = True
        if self._peer is None or not self._peer.in_progress:
            self.close()

    def _idle(self) -> None:
        if self._is_leaving:
            self.close()

    def close(self) -> None:
        """Close the socket, because we are about to stop."""
        self._fail(GOING_AWAY, "The server is about to stop.")

    def _fail(self, code: int, reason: str) -> None:
        """Send a close frame, and close the connection."""
        if not self._is_over:
            self._frames.fail(code, reason)
            self._flush()

    def hung_up(self) -> None:
        """Close the connection: the client is gone, or sends nothing more."""
        self._over()
        self._request.abort()

    def _over(self) -> None:
        self._is_over = True
        if not self._ended.done():
            self._ended.set_result(None)

    def _finish(self) -> None:
        if not self._is_over:
            self._over()
            self._request.end()


async def _at_once() -> None:
    pass
