"""A WebSocket of an ASGI server, which brings whole messages: a native client on it."""

import asyncio
from collections import deque
from collections.abc import Callable

from sluicegate.downstream.asgi_request import Receive, Scope, Send
from sluicegate.downstream.http_response import JSON_FIELDS
from sluicegate.downstream.native.peer import NativePeer
from sluicegate.http1 import Limits
from sluicegate.runtime.byte_channel import ClientWire
from sluicegate.runtime.identity import Refusal
from sluicegate.runtime.task_scope import TaskScope

MAX_SIZE = 4 * 1024 * 1024
"""Bytes of one message."""

MakePeer = Callable[[ClientWire, TaskScope, Callable[[], None]], NativePeer]
"""Makes the peer on a wire, with the tasks of its calls and a callback for when all have ended."""

_STOPPING = 1001, "The server is about to stop."


async def refuse_socket(scope: Scope, refusal: Refusal, send: Send) -> None:
    """Refuse a client that asked to connect: with the status and headers of the refusal where the server can send them.

    Other servers answer 403.
    """
    if "websocket.http.response" not in (scope.get("extensions") or {}):
        await send({"type": "websocket.close", "code": 1008, "reason": refusal.sentence})
        return
    fields = (*JSON_FIELDS, *refusal.headers, ("Content-Length", str(len(refusal.body))))
    pairs = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in fields]
    await send({"type": "websocket.http.response.start", "status": refusal.status, "headers": pairs})
    await send({"type": "websocket.http.response.body", "body": refusal.body})


class AsgiSocket:
    """One WebSocket: a `ClientWire` whose lines are text messages. It has been accepted."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._lines: deque[bytes] = deque()
        self.unsent = 0
        """Bytes that the server has not taken yet."""
        self._news = asyncio.Event()
        self._taken = asyncio.Event()
        self._ended = asyncio.Event()
        self._farewell: tuple[int, str] | None = None
        self._peer: NativePeer | None = None
        self._is_leaving = False

    async def serve(self, make_peer: MakePeer, receive: Receive) -> None:
        """Answer the client until one of us closes the socket."""
        async with TaskScope() as carrying:
            carrying.start(self._carry())
            async with TaskScope() as tasks:
                self._peer = peer = make_peer(self, tasks, self._idle)
                tasks.start(self._listen(peer, receive))
                try:
                    await self._ended.wait()
                finally:
                    tasks.wind_up()
            carrying.cancel_all()
        if self._farewell is not None:
            code, reason = self._farewell
            await self._send({"type": "websocket.close", "code": code, "reason": reason})

    async def _listen(self, peer: NativePeer, receive: Receive) -> None:
        while not self._ended.is_set():
            message = await receive()
            text = message.get("text")
            if message["type"] == "websocket.disconnect":
                self._ended.set()
            elif text is None:
                self._end(1003, "Send text messages.")
            elif len(data := text.encode("utf-8", "surrogatepass")) > MAX_SIZE:
                self._end(1009, "The message is too large.")
            elif not self._is_leaving:
                peer.received_message(data)

    # --------------------------------------------------------------------------------------------------------- writing

    def write(self, data: bytes) -> None:
        """Send one line as one message."""
        if not self._ended.is_set():
            self._lines.append(data)
            self.unsent += len(data)
            self._news.set()

    async def drain(self) -> None:
        """Wait until the server has taken what was sent."""
        while self._lines and not self._ended.is_set():
            self._taken.clear()
            await self._taken.wait()

    async def _carry(self) -> None:
        """Hand lines to the server. A client that takes nothing for too long is cut off (R24)."""
        try:
            while True:
                while self._lines:
                    line = self._lines[0]
                    async with asyncio.timeout(Limits().blocked_time):
                        await self._send({"type": "websocket.send", "text": line[:-1].decode()})
                    self._lines.popleft()
                    self.unsent -= len(line)
                    self._taken.set()
                self._news.clear()
                await self._news.wait()
        except (OSError, TimeoutError, RuntimeError):
            # Servers report a gone client in one of these ways; the timeout is ours.
            self._ended.set()
        finally:
            self._taken.set()

    # --------------------------------------------------------------------------------------------------------- closing

    def close_when_idle(self) -> None:
        """Take no more requests, and close once no call is in progress."""
        self._is_leaving = True
        if self._peer is None or not self._peer.in_progress:
            self.close()

    def close(self) -> None:
        """Close the socket, because we are about to stop."""
        self._end(*_STOPPING)

    def _idle(self) -> None:
        if self._is_leaving:
            self.close()

    def _end(self, code: int, reason: str) -> None:
        if not self._ended.is_set():
            self._farewell = code, reason
            self._ended.set()
