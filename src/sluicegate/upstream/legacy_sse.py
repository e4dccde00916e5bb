"""The HTTP+SSE transport of 2024-11-05: the server sends on one long GET stream, and we send by POST.

Together they are a duplex channel, over which a `DuplexConnection` speaks as over a pipe.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sluicegate.errors import UpstreamError, UpstreamTimeout
from sluicegate.exchange import Host
from sluicegate.http1 import Answer
from sluicegate.protocol.framing import TooLong, encode_line
from sluicegate.protocol.sse import SseEvent
from sluicegate.runtime.task_scope import TaskScope
from sluicegate.upstream.duplex import DuplexConnection
from sluicegate.upstream.http_endpoint import ACCEPT_BOTH, ACCEPT_EVENTS, EVENT_STREAM, UpstreamEndpoint
from sluicegate.upstream.http_messages import END_TIMEOUT, AnswerEvents

log = logging.getLogger("sluicegate")

POST_BUFFER: Final = 64 * 1024
POST_WAIT: Final = 1.0
"""Seconds that a message waits for the POST before it: some servers answer a POST only when its request is done."""


class SseWire:
    """The two halves of the channel as a `Wire`."""

    def __init__(
        self,
        endpoint: UpstreamEndpoint,
        post_url: str,
        answer: Answer,
        events: AnswerEvents,
        begun: Sequence[SseEvent | TooLong],
        tasks: TaskScope,
    ) -> None:
        """`begun` are the events that came in the same chunk as the first one."""
        self._endpoint = endpoint
        self._template = endpoint.request_template("POST", ACCEPT_BOTH, post_url)
        self._answer = answer
        self._events = events
        self._begun = begun
        self._tasks = tasks
        self._link: DuplexConnection | None = None
        self._unsent: deque[bytes] = deque()
        self._size = 0
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._reading = asyncio.Event()
        self._reading.set()
        self._end: str | None = None

    def attach(self, link: DuplexConnection) -> None:
        """Pass what the server sends to the link."""
        self._link = link
        link.describe_end = lambda: self._end or "closed its event stream"
        self._tasks.start(self._read())
        self._tasks.start(self._send())

    def close(self) -> None:
        """Close the stream, which ends the session."""
        self._answer.close()

    def write(self, data: bytes) -> None:
        self._unsent.append(data)
        self._size += len(data)
        self._more.set()
        if self._size > POST_BUFFER:
            self._room.clear()

    async def drain(self) -> None:
        # In a loop, because another task may fill the buffer first.
        while not self._room.is_set():
            await self._room.wait()

    def pause_reading(self) -> None:
        self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()

    async def _read(self) -> None:
        try:
            await self._receive(self._begun)
            while (chunk := await self._events.next_chunk()) is not None:
                await self._receive(self._events.read(chunk))
            self._hang_up("closed its event stream")
        except UpstreamTimeout:
            self._hang_up("fell silent in the middle of an event")
        except UpstreamError:
            self._hang_up("cut its event stream")

    async def _receive(self, events: Sequence[SseEvent | TooLong]) -> None:
        assert self._link is not None
        for event in events:
            if isinstance(event, TooLong):
                self._link.missed(event)
            elif event.event == "message" and event.data:
                self._link.received(encode_line(event.data))
            if not self._reading.is_set():
                await self._reading.wait()

    async def _send(self) -> None:
        while True:
            await self._more.wait()
            while self._unsent:
                data = self._unsent.popleft()
                taken = asyncio.Event()
                self._tasks.start(self._post(data, taken))
                with suppress(TimeoutError):
                    async with asyncio.timeout(POST_WAIT):
                        await taken.wait()
                self._size -= len(data)
                if self._size <= POST_BUFFER:
                    self._room.set()
            self._more.clear()

    async def _post(self, data: bytes, taken: asyncio.Event) -> None:
        assert self._link is not None
        message = data.rstrip(b"\n")
        try:
            answer = await self._endpoint.send(self._template, message)
            taken.set()
            if answer.status in (404, 410):
                self._hang_up(f"has lost the session (status {answer.status})")
            elif not 200 <= answer.status < 300:
                self._link.failed(message, self._endpoint.status_error(answer))
            answer.let_end(END_TIMEOUT)
        except UpstreamTimeout:
            pass  # The server may have the message, and its answer may come on the stream.
        except UpstreamError as problem:
            self._link.failed(message, problem)
        finally:
            taken.set()

    def _hang_up(self, end: str) -> None:
        self._end = self._end or end
        # All pending requests fail, so the rest need not be sent.
        self._unsent.clear()
        self._room.set()
        self._answer.close()
        if self._link is not None:
            self._link.ended()


class SseHttp(DuplexConnection):
    """A `Connection` over HTTP+SSE."""

    transport: Final = "sse"
    wire: SseWire | None = None

    async def aclose(self) -> None:
        """Close the connection."""
        self.close()
        if self.wire is not None:
            self.wire.close()


async def open_sse(endpoint: UpstreamEndpoint, host: Host, tasks: TaskScope, seconds: float) -> SseHttp | str:
    """A connection, or what the server did instead if it does not speak this transport.

    Raises:
        UpstreamError: it speaks this transport, but the handshake failed.
    """
    answer = await endpoint.ask("GET", ACCEPT_EVENTS)
    opened = False
    try:
        if answer.status in (401, 403, 429) or answer.status >= 500:
            raise endpoint.status_error(answer)
        if answer.status == 404:
            return "it answered GET with status 404; check the path of its URL, which mostly ends in /mcp"
        if answer.status != 200 or answer.head.media_type != EVENT_STREAM:
            return f"it answered GET with status {answer.status} and no event stream"
        # Endless: without requests, the server may send nothing for days.
        events = AnswerEvents(answer, endpoint.timeouts, endless=True)
        begun: Sequence[SseEvent | TooLong] = ()
        while not begun and (chunk := await events.next_chunk()) is not None:
            begun = events.read(chunk)
        event = begun[0] if begun else None
        if not isinstance(event, SseEvent) or event.event != "endpoint":
            return "its event stream does not begin with an endpoint"
        post_url = endpoint.within_origin(endpoint.url, event.data.decode("latin-1").strip())
        if post_url is None:
            return "its event stream names an endpoint of another origin"
        link = SseHttp(endpoint.name, host, tasks, ceiling=endpoint.timeouts.message)
        link.wire = SseWire(endpoint, post_url, answer, events, begun[1:], tasks)
        link.wire.attach(link)
        await link.open(link.wire, "session", probe_timeout=seconds, open_timeout=seconds)
        opened = True
        return link
    finally:
        if not opened:
            answer.close()
