"""HTTP+SSE of 2024-11-05: a GET that stays open is all the server says, POSTs are all we say.

Together they are a duplex channel, so everything but the carrying is the pipe's: a `Link` speaks over it.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from typing import Final

from sluicegate.concurrency import TaskScope
from sluicegate.errors import UpstreamError, UpstreamTimeout
from sluicegate.exchange import Host
from sluicegate.http1 import Answer
from sluicegate.protocol.events import SseEvent
from sluicegate.protocol.framing import TooLong
from sluicegate.protocol.lines import encode_line
from sluicegate.upstream.link import Link
from sluicegate.upstream.messages import LINGER, Events
from sluicegate.upstream.site import ACCEPT_BOTH, ACCEPT_EVENTS, EVENTS, Site

log = logging.getLogger("sluicegate")

MOST_UNSENT: Final = 64 * 1024
PATIENCE: Final = 1.0
"""How long the next message waits for the server to take the one before: some answer a POST only when it is done."""


class SseWire:
    """The two halves of the channel as a `Wire`."""

    def __init__(
        self,
        site: Site,
        endpoint: str,
        answer: Answer,
        events: Events,
        begun: Sequence[SseEvent | TooLong],
        tasks: TaskScope,
    ) -> None:
        """`begun` are the events that came along with the first one."""
        self._site = site
        self._letter = site.letterhead("POST", ACCEPT_BOTH, endpoint)
        self._answer = answer
        self._events = events
        self._begun = begun
        self._tasks = tasks
        self._link: Link | None = None
        self._unsent: deque[bytes] = deque()
        self._size = 0
        self._more = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._reading = asyncio.Event()
        self._reading.set()
        self._end: str | None = None

    def attach(self, link: Link) -> None:
        """Hand what the server says to the link."""
        self._link = link
        link.describe_end = lambda: self._end or "closed its event stream"
        self._tasks.start(self._read())
        self._tasks.start(self._send())

    def close(self) -> None:
        """Hang up: that ends the session."""
        self._answer.close()

    def write(self, data: bytes) -> None:
        self._unsent.append(data)
        self._size += len(data)
        self._more.set()
        if self._size > MOST_UNSENT:
            self._room.clear()

    async def drain(self) -> None:
        # Looked at again after each wait: of many who wait, the first may take all the room.
        while not self._room.is_set():
            await self._room.wait()

    def pause_reading(self) -> None:
        self._reading.clear()

    def resume_reading(self) -> None:
        self._reading.set()

    async def _read(self) -> None:
        try:
            await self._hear(self._begun)
            while (chunk := await self._events.next_chunk()) is not None:
                await self._hear(self._events.read(chunk))
            self._hang_up("closed its event stream")
        except UpstreamTimeout:
            self._hang_up("fell silent in the middle of an event")
        except UpstreamError:
            self._hang_up("cut its event stream")

    async def _hear(self, events: Sequence[SseEvent | TooLong]) -> None:
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
                    async with asyncio.timeout(PATIENCE):
                        await taken.wait()
                self._size -= len(data)
                if self._size <= MOST_UNSENT:
                    self._room.set()
            self._more.clear()

    async def _post(self, data: bytes, taken: asyncio.Event) -> None:
        assert self._link is not None
        message = data.rstrip(b"\n")
        try:
            answer = await self._site.send(self._letter, message)
            taken.set()
            if answer.status in (404, 410):
                self._hang_up(f"has lost the session (status {answer.status})")
            elif not 200 <= answer.status < 300:
                self._link.failed(message, self._site.status_error(answer))
            answer.let_end(LINGER)
        except UpstreamTimeout:
            pass  # Taken it may have been, and its answer may come on the stream.
        except UpstreamError as problem:
            self._link.failed(message, problem)
        finally:
            taken.set()

    def _hang_up(self, end: str) -> None:
        self._end = self._end or end
        # Nobody waits for the answers any more, so nothing more is asked.
        self._unsent.clear()
        self._room.set()
        self._answer.close()
        if self._link is not None:
            self._link.ended()


class SseHttp(Link):
    """A `Connection` over HTTP+SSE."""

    transport: Final = "sse"
    wire: SseWire | None = None

    async def aclose(self) -> None:
        """Hang up."""
        self.close()
        if self.wire is not None:
            self.wire.close()


async def open_sse(site: Site, host: Host, tasks: TaskScope, seconds: float) -> SseHttp | str:
    """A connection, or what the server did if it does not speak this transport.

    Raises:
        UpstreamError: it does, but no acquaintance could be made.
    """
    answer = await site.ask("GET", ACCEPT_EVENTS)
    opened = False
    try:
        if answer.status in (401, 403, 429) or answer.status >= 500:
            raise site.status_error(answer)
        if answer.status == 404:
            return "to GET it answered with status 404; look at the path of its URL, which mostly ends in /mcp"
        if answer.status != 200 or answer.head.media_type != EVENTS:
            return f"to GET it answered with status {answer.status} and no event stream"
        # It may be that nobody asks anything for days, and then it says nothing.
        events = Events(answer, site.patience, endless=True)
        begun: Sequence[SseEvent | TooLong] = ()
        while not begun and (chunk := await events.next_chunk()) is not None:
            begun = events.read(chunk)
        event = begun[0] if begun else None
        if not isinstance(event, SseEvent) or event.event != "endpoint":
            return "its event stream does not begin with an endpoint"
        endpoint = site.within_origin(site.url, event.data.decode("latin-1").strip())
        if endpoint is None:
            return "its event stream names an endpoint of another origin"
        link = SseHttp(site.name, host, tasks, ceiling=site.patience.message)
        link.wire = SseWire(site, endpoint, answer, events, begun[1:], tasks)
        link.wire.attach(link)
        await link.open(link.wire, "session", probe_timeout=seconds, open_timeout=seconds)
        opened = True
        return link
    finally:
        if not opened:
            answer.close()
